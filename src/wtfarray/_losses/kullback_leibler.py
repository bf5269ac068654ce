"""The Kullback-Leibler divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_data,
    as_potential,
    check_shape,
    common_namespace,
    refuse_where,
    same_dtype,
)
from wtfarray._models.entropy import kl_divergence
from wtfarray._transport.potential import potential_of_dual


@dataclass(frozen=True, eq=False)
class KullbackLeibler:
    """
    ``KL(X|Y) = <X, log(X/Y)> - <X, 1> + <Y, 1>``.

    The limit of the smoothed Wasserstein loss with lam = 1 if all transport is forbidden.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> value, Y = wtf.KullbackLeibler().conjugate(np.ones(2), np.full(2, 0.5))
    >>> Y
    array([2., 2.])
    """

    def bind(self, X: Array, /) -> BoundKullbackLeibler:
        """Check the data and bind the loss to them."""
        return self.bind_checked(as_data("X", X, common_namespace(X=X)))

    def bind_checked(self, X: Array) -> BoundKullbackLeibler:
        """As `bind`, for data that were checked, or the part of them that this process holds."""
        return BoundKullbackLeibler(X, tuple(range(X.ndim)))

    def value_and_gradient(self, X: Array, Y: Array, /) -> tuple[Array, Array]:
        """``KL(X|Y)`` of each sample along the first mode, (n_0,), and the gradient in Y."""
        common_namespace(X=X, Y=Y)
        bound = self.bind(X)
        check_shape("Y", Y, tuple(X.shape))
        return bound.value_and_gradient(same_dtype("Y", Y, "X", bound.data))

    def conjugate(self, X: Array, U: Array, /) -> tuple[Array, Array]:
        """``-<X, log(1 - U)>`` and its gradient ``X / (1 - U)``, for U below 1."""
        xp = common_namespace(X=X, U=U)
        bound = self.bind(X)
        u = same_dtype("U", as_potential("U", U, tuple(X.shape), xp), "X", bound.data)
        refuse_where(u >= bound.lam, "U", u, "values below 1")
        values, marginal = bound.conjugate(potential_of_dual(u, bound.lam, xp))
        return xp.sum(values), marginal / (1.0 - u)


@dataclass(frozen=True, eq=False)
class BoundKullbackLeibler:
    """`KullbackLeibler` bound to data."""

    data: Array
    order: tuple[int, ...]
    lam: float = 1.0
    conserves_mass: bool = False

    def conjugate(self, g: Array) -> tuple[Array, Array]:
        """``<X, g>``, (N,), and ``X``: as a function of g the conjugate is linear."""
        return inner(self.data, g), self.data

    def safe_conjugate(self, g: Array) -> tuple[Array, Array]:
        """As `conjugate`, which cannot underflow."""
        return self.conjugate(g)

    def value_and_gradient(self, model: Array) -> tuple[Array, Array]:
        """``KL(X|Y)`` of each sample, (N,), and its gradient ``1 - X/Y`` in Y."""
        xp = array_namespace(model)
        with np.errstate(over="ignore"):  # the slope may be infinite
            quotient = self.data / xp.where(model > 0, model, 1.0)
        ratio = xp.where(self.data > 0, quotient, 0.0)
        ratio = xp.where((self.data > 0) & ~(model > 0), math.inf, ratio)
        return per_sample(kl_divergence(self.data, model, xp)), 1.0 - ratio

    def gap(self, g: Array, marginal: Array, model: Array) -> Array:
        """The Fenchel-Young gap ``KL(X | Y exp(-g))``, (N,)."""
        xp = array_namespace(g)
        return per_sample(kl_divergence(marginal, model * xp.exp(-g), xp))
