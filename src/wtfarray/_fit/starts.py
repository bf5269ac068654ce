"""Initial blocks: random, multiplicative Kullback-Leibler updates, non-negative SVD, or given."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.masks import filled_with_means, observed
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.stored import chunks_of
from wtfarray._arrays.sums import ALONE, Sums, asarray_like
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import coarsest_level, default_start, fit_levels
from wtfarray._fit.given_factors import given_blocks
from wtfarray._fit.specification import Specification
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint, constrained_axes
from wtfarray._models.models import Model
from wtfarray._models.tensor import unfold
from wtfarray._solvers.stop_reason import StopReason
from wtfarray._solvers.streamed import at_rows

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


def start_on_grid(spec: Specification, init: object, rng: np.random.Generator) -> Start:
    """Initial blocks on the grid of the data, by a named method or as given."""
    X, shards = spec.X, spec.shards
    xp = array_namespace(spec.like)
    if init is None:
        share = spec.summary.positive_share if spec.summary is not None else _positive_share(spec)
        init = default_start(share)
    coarsest = max(
        (
            coarsest_level(loss.mean_cost(), loss.eps)
            for loss in spec.losses
            if isinstance(loss, Wasserstein)
        ),
        default=1.0,
    )
    if not isinstance(init, str):
        blocks = [
            feasible(b, c, shards.block_sums(k)) if k in spec.free else b
            for k, (b, c) in enumerate(zip(given_blocks(spec, init), spec.constraints, strict=True))
        ]
        return Start(blocks, fit_levels(None, coarsest))
    blocks = random_blocks(spec.shapes, rng, spec.like, shards)
    if init == "nnsvd":
        complete = X if spec.mask is None else filled_with_means(X, spec.mask, shards.sums)
        matrix = xp.reshape(complete, tuple(shape[0] for shape in spec.shapes[: spec.modes]))
        for k in range(spec.modes):
            blocks[k] = svd_factor(matrix, k, spec.shapes[k][1], rng, shards)
    blocks = [
        feasible(b, c, shards.block_sums(k))
        for k, (b, c) in enumerate(zip(blocks, spec.constraints, strict=True))
    ]
    carriers = [k for k in spec.free if spec.constraints[k] is None]
    blocks = scale_to_mass(spec.model, X, blocks, carriers, spec.mask, shards.sums)
    if init == "kl":
        blocks = kl_steps(
            spec.model, X, blocks, spec.constraints, spec.free, mask=spec.mask, shards=shards
        )
    return Start(blocks, fit_levels(init, coarsest))


def _positive_share(spec: Specification) -> float:
    """The share of positive entries among the observed ones."""
    X, mask, sums = spec.X, spec.mask, spec.shards.sums
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
    xp = array_namespace(*blocks)
    info = xp.finfo(blocks[0].dtype)
    least = float(info.smallest_normal) / float(info.eps)
    sizes = tuple(model.tensor([blocks[0][:1, :], *blocks[1:]]).shape)[1:]

    def adjoint_of_ratio(k: int, data: Array, part: list[Array]) -> Array:
        tensor = model.tensor(part)
        ratio = xp.reshape(data, tuple(tensor.shape)) / xp.maximum(tensor, least)
        return model.adjoints(ratio, part)[k]

    def adjoint_of_ones(k: int, data: Array, part: list[Array]) -> Array:
        ones = xp.ones_like(data) if mask is None else xp.astype(mask, data.dtype)
        return model.adjoints(xp.reshape(ones, (data.shape[0], *sizes)), part)[k]

    for _ in range(steps):
        for k in free:
            # The rows of the first factor take part in the adjoints of all other blocks.
            sums = ALONE if k == 0 else shards.sums
            block = blocks[k] * sums.array(_over_chunks(adjoint_of_ratio, k, X, blocks))
            if constraints[k] is None or mask is not None:
                weight = sums.array(_over_chunks(adjoint_of_ones, k, X, blocks))
                block = block / xp.maximum(weight, least)
            blocks[k] = feasible(block, constraints[k], shards.block_sums(k))
    return blocks


def _over_chunks(
    function: Callable[[int, Array, list[Array]], Array], k: int, X: Array, blocks: Sequence[Array]
) -> Array:
    """``function(k, data, blocks)`` of each chunk: rows of the first block, else summed."""
    found = [function(k, data, at_rows(blocks, rows)) for rows, data in chunks_of(X)]
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
        for rows, data in chunks_of(X):
            tensor = model.tensor(at_rows(blocks, rows))
            if mask is not None:
                tensor = observed(tensor, xp.reshape(mask, tuple(tensor.shape)))
            mass += float(xp.sum(data))
            found += float(xp.sum(tensor))
        mass, found = sums.numbers(mass, found)
        blocks[carriers[0]] = blocks[carriers[0]] * (mass / found)
    return blocks


def svd_factor(
    X: Array, mode: int, rank: int, rng: np.random.Generator, shards: Shards = WHOLE
) -> Array:
    """
    A non-negative factor (n_mode, rank) from the leading singular vectors of an unfolding.

    NNDSVD (Boutsidis and Gallopoulos 2008): the larger of the positive and the negative part of
    each singular pair. The singular vectors come from a randomised range finder with one power
    iteration (Halko, Martinsson and Tropp 2011), without an SVD of the whole unfolding. If the
    unfolding has fewer than ``rank`` singular vectors, the other columns are random. If several
    processes share the samples, each has some rows of the unfolding along the first mode, and some
    columns of the others: products over what is shared are added.
    """
    xp = array_namespace(X)
    matrix = unfold(X, mode)
    n, samples, features = matrix.shape[0], shards.total(X.shape[0]), math.prod(X.shape[1:])
    rows, columns = (samples, features) if mode == 0 else (n, samples * features // n)
    of_rows, of_columns = (shards.sums, ALONE) if mode == 0 else (ALONE, shards.sums)
    width = min(rank + 8, rows, columns)
    kind = {"dtype": X.dtype, "device": device_of(X)}
    sketch = xp.asarray(shards.normal(rng, (n, width), mode), **kind)
    for _ in range(2):
        image = of_rows.array(xp.matmul(matrix.mT, sketch))
        basis = orthonormal(of_columns.array(xp.matmul(matrix, image)), of_rows)
        sketch = basis
    small = of_rows.array(xp.matmul(basis.mT, matrix))
    values, vectors = xp.linalg.eigh(of_columns.array(xp.matmul(small, small.mT)))
    order = list(range(width - 1, -1, -1))[:rank]
    left = xp.matmul(basis, vectors)
    right = xp.matmul(small.mT, vectors)
    floor = float(xp.max(values)) * float(xp.finfo(X.dtype).eps)
    found = []
    for j in order:
        if float(values[j]) <= floor:
            break
        found.append(_larger_part(left[:, j], right[:, j], of_rows, of_columns))
    missing = rank - len(found)
    if missing:
        drawn = shards.uniform(rng, 0.05, 1.0, (n, missing), mode) / math.sqrt(rows)
        noise = xp.asarray(drawn, **kind)
        found += [noise[:, j] for j in range(missing)]
    return xp.stack(found, axis=1)


def orthonormal(matrix: Array, sums: Sums = ALONE) -> Array:
    """
    An orthonormal basis of the columns of a matrix, whose rows several processes may share.

    Each process factorises its own rows; a second factorisation, of their triangular factors, makes
    the bases of all processes one (Demmel, Grigori, Hoemmen and Langou 2012).
    """
    xp = array_namespace(matrix)
    if sums.comm is None:
        return xp.linalg.qr(matrix)[0]
    rank, width = sums.comm.rank, matrix.shape[1]
    # Rows of zeros, because a process may have fewer than there are columns.
    padding = xp.zeros((width, width), dtype=matrix.dtype, device=device_of(matrix))
    own, triangle = xp.linalg.qr(xp.concat([matrix, padding]))
    triangles = np.zeros((sums.comm.size, width, width))
    triangles[rank] = to_host(triangle)
    basis, _ = np.linalg.qr(sums.host(triangles).reshape(-1, width))
    mine = basis[rank * width : (rank + 1) * width]
    return xp.matmul(own[: matrix.shape[0], :], asarray_like(mine, matrix))


def _larger_part(left: Array, right: Array, of_left: Sums, of_right: Sums) -> Array:
    xp = array_namespace(left)

    def square(part: Array, sums: Sums) -> Array:
        return sums.array(xp.sum(xp.maximum(part, 0.0) ** 2.0))

    weight_plus = square(left, of_left) * square(right, of_right)
    weight_minus = square(-left, of_left) * square(-right, of_right)
    plus, minus = xp.maximum(left, 0.0), xp.maximum(-left, 0.0)
    return xp.where(weight_plus >= weight_minus, plus, minus)
