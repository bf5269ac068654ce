"""The smoothed Wasserstein loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

from wtfarray._arrays.axes import Axis, check_labels
from wtfarray._arrays.containers import without_labels
from wtfarray._arrays.masks import observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import stack, unstack
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_data,
    as_nonnegative,
    as_potential,
    axis_index,
    check_shape,
    common_namespace,
    one_of,
    positive_number,
    refuse_taken_for_zero,
    refuse_where,
    same_dtype,
)
from wtfarray._dispatch import smoothing_levels
from wtfarray._transport.banded import BandedCost, geometry_of
from wtfarray._transport.costs import check_cost, check_symmetric, place_cost
from wtfarray._transport.debiased import solve_debiased
from wtfarray._transport.feasibility import feasible_target
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.potential import potential_of_dual
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.solve import Solution, solve_transport
from wtfarray._transport.symmetric import are_positive_definite

SMALLEST_LAM, SMALLEST_SOURCE_LAM = 0.05, 0.25
"""
Of a debiased loss, relative to eps.

The model is multiplied by ``exp(p/lam)`` and the data by ``exp(p/source_lam)``, with a potential p
of several eps. Below these numbers that leaves the range of float32.
"""
NOT_A_BOUND = "the gap is an estimate, not a bound: exp(-C/eps) is not positive definite"


@dataclass(frozen=True, eq=False)
class Wasserstein:
    """
    Smoothed optimal transport, balanced or semi-unbalanced, along some modes of a tensor.

    ``OT(x, y) = min { eps H(G|K) + lam KL(G^T 1 | y) : G 1 = x }`` with ``K = exp(-C/eps)``, summed
    over the samples: every index of the modes that are not transported is one sample (equation 10
    and Propositions 6 and 7 of the paper).

    Parameters
    ----------
    costs : array (n, n), BandedCost, DataFrame or DataArray, or sequence of these
        One cost for each entry of ``modes``; the cost of transport is their sum. NumPy costs are
        converted to the library, dtype and device of the data. ``inf`` forbids transport between
        two bins; for balanced transport a plan of finite cost must remain.
    eps : float
        Strength of the entropic smoothing, in the units of the cost.
    lam : float
        Penalty of the second marginal: creating or destroying mass costs about ``lam`` per unit.
        ``inf`` (the default) is balanced transport.
    modes : sequence of int or of tuples of int, optional
        The transported modes, one entry for each cost; a tuple groups several modes under one dense
        cost, indexed in C order. The last ``len(costs)`` modes if None.
    debias : bool
        Whether to subtract the transport of X and of the model to themselves, which removes the
        blur: the loss is then 0 at ``Y = X`` and positive elsewhere, if the kernels are positive
        definite, as on grids with ``p <= 2``. Costs must be symmetric. Fits with
        ``solver="envelope"`` only. ``lam`` must be at least ``eps / 20``, ``source_lam`` at least
        ``eps / 4``.
    source_lam : float
        Penalty of the first marginal: mass of X may stay behind at a price of about ``source_lam``
        per unit, for data with noise, background or outliers. ``inf`` (the default) transports all
        of X. Needs a finite ``lam``. With ``debias`` the loss stays 0 at ``Y = X`` and convex.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> wtf.Wasserstein(wtf.grid_cost(32, 32), eps=1e-2, lam=10.0)
    Wasserstein(costs of 32, 32 points, eps=0.01, lam=10.0)
    >>> wtf.Wasserstein(wtf.point_cost(np.linspace(0, 1, 12)), eps=1e-2, modes=((1, 2),))
    Wasserstein(costs of 12 points, eps=0.01, lam=inf, modes=((1, 2),))
    >>> loss = wtf.Wasserstein(wtf.grid_cost(8), eps=0.05, lam=10.0, debias=True)
    >>> value, gradient = wtf.wasserstein(np.eye(8), np.eye(8), loss)
    >>> bool(value < 1e-9)
    True
    """

    costs: tuple[Any, ...]
    eps: float
    lam: float = math.inf
    modes: tuple[tuple[int, ...], ...] | None = field(default=None)
    labels: tuple[Axis, ...] = field(default=(), init=False)
    """The labels of the bins of each cost, if it has any."""
    debias: bool = False
    source_lam: float = math.inf

    def __init__(
        self,
        costs: Array | BandedCost | Sequence[Array | BandedCost],
        eps: float,
        lam: float = math.inf,
        modes: Sequence[int | Sequence[int]] | None = None,
        *,
        debias: bool = False,
        source_lam: float = math.inf,
    ) -> None:
        matrices = tuple(costs) if isinstance(costs, (list, tuple)) else (costs,)
        if not matrices:
            msg = "costs is empty: expected one cost for each transported mode"
            raise ValueError(msg)
        labelled = [_labelled_cost(f"costs[{k}]", cost) for k, cost in enumerate(matrices)]
        matrices = tuple(cost for cost, _ in labelled)
        groups = None
        if modes is not None:
            if not isinstance(modes, Sequence):
                msg = f"modes is {modes!r}: expected {len(matrices)} modes or groups, one per cost"
                raise TypeError(msg)
            groups = tuple(tuple(m) if isinstance(m, Sequence) else (m,) for m in modes)
            if len(groups) != len(matrices) or not all(groups):
                msg = f"modes is {modes!r}: expected {len(matrices)} modes or groups, one per cost"
                raise ValueError(msg)
        object.__setattr__(self, "costs", matrices)
        object.__setattr__(self, "eps", positive_number("eps", eps))
        object.__setattr__(self, "lam", positive_number("lam", lam, infinite=True))
        object.__setattr__(self, "modes", groups)
        object.__setattr__(self, "labels", tuple(axis for _, axis in labelled))
        one_of("debias", debias, (False, True))
        object.__setattr__(self, "debias", bool(debias))
        source_lam = positive_number("source_lam", source_lam, infinite=True)
        object.__setattr__(self, "source_lam", source_lam)
        self._refuse_relaxed_data()
        if debias:
            self._refuse_small_prices()
            for k, cost in enumerate(matrices):
                check_symmetric(f"costs[{k}]", cost)

    def _refuse_relaxed_data(self) -> None:
        """Refuse a finite ``source_lam`` with other options that exclude it."""
        if math.isinf(self.source_lam):
            return
        if math.isinf(self.lam):
            msg = (
                f"source_lam is {self.source_lam} and lam is inf: expected a finite lam as well, "
                "or source_lam=inf"
            )
            raise ValueError(msg)

    def _refuse_small_prices(self) -> None:
        """Refuse penalties of a debiased loss that are far below the smoothing."""
        for name, price, share in (
            ("lam", self.lam, SMALLEST_LAM),
            ("source_lam", self.source_lam, SMALLEST_SOURCE_LAM),
        ):
            if price < share * self.eps:
                msg = (
                    f"{name} is {price} with debias=True and eps = {self.eps}: expected at least "
                    f"{share:g} eps, since the loss is computed by way of exp(eps/{name}); choose "
                    f"a larger {name} or a smaller eps"
                )
                raise ValueError(msg)

    def __repr__(self) -> str:
        """Sizes of the costs, eps, lam, modes and whether the loss is debiased."""
        sizes = ", ".join(str(cost.shape[0]) for cost in self.costs)
        modes = "" if self.modes is None else f", modes={self.modes}"
        rest = modes + ", debias=True" * self.debias
        if not math.isinf(self.source_lam):
            rest += f", source_lam={self.source_lam}"
        return f"Wasserstein(costs of {sizes} points, eps={self.eps}, lam={self.lam}{rest})"

    def bind(self, X: Array, /, mask: Array | None = None) -> TransportProblem:
        """
        Check the data and bind the loss to them.

        Parameters
        ----------
        X : array
            Non-negative data.
        mask : array of bool, optional
            Of the shape of X, True where it was observed. A bin that was not does not exist for its
            sample.

        Returns
        -------
        TransportProblem
            The loss of these data, as a function of the potential.
        """
        return self.bind_checked(as_data("X", observed(X, mask), common_namespace(X=X)), mask)

    def bind_checked(self, X: Array, mask: Array | None = None) -> TransportProblem:
        """As `bind`, for data that were checked, or the part of them that this process holds."""
        stacked, order = self.stacked(X)
        missing = None
        if mask is not None:
            missing = self.missing_bins(mask)
        kernel = self.kernel(X, self.eps)
        return TransportProblem.of(stacked, kernel, self.lam, order, missing, self.source_lam)

    def stacked(self, X: Array) -> tuple[Array, tuple[int, ...]]:
        """The data, transported modes last, as a stack of samples; and the order of its modes."""
        xp = array_namespace(X)
        groups = self._groups(tuple(X.shape))
        moved = self.transported(tuple(X.shape))
        order = (*(k for k in range(X.ndim) if k not in moved), *moved)
        sizes = tuple(math.prod(X.shape[k] for k in group) for group in groups)
        return xp.reshape(xp.permute_dims(X, order), (-1, *sizes)), order

    def kernel(self, X: Array, eps: float) -> GibbsKernel:
        """The kernel for data of the library, dtype and device of X."""
        xp = array_namespace(X)
        costs = tuple(place_cost(f"costs[{k}]", c, xp, X) for k, c in enumerate(self.costs))
        return GibbsKernel.of(costs, eps)

    def missing_bins(self, mask: Array) -> Array | None:
        """Where bins are missing, stacked; None if no sample lacks only some of its bins."""
        missing = ~self.stacked(mask)[0]
        xp = array_namespace(missing)
        axes = tuple(range(1, missing.ndim))
        partly = xp.any(missing, axis=axes) & ~xp.all(missing, axis=axes)
        if not bool(xp.any(partly)):
            return None
        if math.isinf(self.lam):
            i = int(xp.argmax(xp.astype(partly, xp.int64)))
            msg = (
                f"mask hides some bins of sample {i}, and the loss is balanced (lam = inf), which "
                "needs the mass of the whole sample: expected a finite lam, or a mask of whole "
                "samples"
            )
            raise ValueError(msg)
        return missing

    @cached_property
    def gap_is_bound(self) -> bool:
        """Whether duality gaps are proven: for the debiased loss, if kernels are definite."""
        return not self.debias or are_positive_definite(self.costs, self.eps)

    def mean_cost(self) -> float:
        """The mean of the finite costs, summed over the transported modes."""
        return sum((geometry_of(cost).mean() for cost in self.costs), start=0.0)

    def transported(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The transported modes of data of the given shape."""
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

    def value_and_gradient(self, X: Array, Y: Array, /) -> tuple[Array, Array]:
        """
        The loss and its gradient in Y; `wasserstein` also returns the duality gap.

        Parameters
        ----------
        X, Y : array
            Non-negative, of one shape.

        Returns
        -------
        values : array (n_0,) or ()
            The loss of each index of the first mode, or the sum if that mode is transported.
        gradient : array
            Of the shape of Y; -inf where Y is 0.
        """
        xp = common_namespace(X=X, Y=Y)
        problem, stacked = self.bind_pair(X, Y)
        solution = self.solve(problem, stacked)
        gradient = unstack(problem, solution.u, tuple(X.shape))
        if problem.order[0] != 0 or problem.data.shape[0] % X.shape[0]:
            return xp.sum(solution.values), gradient
        return xp.sum(xp.reshape(solution.values, (X.shape[0], -1)), axis=1), gradient

    def bind_pair(
        self, X: Array, Y: Array, mask: Array | None = None
    ) -> tuple[TransportProblem, Array]:
        """The problem of X, and Y stacked; refuse a Y at which the loss is infinite."""
        xp = common_namespace(X=X, Y=Y)
        problem = self.bind(X, mask)
        shape = tuple(X.shape)
        check_shape("Y", Y, shape)
        Y = same_dtype("Y", as_nonnegative("Y", Y, xp), "X", problem.data)
        refuse_taken_for_zero("Y", Y)
        Y = stack(problem, Y)
        return problem, feasible_target(problem, Y, shape)

    def bind_potential(self, problem: TransportProblem, X: Array, potential: Array) -> Array:
        """A warm start for the bound data X, stacked; refuse one that does not fit them."""
        xp = common_namespace(X=X, potential=potential)
        potential = as_potential("potential", potential, tuple(X.shape), xp)
        return stack(problem, same_dtype("potential", potential, "X", problem.data))

    def solve(
        self,
        problem: TransportProblem,
        Y: Array,
        *,
        tol: float | None = None,
        max_iter: int = 2000,
        potential: Array | None = None,
    ) -> Solution:
        """Solve the bound problem for a stacked Y; see `wasserstein` for the options."""
        if tol is None:
            tol = 1e-6 if Y.dtype == array_namespace(Y).float64 else 1e-4
        levels = smoothing_levels(self.mean_cost(), self.eps)
        solver = self._solve_debiased if self.debias else solve_transport
        return solver(problem, Y, levels, tol=tol, max_iter=max_iter, potential=potential)

    def _solve_debiased(
        self, problem: TransportProblem, Y: Array, levels: tuple[float, ...], **options: Any
    ) -> Solution:
        """As `solve_debiased`; where the gap is a bound, so is 0."""
        solution = solve_debiased(problem, Y, levels, **options)
        if not self.gap_is_bound:
            return replace(solution, message=f"{solution.message}; {NOT_A_BOUND}")
        xp = array_namespace(Y)
        bounds = solution.bounds
        values = xp.maximum(bounds.values, xp.zeros_like(bounds.values))
        gaps = xp.maximum(bounds.gaps - (values - bounds.values), xp.zeros_like(values))
        return replace(
            solution, bounds=bounds._replace(values=values, gaps=gaps), gap=float(xp.sum(gaps))
        )

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
            The gradient in U: the Y at which the gradient of the loss is U.

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
        refuse_debiased(self, "the conjugate")
        bound = self.bind(X)
        u = same_dtype("U", as_potential("U", U, tuple(X.shape), xp), "X", bound.data)
        refuse_where(u >= self.lam, "U", u, f"values below lam = {self.lam}")
        g = potential_of_dual(stack(bound, u), self.lam, xp)
        values, marginal = bound.safe_conjugate(g)
        # dg/du = exp(g/lam) = lam / (lam - u)
        gradient = marginal if math.isinf(self.lam) else marginal * xp.exp(g * (1.0 / self.lam))
        return xp.sum(values), unstack(bound, gradient, tuple(X.shape))


def _labelled_cost(name: str, cost: Array) -> tuple[Array, Axis]:
    """The checked cost, and the labels of its bins."""
    matrix, axes = without_labels(name, cost)
    matrix = check_cost(name, matrix)
    if not axes:
        return matrix, Axis()
    check_labels(name, axes[1], 1, axes[0], "its first mode")
    return matrix, axes[0]


def refuse_debiased(loss: object, method: str) -> None:
    """Refuse a debiased loss for a method that needs the conjugate in closed form."""
    if isinstance(loss, Wasserstein) and loss.debias:
        msg = (
            f"loss has debias=True, for which {method} has no closed form: expected debias=False, "
            "or a fit with solver='envelope'"
        )
        raise ValueError(msg)
