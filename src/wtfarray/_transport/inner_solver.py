"""
The inner problem, for a fixed model Y: the value of the loss and its gradient in Y.

``Phi(X, Y) = max_g <u(g), Y> - Phi*(X, u(g))``, sample by sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from array_api_compat import is_jax_array

from wtfarray._arrays.host import is_on_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.shards import Batch
from wtfarray._arrays.sums import ALONE
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import (
    falls_back_to_newton,
    iterates_in_machine_code,
    leaves_outliers_to_sinkhorn,
    prefers_newton,
)
from wtfarray._transport.geometry import DenseKernel
from wtfarray._transport.iterate import InnerSolver
from wtfarray._transport.newton import Newton
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.sinkhorn import Sinkhorn

OLDEST_NUMBA = (0, 62)
"""As in the extra `fast` of pyproject.toml."""
CHECK_EVERY = 100
"""The gap is computed at least once in this many iterations."""


def inner_solver(
    problem: TransportProblem,
    g: Array,
    weights: Array | None = None,
    batch: Batch | None = None,
    *,
    newton_follows: bool = False,
) -> InnerSolver:
    """
    Newton's method or Sinkhorn iterations, started from g; ``weights`` (N,) of the samples.

    ``batch`` is given if other processes solve some of the samples. ``newton_follows`` says whether
    the caller goes on with `fallback_solver` if the iterations do not converge.
    """
    sums, samples = (ALONE, None) if batch is None else (batch.sums, batch.samples)
    if not sums.shared and is_fused(problem, newton_follows=newton_follows):
        from wtfarray._transport.fused.solver import FusedSinkhorn

        return FusedSinkhorn(problem, g, weights)
    if _begins_with_newton(problem):
        return Newton(problem, g, weights, sums=sums)
    if is_jax_array(g):
        # Imported only if arrays of JAX are used.
        from wtfarray._transport.compiled_step import advance

        return Sinkhorn(problem, g, weights=weights, advance=advance, sums=sums, samples=samples)
    return Sinkhorn(problem, g, weights=weights, sums=sums, samples=samples)


def is_fused(
    problem: TransportProblem, samples: int | None = None, *, newton_follows: bool = False
) -> bool:
    """
    Whether these data are solved by machine code, sample by sample.

    ``samples`` is their number in a batch; all by default. Where Newton's method can follow, it
    does not come first, but for balanced transport, whose iterations converge more slowly.
    """
    may_try = newton_follows and not problem.conserves_mass
    served = problem.all_reachable and not problem.relaxes_data and is_on_host(problem.data)
    axes, (count, *bins) = problem.kernel.axes, problem.data.shape
    served = served and all(isinstance(axis, DenseKernel) for axis in axes)
    entries = (count if samples is None else min(samples, count)) * math.prod(bins)
    return (
        served
        and iterates_in_machine_code(entries, max(axis.terms for axis in axes))
        and (may_try or not _begins_with_newton(problem))
        and has_compiler()
    )


@cache
def has_compiler() -> bool:
    """Whether Numba is installed in a version that is supported, works, and may be used."""
    if find_spec("numba") is None:
        return False
    try:
        numba = import_module("numba")
        known = tuple(int(part) for part in numba.__version__.split(".")[:2]) >= OLDEST_NUMBA
        if not known or numba.config.DISABLE_JIT:
            return False
        import_module("wtfarray._transport.fused.solver")
    except Exception:  # noqa: BLE001 -- whatever is wrong with it, the other solvers work
        return False
    return True


def _begins_with_newton(problem: TransportProblem) -> bool:
    """Whether Newton's method is tried first."""
    return has_distant_bins(problem) and not _has_outliers_only(problem)


def fallback_solver(solver: InnerSolver) -> InnerSolver | None:
    """Newton's method where Sinkhorn iterations did not converge; None if that is too slow."""
    problem = solver.problem
    kernel, bins = problem.kernel, math.prod(problem.data.shape[1:])
    if problem.relaxes_data:
        return None
    balanced = problem.conserves_mass
    if not falls_back_to_newton(bins, kernel.spacing(), kernel.eps, balanced=balanced):
        return None
    return Newton(problem, solver.g, solver.sample_weights, sums=solver.sums)


def has_distant_bins(problem: TransportProblem) -> bool:
    """Whether samples have few bins, many eps apart, so that the plan is nearly sparse."""
    if problem.relaxes_data:
        return False  # Newton's method is for an exact first marginal
    kernel, bins = problem.kernel, math.prod(problem.data.shape[1:])
    return prefers_newton(bins, kernel.spacing(), kernel.eps, balanced=problem.conserves_mass)


def _has_outliers_only(problem: TransportProblem) -> bool:
    """Whether only a few bins are distant, so that Sinkhorn iterations are faster nevertheless."""
    if not problem.conserves_mass:
        return False
    kernel, bins = problem.kernel, math.prod(problem.data.shape[1:])
    spacings, largest = (kernel.spacing(), kernel.typical_spacing()), kernel.potential_range()
    return leaves_outliers_to_sinkhorn(bins, *spacings, largest, kernel.eps)


def solve_to_gap(
    solver: InnerSolver, Y: Array, allowed: Callable[[float], float], max_iter: int
) -> tuple[Array, int]:
    """
    Iterate until the duality gap is at most ``allowed(value)``, both summed over the samples.

    Returns g and the number of iterations.
    """
    xp = array_namespace(Y)
    problem = solver.problem
    factor = gap_factor(problem)
    limit, check = math.inf, math.inf
    best, best_n = math.inf, 0
    points, sums = solver.iterates(Y, max_iter=max_iter), solver.sums
    for n in range(1, max_iter + 1):
        point = next(points)
        g = point.g
        (estimate,) = sums.numbers(float(xp.sum(point.gap_bound(factor))))
        del point  # free its arrays before the next one is computed
        if estimate <= min(limit, check) or n % CHECK_EVERY == 0 or n == max_iter:
            values, gaps, _ = problem.bounds(g, Y)
            gap, value = sums.numbers(float(xp.sum(gaps)), float(xp.sum(values)))
            limit = allowed(value)
            if gap < 0.99 * best:
                best, best_n = gap, n
            if gap <= limit or n == max_iter or n - best_n >= solver.patience:
                return g, n
            # The rounded gap is of the order of the root of the estimate: extrapolate.
            check = estimate * (min(0.5, (limit / gap) ** 2) if gap < math.inf else 0.1)
    raise AssertionError  # not reached: the loop returns at max_iter


def gap_factor(problem: TransportProblem) -> float:
    """``factor KL(q | Y exp(-g/lam))`` is the gap; if balanced, the order of the value's error."""
    return problem.kernel.eps if problem.conserves_mass else problem.lam
