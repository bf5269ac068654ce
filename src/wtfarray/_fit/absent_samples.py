"""Samples of which nothing was observed: they are left out of a fit, and filled in afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import take_samples
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._fit.given_factors import is_named
from wtfarray._fit.specification import is_sampled
from wtfarray._losses.protocol import Loss
from wtfarray._models.entropy import Constraint


@dataclass(frozen=True, eq=False)
class Present:
    """The samples of data of which something was observed."""

    rows: NDArray[np.intp]
    shape: tuple[int, ...]
    """Of the data with all samples."""

    def take(self, array: Array) -> Array:
        """The rows of these samples, if the array has one for each sample."""
        known = is_array_api_obj(array) and tuple(array.shape[:1]) == self.shape[:1]
        return take_samples(array, self.rows) if known else array

    def of_init(self, init: Any) -> Any:
        """Initial factors without the rows of the other samples; names as they are."""
        if is_named(init):
            return init
        if hasattr(init, "factors"):  # a fit, or a decomposition of TensorLy
            init = tuple(init)
        if not isinstance(init, Sequence) or not init:
            return init
        if len(init) == 2 and isinstance(init[1], Sequence) and init[1]:
            return (init[0], [self.take(init[1][0]), *init[1][1:]])
        return [self.take(init[0]), *init[1:]]

    def spread(self, rows: Array, other: Array) -> Array:
        """The rows at their places among all samples, and ``other``, (1, ...), at all others."""
        place = np.full(self.shape[0], self.rows.size)
        place[self.rows] = np.arange(self.rows.size)
        return take_samples(array_namespace(rows).concat([rows, other]), place)


def mean_coefficients(first: Array, constraint: Constraint, sums: Sums = ALONE) -> Array:
    """
    The coefficients of a sample of which nothing was observed, (1, r), from the first factor.

    They are the means of those of the others; zeros if the constraint ties the samples together.
    """
    xp = array_namespace(first)
    total = sums.array(xp.sum(first, axis=0, keepdims=True))
    (count,) = sums.numbers(float(first.shape[0]))
    return total / max(count, 1.0) if constraint in (None, "rows") else 0.0 * total


def with_absent(fit: Any, present: Present, mean: Array) -> Any:
    """A `Factorisation` with rows for all samples: ``mean``, (1, r), for those that it lacks."""
    xp = array_namespace(fit.dual)
    zeros = xp.zeros_like(xp.sum(fit.dual, axis=0, keepdims=True))
    return replace(
        fit,
        factors=[present.spread(fit.factors[0], mean), *fit.factors[1:]],
        dual=present.spread(fit.dual, zeros),
        shape=present.shape,
    )


def present_samples(mask: Any, X: Any, loss: object, *, shared: bool = False) -> Present | None:
    """
    The samples of which the mask leaves something; None if these are all.

    None also if there is nothing to leave out: arguments that a fit refuses, data that are read in
    chunks, a loss that transports the first mode. If other processes have samples, ``shared``,
    none may be left here.
    """
    if mask is None or not (is_array_api_obj(mask) and is_array_api_obj(X)):
        return None
    shape = tuple(int(n) for n in X.shape)
    if len(mask.shape) != len(shape) or len(shape) < 2 or mask.shape[0] != shape[0]:
        return None
    xp = array_namespace(mask)
    sampled = isinstance(loss, Loss) and not isinstance(loss, type) and is_sampled(loss, shape)
    if not sampled or not xp.isdtype(mask.dtype, "bool"):
        return None
    seen = xp.any(mask, axis=tuple(range(1, len(shape))))
    seen = to_host(xp.astype(seen, xp.float32)) > 0
    none = seen.all() or not (seen.any() or shared)
    return None if none else Present(np.flatnonzero(seen), shape)
