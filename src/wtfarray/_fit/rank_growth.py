"""From a fit to the start of one with more components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from array_api_compat import array_namespace
from array_api_compat import device as device_of

from wtfarray._arrays.host import to_host
from wtfarray._arrays.samples import per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._fit.result import Factorisation
from wtfarray._models.tensor import unfold


def grow(
    fit: Factorisation, X: Array, ranks: Sequence[int], rng: np.random.Generator
) -> tuple[Array | None, list[Array]]:
    """
    The blocks of a fit with columns added to its factors, as ``init`` takes them.

    A new component is what the model lacks of one slice along the first mode, drawn with a
    probability proportional to what it lacks. The other slices take part in it as far as they
    overlap with this one.

    Parameters
    ----------
    fit : Factorisation
        The fit so far.
    X : array
        Its data.
    ranks : sequence of int
        The number of columns that each factor is to have, not below what it has.
    rng : numpy.random.Generator
        Draws the slices.

    Returns
    -------
    head : array or None
        The core, or the weights if they are learned.
    factors : list of arrays (n_k, ranks[k])
        The factors.
    """
    xp = array_namespace(X)
    sizes = tuple(factor.shape[0] for factor in fit.factors)
    data, model = (xp.reshape(tensor, sizes) for tensor in (X, fit.to_tensor()))
    more = [r - factor.shape[1] for r, factor in zip(ranks, fit.factors, strict=True)]
    slices = _draw(to_host(per_sample(xp.abs(data - model))), max(more), rng)
    mass = per_sample(data)
    unit = data / spread(xp.where(mass > 0, mass, 1.0), data)
    overlap = xp.stack([per_sample(xp.minimum(unit, unit[i : i + 1, ...])) for i in slices], axis=1)
    # At most half of a slice goes to new components.
    part = overlap * (0.5 / xp.clip(xp.sum(overlap, axis=1, keepdims=True), min=1.0))
    lacking = xp.maximum(data - model, 0.0)
    columns = [part if fit.constraints[0] == "rows" else part * mass[:, None]]
    columns += [
        xp.stack([xp.sum(unfold(lacking[i, ...], k), axis=1) for i in slices], axis=1)
        for k in range(len(sizes) - 1)
    ]
    first = fit.factors[0] * (1.0 - xp.sum(part[:, : more[0]], axis=1, keepdims=True))
    factors = [
        xp.concat([old, _unlike(new[:, :m], rng)], axis=1)
        for old, new, m in zip([first, *fit.factors[1:]], columns, more, strict=True)
    ]
    if fit.core is not None:
        return _grow_core(fit.core, ranks), factors
    if len(fit.constraints) == len(fit.factors):  # no learned weights
        return None, factors
    assert fit.weights is not None
    return _grow_core(fit.weights, ranks[:1]), factors


def _draw(lack: np.ndarray, count: int, rng: np.random.Generator) -> list[int]:
    """Indices of slices, different ones while there are enough."""
    total = lack.sum()
    chances = lack / total if total > 0 else np.full(lack.size, 1.0 / lack.size)
    again = count > np.count_nonzero(chances)
    return [int(i) for i in rng.choice(lack.size, count, replace=bool(again), p=chances)]


def _unlike(columns: Array, rng: np.random.Generator) -> Array:
    """Disturb the columns: two that are the same would stay so."""
    xp = array_namespace(columns)
    noise = rng.uniform(0.5, 1.5, tuple(columns.shape))
    return columns * xp.asarray(noise, dtype=columns.dtype, device=device_of(columns))


def _grow_core(core: Array, ranks: Sequence[int]) -> Array:
    """Fill the new places with the mean."""
    xp = array_namespace(core)
    mean = xp.mean(core)
    for axis, rank in enumerate(ranks):
        shape = (*core.shape[:axis], rank - core.shape[axis], *core.shape[axis + 1 :])
        new = xp.ones(shape, dtype=core.dtype, device=device_of(core)) * mean
        core = xp.concat([core, new], axis=axis)
    return core
