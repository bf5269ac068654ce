"""The transport problem for one Y, solved sample by sample to a given duality gap."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import or_float64
from wtfarray._transport.feasibility import refuse_infinite
from wtfarray._transport.inner_solver import CHECK_EVERY, gap_factor, inner_solver
from wtfarray._transport.iterate import InnerSolver, dual_values, search_radius
from wtfarray._transport.problem import Bounds, TransportProblem

LEVEL_ERROR = 1e-2
"""Estimated error, relative to eps times the mass, at which a level of larger eps ends."""
LEVEL_ITERATIONS = 50
"""Largest number of iterations at a level of larger eps."""
ROUNDED_GAP = 0.1
"""The rounded gap is of the order of this, the potential range and the L1 error of the marginal."""
FIRST_CHECK = 4.0
"""The rounded gap is first computed where it may be this many times too large."""


@dataclass(frozen=True, eq=False)
class Solution:
    """A dual solution of every sample; arrays are stacks (N, ...)."""

    problem: TransportProblem
    Y: Array
    g: Array
    """The potential; for balanced transport ``<g, Y> = 0`` in each sample."""
    bounds: Bounds
    """Values and gaps, (N,), the gradient in Y, -inf where Y is 0, and kernel products at g."""
    gap: float
    converged: bool
    message: str
    n_iter: int
    gradient_X: Array | None = None  # noqa: N815
    """The gradient in X, of the debiased loss."""

    @property
    def values(self) -> Array:
        """Lower bounds of the loss, (N,)."""
        return self.bounds.values

    @property
    def u(self) -> Array:
        """The gradient in Y, -inf where Y is 0."""
        return self.bounds.u


def solve_transport(
    problem: TransportProblem,
    Y: Array,
    levels: tuple[float, ...],
    *,
    tol: float,
    max_iter: int,
    potential: Array | None = None,
) -> Solution:
    """
    Solve for a feasible Y, stacked; warns if it does not converge.

    ``levels`` are decreasing multiples of eps, which end at 1. With a ``potential`` as a warm start
    only the last level is solved.
    """
    xp = array_namespace(Y)
    g = xp.zeros_like(Y) if potential is None else within_reach(problem, potential, Y)
    n_iter, eps = 0, problem.kernel.eps
    for level in levels[:-1] if potential is None else ():
        # A level only provides a warm start for the next one.
        coarse = inner_solver(problem.at_eps(eps * level), g)
        g, n = approximate(coarse, Y, min(LEVEL_ITERATIONS, max_iter))
        n_iter += n
    allowed = relative_gap(problem, tol)
    g, bounds, n = solve_to_bounds(inner_solver(problem, g), Y, allowed, max_iter)
    n_iter += n
    if problem.conserves_mass:
        g, bounds = _centred_bounds(problem, g, Y, bounds)
    gap, value = _sums(bounds.gaps, bounds.values)
    converged = gap <= allowed(value)
    message = f"duality gap {gap:.1e} after {n_iter} iterations"
    if not converged:
        message += f": increase `max_iter`, loosen `tol` or choose a larger eps{or_float64(Y)}"
        if problem.conserves_mass and not problem.kernel.all_finite:
            refuse_infinite(problem, bounds.values)
            message += (
                "; infinite costs forbid some transport, and Y may be out of reach of X: a finite "
                "lam allows for that"
            )
        warnings.warn(message, stacklevel=4)
    return Solution(problem, Y, g, bounds, gap, converged, message, n_iter)


def approximate(solver: InnerSolver, Y: Array, max_iter: int) -> tuple[Array, int]:
    """
    Iterate until the estimated error is small; returns the next potential and the iterations.

    No gap is computed: it would cost more than the iterations, and the result is only a start.
    """
    xp = array_namespace(Y)
    error = LEVEL_ERROR * _scale(solver.problem)
    points = solver.iterates(Y, max_iter=max_iter)
    for n in range(1, max_iter + 1):
        # The first estimate is far from the solution, where it is too small.
        if float(xp.sum(next(points).decrement)) <= error and n > 1:
            break
    return solver.g, n


def solve_to_bounds(
    solver: InnerSolver, Y: Array, allowed: Callable[[float], float], max_iter: int
) -> tuple[Array, Bounds, int]:
    """
    Iterate until the duality gap is at most ``allowed(value)``, both summed over the samples.

    Returns g, its bounds and the number of iterations. The gap is computed where an estimate of it
    is small enough: for finite lam a bound from above. For balanced transport the rounded gap is of
    the order of the root of the estimate, and the first ones calibrate it.
    """
    problem = solver.problem
    factor, check = gap_factor(problem), math.inf
    best, best_n = math.inf, 0
    points = solver.iterates(Y, max_iter=max_iter)
    for n in range(1, max_iter + 1):
        point = next(points)
        g = point.g
        if n == 1:
            estimate, value = _sums(point.gap_bound(factor), dual_values(problem, point, Y))
            check = _first_check(problem, allowed(value))
        else:
            (estimate,) = _sums(point.gap_bound(factor))
        del point  # free its arrays before the next one is computed
        if estimate <= check or n % CHECK_EVERY == 0 or n == max_iter:
            bounds = problem.bounds_with_logs(g, Y)
            gap, value = _sums(bounds.gaps, bounds.values)
            limit = allowed(value)
            if gap < 0.99 * best:
                best, best_n = gap, n
            if gap <= limit or n == max_iter or n - best_n >= solver.patience:
                return g, bounds, n
            check = _next_check(problem, estimate, gap, limit)
    raise AssertionError  # not reached: the loop returns at max_iter


def _first_check(problem: TransportProblem, limit: float) -> float:
    """The estimate at which the gap is computed for the first time."""
    if math.isnan(limit):
        return math.inf
    if not problem.conserves_mass:
        return limit
    # By Pinsker's inequality the L1 error is at most the root of 2 KL times the mass.
    scale = ROUNDED_GAP * problem.kernel.potential_range()
    if scale == 0.0:
        return math.inf
    return (FIRST_CHECK * limit / scale) ** 2 * problem.kernel.eps**2 / _scale(problem)


def _next_check(problem: TransportProblem, estimate: float, gap: float, limit: float) -> float:
    """The estimate at which the gap is computed again, after one that was too large."""
    if not gap < math.inf:
        return 0.1 * estimate
    share = limit / gap
    return estimate * min(0.5, share**2 if problem.conserves_mass else share)


def _scale(problem: TransportProblem) -> float:
    """The unit of errors: eps times the mass of all samples."""
    return problem.kernel.eps * float(array_namespace(problem.mass).sum(problem.mass))


def _sums(*values: Array) -> list[float]:
    """Sums over the samples, on the host."""
    xp = array_namespace(values[0])
    if len(values) == 1:
        return [float(xp.sum(values[0]))]
    sums: list[float] = to_host(xp.stack([xp.sum(numbers) for numbers in values])).tolist()
    return sums


def _centred_bounds(
    problem: TransportProblem, g: Array, Y: Array, bounds: Bounds
) -> tuple[Array, Bounds]:
    """`centred` g and its bounds: only u and the logarithms change, by a constant per sample."""
    shift = spread(_mean(g, Y), g)
    change = shift * (1.0 / problem.kernel.eps)
    moved = Bounds(
        bounds.values,
        bounds.gaps,
        bounds.u - shift,
        bounds.log_Kf - change,
        bounds.log_adjoint + change,
    )
    return g - shift, moved


def _mean(g: Array, Y: Array) -> Array:
    """The mean of g weighted by Y, (N,); 0 in empty samples."""
    weight = per_sample(Y)
    return inner(g, Y) / array_namespace(g).where(weight > 0, weight, 1.0)


def centred(g: Array, Y: Array) -> Array:
    """Subtract a constant from each sample of g, free if balanced, such that ``<g, Y> = 0``."""
    return g - spread(_mean(g, Y), g)


def within_reach(problem: TransportProblem, g: Array, Y: Array) -> Array:
    """
    A finite potential as a warm start: entries beyond what a solution can have are clipped.

    The largest entry of a balanced potential becomes 0, which changes nothing: a constant is free.
    The bound leaves room for the smallest and largest numbers of the dtype in Y, so that it changes
    no solution; it keeps the first iterations from overflow if g is anything else.
    """
    xp = array_namespace(g)
    most = float(xp.finfo(g.dtype).max)
    lam = 0.0 if problem.conserves_mass else problem.lam
    radius = search_radius(problem) + 2.0 * math.log(most) * (problem.kernel.eps + lam)
    radius = min(radius, 0.25 * most)
    top = xp.max(xp.where(Y > 0, g, -math.inf), axis=tuple(range(1, g.ndim)), keepdims=True)
    top = xp.where(top > -math.inf, top, 0.0)
    if problem.conserves_mass:
        # Halves, because the difference of two large numbers may overflow.
        return xp.clip(g * 0.5 - top * 0.5, -0.5 * radius, 0.5 * radius) * 2.0
    top = xp.clip(top, -radius, radius)
    return xp.clip(g, top - radius, top + radius)


def relative_gap(problem: TransportProblem, tol: float) -> Callable[[float], float]:
    """The gap allowed at a value: ``tol`` times the larger of it and eps times the mass."""
    floor = _scale(problem)
    return lambda value: tol * max(abs(value), floor)
