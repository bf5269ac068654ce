"""The samples of an estimator: distinct, of mass one, with weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import device as device_of
from array_api_compat import is_array_api_obj
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.masks import observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import per_sample, spread
from wtfarray._arrays.sparse import is_sparse
from wtfarray._arrays.sums import Sums
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import negative_advice, refuse_where


@dataclass(frozen=True, eq=False)
class Samples:
    """Distinct samples of mass one."""

    data: Array
    """(n, ...), in an order that does not depend on the order of the input; or `SparseSamples`."""
    weights: Array | None
    """(n,), of mean one; None if all are one."""
    total: float
    """The sum of the original weights."""
    mask: Array | None = None
    """(n, ...) bool: True where the data were observed, 0 elsewhere; None if everywhere."""


def shared_samples(samples: Samples, sums: Sums) -> Samples:
    """The samples of one process of several: weights of mean one over all, masks on all or none."""
    if not sums.shared:
        return samples
    xp, n = array_namespace(samples.data), samples.data.shape[0]
    total, count = sums.numbers(samples.total, n)
    ones = xp.ones((n,), dtype=samples.data.dtype, device=device_of(samples.data))
    weights = ones if samples.weights is None else samples.weights
    weights = weights * ((samples.total / n) / (total / count))
    mask = samples.mask
    if sums.any(mask is not None) and mask is None:
        mask = samples.data >= 0
    even = sums.all(samples.weights is None and samples.total * count == total * n)
    return Samples(samples.data, None if even else weights, total, mask)


def observed_samples(X: Array) -> tuple[Array, Array | None]:
    """The samples with 0 for NaN, and a mask that is False there; None without NaN."""
    xp = array_namespace(X)
    mask = ~xp.isnan(X)
    if bool(xp.all(mask)):
        return X, None
    return observed(X, mask), mask


def refuse_negative(X: Array, estimator: str) -> None:
    """Refuse negative entries, in the words of scikit-learn, with what is usually done."""
    values = X.data if is_sparse(X) else X
    xp = array_namespace(values)
    if not bool(xp.any(values < 0)):
        return
    seen = observed(values, ~xp.isnan(values))
    advice = negative_advice("X", seen)
    msg = f"Negative values in data passed to X in {estimator}: {advice}"
    raise ValueError(msg)


def to_unit_mass(X: Array) -> tuple[Array, Array]:
    """The samples divided by their masses, and the masses, (n,); empty samples stay empty."""
    xp = array_namespace(X)
    mass = per_sample(X)
    refuse_where(~xp.isfinite(mass), "the mass of X", mass, "samples of finite mass")
    return X / spread(xp.where(mass > 0, mass, 1.0), X), mass


def sample_weights(sample_weight: object, n: int) -> NDArray[np.float64]:
    """The weights on the host; by default ones."""
    if sample_weight is None:
        return np.ones(n)
    if is_array_api_obj(sample_weight) and not isinstance(sample_weight, np.ndarray):
        sample_weight = to_host(sample_weight)
    weights = np.array(sample_weight, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(n, weights)
    if weights.shape != (n,):
        msg = (
            f"sample_weight has shape {weights.shape}: expected ({n},), one weight per sample of X"
        )
        raise ValueError(msg)
    refuse_where(~np.isfinite(weights), "sample_weight", weights, "finite values")
    refuse_where(weights < 0, "sample_weight", weights, "non-negative values")
    if not np.any(weights > 0):
        msg = "sample_weight is zero everywhere: expected at least one positive weight"
        raise ValueError(msg)
    return weights


def distinct_samples(X: Array, sample_weight: object) -> Samples:
    """
    The distinct samples, each with the sum of the weights of its copies.

    A weight of two is then equivalent to repeating the sample, and the result does not depend on
    the order of the samples. Samples of zero mass or zero weight are ignored. NaN is missing; then
    the mass of a sample is that of what was observed.
    """
    xp = array_namespace(X)
    weights = sample_weights(sample_weight, X.shape[0])
    X, mask = observed_samples(X)
    X, mass = to_unit_mass(X)
    weights = np.where(to_host(mass) > 0, weights, 0.0)
    if not np.any(weights > 0):
        msg = "X has no sample of positive mass and weight: expected at least one"
        raise ValueError(msg)
    marked = X if mask is None else xp.where(mask, X, -xp.ones_like(X))
    order, new = groups_of_equal(marked, weights)
    X = rows(X, order)
    kept, scaled, total = with_weights(new, weights[order], np.float64)
    return Samples(
        rows(X, kept),
        None if scaled is None else xp.asarray(scaled, dtype=X.dtype, device=device_of(X)),
        total,
        None if mask is None else rows(mask, order[kept]),
    )


def groups_of_equal(
    X: Array, weights: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """
    An order of the samples of positive weight in which equal ones are neighbours.

    It does not depend on their order in X. The second array is True where another sample begins.
    """
    xp = array_namespace(X)
    # Equal samples have equal keys; other samples almost never do.
    key = np.random.default_rng(0).uniform(1.0, 2.0, tuple(X.shape[1:]))
    key = xp.asarray(key, dtype=X.dtype, device=device_of(X))[None, ...]
    keys = to_host(per_sample(X * key))
    order = np.argsort(keys, kind="stable")
    order = order[weights[order] > 0]
    X = rows(X, order)
    new = np.ones(order.size, dtype=bool)
    if order.size > 1:
        equal = xp.all(X[1:, ...] == X[:-1, ...], axis=tuple(range(1, X.ndim)))
        new[1:] = to_host(xp.astype(equal, X.dtype)) == 0
    return order, new


def with_weights(
    new: NDArray[np.bool_], weights: NDArray[np.float64], dtype: Any
) -> tuple[NDArray[np.intp], NDArray[Any] | None, float]:
    """
    The first of each group of equal samples, the weights of the groups, and their sum.

    ``new`` is True where a group begins. The weights have mean one; None if all are one.
    """
    sums = np.bincount(np.cumsum(new) - 1, weights)
    scaled = sums / sums.mean()
    even = bool(np.all(scaled == scaled[0]))
    return np.flatnonzero(new), None if even else scaled.astype(dtype), float(sums.sum())


def rows(X: Array, indices: NDArray[np.intp]) -> Array:
    """The samples with the given indices."""
    xp = array_namespace(X)
    return xp.take(X, xp.asarray(indices, device=device_of(X)), axis=0)
