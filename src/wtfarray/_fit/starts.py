"""Initial blocks: random, multiplicative Kullback-Leibler updates, non-negative SVD, or given."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.host import to_host
from wtfarray._arrays.masks import observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.stored import masked_chunks_of
from wtfarray._arrays.sums import ALONE, Sums, asarray_like
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import coarsest_level, default_start, fit_levels, kl_sweeps
from wtfarray._fit.given_factors import given_blocks, is_named
from wtfarray._fit.specification import Specification
from wtfarray._fit.svd_start import svd_factors
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint, constrained_axes, kl_divergence
from wtfarray._models.models import Model
from wtfarray._solvers.stop_reason import StopReason
from wtfarray._solvers.streamed import at_rows

KL_CHECK = 10
"""Number of multiplicative sweeps between two looks at the divergence."""
KL_TOL = 1e-4
"""A smaller relative decrease of the divergence in so many sweeps ends them."""
KL_FLOOR = 0.01
"""A divergence below this fraction of the mass counts as that: the model is close to the data."""
FLOOR = 1e-8
"""Initial entries are at least this fraction of the mean of their group: a zero remains zero."""


@dataclass(frozen=True, eq=False)
class Start:
    """The initial point of a fit."""

    blocks: list[Array]
    levels: tuple[float, ...]
    """Smoothing levels, as multiples of eps, from the largest to 1."""
    ended: StopReason | None = None
    """Why the fit ended on a coarser grid, if it did; the blocks are then refined to the data."""
    curvature: dict[str, NDArray[np.float64]] | None = None
    """Curvature pairs from a coarser grid, as `CurvaturePairs.export` returns them."""


def method_and_levels(spec: Specification, init: str | None) -> tuple[str, tuple[float, ...]]:
    """The named method of initialisation, the default one for None, and its smoothing levels."""
    if init is None:
        init = default_start(_positive_share(spec))
    return init, fit_levels(init, _coarsest(spec))


def _coarsest(spec: Specification) -> float:
    """The largest level of smoothing that is of use."""
    return max(
        (
            coarsest_level(loss.mean_cost(), loss.eps)
            for loss in spec.losses
            if isinstance(loss, Wasserstein)
        ),
        default=1.0,
    )


def start_on_grid(spec: Specification, init: object, rng: np.random.Generator) -> Start:
    """Initial blocks on the grid of the data, by a named method or as given."""
    X, shards = spec.X, spec.shards
    if not is_named(init):
        blocks = [
            feasible(b, c, shards.block_sums(k)) if k in spec.free else b
            for k, (b, c) in enumerate(zip(given_blocks(spec, init), spec.constraints, strict=True))
        ]
        return Start(blocks, fit_levels(None, _coarsest(spec)))
    init, levels = method_and_levels(spec, init)
    blocks = random_blocks(spec.shapes, rng, spec.like, shards)
    if init == "nnsvd":
        blocks[: spec.modes] = svd_factors(X, spec.mask, spec.shapes[: spec.modes], rng, shards)
    blocks = [
        feasible(b, c, shards.block_sums(k))
        for k, (b, c) in enumerate(zip(blocks, spec.constraints, strict=True))
    ]
    carriers = [k for k in spec.free if spec.constraints[k] is None]
    blocks = scale_to_mass(spec.model, X, blocks, carriers, spec.mask, shards.sums)
    if init == "kl":
        blocks = _kl_start(spec, blocks)
    return Start(blocks, levels)


def _kl_start(spec: Specification, blocks: list[Array]) -> list[Array]:
    """Multiplicative updates until they gain little, or have taken as much time as they may."""
    costs = [c for loss in spec.losses if isinstance(loss, Wasserstein) for c in loss.costs]
    most = kl_sweeps(
        max(block.shape[-1] for block in blocks),
        len(spec.free),
        sum(cost.shape[0] for cost in costs),
        spec.shards.total(spec.X.shape[0]) * math.prod(spec.X.shape[1:]),
    )
    before = math.inf
    for _ in range(most // KL_CHECK):
        blocks = kl_steps(
            spec.model,
            spec.X,
            blocks,
            spec.constraints,
            spec.free,
            steps=KL_CHECK,
            mask=spec.mask,
            shards=spec.shards,
        )
        if most > 2 * KL_CHECK:
            divergence, mass = _divergence_and_mass(spec, blocks)
            if before - divergence <= KL_TOL * max(divergence, KL_FLOOR * mass):
                break
            before = divergence
    return blocks


def _divergence_and_mass(spec: Specification, blocks: list[Array]) -> tuple[float, float]:
    """``KL(X | model)`` and the mass of the model, over the observed entries."""
    total = mass = 0.0
    for rows, data, seen in masked_chunks_of(spec.X, spec.mask):
        more = to_host(_divergence_of(at_rows(blocks, rows), spec.model, data, seen)).tolist()
        total, mass = total + more[0], mass + more[1]
    total, mass = spec.shards.sums.numbers(total, mass)
    return total, mass


@compiled()
def _divergence_of(blocks: list[Array], model: Model, data: Array, seen: Array | None) -> Array:
    """``KL(X | model)`` and the mass of the model for some samples, (2,)."""
    xp = array_namespace(*blocks)
    tensor = observed(xp.reshape(model.tensor(blocks), tuple(data.shape)), seen)
    return xp.stack([xp.sum(kl_divergence(data, tensor, xp)), xp.sum(tensor)])


def _positive_share(spec: Specification) -> float:
    """The share of positive entries among the observed ones."""
    X, mask, sums = spec.X, spec.mask, spec.shards.sums
    if spec.summary is not None:
        positive, entries = sums.numbers(spec.summary.positive, spec.summary.observed)
        return positive / entries
    xp = array_namespace(X)
    if sums.shared:
        seen = math.prod(X.shape) if mask is None else float(xp.sum(xp.astype(mask, X.dtype)))
        positive, entries = sums.numbers(float(xp.sum(xp.astype(X > 0, X.dtype))), seen)
        return positive / entries
    share = float(xp.mean(xp.astype(X > 0, X.dtype)))
    if mask is not None:
        share /= float(xp.mean(xp.astype(mask, X.dtype)))
    return share


def random_blocks(
    shapes: Sequence[tuple[int, ...]],
    rng: np.random.Generator,
    data: Array,
    shards: Shards = WHOLE,
) -> list[Array]:
    """Uniform random blocks, drawn by NumPy: a seed gives the same blocks on every library."""
    return [
        asarray_like(shards.uniform(rng, 0.05, 1.0, shape, k), data)
        for k, shape in enumerate(shapes)
    ]


@compiled(static=("constraint", "sums"))
def feasible(block: Array, constraint: Constraint, sums: Sums = ALONE) -> Array:
    """
    Raise small entries to the floor and normalise the block to satisfy its constraint.

    ``sums`` are those over the rows of the block.
    """
    xp = array_namespace(block)
    axes = constrained_axes(constraint, block.ndim)
    every = tuple(range(block.ndim))
    mean = sums.mean(block, every if axes is None else axes)
    block = xp.maximum(block, FLOOR * xp.where(mean > 0, mean, 1.0))
    return block if axes is None else block / sums.over(block, axes)


def kl_steps(
    model: Model,
    X: Array,
    blocks: Sequence[Array],
    constraints: Sequence[Constraint],
    free: Sequence[int],
    steps: int = 20,
    mask: Array | None = None,
    shards: Shards = WHOLE,
) -> list[Array]:
    """
    Multiplicative updates for ``KL(X | model)``, the limit in which no mass is transported.

    They are cheap compared with the transport problem, and a good initialisation on dense data.
    Entries where the mask is False have weight 0; X is 0 there.
    """
    blocks = list(blocks)
    for _ in range(steps):
        blocks = _kl_sweep(blocks, model, X, mask, tuple(constraints), tuple(free), shards.sums)
    return blocks


@compiled(static=("constraints", "free", "sums"))
def _kl_sweep(
    blocks: list[Array],
    model: Model,
    X: Array,
    mask: Array | None,
    constraints: tuple[Constraint, ...],
    free: tuple[int, ...],
    sums: Sums,
) -> list[Array]:
    """One multiplicative update of every free block; ``sums`` are those over the samples."""
    blocks = list(blocks)
    xp = array_namespace(*blocks)
    info = xp.finfo(blocks[0].dtype)
    least = float(info.smallest_normal) / float(info.eps)
    sizes = model.shape(blocks)[1:]

    def adjoint_of_ratio(k: int, data: Array, _: Array | None, part: list[Array]) -> Array:
        tensor = model.tensor(part)
        ratio = xp.reshape(data, tuple(tensor.shape)) / xp.maximum(tensor, least)
        return model.block(part, k).adjoint(ratio)

    def adjoint_of_ones(k: int, data: Array, seen: Array | None, part: list[Array]) -> Array:
        ones = xp.ones_like(data) if seen is None else xp.astype(seen, data.dtype)
        return model.block(part, k).adjoint(xp.reshape(ones, (data.shape[0], *sizes)))

    for k in free:
        # The rows of the first factor take part in the adjoints of all other blocks.
        over = ALONE if k == 0 else sums
        block = blocks[k] * over.array(_over_chunks(adjoint_of_ratio, k, X, mask, blocks))
        if constraints[k] is None or mask is not None:
            weight = over.array(_over_chunks(adjoint_of_ones, k, X, mask, blocks))
            block = block / xp.maximum(weight, least)
        blocks[k] = feasible(block, constraints[k], sums if k == 0 else ALONE)
    return blocks


def _over_chunks(
    function: Callable[[int, Array, Array | None, list[Array]], Array],
    k: int,
    X: Array,
    mask: Array | None,
    blocks: Sequence[Array],
) -> Array:
    """``function(k, data, mask, blocks)`` of each chunk: rows of the first block, else summed."""
    found = [
        function(k, data, seen, at_rows(blocks, rows))
        for rows, data, seen in masked_chunks_of(X, mask)
    ]
    if len(found) == 1:
        return found[0]
    return array_namespace(*blocks).concat(found) if k == 0 else sum(found[1:], found[0])


def scale_to_mass(
    model: Model,
    X: Array,
    blocks: Sequence[Array],
    carriers: Sequence[int],
    mask: Array | None = None,
    sums: Sums = ALONE,
) -> list[Array]:
    """Scale one unconstrained block so that the model has the mass of the observed data."""
    blocks = list(blocks)
    if carriers:
        xp = array_namespace(*blocks)
        mass, found = 0.0, 0.0
        for rows, data, seen in masked_chunks_of(X, mask):
            tensor = model.tensor(at_rows(blocks, rows))
            if seen is not None:
                tensor = observed(tensor, xp.reshape(seen, tuple(tensor.shape)))
            mass += float(xp.sum(data))
            found += float(xp.sum(tensor))
        mass, found = sums.numbers(mass, found)
        blocks[carriers[0]] = blocks[carriers[0]] * (mass / found)
    return blocks
