"""Initial blocks: random, multiplicative Kullback-Leibler updates, non-negative SVD, or given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.masks import filled_with_means, observed
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import coarsest_level, default_start, fit_levels
from wtfarray._fit.given_factors import given_blocks
from wtfarray._fit.specification import Specification
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint, constrained_axes
from wtfarray._models.models import Model
from wtfarray._models.tensor import unfold
from wtfarray._solvers.stop_reason import StopReason

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
    X = spec.X
    xp = array_namespace(X)
    if init is None:
        share = float(xp.mean(xp.astype(X > 0, X.dtype)))
        if spec.mask is not None:
            share /= float(xp.mean(xp.astype(spec.mask, X.dtype)))
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
            feasible(b, c) if k in spec.free else b
            for k, (b, c) in enumerate(zip(given_blocks(spec, init), spec.constraints, strict=True))
        ]
        return Start(blocks, fit_levels(None, coarsest))
    blocks = random_blocks(spec.shapes, rng, X)
    if init == "nnsvd":
        complete = X if spec.mask is None else filled_with_means(X, spec.mask)
        matrix = xp.reshape(complete, tuple(shape[0] for shape in spec.shapes[: spec.modes]))
        for k in range(spec.modes):
            blocks[k] = svd_factor(matrix, k, spec.shapes[k][1], rng)
    blocks = [feasible(b, c) for b, c in zip(blocks, spec.constraints, strict=True)]
    carriers = [k for k in spec.free if spec.constraints[k] is None]
    blocks = scale_to_mass(spec.model, X, blocks, carriers, spec.mask)
    if init == "kl":
        blocks = kl_steps(spec.model, X, blocks, spec.constraints, spec.free, mask=spec.mask)
    return Start(blocks, fit_levels(init, coarsest))


def random_blocks(
    shapes: Sequence[tuple[int, ...]], rng: np.random.Generator, like: Array
) -> list[Array]:
    """Uniform random blocks, drawn by NumPy: a seed gives the same blocks on every library."""
    xp = array_namespace(like)
    return [
        xp.asarray(rng.uniform(0.05, 1.0, shape), dtype=like.dtype, device=device_of(like))
        for shape in shapes
    ]


def feasible(block: Array, constraint: Constraint) -> Array:
    """Raise small entries to the floor and normalise the block to satisfy its constraint."""
    xp = array_namespace(block)
    axes = constrained_axes(constraint, block.ndim)
    every = tuple(range(block.ndim))
    mean = xp.mean(block, axis=every if axes is None else axes, keepdims=True)
    block = xp.maximum(block, FLOOR * xp.where(mean > 0, mean, 1.0))
    return block if axes is None else block / xp.sum(block, axis=axes, keepdims=True)


def kl_steps(
    model: Model,
    X: Array,
    blocks: Sequence[Array],
    constraints: Sequence[Constraint],
    free: Sequence[int],
    steps: int = 20,
    mask: Array | None = None,
) -> list[Array]:
    """
    Multiplicative updates for ``KL(X | model)``, the limit in which no mass is transported.

    They are cheap compared with the transport problem, and a good initialisation on dense data.
    Entries where the mask is False have weight 0; X is 0 there.
    """
    xp = array_namespace(X)
    blocks = list(blocks)
    least = float(xp.finfo(X.dtype).smallest_normal) / float(xp.finfo(X.dtype).eps)
    shape = tuple(model.tensor(blocks).shape)
    data = xp.reshape(X, shape)
    ones = xp.ones_like(data)
    if mask is not None:
        ones = xp.astype(xp.reshape(mask, shape), X.dtype)
    for _ in range(steps):
        for k in free:
            ratio = data / xp.maximum(model.tensor(blocks), least)
            block = blocks[k] * model.adjoints(ratio, blocks)[k]
            if constraints[k] is None or mask is not None:
                weight = model.adjoints(ones, blocks)[k]
                block = block / xp.maximum(weight, least)
            blocks[k] = feasible(block, constraints[k])
    return blocks


def scale_to_mass(
    model: Model,
    X: Array,
    blocks: Sequence[Array],
    carriers: Sequence[int],
    mask: Array | None = None,
) -> list[Array]:
    """Scale one unconstrained block so that the model has the mass of the observed data."""
    blocks = list(blocks)
    if carriers:
        xp = array_namespace(X)
        tensor = model.tensor(blocks)
        if mask is not None:
            tensor = observed(tensor, xp.reshape(mask, tuple(tensor.shape)))
        ratio = float(xp.sum(X)) / float(xp.sum(tensor))
        blocks[carriers[0]] = blocks[carriers[0]] * ratio
    return blocks


def svd_factor(X: Array, mode: int, rank: int, rng: np.random.Generator) -> Array:
    """
    A non-negative factor (n_mode, rank) from the leading singular vectors of an unfolding.

    NNDSVD (Boutsidis and Gallopoulos 2008): the larger of the positive and the negative part of
    each singular pair. The singular vectors come from a randomised range finder with one power
    iteration (Halko, Martinsson and Tropp 2011), without an SVD of the whole unfolding. If the
    unfolding has fewer than ``rank`` singular vectors, the other columns are random.
    """
    xp = array_namespace(X)
    matrix = unfold(X, mode)
    n, columns = matrix.shape
    width = min(rank + 8, n, columns)
    kind = {"dtype": X.dtype, "device": device_of(X)}
    sketch = xp.asarray(rng.standard_normal((n, width)), **kind)
    for _ in range(2):
        basis, _ = xp.linalg.qr(xp.matmul(matrix, xp.matmul(matrix.mT, sketch)))
        sketch = basis
    small = xp.matmul(basis.mT, matrix)
    values, vectors = xp.linalg.eigh(xp.matmul(small, small.mT))
    order = list(range(width - 1, -1, -1))[:rank]
    left = xp.matmul(basis, vectors)
    right = xp.matmul(small.mT, vectors)
    floor = float(xp.max(values)) * float(xp.finfo(X.dtype).eps)
    found = []
    for j in order:
        if float(values[j]) <= floor:
            break
        found.append(_larger_part(left[:, j], right[:, j]))
    missing = rank - len(found)
    if missing:
        noise = xp.asarray(rng.uniform(0.05, 1.0, (n, missing)) / math.sqrt(n), **kind)
        found += [noise[:, j] for j in range(missing)]
    return xp.stack(found, axis=1)


def _larger_part(left: Array, right: Array) -> Array:
    xp = array_namespace(left)
    plus, minus = xp.maximum(left, 0.0), xp.maximum(-left, 0.0)
    weight_plus = xp.sum(plus**2.0) * xp.sum(xp.maximum(right, 0.0) ** 2.0)
    weight_minus = xp.sum(minus**2.0) * xp.sum(xp.maximum(-right, 0.0) ** 2.0)
    return xp.where(weight_plus >= weight_minus, plus, minus)
