"""The problem of several data sets that share their coefficients: the checked arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.host import to_host
from wtfarray._arrays.masks import as_mask, observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import mass_tolerance, per_sample, take_samples
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.stored import StoredData, Summary
from wtfarray._arrays.sums import AgreedError, Sums
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_data,
    as_shard,
    common_namespace,
    instance_of,
    positive_integer,
    positive_number,
    refuse_total,
    same_dtype,
)
from wtfarray._fit.default_rho import default_rho
from wtfarray._fit.sample_mass import unit_of
from wtfarray._fit.specification import Specification, is_sampled
from wtfarray._fit.team import check_same, counts_of, loss_content
from wtfarray._losses.loss_sum import losses_of
from wtfarray._losses.protocol import Loss
from wtfarray._losses.selection import terms_of
from wtfarray._losses.source_term import SourceTerm
from wtfarray._losses.streamed_sources import SideBySide, StreamedSource, StreamedSources
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.coupled import CoupledModel
from wtfarray._models.entropy import Constraint, check_constraint
from wtfarray._models.models import CPModel
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.streamed import StreamedProblem


@dataclass(frozen=True, eq=False)
class Source:
    """One of the data sets: all its samples, 0 where nothing was observed."""

    X: Array
    loss: Loss
    weight: float
    mask: Array | None
    summary: Summary | None = None
    """What a pass over data that are read in chunks has found; their X is `StoredData`."""
    present: NDArray[np.bool_] | None = None
    """Of data that are read in chunks, the samples that there are, (n,); None if these are all."""

    @property
    def features(self) -> int:
        """Number of entries of a sample."""
        return math.prod(self.X.shape[1:])

    def samples(self) -> NDArray[np.intp] | None:
        """The samples of which something was observed; None if these are all."""
        if self.mask is None:
            return None
        xp = array_namespace(self.X)
        seen = xp.any(self.mask, axis=tuple(range(1, self.mask.ndim)))
        seen = to_host(xp.astype(seen, self.X.dtype)) > 0
        return None if seen.all() else np.flatnonzero(seen)

    def terms(
        self, columns: slice, sample_weight: Array | None, batch: int | None, shards: Shards
    ) -> list[SourceTerm]:
        """The terms of the loss, on the samples that the data set has."""
        X, mask, rows = self.X, self.mask, self.samples()
        if rows is not None:
            X, mask = take_samples(X, rows), take_samples(mask, rows)
            if bool(array_namespace(X).all(mask)):
                mask = None
            if sample_weight is not None:
                sample_weight = take_samples(sample_weight, rows)
        if shards.sums.comm is not None:  # each data set may lack other samples
            shards = replace(shards, counts=counts_of(X.shape[0], shards.sums.comm))
        return [
            SourceTerm(term, columns, rows, tuple(X.shape), self.weight)
            for term in terms_of(losses_of(self.loss), X, sample_weight, batch, mask, shards)
        ]


@dataclass(frozen=True, eq=False)
class CoupledSpecification(Specification):
    """A checked problem of several data sets; X and the mask hold them side by side."""

    sources: tuple[Source, ...] = field(default=())

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses of all data sets."""
        return tuple(part for source in self.sources for part in losses_of(source.loss))

    @property
    def details(self) -> tuple[object, ...]:
        """The shapes and weights of the data sets, on which the result depends as well."""
        return tuple(
            (
                (self.shards.total(s.X.shape[0]), *s.X.shape[1:]),
                s.weight,
                *([] if s.present is None else [s.present.tobytes()]),
            )
            for s in self.sources
        )

    @property
    def label(self) -> str:
        """The name of the progress bar."""
        return "coupled"

    @property
    def units(self) -> tuple[float, ...]:
        """The unit of its data set as each loss sees it."""
        assert isinstance(self.model, CoupledModel)
        pairs = zip(self.sources, self.model.scales, strict=True)
        return tuple(unit_of(loss, c) for source, c in pairs for loss in losses_of(source.loss))

    def problem(self, batch: int | None = None) -> FactorisationProblem:
        """The problem for a solver, which processes ``batch`` samples at once."""
        if isinstance(self.X, StoredData):
            return _streamed_problem(self, self.X, self.sources, batch)
        terms, start = [], 0
        for source in self.sources:
            columns = slice(start, start + source.features)
            terms += source.terms(columns, self.sample_weight, batch, self.shards)
            start = columns.stop
        return FactorisationProblem(
            model=self.model,
            terms=list(terms),
            rho=self.rho,
            constraints=self.constraints,
            free=self.free,
            shape=tuple(self.X.shape),
            mask=self.mask,
            shards=self.shards,
            units=self.units,
        )

    def part(self, k: int) -> Specification:
        """The problem of one data set alone, a matrix model."""
        source = self.sources[k]
        assert isinstance(self.model, CoupledModel)
        return Specification(
            kind="nmf",
            X=source.X,
            loss=source.loss,
            model=CPModel(2, learns_weights=False, scale=self.model.scales[k]),
            shapes=(self.shapes[0], self.shapes[1 + k]),
            constraints=(self.constraints[0], self.constraints[1 + k]),
            rho=(self.rho[0], self.rho[1 + k]),
            free=(0, 1),
            sample_weight=self.sample_weight,
            mask=source.mask,
            shards=self.shards,
            unit=self.model.scales[k],
            summary=source.summary,
        )

    def part_problem(self, k: int, batch: int | None) -> FactorisationProblem:
        """The problem of one data set alone for a solver, on the samples that it has."""
        source, part = self.sources[k], self.part(k)
        if source.present is None:
            return part.problem(batch)
        return _streamed_problem(part, source.X, (replace(source, weight=1.0),), batch)


def _streamed_problem(
    spec: Specification, data: StoredData, sources: tuple[Source, ...], batch: int | None
) -> StreamedProblem:
    """The problem of data sets that are read in chunks and stand side by side in ``data``."""
    parts = [
        StreamedSource(losses_of(s.loss), tuple(s.X.shape[1:]), s.weight, s.present)
        for s in sources
    ]
    weights = 1.0 if spec.sample_weight is None else to_host(spec.sample_weight)
    scales = [
        s.weight * float((_masses(s) * weights).sum()) * loss.eps
        if isinstance(loss, Wasserstein)
        else 0.0
        for s in sources
        for loss in losses_of(s.loss)
    ]
    losses = StreamedSources(parts, data, spec.sample_weight, batch)
    return StreamedProblem(
        model=spec.model,
        terms=[],
        rho=spec.block_rho,
        constraints=spec.constraints,
        free=spec.free,
        shape=tuple(data.shape),
        units=spec.units,
        losses=losses,
        scales=tuple(scales),
        batches=losses.batches,
    )


def _masses(source: Source) -> NDArray[np.float64]:
    """The mass of each sample of data that are read in chunks, 0 if it is not there."""
    assert source.summary is not None
    return source.summary.mass


def checked_sources(
    Xs: Sequence[Array],
    losses: Sequence[Loss],
    weights: Sequence[float] | None,
    masks: Sequence[Array | None] | None,
    *,
    shared: bool = False,
) -> tuple[Source, ...]:
    """
    Check the data sets, which must have the same samples, and their losses.

    If several processes share the samples, ``shared``, this one may have none.
    """
    if isinstance(weights, np.ndarray) and weights.ndim == 1:
        weights = weights.tolist()
    for name, given in (("X", Xs), ("losses", losses), ("weights", weights), ("mask", masks)):
        if given is None and name in ("weights", "mask"):
            continue
        if not isinstance(given, Sequence) or isinstance(given, str):
            msg = f"{name} is a {type(given).__name__}: expected a list with one entry per data set"
            raise TypeError(msg)
        if len(given) != len(Xs) or not given:
            msg = f"{name} has {len(given)} entries: expected {max(1, len(Xs))}, one per data set"
            raise ValueError(msg)
    xp = common_namespace(**{f"X[{k}]": X for k, X in enumerate(Xs)})
    sources: list[Source] = []
    for k, (X, loss) in enumerate(zip(Xs, losses, strict=True)):
        given = None if masks is None else masks[k]
        mask = as_mask(f"mask[{k}]", given, X, f"X[{k}]", shared=shared)
        X = (as_shard if shared else as_data)(f"X[{k}]", observed(X, mask), xp)  # noqa: PLW2901
        if X.ndim < 2 or X.shape[0] != Xs[0].shape[0]:
            msg = (
                f"X[{k}] has shape {tuple(X.shape)}: expected the {Xs[0].shape[0]} samples of X[0] "
                "in its first mode, and at least one more mode"
            )
            raise ValueError(msg)
        expected = "a loss of wtfarray, or an object with value_and_gradient"
        instance_of(f"losses[{k}]", loss, Loss, expected)
        if not is_sampled(loss, tuple(X.shape)):
            msg = f"losses[{k}] transports the first mode: expected one that indexes samples"
            raise ValueError(msg)
        weight = 1.0 if weights is None else positive_number(f"weights[{k}]", weights[k])
        first = sources[0].X if sources else X
        same_dtype(f"X[{k}]", X, "X[0]", first)
        sources.append(Source(X, loss, weight, mask))
    return tuple(sources)


def shared_sources(
    sources: tuple[Source, ...],
    sample_weight: Array | None,
    comm: Communicator,
    interrupted: Callable[[], bool],
) -> tuple[tuple[Source, ...], Shards]:
    """
    The data sets of one of several processes, which have to fit together, and all their samples.

    A data set with missing entries on some process has a mask on all of them.
    """
    sums = Sums(comm)
    check_same(
        sums,
        {
            "The shape of a sample of X": [tuple(source.X.shape[1:]) for source in sources],
            "The dtype of X": str(sources[0].X.dtype).rpartition(".")[2],
            "losses": b"".join(loss_content(source.loss) for source in sources),
            "weights": [source.weight for source in sources],
            "sample_weight (None or not)": sample_weight is None,
        },
    )
    found = []
    for k, source in enumerate(sources):
        X = source.X
        (mass,) = sums.numbers(float(array_namespace(X).sum(X)))
        try:
            refuse_total(f"X[{k}]", mass, X, positive=mass != 0.0, ranks=", on all ranks")
        except ValueError as error:
            raise AgreedError(error) from None
        masked = sums.any(source.mask is not None)
        mask = X >= 0 if masked and source.mask is None else source.mask
        found.append(replace(source, mask=mask))
    shards = Shards(sums, counts_of(int(sources[0].X.shape[0]), comm), interrupted)
    return tuple(found), shards


def specify_coupled(
    sources: tuple[Source, ...],
    rank: int,
    *,
    rho: float | Sequence[float] | None,
    constraints: Sequence[Constraint] | None,
    free: tuple[int, ...],
    sample_weight: Array | None,
    scales: tuple[float, ...] | None = None,
    shards: Shards = WHOLE,
) -> CoupledSpecification:
    """The problem of checked data sets; ``scales`` are those of an earlier fit, if given."""
    rank = positive_integer("rank", rank)
    units = [shards.sums.all(_has_unit_samples(source)) for source in sources]
    n, unit = sources[0].X.shape[0], all(units)
    if constraints is None:
        # The scale of the coefficients is fixed by one data set; a component may have another mass
        # in the others. If all samples have mass one, so has every component in every data set.
        columns: Constraint = "columns"
        others = columns if unit else None
        constraints = ("rows" if unit else None, columns, *(others for _ in sources[1:]))
    if isinstance(constraints, str) or len(constraints) != 1 + len(sources):
        msg = (
            f"constraints is {constraints!r}: expected {1 + len(sources)} entries, for the "
            "coefficients and the atoms of each data set"
        )
        raise ValueError(msg)
    shapes = ((n, rank), *((source.features, rank) for source in sources))
    for k, constraint in enumerate(constraints):
        check_constraint(f"constraints[{k}]", constraint, 2)
    for k, source in enumerate(sources):
        balanced = any(
            isinstance(loss, Wasserstein) and math.isinf(loss.lam)
            for loss in losses_of(source.loss)
        )
        conserved = constraints[0] == "rows" and constraints[1 + k] == "columns"
        if balanced and shards.sums.any(_lacks_entries(source)):
            msg = (
                f"mask[{k}] hides some bins of a sample, and losses[{k}] is balanced (lam = inf), "
                "which needs the mass of the whole sample: expected a finite lam, or a mask of "
                "whole samples"
            )
            raise ValueError(msg)
        if balanced and not (conserved and units[k]):
            msg = (
                f"losses[{k}] is balanced (lam = inf): expected samples of mass one in every data "
                "set, the default constraints, or a finite lam"
            )
            raise ValueError(msg)
    if scales is None:
        scales = tuple(
            1.0 if unit or constraint in ("rows", "all") else _mean_mass(source, shards.sums)
            for source, constraint in zip(sources, constraints[1:], strict=True)
        )
    if rho is None:
        rho = _default_rho(sources, shapes, constraints, shards)
    else:
        rho = _rho(rho, len(shapes))
    X, mask, summary = _side_by_side(sources, unit=unit)
    return CoupledSpecification(
        kind="nmf",
        X=X,
        loss=sources[0].loss,
        model=CoupledModel(scales),
        shapes=shapes,
        constraints=tuple(constraints),
        rho=rho,
        free=free,
        sample_weight=sample_weight,
        mask=mask,
        shards=shards,
        summary=summary,
        sources=sources,
    )


def _default_rho(
    sources: Sequence[Source],
    shapes: Sequence[tuple[int, ...]],
    constraints: Sequence[Constraint],
    shards: Shards,
) -> tuple[float, ...]:
    """
    The default weights of the entropies, from those of a fit to each data set.

    The coefficients of a sample have a sum of about one, because the model is scaled to the data.
    """
    pairs = []
    for source, shape, constraint in zip(sources, shapes[1:], constraints[1:], strict=True):
        if source.summary is None:
            (mass,) = shards.sums.numbers(float(array_namespace(source.X).sum(source.X)))
        else:
            mass = float(_masses(source).sum())
        pair = default_rho(
            losses_of(source.loss),
            source.X,
            mass,
            (shapes[0], shape),
            ("rows", constraint),
            shards,
            (mass, float(shape[1])),  # the columns of atoms sum to about one
        )
        pairs.append([source.weight * value for value in pair])
    return (sum(first for first, _ in pairs), *(atoms for _, atoms in pairs))


def _rho(rho: float | Sequence[float], blocks: int) -> tuple[float, ...]:
    """One weight for the coefficients and the atoms of each data set."""
    if not isinstance(rho, Sequence):
        return (positive_number("rho", rho),) * blocks
    if len(rho) != blocks:
        msg = f"rho has {len(rho)} entries: expected a number, or {blocks} of them"
        raise ValueError(msg)
    return tuple(positive_number(f"rho[{k}]", value) for k, value in enumerate(rho))


def _side_by_side(
    sources: Sequence[Source], *, unit: bool
) -> tuple[Array, Array | None, Summary | None]:
    """All data sets as one matrix, its mask, and if it is read in chunks a summary."""
    first = sources[0].X
    if isinstance(first, StoredData):
        data = StoredData(SideBySide([source.X for source in sources]), first.chunk)
        summaries = [source.summary for source in sources if source.summary is not None]
        positive, count = (
            sum(getattr(found, name) for found in summaries) for name in ("positive", "observed")
        )
        mass = np.sum([found.mass for found in summaries], axis=0)
        return data, None, Summary(mass, positive, count, complete=True, unit=unit)
    xp, mask = array_namespace(first), None
    if any(source.mask is not None for source in sources):
        mask = xp.concat([_flat_mask(source) for source in sources], axis=1)
    parts = [xp.reshape(source.X, (first.shape[0], source.features)) for source in sources]
    return xp.concat(parts, axis=1), mask, None


def _flat_mask(source: Source) -> Array:
    """The mask of a data set, (n, features)."""
    xp = array_namespace(source.X)
    shape = (source.X.shape[0], source.features)
    if source.mask is None:
        return xp.ones(shape, dtype=xp.bool, device=device_of(source.X))
    return xp.reshape(source.mask, shape)


def _lacks_entries(source: Source) -> bool:
    """Whether some sample was observed in part."""
    if source.mask is None:
        return False
    xp, axes = array_namespace(source.X), tuple(range(1, source.mask.ndim))
    partly = xp.any(source.mask, axis=axes) & ~xp.all(source.mask, axis=axes)
    return bool(xp.any(partly))


def _has_unit_samples(source: Source) -> bool:
    """Whether the samples have mass one; those that the data set lacks are ignored."""
    if source.summary is not None:
        mass = _masses(source)[slice(None) if source.present is None else source.present]
        return bool(np.all(np.abs(mass - 1.0) <= mass_tolerance(source.X.like)))
    xp = array_namespace(source.X)
    unit = xp.abs(per_sample(source.X) - 1.0) <= mass_tolerance(source.X)
    if source.mask is not None:
        axes = tuple(range(1, source.mask.ndim))
        unit = (unit & xp.all(source.mask, axis=axes)) | ~xp.any(source.mask, axis=axes)
    return bool(xp.all(unit))


def _mean_mass(source: Source, sums: Sums) -> float:
    """The mean mass of a sample, if entries are missing an estimate."""
    if source.summary is not None:
        masses = _masses(source)[slice(None) if source.present is None else source.present]
        return float(masses.mean())
    xp = array_namespace(source.X)
    count = float(math.prod(source.X.shape))
    if source.mask is not None:
        count = float(xp.sum(xp.astype(source.mask, source.X.dtype)))
    mass, count = sums.numbers(float(xp.sum(source.X)), count)
    return mass / count * source.features
