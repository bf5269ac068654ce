"""Add components to a fit, to initialise a fit of larger rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.masks import observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import per_sample, spread
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.sparse import SparseSamples
from wtfarray._arrays.sums import asarray_like
from wtfarray._arrays.typing import Array
from wtfarray._fit.result import Factorisation
from wtfarray._fit.sample_parts import part_of_fit, parts_of_data
from wtfarray._models.tensor import unfold


def grow(
    fit: Factorisation,
    X: Array,
    ranks: Sequence[int],
    rng: np.random.Generator,
    mask: Array | None = None,
    shards: Shards = WHOLE,
) -> tuple[Array | None, list[Array]]:
    """
    The blocks of a fit with columns added to its factors, in the format of ``init``.

    A new component is the positive part of the residual of one slice along the first mode. The
    slice is drawn with probability proportional to its absolute residual. The coefficients of the
    other slices are proportional to their overlap with it.

    Parameters
    ----------
    fit : Factorisation
        The fit to extend.
    X : array
        Its data.
    ranks : sequence of int
        The new number of columns of each factor, not smaller than the present one.
    rng : numpy.random.Generator
        Draws the slices.
    mask : array of bool, optional
        In the shape of X: True where it was observed, 0 elsewhere.
    shards : Shards
        Which slices other processes hold.

    Returns
    -------
    head : array or None
        The core, or the weights if they are learned.
    factors : list of arrays (n_k, ranks[k])
        The factors.
    """
    xp = array_namespace(fit.factors[0])
    sizes = tuple(factor.shape[0] for factor in fit.factors)
    added = [r - factor.shape[1] for r, factor in zip(ranks, fit.factors, strict=True)]
    if isinstance(X, SparseSamples):
        mass, overlap, residual = _drawn_in_chunks(fit, X, max(added), rng)
    else:
        mass, overlap, residual = _drawn(fit, X, max(added), rng, mask, shards)
    # New components take at most half of the coefficients of a slice.
    part = overlap * (0.5 / xp.clip(xp.sum(overlap, axis=1, keepdims=True), min=1.0))
    columns = [part if fit.constraints[0] == "rows" else part * mass[:, None]]
    columns += [
        xp.stack([xp.sum(unfold(one, k), axis=1) for one in residual], axis=1)
        for k in range(len(sizes) - 1)
    ]
    # The first mode carries the mass, so that components have the scale of the data.
    totals = [xp.sum(column, axis=0, keepdims=True) for column in columns[1:]]
    columns[1:] = [
        column / xp.where(total > 0, total, 1.0)
        for column, total in zip(columns[1:], totals, strict=True)
    ]
    first = fit.factors[0] * (1.0 - xp.sum(part[:, : added[0]], axis=1, keepdims=True))
    factors = [
        xp.concat([old, _perturbed(new[:, :m], rng, shards, k)], axis=1)
        for k, (old, new, m) in enumerate(
            zip([first, *fit.factors[1:]], columns, added, strict=True)
        )
    ]
    if fit.core is not None:
        return _grow_core(fit.core, ranks), factors
    if len(fit.constraints) == len(fit.factors):  # no learned weights
        return None, factors
    assert fit.weights is not None
    return _grow_core(fit.weights, ranks[:1]), factors


def _drawn(
    fit: Factorisation,
    X: Array,
    count: int,
    rng: np.random.Generator,
    mask: Array | None,
    shards: Shards,
) -> tuple[Array, Array, list[Array]]:
    """Masses of the slices (n,), overlaps with those drawn (n, count), and residuals of these."""
    xp = array_namespace(X)
    sizes = tuple(factor.shape[0] for factor in fit.factors)
    data, model = (xp.reshape(tensor, sizes) for tensor in (X, observed(fit.to_tensor(), mask)))
    slices = _draw(shards.gathered(per_sample(xp.abs(data - model))), count, rng)
    mass = per_sample(data)
    unit = data / spread(xp.where(mass > 0, mass, 1.0), data)
    chosen = _slices(unit, slices, shards)
    overlap = xp.stack([per_sample(xp.minimum(unit, one[None, ...])) for one in chosen], axis=1)
    return mass, overlap, _slices(xp.maximum(data - model, 0.0), slices, shards)


def _drawn_in_chunks(
    fit: Factorisation, X: SparseSamples, count: int, rng: np.random.Generator
) -> tuple[Array, Array, list[Array]]:
    """As `_drawn` for sparse samples, of which one chunk at a time is dense."""
    sizes = tuple(factor.shape[0] for factor in fit.factors[1:])
    masses, residuals = [], []
    for rows, part in parts_of_data(X):
        masses.append(per_sample(part))
        residuals.append(per_sample(np.abs(part - part_of_fit(fit, rows).to_tensor())))
    mass = np.concatenate(masses)
    slices = _draw(np.concatenate(residuals), count, rng)
    chosen = [X[i : i + 1] / max(mass[i], np.finfo(mass.dtype).tiny) for i in slices]
    overlaps = []
    for rows, part in parts_of_data(X):
        unit = part / spread(np.where(mass[rows] > 0, mass[rows], 1.0), part)
        overlaps.append(np.stack([per_sample(np.minimum(unit, one)) for one in chosen], axis=1))
    residual = [
        np.maximum(X[i : i + 1] - part_of_fit(fit, slice(i, i + 1)).to_tensor(), 0.0)
        for i in slices
    ]
    return mass, np.concatenate(overlaps), [one.reshape(sizes) for one in residual]


def _draw(residual: np.ndarray, count: int, rng: np.random.Generator) -> list[int]:
    """Indices of ``count`` slices, all different if there are enough with a residual."""
    total = residual.sum()
    p = residual / total if total > 0 else np.full(residual.size, 1.0 / residual.size)
    replace = bool(count > np.count_nonzero(p))
    return [int(i) for i in rng.choice(residual.size, count, replace=replace, p=p)]


def _slices(array: Array, indices: Sequence[int], shards: Shards) -> list[Array]:
    """Some slices of an array whose first mode several processes may share, on all of them."""
    if not shards.shared:
        return [array[i, ...] for i in indices]
    here = [i - shards.first for i in indices]
    xp = array_namespace(array)
    zeros = xp.zeros(tuple(array.shape[1:]), dtype=array.dtype, device=device_of(array))
    mine = [array[i, ...] if 0 <= i < array.shape[0] else zeros for i in here]
    return shards.sums.arrays(mine)[0]


def _perturbed(columns: Array, rng: np.random.Generator, shards: Shards, k: int) -> Array:
    """New columns of factor k times random factors, because equal columns would remain equal."""
    return columns * asarray_like(shards.uniform(rng, 0.5, 1.5, tuple(columns.shape), k), columns)


def _grow_core(core: Array, ranks: Sequence[int]) -> Array:
    """The core or the weights, enlarged to ``ranks``; new entries are the mean."""
    xp = array_namespace(core)
    mean = xp.mean(core)
    for axis, rank in enumerate(ranks):
        shape = (*core.shape[:axis], rank - core.shape[axis], *core.shape[axis + 1 :])
        new = xp.ones(shape, dtype=core.dtype, device=device_of(core)) * mean
        core = xp.concat([core, new], axis=axis)
    return core
