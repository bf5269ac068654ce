"""The squared Frobenius distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wtfarray._arrays.samples import inner
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_data,
    as_potential,
    check_shape,
    common_namespace,
    same_dtype,
)


@dataclass(frozen=True, eq=False)
class Frobenius:
    """
    Half the squared Frobenius distance, ``|X - Y|^2 / 2``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> value, Y = wtf.Frobenius().conjugate(np.ones(2), np.ones(2))
    >>> float(value), Y
    (3.0, array([2., 2.]))
    """

    def bind(self, X: Array, /) -> BoundFrobenius:
        """Check the data and bind the loss to them."""
        return self.bind_checked(as_data("X", X, common_namespace(X=X)))

    def bind_checked(self, X: Array) -> BoundFrobenius:
        """As `bind`, for data that were checked, or the part of them that this process holds."""
        return BoundFrobenius(X, tuple(range(X.ndim)))

    def value_and_gradient(self, X: Array, Y: Array, /) -> tuple[Array, Array]:
        """``|X - Y|^2 / 2`` of each sample along the first mode, (n_0,), and the gradient in Y."""
        common_namespace(X=X, Y=Y)
        bound = self.bind(X)
        check_shape("Y", Y, tuple(X.shape))
        return bound.value_and_gradient(same_dtype("Y", Y, "X", bound.data))

    def conjugate(self, X: Array, U: Array, /) -> tuple[Array, Array]:
        """``<X, U> + |U|^2 / 2`` and its gradient ``X + U``."""
        xp = common_namespace(X=X, U=U)
        bound = self.bind(X)
        u = same_dtype("U", as_potential("U", U, tuple(X.shape), xp), "X", bound.data)
        values, gradient = bound.conjugate(u)
        return xp.sum(values), gradient


@dataclass(frozen=True, eq=False)
class BoundFrobenius:
    """`Frobenius` bound to data."""

    data: Array
    order: tuple[int, ...]
    lam: float = math.inf
    conserves_mass: bool = False

    def conjugate(self, g: Array) -> tuple[Array, Array]:
        """``<X, g> + |g|^2 / 2``, (N,), and its gradient ``X + g``."""
        marginal = self.data + g
        return inner(self.data, g) + 0.5 * inner(g, g), marginal

    def safe_conjugate(self, g: Array) -> tuple[Array, Array]:
        """As `conjugate`, which cannot underflow."""
        return self.conjugate(g)

    def value_and_gradient(self, model: Array) -> tuple[Array, Array]:
        """``|X - Y|^2 / 2`` of each sample, (N,), and its gradient in Y."""
        residual = model - self.data
        return 0.5 * inner(residual, residual), residual

    def gap(self, g: Array, marginal: Array, model: Array) -> Array:  # noqa: ARG002
        """The Fenchel-Young gap in closed form: ``|X + g - Y|^2 / 2``, (N,)."""
        residual = marginal - model
        return 0.5 * inner(residual, residual)
