"""The transport problem for one Y, solved sample by sample to a given duality gap."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from array_api_compat import array_namespace

from wtfarray._arrays.samples import inner, per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import or_float64
from wtfarray._transport.feasibility import refuse_infinite
from wtfarray._transport.inner_solver import inner_solver, solve_to_gap
from wtfarray._transport.problem import TransportProblem

LEVEL_GAP = 1e-2
"""Relative gap at which a level of larger eps ends."""
LEVEL_ITERATIONS = 50
"""Largest number of iterations at a level of larger eps."""


@dataclass(frozen=True, eq=False)
class Solution:
    """A dual solution of every sample; arrays are stacks (N, ...)."""

    problem: TransportProblem
    Y: Array
    g: Array
    """The potential; for balanced transport ``<g, Y> = 0`` in each sample."""
    u: Array
    """The gradient in Y, -inf where Y is 0."""
    values: Array
    """Lower bounds of the loss, (N,)."""
    gap: float
    converged: bool
    message: str
    n_iter: int


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
    g = xp.zeros_like(Y) if potential is None else potential
    n_iter, eps = 0, problem.kernel.eps
    for level in levels[:-1] if potential is None else ():
        # A level only provides a warm start for the next one.
        coarse = inner_solver(problem.at_eps(eps * level), g)
        allowed = relative_gap(coarse.problem, LEVEL_GAP)
        g, n = solve_to_gap(coarse, Y, allowed, min(LEVEL_ITERATIONS, max_iter))
        n_iter += n
    g, n = solve_to_gap(inner_solver(problem, g), Y, relative_gap(problem, tol), max_iter)
    n_iter += n
    if problem.conserves_mass:
        g = centred(g, Y)
    values, gaps, u = problem.bounds(g, Y)
    gap = float(xp.sum(gaps))
    converged = gap <= relative_gap(problem, tol)(float(xp.sum(values)))
    message = f"duality gap {gap:.1e} after {n_iter} iterations"
    if not converged:
        message += f": increase `max_iter`, loosen `tol` or choose a larger eps{or_float64(Y)}"
        if problem.conserves_mass and not problem.kernel.all_finite:
            refuse_infinite(problem, values)
            message += (
                "; infinite costs forbid some transport, and Y may be out of reach of X: a finite "
                "lam allows for that"
            )
        warnings.warn(message, stacklevel=4)
    return Solution(problem, Y, g, u, values, gap, converged, message, n_iter)


def centred(g: Array, Y: Array) -> Array:
    """Subtract a constant from each sample of g, free if balanced, such that ``<g, Y> = 0``."""
    weight = per_sample(Y)
    xp = array_namespace(g)
    return g - spread(inner(g, Y) / xp.where(weight > 0, weight, 1.0), g)


def relative_gap(problem: TransportProblem, tol: float) -> Callable[[float], float]:
    """The gap allowed at a value: ``tol`` times the larger of it and eps times the mass."""
    floor = problem.kernel.eps * float(array_namespace(problem.mass).sum(problem.mass))
    return lambda value: tol * max(abs(value), floor)
