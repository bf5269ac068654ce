"""Interfaces of losses: for all fits, and for the block duals, which need the conjugate."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from wtfarray._arrays.typing import Array


@runtime_checkable
class Loss(Protocol):
    """
    A loss between data X and a model tensor Y, which fits minimise.

    `Wasserstein`, `Frobenius`, `KullbackLeibler` and `LossSum` are losses, and so is any object
    with this one method. Fits with a loss of your own use the solver "envelope".

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> class PseudoHuber:
    ...     def value_and_gradient(self, X, Y):
    ...         residual = Y - X
    ...         root = np.sqrt(1.0 + residual**2)
    ...         return np.sum(root - 1.0, axis=1), residual / root
    >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
    >>> fit = wtf.nmf(X, 2, PseudoHuber(), rho=1e-4, rng=0)
    >>> fit.converged
    True
    """

    def value_and_gradient(self, X: Array, Y: Array, /) -> tuple[Array, Array]:
        """
        The loss and its gradient in Y.

        Parameters
        ----------
        X, Y : array (n_0, ..., n_{d-1})
            Non-negative data and model, of one library, dtype and device.

        Returns
        -------
        values : array (n_0,) or ()
            The loss of each sample along the first mode, or () if it is not a sum over samples.
        gradient : array (n_0, ..., n_{d-1})
            The gradient in Y of the sum of the values.
        """


@runtime_checkable
class MaskedLoss(Loss, Protocol):
    """
    A loss that can leave out entries, as fits with ``mask`` require.

    The losses of the library can; a loss of your own needs this method.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> class PseudoHuber:
    ...     def value_and_gradient(self, X, Y):
    ...         return self.masked_value_and_gradient(X, Y, np.ones(X.shape, dtype=bool))
    ...
    ...     def masked_value_and_gradient(self, X, Y, mask):
    ...         residual = np.where(mask, Y - X, 0.0)
    ...         root = np.sqrt(1.0 + residual**2)
    ...         return np.sum(root - 1.0, axis=1), residual / root
    >>> isinstance(PseudoHuber(), wtf.MaskedLoss)
    True
    """

    def masked_value_and_gradient(self, X: Array, Y: Array, mask: Array, /) -> tuple[Array, Array]:
        """
        As `Loss.value_and_gradient`, of the observed entries alone.

        Parameters
        ----------
        X, Y : array (n_0, ..., n_{d-1})
            Data and model, 0 where the mask is False.
        mask : array of bool (n_0, ..., n_{d-1})
            True where X was observed.

        Returns
        -------
        values : array (n_0,) or ()
            The loss of each sample along the first mode, or () if it is not a sum over samples.
        gradient : array (n_0, ..., n_{d-1})
            The gradient in Y of the sum of the values; where the mask is False it is ignored.
        """


class BoundLoss(Protocol):
    """
    A loss bound to data, for the block duals.

    All arrays are stacks (N, m_1, ..., m_t) of N samples. The conjugate is a function of the
    potential ``g``, with ``u = -lam expm1(-g/lam)`` (``u = g`` for infinite ``lam``).
    """

    @property
    def order(self) -> tuple[int, ...]:
        """The modes of the data, in the order in which they are stacked."""

    @property
    def data(self) -> Array:
        """The data, stacked: (N, m_1, ..., m_t)."""

    @property
    def lam(self) -> float:
        """The upper bound of u; inf if u is unconstrained."""

    @property
    def conserves_mass(self) -> bool:
        """Whether the loss is finite only if the samples of Y have the masses of those of X."""

    def conjugate(self, g: Array) -> tuple[Array, Array]:
        """``Phi*(X, u(g))`` of each sample, (N,), NaN if it underflows, and its gradient in g."""

    def safe_conjugate(self, g: Array) -> tuple[Array, Array]:
        """As `conjugate`, slower, but accurate for every g."""

    def gap(self, g: Array, marginal: Array, model: Array) -> Array:
        """Bound ``Phi(X, Y) + Phi*(X, u) - <u, Y>`` from above, (N,); ``marginal`` is q(g)."""


@runtime_checkable
class ConjugateLoss(Loss, Protocol):
    """A loss whose Legendre transform has a closed form, as the block duals require."""

    def bind(self, X: Array, /) -> BoundLoss:
        """Check the data and bind the loss to them."""

    def conjugate(self, X: Array, U: Array, /) -> tuple[Array, Array]:
        """``Phi*(X, U)`` and its gradient in U."""
