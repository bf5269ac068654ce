"""The loss itself: accelerated Sinkhorn iterations, sample by sample, to a given duality gap."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from array_api_compat import array_namespace

from wtfarray._arrays.samples import inner, per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_dual,
    as_nonnegative,
    check_shape,
    common_namespace,
    instance_of,
    or_float64,
    positive_integer,
    positive_number,
    refuse_where,
    same_dtype,
)
from wtfarray._losses.protocol import stack, unstack
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._transport.components import Islands, islands_of
from wtfarray._transport.feasibility import (
    impossible,
    of_equal_mass,
    stranded,
    wrong_islands,
    wrong_mass,
)
from wtfarray._transport.inner_solver import solve_to_gap
from wtfarray._transport.newton import inner_solver
from wtfarray._transport.problem import TransportProblem


@dataclass(frozen=True, eq=False)
class TransportResult:
    """
    A value of the loss with its certificate; unpacks as ``value, gradient``.

    The loss lies between ``value`` and ``value + gap``.
    """

    value: Array
    """(), the lower bound."""
    gradient: Array
    """In Y, of its shape; -inf where Y is 0 (and X is not). Balanced: up to a constant a sample.

    Where no mass of X can go at a finite cost it is lam, balanced inf.
    """
    gap: float
    converged: bool
    message: str
    n_iter: int
    dual: Array
    """The free dual variable, of the shape of Y: a warm start for the next call."""

    def __iter__(self) -> Iterator[Array]:
        """Unpack as ``value, gradient``."""
        return iter((self.value, self.gradient))


def wasserstein(
    X: Array,
    Y: Array,
    loss: Wasserstein,
    /,
    *,
    tol: float | None = None,
    max_iter: int = 2000,
    dual: Array | None = None,
) -> TransportResult:
    """
    The smoothed Wasserstein loss between X and Y, and its gradient in Y.

    Parameters
    ----------
    X, Y : array (n_0, ..., n_{d-1})
        Non-negative; balanced transport needs samples of equal mass, and where infinite costs part
        the bins into islands, islands of equal mass.
    loss : Wasserstein
        Costs, eps, lam and transported modes.
    tol : float, optional
        Stop when the duality gap is below ``tol`` times the larger of the loss's absolute value
        and ``eps`` times the mass of X. 1e-6 for float64 and 1e-4 for float32 when absent.
    max_iter : int
        Iterations at most; one that is not enough warns and says so in ``message``.
    dual : array, optional
        The ``dual`` of an earlier result for a close Y: a warm start.

    Returns
    -------
    TransportResult
        Unpacks as ``value, gradient``; also ``gap``, ``converged``, ``message``, ``n_iter``,
        ``dual``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> X = np.array([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    >>> Y = np.array([[0.1, 0.8, 0.1, 0.0], [0.1, 0.8, 0.1, 0.0]])
    >>> loss = wtf.Wasserstein(wtf.grid_cost(4), eps=0.1)
    >>> value, gradient = wtf.wasserstein(X, Y, loss)
    >>> gradient.shape
    (2, 4)
    """
    solution = solve_transport(X, Y, loss, tol=tol, max_iter=max_iter, dual=dual)
    problem, shape = solution.problem, tuple(X.shape)
    return TransportResult(
        array_namespace(solution.values).sum(solution.values),
        unstack(problem, solution.u, shape),
        solution.gap,
        solution.converged,
        solution.message,
        solution.n_iter,
        unstack(problem, solution.g, shape),
    )


@dataclass(frozen=True, eq=False)
class Solution:
    """A dual solution of every sample; all arrays are stacks (N, ...)."""

    problem: TransportProblem
    Y: Array
    """Balanced: brought to the masses of X, from which it may differ by rounding."""
    g: Array
    """The free dual variable; balanced: ``<g, Y> = 0`` in each sample."""
    u: Array
    """The gradient in Y, -inf where Y is 0."""
    values: Array
    """Lower bounds, (N,)."""
    gap: float
    converged: bool
    message: str
    n_iter: int


def solve_transport(
    X: Array,
    Y: Array,
    loss: Wasserstein,
    *,
    tol: float | None,
    max_iter: int,
    dual: Array | None = None,
) -> Solution:
    """`wasserstein`, sample by sample; warns if it does not converge."""
    named = {"X": X, "Y": Y} if dual is None else {"X": X, "Y": Y, "dual": dual}
    xp = common_namespace(**named)
    max_iter = positive_integer("max_iter", max_iter)
    instance_of("loss", loss, Wasserstein, "Wasserstein")
    problem, Y = prepare(X, Y, loss)
    shape = tuple(X.shape)
    if tol is None:
        tol = 1e-6 if Y.dtype == xp.float64 else 1e-4
    tol = positive_number("tol", tol)
    levels: tuple[float, ...] = (1.0,)
    if dual is None:
        g = xp.zeros_like(Y)
        levels = smoothing_levels(loss)
    else:
        g = stack(problem, same_dtype("dual", as_dual("dual", dual, shape, xp), "X", problem.data))
    n_iter = 0
    for level in levels[:-1]:
        # Coarse levels only have to bring g near: the next one goes on from there.
        coarse = inner_solver(problem.at_eps(loss.eps * level), g)
        g, n = solve_to_gap(coarse, Y, relative(coarse.problem, 1e-2), min(50, max_iter))
        n_iter += n
    g, n = solve_to_gap(inner_solver(problem, g), Y, relative(problem, tol), max_iter)
    n_iter += n
    if problem.conserves_mass:
        g = centred(g, Y)
    values, gaps, u = problem.bounds(g, Y)
    gap = float(xp.sum(gaps))
    converged = gap <= relative(problem, tol)(float(xp.sum(values)))
    message = f"duality gap {gap:.1e} after {n_iter} iterations"
    if not converged:
        message += f": increase `max_iter`, loosen `tol` or choose a larger eps{or_float64(Y)}"
        if problem.conserves_mass and not problem.kernel.is_open:
            _refuse_impossible(problem, values)
            message += (
                "; some ways are forbidden (infinite costs), and perhaps Y cannot be reached: a "
                "finite lam allows for that"
            )
        warnings.warn(message, stacklevel=3)
    return Solution(problem, Y, g, u, values, gap, converged, message, n_iter)


def centred(g: Array, Y: Array) -> Array:
    """Take a constant off every sample of g, so that ``<g, Y> = 0``: balanced, it is free."""
    weight = per_sample(Y)
    xp = array_namespace(g)
    return g - spread(inner(g, Y) / xp.where(weight > 0, weight, 1.0), g)


def relative(problem: TransportProblem, tol: float) -> Callable[[float], float]:
    """The largest gap allowed at a value, which may happen to be next to 0."""
    floor = problem.kernel.eps * float(array_namespace(problem.mass).sum(problem.mass))
    return lambda value: tol * max(abs(value), floor)


def smoothing_levels(loss: Wasserstein) -> tuple[float, ...]:
    """Multiples of eps, 3 apart, down from a tenth of the mean cost to eps itself."""
    most = max(0.1 * loss.typical_cost() / loss.eps, 1.0)
    count = math.floor(math.log(most) / math.log(3.0))
    return tuple(3.0**k for k in range(count, -1, -1))


def prepare(X: Array, Y: Array, loss: Wasserstein) -> tuple[TransportProblem, Array]:
    """Check X and Y; the problem of X, and Y stacked, balanced of the masses of X to rounding."""
    xp = common_namespace(X=X, Y=Y)
    problem = loss.bind(X)
    shape = tuple(X.shape)
    check_shape("Y", Y, shape)
    Y = stack(problem, same_dtype("Y", as_nonnegative("Y", Y, xp), "X", problem.data))
    wrong = wrong_mass(problem, Y)
    if bool(xp.any(wrong)):
        i = int(xp.argmax(xp.astype(wrong, xp.int64)))
        expected = "a positive mass"
        if problem.conserves_mass:
            expected = "the same mass, or a loss with finite lam"
        msg = (
            f"Y weighs {float(per_sample(Y)[i])} in sample {i}, where X weighs "
            f"{float(problem.mass[i])}: expected {expected}"
        )
        raise ValueError(msg)
    lost = stranded(problem, Y)
    if bool(xp.any(lost)):
        data, lost = (unstack(problem, stacked, shape) for stacked in (problem.data, lost))
        refuse_where(lost, "X", data, "a way of finite cost to where Y is positive")
    if not problem.conserves_mass or problem.closed is None:
        return problem, of_equal_mass(problem, Y)
    lost = problem.closed & (Y > 0)
    if bool(xp.any(lost)):
        stacked, lost = (unstack(problem, array, shape) for array in (Y, lost))
        expected = "0 where no mass of X can go at a finite cost, or a loss with finite lam"
        refuse_where(lost, "Y", stacked, expected)
    islands = islands_of(problem.kernel.costs)
    if islands is not None:
        _refuse_islands(problem, Y, islands)
    return problem, of_equal_mass(problem, Y, islands)


def _refuse_islands(problem: TransportProblem, Y: Array, islands: Islands) -> None:
    """Refuse a Y whose islands do not weigh what those of X do."""
    xp = array_namespace(Y)
    wrong = wrong_islands(problem, Y, islands)
    if not bool(xp.any(wrong)):
        return
    mass, found = islands.masses(problem.data, Y)
    sample, island = divmod(int(xp.argmax(xp.astype(wrong, xp.int64))), wrong.shape[1])
    msg = (
        f"Y weighs {float(found[sample, island])} in sample {sample} on the island of bin "
        f"{islands.somewhere(island)}, where X weighs {float(mass[sample, island])}, and no way of "
        "finite cost leads to another: expected the same mass, or a loss with finite lam"
    )
    raise ValueError(msg)


def _refuse_impossible(problem: TransportProblem, values: Array) -> None:
    """Refuse a Y that the dual values show to be out of reach."""
    xp = array_namespace(values)
    lost = impossible(problem, values)
    if bool(xp.any(lost)):
        sample = int(xp.argmax(xp.astype(lost, xp.int64)))
        msg = (
            f"Y cannot be reached from X by ways of finite cost in sample {sample}, where the loss "
            "is infinite: expected a Y that can, or a loss with finite lam"
        )
        raise ValueError(msg)
