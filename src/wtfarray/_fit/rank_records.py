"""What a scan over the rank found, and the rank that it suggests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wtfarray._fit.rank_choice import suggest_rank
from wtfarray._fit.result import Factorisation
from wtfarray._fit.specification import Kind

Rank = int | tuple[int, ...]


@dataclass(frozen=True)
class RankRecord:
    """The results of a scan for one rank."""

    rank: Rank
    objective: float
    """Objective of the best fit to all samples."""
    gap: float
    """Its duality gap."""
    loss: float
    """Its mean loss per sample, without entropies, above the minimum over all models."""
    held_out: float | None
    """The same for samples that were left out and projected; None without such samples."""
    held_out_error: float | None
    """Standard error of ``held_out`` over the folds; None for a single fold."""
    stability: float | None
    """Mean cosine of matched atoms over all pairs of seeds; None for a single seed."""
    held_out_entries: float | None
    """The loss per sample of entries that were left out; None without such entries."""
    core_consistency: float | None
    """Of the best fit of a CP model with at least three modes, at most 100; None otherwise."""
    converged: bool
    """Whether all fits of this rank converged."""
    seconds: float
    """Time for this rank."""


@dataclass(frozen=True, eq=False, repr=False)
class RankScan:
    """The result of `rank_scan`; iterates over its records."""

    model: Kind
    records: list[RankRecord]
    """One for each rank, smallest rank first."""
    fits: list[Factorisation]
    """The best fit to all samples for each rank."""
    unstructured: float | None = None
    """The loss per sample of constant samples, rank 0; None if the smallest rank is not 1."""

    def __iter__(self) -> Iterator[RankRecord]:
        """The records, smallest rank first."""
        return iter(self.records)

    @property
    def suggested(self) -> int | None:
        """
        The rank after which the loss stops falling, None if no rank stands out.

        It maximises ``D(r) / D(r + 1)``, where ``D(r)`` is the decrease of the loss of the fitted
        samples from rank r - 1 to r. The largest rank of the scan cannot be judged; if the loss
        still falls there by a tenth of what it fell at the best rank, none is suggested. There is
        no suggestion for Tucker models.
        """
        found = self._suggestion()
        return None if found is None else found[0]

    def _suggestion(self) -> tuple[int, float] | None:
        """The suggested rank, and the ratio of the decreases before and after it."""
        if self.model == "tucker":
            return None
        ranks = [r.rank for r in self.records if isinstance(r.rank, int)]
        return suggest_rank(ranks, [r.loss for r in self.records], self.unstructured)

    def _reason(self) -> str:
        """Why a rank is suggested, or none."""
        found = self._suggestion()
        if found is None:
            largest = self.records[-1].rank
            return f"none, no rank below {largest} stands out; larger ranks were not tried"
        rank, ratio = found
        return f"{rank}, whose component lowers the loss {ratio:.0f} times as much as the next one"

    def __repr__(self) -> str:
        """A table of the criteria, and the suggested rank with its reason."""
        cores = any(r.core_consistency is not None for r in self.records)
        head = f"{'rank':<12}{'objective':>12}{'loss':>11}{'held out':>11}{'stability':>11}"
        entries = any(r.held_out_entries is not None for r in self.records)
        head += f"{'entries':>11}" if entries else ""
        head += f"{'core':>8}" if cores else ""
        lines = [f"<rank scan of {self.model}, loss per sample above its minimum>"]
        lines.append(f"{head}{'time':>9}")
        found = self._suggestion()
        for r in self.records:
            line = f"{str(r.rank).strip('()'):<12}{r.objective:>12.6g}{r.loss:>11.4g}"
            line += f"{_formatted(r.held_out, '.4g'):>11}{_formatted(r.stability, '.3f'):>11}"
            line += f"{_formatted(r.held_out_entries, '.4g'):>11}" if entries else ""
            line += f"{_formatted(r.core_consistency, '.0f'):>8}" if cores else ""
            line += f"{r.seconds:>8.1f}s"
            line += " <- suggested" if found is not None and r.rank == found[0] else ""
            lines.append(line if r.converged else f"{line} (not all fits converged)")
        if self.model != "tucker" and self.records:
            lines.append(f"suggested rank: {self._reason()}")
        return "\n".join(lines)


def _formatted(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
