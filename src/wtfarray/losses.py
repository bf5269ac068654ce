"""The losses: smoothed Wasserstein, and Frobenius and Kullback-Leibler behind the same protocol."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol, runtime_checkable

from array_api_compat import array_namespace

from wtfarray._arrays import (
    as_data,
    as_dual,
    axis_index,
    common_namespace,
    instance_of,
    positive_number,
    refuse_where,
    same_dtype,
)
from wtfarray._typing import Array
from wtfarray.costs import check_cost, place_cost
from wtfarray.islands import islands_of
from wtfarray.kernels import GibbsKernel
from wtfarray.legendre import free_of_dual, kl_divergence
from wtfarray.tensor import inner, per_sample
from wtfarray.transport import TransportProblem


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


@dataclass(frozen=True, eq=False)
class Wasserstein:
    """
    Smoothed optimal transport, balanced or semi-unbalanced, along some modes of a tensor.

    ``OT(x, y) = min { eps H(G|K) + lam KL(G^T 1 | y) : G 1 = x }`` with ``K = exp(-C/eps)``, summed
    over the samples: every index of the modes that are not transported is one sample (equation 10
    and Propositions 6 and 7 of the paper).

    Parameters
    ----------
    costs : array (n, n) or sequence of arrays
        One cost for each entry of ``modes``; the cost of moving is their sum. NumPy costs follow
        the data onto their library, dtype and device. ``inf`` forbids a way; balanced, mass must
        then be able to go where it is wanted.
    eps : float
        The smoothing, in the units of the cost.
    lam : float
        How strictly the second marginal is kept; ``inf`` (the default) is balanced transport.
    modes : sequence of int or of tuples of int, optional
        The transported modes, one for each cost; a tuple is a dense cost over several modes
        together, indexed in C order. The last ``len(costs)`` modes when absent.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> wtf.Wasserstein(wtf.grid_cost(32, 32), eps=1e-2, lam=10.0)
    Wasserstein(costs of 32, 32 points, eps=0.01, lam=10.0)
    >>> wtf.Wasserstein(wtf.point_cost(np.linspace(0, 1, 12)), eps=1e-2, modes=((1, 2),))
    Wasserstein(costs of 12 points, eps=0.01, lam=inf, modes=((1, 2),))
    """

    costs: tuple[Array, ...]
    eps: float
    lam: float = math.inf
    modes: tuple[tuple[int, ...], ...] | None = field(default=None)

    def __init__(
        self,
        costs: Array | Sequence[Array],
        eps: float,
        lam: float = math.inf,
        modes: Sequence[int | Sequence[int]] | None = None,
    ) -> None:
        matrices = tuple(costs) if isinstance(costs, (list, tuple)) else (costs,)
        if not matrices:
            msg = "costs is empty: expected one cost for each transported mode"
            raise ValueError(msg)
        matrices = tuple(check_cost(f"costs[{k}]", cost) for k, cost in enumerate(matrices))
        groups = None
        if modes is not None:
            if not isinstance(modes, Sequence):
                msg = f"modes is {modes!r}: expected {len(matrices)} modes or groups, one a cost"
                raise TypeError(msg)
            groups = tuple(tuple(m) if isinstance(m, Sequence) else (m,) for m in modes)
            if len(groups) != len(matrices) or not all(groups):
                msg = f"modes is {modes!r}: expected {len(matrices)} modes or groups, one a cost"
                raise ValueError(msg)
        object.__setattr__(self, "costs", matrices)
        object.__setattr__(self, "eps", positive_number("eps", eps))
        object.__setattr__(self, "lam", positive_number("lam", lam, infinite=True))
        object.__setattr__(self, "modes", groups)

    def __repr__(self) -> str:
        """Say what matters, not the costs' entries."""
        sizes = ", ".join(str(cost.shape[0]) for cost in self.costs)
        modes = "" if self.modes is None else f", modes={self.modes}"
        return f"Wasserstein(costs of {sizes} points, eps={self.eps}, lam={self.lam}{modes})"

    def bind(self, X: Array, /) -> TransportProblem:
        """
        Check the data and tie the loss to them.

        Parameters
        ----------
        X : array
            Non-negative data.

        Returns
        -------
        TransportProblem
            The loss of these data, in the free dual variable.
        """
        xp = common_namespace(X=X)
        X = as_data("X", X, xp)
        groups = self._groups(tuple(X.shape))
        moved = self.transported(tuple(X.shape))
        order = (*(k for k in range(X.ndim) if k not in moved), *moved)
        sizes = tuple(math.prod(X.shape[k] for k in group) for group in groups)
        costs = tuple(place_cost(f"costs[{k}]", c, xp, X) for k, c in enumerate(self.costs))
        stacked = xp.reshape(xp.permute_dims(X, order), (-1, *sizes))
        return TransportProblem.of(stacked, GibbsKernel.of(costs, self.eps), self.lam, order)

    def typical_cost(self) -> float:
        """The mean of the finite costs, summed over the transported modes."""
        total = 0.0
        for cost in self.costs:
            xp = array_namespace(cost)
            finite = xp.isfinite(cost)
            count = float(xp.sum(xp.astype(finite, cost.dtype)))
            total += float(xp.sum(xp.where(finite, cost, 0.0))) / count
        return total

    def transported(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The transported modes of data of this shape."""
        return tuple(chain(*self._groups(shape)))

    def _groups(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The transported modes of each cost, checked against the shape of the data."""
        ndim = len(shape)
        if self.modes is None:
            if len(self.costs) > ndim:
                msg = f"X has {ndim} modes: expected at least {len(self.costs)}, one for each cost"
                raise ValueError(msg)
            groups: tuple[tuple[int, ...], ...]
            groups = tuple((k,) for k in range(ndim - len(self.costs), ndim))
        else:
            groups = tuple(tuple(axis_index("modes", k, ndim) for k in g) for g in self.modes)
        moved = tuple(chain(*groups))
        if len(set(moved)) != len(moved):
            msg = f"modes is {self.modes}: expected different modes"
            raise ValueError(msg)
        for k, (cost, group) in enumerate(zip(self.costs, groups, strict=True)):
            size = math.prod(shape[m] for m in group)
            if cost.shape[0] != size:
                msg = (
                    f"costs[{k}] has shape {tuple(cost.shape)}: expected ({size}, {size}), the "
                    f"size of mode{'s' * (len(group) > 1)} {', '.join(map(str, group))} of X, "
                    f"which has shape {shape}"
                )
                raise ValueError(msg)
        return groups

    def conjugate(self, X: Array, U: Array, /) -> tuple[Array, Array]:
        """
        Legendre transform of the loss in its second argument (Prop. 4 and 5 of the paper).

        Parameters
        ----------
        X : array
            Non-negative data.
        U : array
            Of the shape of X, below ``lam`` everywhere.

        Returns
        -------
        value : array ()
            ``Phi*(X, U)``, summed over the samples.
        gradient : array
            The Y whose gradient is U.

        Examples
        --------
        >>> import numpy as np
        >>> import wtfarray as wtf
        >>> loss = wtf.Wasserstein(wtf.grid_cost(3), eps=0.1, lam=5.0)
        >>> value, Y = loss.conjugate(np.array([0.2, 0.3, 0.5]), np.zeros(3))
        >>> Y.shape
        (3,)
        """
        xp = common_namespace(X=X, U=U)
        bound = self.bind(X)
        u = same_dtype("U", as_dual("U", U, tuple(X.shape), xp), "X", bound.data)
        refuse_where(u >= self.lam, "U", u, f"values below lam = {self.lam}")
        g = free_of_dual(stack(bound, u), self.lam, xp)
        values, marginal = bound.safe_conjugate(g)
        # dg/du = exp(g/lam) = lam / (lam - u)
        gradient = marginal if math.isinf(self.lam) else marginal * xp.exp(g * (1.0 / self.lam))
        return xp.sum(values), unstack(bound, gradient, tuple(X.shape))


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
        """Check the data and tie the loss to them."""
        X = as_data("X", X, common_namespace(X=X))
        return BoundFrobenius(X, tuple(range(X.ndim)))

    def conjugate(self, X: Array, U: Array, /) -> tuple[Array, Array]:
        """``<X, U> + |U|^2 / 2`` and its gradient ``X + U``."""
        xp = common_namespace(X=X, U=U)
        bound = self.bind(X)
        u = same_dtype("U", as_dual("U", U, tuple(X.shape), xp), "X", bound.data)
        values, gradient = bound.conjugate(u)
        return xp.sum(values), gradient


@dataclass(frozen=True, eq=False)
class BoundFrobenius:
    """`Frobenius` with its data."""

    data: Array
    order: tuple[int, ...]
    lam: float = math.inf
    conserves_mass: bool = False

    def conjugate(self, g: Array) -> tuple[Array, Array]:
        """``<X, g> + |g|^2 / 2`` and ``X + g``."""
        marginal = self.data + g
        return inner(self.data, g) + 0.5 * inner(g, g), marginal

    def safe_conjugate(self, g: Array) -> tuple[Array, Array]:
        """Nothing here can underflow."""
        return self.conjugate(g)

    def value_and_gradient(self, model: Array) -> tuple[Array, Array]:
        """``|X - Y|^2 / 2`` of each sample, (N,), and its gradient in Y."""
        rest = model - self.data
        return 0.5 * inner(rest, rest), rest

    def gap(self, g: Array, marginal: Array, model: Array) -> Array:  # noqa: ARG002
        """``|X + g - Y|^2 / 2``: the loss is known exactly, so is its Fenchel-Young gap."""
        rest = marginal - model
        return 0.5 * inner(rest, rest)


@dataclass(frozen=True, eq=False)
class KullbackLeibler:
    """
    ``KL(X|Y) = <X, log(X/Y)> - <X, 1> + <Y, 1>``.

    The limit of the smoothed Wasserstein loss with lam = 1 when nothing may be moved.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> value, Y = wtf.KullbackLeibler().conjugate(np.ones(2), np.full(2, 0.5))
    >>> Y
    array([2., 2.])
    """

    def bind(self, X: Array, /) -> BoundKullbackLeibler:
        """Check the data and tie the loss to them."""
        X = as_data("X", X, common_namespace(X=X))
        return BoundKullbackLeibler(X, tuple(range(X.ndim)))

    def conjugate(self, X: Array, U: Array, /) -> tuple[Array, Array]:
        """``-<X, log(1 - U)>`` and its gradient ``X / (1 - U)``, for U below 1."""
        xp = common_namespace(X=X, U=U)
        bound = self.bind(X)
        u = same_dtype("U", as_dual("U", U, tuple(X.shape), xp), "X", bound.data)
        refuse_where(u >= bound.lam, "U", u, "values below 1")
        values, marginal = bound.conjugate(free_of_dual(u, bound.lam, xp))
        return xp.sum(values), marginal / (1.0 - u)


@dataclass(frozen=True, eq=False)
class BoundKullbackLeibler:
    """`KullbackLeibler` with its data."""

    data: Array
    order: tuple[int, ...]
    lam: float = 1.0
    conserves_mass: bool = False

    def conjugate(self, g: Array) -> tuple[Array, Array]:
        """``<X, g>`` and ``X``: in the free variable the conjugate is linear."""
        return inner(self.data, g), self.data

    def safe_conjugate(self, g: Array) -> tuple[Array, Array]:
        """Nothing here can underflow."""
        return self.conjugate(g)

    def value_and_gradient(self, model: Array) -> tuple[Array, Array]:
        """``KL(X|Y)`` of each sample, (N,), and its gradient ``1 - X/Y`` in Y."""
        xp = array_namespace(model)
        ratio = xp.where(self.data > 0, self.data / xp.where(model > 0, model, 1.0), 0.0)
        ratio = xp.where((self.data > 0) & ~(model > 0), math.inf, ratio)
        return per_sample(kl_divergence(self.data, model, xp)), 1.0 - ratio

    def gap(self, g: Array, marginal: Array, model: Array) -> Array:
        """``KL(X | Y exp(-g))``."""
        xp = array_namespace(g)
        return per_sample(kl_divergence(marginal, model * xp.exp(-g), xp))


@dataclass(frozen=True, eq=False, init=False)
class LossSum:
    """
    A sum of losses of the same data, each over modes of its own.

    Fits minimise it with the "envelope" solver. SWIFT's loss is the sum over the modes of transport
    along the fibres of that mode.

    Parameters
    ----------
    *losses : Loss
        At least one.

    Examples
    --------
    >>> import wtfarray as wtf
    >>> costs = wtf.grid_cost(8, 8)
    >>> loss = wtf.LossSum(
    ...     wtf.Wasserstein(costs[0], eps=0.1, lam=1.0, modes=(0,)),
    ...     wtf.Wasserstein(costs[1], eps=0.1, lam=1.0, modes=(1,)),
    ... )
    >>> len(loss.losses)
    2
    """

    losses: tuple[Loss, ...]

    def __init__(self, *losses: Loss) -> None:
        if not losses:
            msg = "losses is empty: expected at least one loss"
            raise ValueError(msg)
        for k, loss in enumerate(losses):
            instance_of(f"losses[{k}]", loss, Loss, "Wasserstein, Frobenius or KullbackLeibler")
        object.__setattr__(self, "losses", tuple(losses))

    def bind(self, X: Array, /) -> BoundLoss:  # noqa: ARG002
        """A sum has no conjugate in closed form: refuse."""
        raise TypeError(_NO_CONJUGATE)

    def conjugate(self, X: Array, U: Array, /) -> tuple[Array, Array]:  # noqa: ARG002
        """A sum has no conjugate in closed form: refuse."""
        raise TypeError(_NO_CONJUGATE)


_NO_CONJUGATE = (
    "loss is a LossSum, whose conjugate has no closed form: expected a single loss, or a fit with "
    "solver='envelope'"
)
