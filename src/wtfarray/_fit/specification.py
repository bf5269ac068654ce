"""The factorisation problem: the checked arguments of a fit, with defaults filled in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Literal

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.masks import as_mask, observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import mass_tolerance, per_sample
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.stored import (
    StoredData,
    Summary,
    is_larger_than_a_chunk,
    is_stored,
    like,
)
from wtfarray._arrays.stored_mask import StoredMask
from wtfarray._arrays.sums import AgreedError, Sums
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_data,
    as_shard,
    axis_index,
    check_shape,
    common_namespace,
    follow,
    instance_of,
    on_one_device,
    one_of,
    positive_integer,
    positive_number,
    refuse_total,
)
from wtfarray._fit.default_rho import ENTROPY_SHARE, default_rho
from wtfarray._fit.sample_mass import sample_mass, unit_of
from wtfarray._fit.team import check_same, counts_of, loss_content
from wtfarray._losses.loss_sum import losses_of
from wtfarray._losses.protocol import Loss
from wtfarray._losses.selection import terms_of
from wtfarray._losses.streamed import StreamedLosses
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint, check_constraint
from wtfarray._models.models import CPModel, Model, TuckerModel
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.streamed import StreamedProblem, streamed_scales

_COLUMNS: Constraint = "columns"
Kind = Literal["cp", "tucker", "nmf"]
Weights = Literal["learned", "fixed"] | None
LOSS = "a loss of wtfarray, or an object with value_and_gradient"


@dataclass(frozen=True, eq=False)
class Specification:
    """A checked factorisation problem; blocks are the factors, then the core or the weights."""

    kind: Kind
    X: Array
    loss: Loss
    model: Model
    shapes: tuple[tuple[int, ...], ...]
    constraints: tuple[Constraint, ...]
    rho: tuple[float | Array, ...]
    """Weights of the entropies, of the blocks in the units of the data."""
    free: tuple[int, ...]
    sample_weight: Array | None
    mask: Array | None = None
    """Bool, in the shape of X: True where it was observed, 0 elsewhere; None if everywhere."""
    shards: Shards = WHOLE
    """Which samples other processes hold; X and the first shape are those of this process."""
    summary: Summary | None = None
    """What a pass over data that are read in chunks has found."""
    unit: float = 1.0
    """The mean mass s of a sample, in which the carrier is measured."""
    carrier: int | None = None
    """
    The free block without constraint that carries the mass of the data, if there is one.

    It is fitted as ``A / s``, and the model has the scale s: blocks, steps and tolerances do not
    depend on the unit of the data. Its entropy is relative to s, ``<A, log(A / s) - 1>``.
    """

    @property
    def references(self) -> tuple[float, ...]:
        """For each block the number s to which its entropy ``<A, log(A / s) - 1>`` is relative."""
        return tuple(self.unit if k == self.carrier else 1.0 for k in range(len(self.shapes)))

    @property
    def block_rho(self) -> tuple[float | Array, ...]:
        """The weights of the entropies of the blocks that are fitted, ``s E(A / s)``."""
        return tuple(rho * s for rho, s in zip(self.rho, self.references, strict=True))

    @property
    def units(self) -> tuple[float, ...]:
        """The unit of the data as each loss sees it."""
        return tuple(unit_of(loss, self.unit) for loss in self.losses)

    def in_units_of_data(self, blocks: list[Array]) -> list[Array]:
        """Blocks that were fitted, in the units of the data."""
        blocks = list(blocks)
        if self.carrier is not None and self.unit != 1.0:
            blocks[self.carrier] = blocks[self.carrier] * self.unit
        return blocks

    @property
    def modes(self) -> int:
        """Number of factors."""
        return self.model.modes

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The summands of the loss."""
        return losses_of(self.loss)

    @property
    def label(self) -> str:
        """The name of the progress bar."""
        return self.kind

    @property
    def details(self) -> tuple[object, ...]:
        """What else the result depends on."""
        return ()

    @property
    def like(self) -> Array:
        """An array of the library, the dtype and the device of the data."""
        return like(self.X)

    def problem(self, batch: int | None = None) -> FactorisationProblem:
        """The problem for a solver, which processes ``batch`` samples at once."""
        if isinstance(self.X, StoredData):
            assert self.summary is not None
            losses = StreamedLosses(self.losses, self.X, self.sample_weight, batch)
            return StreamedProblem(
                model=self.model,
                terms=[],
                rho=self.block_rho,
                constraints=self.constraints,
                free=self.free,
                shape=tuple(self.X.shape),
                shards=self.shards,
                units=self.units,
                losses=losses,
                scales=streamed_scales(losses, self.summary.mass, self.shards.sums),
                batches=int(self.shards.sums.numbers(losses.batches)[0]),
            )
        return FactorisationProblem(
            model=self.model,
            terms=terms_of(self.losses, self.X, self.sample_weight, batch, self.mask, self.shards),
            rho=self.block_rho,
            constraints=self.constraints,
            free=self.free,
            shape=tuple(self.X.shape),
            mask=self.mask,
            shards=self.shards,
            units=self.units,
        )


def specify(
    kind: Kind,
    X: Array,
    rank: int | Sequence[int],
    loss: Loss,
    *,
    rho: float | Sequence[float] | None,
    constraints: Sequence[Constraint] | None,
    weights: Weights,
    fixed: Sequence[int],
    sample_weight: Array | None,
    mask: Array | None = None,
    comm: Communicator | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    chunk: int | None = None,
    scratch: str | PathLike[str] | None = None,
    entropy_share: float = ENTROPY_SHARE,
) -> Specification:
    """Check the arguments of a fit and fill in the defaults."""
    sums = Sums(comm)
    chunked = sums.shared and sums.any(chunk is not None or is_larger_than_a_chunk(X))

    def check() -> tuple[Array, Array | None, Array | None, Summary | None]:
        if not chunked and chunk is None and (sums.shared or not is_stored(X)):
            data, seen, summary = *_in_memory(X, mask, shared=comm is not None), None
            if scratch is not None:
                msg = "scratch was given for an array in memory: expected None, or a chunk as well"
                raise ValueError(msg)
        else:
            data, seen, summary = _read_in_chunks(X, loss, mask, chunk, scratch, shared=sums.shared)
        instance_of("loss", loss, Loss, LOSS)
        sizes = _mode_sizes(kind, tuple(data.shape))
        _ranks(kind, rank, len(sizes))
        if comm is not None and not is_sampled(loss, tuple(data.shape)):
            msg = (
                "comm was given, but the loss transports the first mode of X: expected a loss "
                "that transports other modes, so that every process has samples of its own"
            )
            raise ValueError(msg)
        weight = checked_sample_weight(sample_weight, data, shared=sums.shared)
        return data, weight, seen, summary

    X, sample_weight, mask, summary = sums.agree(check)
    if sums.any(mask is not None) and mask is None:
        # All of this part was observed, but not of the others.
        if isinstance(X, StoredData):
            mask = StoredMask(np.ones((1,), dtype=bool), X.shape)
            X = X.with_mask(mask)
        else:
            mask = X >= 0
    arguments = (kind, X, rank, loss, rho, constraints, weights, fixed, sample_weight, mask)
    if comm is None:
        return _specified(*arguments, WHOLE, summary, entropy_share)
    same = {"rank": rank, "rho": rho, "constraints": constraints, "weights": weights}
    check_same(sums, {"The model": kind, **same, "fixed": fixed})
    shards = _shards(comm, X, loss, sample_weight, summary, interrupted)
    try:
        return _specified(*arguments, shards, summary, entropy_share)
    except Exception as error:  # noqa: BLE001 -- the same on every rank, as the arguments are
        raise AgreedError(error) from None


def _shards(
    comm: Communicator,
    X: Array,
    loss: Loss,
    sample_weight: Array | None,
    summary: Summary | None,
    interrupted: Callable[[], bool],
) -> Shards:
    """The samples of all processes, whose data have to fit together."""
    data, sums = like(X), Sums(comm)
    xp = array_namespace(data)
    check_same(
        sums,
        {
            "The shape of a sample of X": tuple(X.shape[1:]),
            "The dtype of X": str(X.dtype).rpartition(".")[2],
            "loss": loss_content(loss),
            "sample_weight (None or not)": sample_weight is None,
        },
    )
    shards = Shards(sums, counts_of(X.shape[0], comm), interrupted)
    here = float(xp.sum(X)) if summary is None else float(summary.mass.sum())
    weighted = 0.0 if sample_weight is None else float(xp.sum(sample_weight))
    mass, weight = sums.numbers(here, weighted)
    try:
        ranks = ", on all ranks"
        refuse_total("X", mass, data, positive=mass != 0.0, ranks=ranks)
        if sample_weight is not None:
            refuse_total("sample_weight", weight, data, positive=weight != 0.0, ranks=ranks)
    except ValueError as error:
        raise AgreedError(error) from None
    return shards


def _specified(
    kind: Kind,
    X: Array,
    rank: int | Sequence[int],
    loss: Loss,
    rho: float | Sequence[float] | None,
    constraints: Sequence[Constraint] | None,
    weights: Weights,
    fixed: Sequence[int],
    sample_weight: Array | None,
    mask: Array | None,
    shards: Shards,
    summary: Summary | None,
    entropy_share: float,
) -> Specification:
    """The problem for checked data."""
    sizes = _mode_sizes(kind, tuple(X.shape))
    ranks = _ranks(kind, rank, len(sizes))
    sampled = is_sampled(loss, tuple(X.shape))
    here, ones = (
        (float(array_namespace(X).sum(X)), sampled and _has_unit_samples(X, mask))
        if summary is None
        else (float(summary.mass.sum()), summary.unit)
    )
    normalised, (mass,) = shards.sums.all(ones), shards.sums.numbers(here)
    chosen = _constraints(
        kind, constraints, len(sizes), sampled=sampled, unit=normalised, complete=mask is None
    )
    shapes: list[tuple[int, ...]] = list(zip(sizes, ranks, strict=True))
    model: Model
    weighted = False  # whether weights carry the mass of the data
    if kind == "tucker":
        core = chosen[len(sizes)] if len(chosen) > len(sizes) else None
        complete = mask is None and not sampled
        if constraints is None and complete and abs(mass - 1.0) < mass_tolerance(like(X)):
            core = "all"
        chosen = (*chosen[: len(sizes)], core)
        shapes.append(tuple(ranks))
        model = TuckerModel(len(sizes))
    else:
        one_of("weights", weights, (None, "learned", "fixed"))
        learned = weights == "learned" or (weights is None and set(chosen) == {"columns"})
        if mask is not None and (learned or weights == "fixed"):
            msg = (
                f"weights is {weights!r}, constraints {chosen}, and mask hides entries of X, whose "
                "mass would be the sum of the weights: expected a factor whose constraint is None"
            )
            raise ValueError(msg)
        weighted = learned or weights == "fixed"
        scale = mass if learned else mass / ranks[0] if weighted else 1.0
        model = CPModel(len(sizes), learned, scale)
        if learned:
            shapes.append((ranks[0],))
            chosen = (*chosen, "all")
    for k, constraint in enumerate(chosen):
        check_constraint(f"constraints[{k}]", constraint, len(shapes[k]))
    instance_of("fixed", fixed, Iterable, "a sequence of modes")
    fixed_modes = {axis_index("fixed", k, len(sizes)) for k in fixed}
    if len(fixed_modes) == len(shapes):
        msg = f"fixed is {tuple(fixed)}: expected at least one block to be left free"
        raise ValueError(msg)
    free = tuple(k for k in range(len(shapes)) if k not in fixed_modes)
    unit = sample_mass(X, sample_weight, shards, summary, sampled=sampled)
    carrier = next((k for k in free if chosen[k] is None and not weighted), None)
    if carrier is not None:
        model = replace(model, scale=unit)
    if rho is None:
        masses = [mass if k == carrier else mass / unit for k in range(len(shapes))]
        weights_of_entropies = default_rho(
            losses_of(loss), X, mass, shapes, chosen, shards, masses, entropy_share
        )
    else:
        weights_of_entropies = _rho(rho, len(sizes), len(shapes))
    return Specification(
        kind=kind,
        X=X,
        loss=loss,
        model=model,
        shapes=tuple(shapes),
        constraints=chosen,
        rho=weights_of_entropies,
        free=free,
        sample_weight=sample_weight,
        mask=mask,
        shards=shards,
        summary=summary,
        unit=unit,
        carrier=carrier,
    )


def _read_in_chunks(
    X: Array,
    loss: Loss,
    mask: Array | None,
    chunk: int | None,
    scratch: str | PathLike[str] | None,
    *,
    shared: bool,
) -> tuple[Array, Array | None, Summary | None]:
    """
    Data that are read in chunks, and what a pass over them found.

    Small ones are read into memory, unless other processes have samples as well, ``shared``, of
    which some are not.
    """
    instance_of("loss", loss, Loss, LOSS)
    if chunk is not None:
        chunk = positive_integer("chunk", chunk)
    if not is_stored(X):
        common_namespace(X=X)  # refuses what is no array
    seen = None if mask is None else StoredMask(mask, tuple(int(n) for n in X.shape))
    data = StoredData(X, chunk, scratch)
    if chunk is None and data.chunk == data.samples and not shared:
        whole = data.read(slice(0, data.samples))
        known = None if seen is None else seen.read(slice(0, data.samples), whole)
        return *_in_memory(whole, known, shared=False), None
    unsupported = None
    if any(getattr(part, "debias", False) for part in losses_of(loss)):
        unsupported = "loss is debiased"
    elif not is_sampled(loss, data.shape):
        unsupported = "loss transports the first mode"
    if unsupported is not None:
        msg = f"{unsupported} for an X that is read in chunks of samples: expected X in memory"
        raise ValueError(msg)
    data = StoredData(X, chunk, scratch, mask=seen)
    summary = data.summary("X", shared=shared)
    if seen is not None and summary.complete:
        data, seen = data.with_mask(None), None
    return data, seen, summary


def _in_memory(X: Array, mask: Array | None, *, shared: bool) -> tuple[Array, Array | None]:
    """The checked array, 0 where it was not observed, and its mask."""
    if is_stored(X):  # small data of one of several processes
        shape = tuple(int(n) for n in X.shape)
        rows = slice(0, shape[0])
        X = np.asarray(X[rows]) if 0 in shape else StoredData(X).read(rows)
        mask = None if mask is None else StoredMask(mask, shape).read(rows, X)
    xp = common_namespace(X=X)
    seen = as_mask("mask", mask, on_one_device("X", X), shared=shared)
    return (as_shard if shared else as_data)("X", observed(X, seen), xp), seen


def _mode_sizes(kind: Kind, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The number of rows of each factor; a matrix model has all features in one mode."""
    if kind != "nmf":
        return shape
    if len(shape) < 2:
        msg = f"X has shape {shape}: expected samples x features, or samples x several modes"
        raise ValueError(msg)
    return (shape[0], math.prod(shape[1:]))


def _ranks(kind: Kind, rank: int | Sequence[int], modes: int) -> tuple[int, ...]:
    if kind != "tucker":
        return (positive_integer("rank", rank),) * modes
    if not isinstance(rank, Sequence) or len(rank) != modes:
        msg = f"rank is {rank!r}: expected {modes} positive integers, one for each mode"
        raise ValueError(msg)
    return tuple(positive_integer(f"rank[{k}]", r) for k, r in enumerate(rank))


def is_sampled(loss: Loss, shape: tuple[int, ...]) -> bool:
    """Whether the first mode indexes samples: no loss transports it."""
    return not any(
        isinstance(part, Wasserstein) and 0 in part.transported(shape) for part in losses_of(loss)
    )


def _has_unit_samples(X: Array, mask: Array | None) -> bool:
    """Whether all samples have mass one; those of which nothing was observed are ignored."""
    return bool(_all_unit(X, mask))


@compiled()
def _all_unit(X: Array, mask: Array | None) -> Array:
    xp = array_namespace(X)
    unit = xp.abs(per_sample(X) - 1.0) <= mass_tolerance(X)
    if mask is not None:
        axes = tuple(range(1, mask.ndim))
        unit = (unit & xp.all(mask, axis=axes)) | ~xp.any(mask, axis=axes)
    return xp.all(unit)


def _constraints(
    kind: Kind,
    constraints: Sequence[Constraint] | None,
    modes: int,
    *,
    sampled: bool,
    unit: bool,
    complete: bool,
) -> tuple[Constraint, ...]:
    """
    One constraint per factor, for Tucker optionally one more for the core.

    If entries of X are missing, its mass is not known, and by default the first factor carries it.
    """
    if constraints is None:
        first: Constraint = "columns"
        if sampled or not (complete or kind == "tucker"):
            first = "rows" if unit else None
        return (first, *(_COLUMNS for _ in range(modes - 1)))
    allowed = (modes, modes + 1) if kind == "tucker" else (modes,)
    if isinstance(constraints, str) or len(constraints) not in allowed:
        msg = f"constraints is {constraints!r}: expected {modes} entries, one for each factor"
        raise ValueError(msg)
    return tuple(constraints)


def _rho(rho: float | Sequence[float], modes: int, blocks: int) -> tuple[float, ...]:
    """One weight per block; the core or the learned weights take the last one by default."""
    if not isinstance(rho, Sequence):
        return (positive_number("rho", rho),) * blocks
    if len(rho) not in (modes, blocks):
        counts = " or ".join(map(str, sorted({modes, blocks})))
        msg = f"rho has {len(rho)} entries: expected a number, or {counts} of them"
        raise ValueError(msg)
    numbers = tuple(positive_number(f"rho[{k}]", value) for k, value in enumerate(rho))
    return numbers + numbers[-1:] * (blocks - len(numbers))


def checked_sample_weight(
    sample_weight: Array | None, X: Array, *, shared: bool = False
) -> Array | None:
    """The weights of the samples of X, (n_0,), in its library and dtype."""
    if sample_weight is None:
        return None
    xp = array_namespace(like(X))
    common_namespace(sample_weight=sample_weight)
    weights = follow("sample_weight", sample_weight, xp, X.dtype, device_of(like(X)))
    check_shape("sample_weight", weights, (X.shape[0],))
    return (as_shard if shared else as_data)("sample_weight", weights, xp)
