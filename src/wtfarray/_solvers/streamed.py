"""
The objective of data that are read in chunks.

Model, inner problems and adjoints are those of one batch of samples at a time. The adjoint of the
first factor is put together from its rows, those of all other blocks are summed over the batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wtfarray._arrays.host import to_host, to_host_together
from wtfarray._arrays.masks import observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._losses.streamed import StreamedLosses
from wtfarray._losses.term import TermValue
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._solvers.problem import (
    CERTIFICATE_ITERATIONS,
    ROUGH_ITERATIONS,
    FactorisationProblem,
    LossValue,
)


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamedProblem(FactorisationProblem):
    """A factorisation problem without terms of its own: those of the batches take their place."""

    losses: StreamedLosses
    scales: tuple[float, ...]
    """The scale of each loss: eps times the mass."""
    batches: int
    """Number of batches, of all processes."""

    @property
    def scale(self) -> float:
        """A negligible error of the objective: eps times the mass."""
        return sum(self.scales)

    @property
    def offset(self) -> float:
        """What the unit of the data adds to the objective, a constant."""
        return sum(t * math.log(s) for t, s in zip(self.scales, self.units, strict=False))

    def least(self) -> float:
        """The smallest loss that any model could have, in one more pass over the data."""
        return sum(part.least() for _, part in self.parts())

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the inner problems."""
        return math.ceil(self.losses.evaluations / self.shape[0])

    @property
    def work(self) -> float:
        """Work of the inner problems."""
        return self.losses.work

    def set_level(self, level: float) -> None:
        """Set the smoothing to ``level`` times eps."""
        self.losses.set_level(level)

    def drop_history(self) -> None:
        """No effect: nothing but the potentials is kept."""

    def states(self) -> list[Array]:
        """The potentials, in files that do not change any more."""
        return [self.losses.state]

    def restore(self, states: Sequence[Array]) -> None:
        """Restore the potentials."""
        (self.losses.state,) = states

    def parts(self) -> Iterator[tuple[slice, FactorisationProblem]]:
        """The samples of each batch, and its problem."""
        for rows, terms, mask in self.losses.terms():
            shape = (rows.stop - rows.start, *self.shape[1:])
            part = FactorisationProblem(
                self.model,
                terms,
                self.rho,
                self.constraints,
                self.free,
                shape,
                mask=mask,
                units=self.units,
            )
            yield rows, part

    def evaluate(
        self,
        blocks: Sequence[Array],
        tolerance: float,
        max_iter: int,
        *,
        assumed_ordinary: bool = False,  # noqa: ARG002
    ) -> LossValue | None:
        """The losses and their adjoints, batch by batch; every model is checked."""
        xp = array_namespace(*blocks)
        files, found = self.losses.begin(), []
        rows_of_first: list[Array] = []
        others: list[Array] = []
        for rows, part in self.parts():
            value = part.evaluate(at_rows(blocks, rows), tolerance / self.batches, max_iter)
            if value is None:
                break
            first, *rest = value.adjoints
            rows_of_first.append(first)
            others = [a + b for a, b in zip(others, rest, strict=True)] if others else rest
            numbers = to_host_together([value.value, value.gap])
            found.append((*numbers, value.error, value.converged))
            self.losses.store(files, rows, part.terms)
        if self.shards.sums.any(value is None):
            return None
        self.losses.state = files
        first = rows_of_first[0] if len(rows_of_first) == 1 else xp.concat(rows_of_first)
        values, gaps, errors, converged = zip(*found, strict=True)
        return LossValue(sum(values), sum(errors), sum(gaps), all(converged), [first, *others])

    def certify(
        self, blocks: Sequence[Array], share: float, iterations: int = CERTIFICATE_ITERATIONS
    ) -> TermValue:
        """The objective with a gap of at most the fraction ``share`` of it, and u in a file."""
        entropy = sum(self.block_entropy(blocks, k) for k in range(len(blocks)))
        few = min(ROUGH_ITERATIONS, iterations)
        rough = self.evaluate(blocks, 0.1 * self.scale, few)
        total, sums = math.nan, self.shards.sums
        if rough is not None:
            total = sums.numbers(rough.value + rough.error)[0] + entropy
        allowed = share * self.magnitude(total) / self.batches
        files, dual = self.losses.begin(), self.losses.file(self.shape)
        value, gap = 0.0, 0.0
        for rows, part in self.parts():
            model = part.tensor(at_rows(blocks, rows))
            exact = [
                term.certify(model, allowed / len(part.terms), iterations) for term in part.terms
            ]
            value += sum(v.value for v in exact)
            gap += sum(v.gap for v in exact)
            dual.write(rows.start, to_host(observed(exact[0].gradient, part.mask)))
            self.losses.store(files, rows, part.terms)
        self.losses.state = files
        value, gap = sums.numbers(value, gap)
        value += entropy
        converged = gap <= share * self.magnitude(value)
        return TermValue(value, gap, gap, dual, converged)


def parts_of(
    problem: FactorisationProblem,
) -> Iterator[tuple[slice | None, FactorisationProblem]]:
    """The batches of a problem; all samples, with None, if its data are in memory."""
    if isinstance(problem, StreamedProblem):
        yield from problem.parts()
    else:
        yield None, problem


def at_rows(blocks: Sequence[Array], rows: slice | None) -> list[Array]:
    """The blocks of some samples: of the first factor these rows; all if None."""
    return list(blocks) if rows is None else [blocks[0][rows, :], *blocks[1:]]


def streamed_scales(losses: StreamedLosses, mass: Array, sums: Sums = ALONE) -> tuple[float, ...]:
    """Eps times the weighted mass for each loss; ``mass`` of the samples, (n,), on the host."""
    weights = 1.0 if losses.weights is None else to_host(losses.weights)
    (total,) = sums.numbers(float((mass * weights).sum()))
    return tuple(
        loss.eps * total if isinstance(loss, Wasserstein) else 0.0 for loss in losses.losses
    )
