"""The losses: smoothed Wasserstein, and Frobenius and Kullback-Leibler behind the same protocol."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from array_api_compat import array_namespace

from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    refuse_where,
)
from wtfarray._transport.components import islands_of
from wtfarray._transport.problem import TransportProblem


class BoundLoss(Protocol):
    """
    A loss with its data, as the block duals see it.

    Everything is a stack (N, m_1, ..., m_t) of N samples, and the dual variable is the free ``g``
    with ``u = -lam expm1(-g/lam)`` (``u = g`` for infinite ``lam``).
    """

    @property
    def order(self) -> tuple[int, ...]:
        """The modes of the data, in the order in which they are stacked."""

    @property
    def data(self) -> Array:
        """The data, stacked."""

    @property
    def lam(self) -> float:
        """The bound on u; inf where u is free itself."""

    @property
    def conserves_mass(self) -> bool:
        """Whether the loss is finite only where the samples of Y weigh what those of X do."""

    def conjugate(self, g: Array) -> tuple[Array, Array]:
        """``Phi*(X, u(g))`` of each sample, (N,), and its gradient in g. NaN: use the safe one."""

    def safe_conjugate(self, g: Array) -> tuple[Array, Array]:
        """The same, slower, for every g."""

    def gap(self, g: Array, marginal: Array, model: Array) -> Array:
        """Bound ``Phi(X, Y) + Phi*(X, u) - <u, Y>`` from above, (N,); ``marginal`` is q(g)."""


@runtime_checkable
class Loss(Protocol):
    """What a factorisation needs of a loss."""

    def bind(self, X: Array, /) -> BoundLoss:
        """Check the data and tie the loss to them."""

    def conjugate(self, X: Array, U: Array, /) -> tuple[Array, Array]:
        """``Phi*(X, U)`` and its gradient in U."""


def stack(bound: BoundLoss, tensor: Array) -> Array:
    """Bring a tensor in the modes of the data into the layout of the bound loss."""
    xp = array_namespace(tensor)
    return xp.reshape(xp.permute_dims(tensor, bound.order), tuple(bound.data.shape))


def unstack(bound: BoundLoss, stacked: Array, shape: tuple[int, ...]) -> Array:
    """Undo `stack` for data of the given shape."""
    xp = array_namespace(stacked)
    inverse = tuple(sorted(range(len(bound.order)), key=lambda k: bound.order[k]))
    return xp.permute_dims(xp.reshape(stacked, tuple(shape[k] for k in bound.order)), inverse)


def refuse_islands(bound: BoundLoss) -> None:
    """Refuse balanced transport for a model if mass cannot go everywhere: it would be infinite."""
    if not isinstance(bound, TransportProblem) or not bound.conserves_mass or bound.closed is None:
        return
    if islands_of(bound.kernel.costs) is not None:
        msg = (
            "loss is balanced (lam = inf) and its infinite costs part the bins into islands, on "
            "each of which a model would have to weigh what X does: expected ways of finite cost "
            "between all bins, or a finite lam"
        )
        raise ValueError(msg)
    expected = (
        "mass from where every bin of its sample is reached at a finite cost, or a finite lam"
    )
    refuse_where(bound.closed, "X, its transported modes last,", bound.data, expected)
