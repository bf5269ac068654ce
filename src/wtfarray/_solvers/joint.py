"""
The default solver of a fit, "envelope".

L-BFGS over all blocks at once, then prox-linear steps where the loss has kinks. A small fit that
has converged is perturbed once, in case it is at a saddle point.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.typing import Array
from wtfarray._dispatch import tries_to_escape
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._solvers.envelope import Progress, minimise
from wtfarray._solvers.escape import escaped
from wtfarray._solvers.gathered import alternate_on_first
from wtfarray._solvers.objective import Evaluation, FactorisationProblem, JointObjective
from wtfarray._solvers.prox_linear import alternate, prox_linear_term
from wtfarray._solvers.stop_reason import StopReason
from wtfarray._transport.inner_solver import has_distant_bins

ROUGH_TOL = 1e-3
"""Tolerance of L-BFGS if the loss has kinks, where prox-linear steps follow."""

Resumable = tuple[Progress, CurvaturePairs]
"""The state from which L-BFGS can be resumed."""


def solve_jointly(
    objective: JointObjective,
    x: Array,
    levels: tuple[float, ...],
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Evaluation, float, Resumable | None], bool],
    resume: Resumable | None = None,
    curvature: dict[str, NDArray[np.float64]] | None = None,
) -> tuple[Array, StopReason]:
    """
    Minimise the joint objective from x; returns the last point and the reason to stop.

    ``report`` is called after every step with the evaluation, the smoothing level, and the state to
    resume from, which is None for prox-linear steps: these are repeated after a resumption. It ends
    the solve by returning True.
    """
    x, reason = _descend(
        objective,
        x,
        levels,
        tol=tol,
        max_iter=max_iter,
        report=report,
        resume=resume,
        curvature=curvature,
    )
    problem = objective.problem
    small = tries_to_escape(problem.entries, len(problem.free), tol)
    if not (small and reason.is_optimal) or _has_kinks(problem):
        return x, reason
    lower = escaped(objective, x, tol=tol, report=lambda current: report(current, 1.0, None))
    if lower is None:
        return x, reason
    x, reason = lower
    if reason.by_caller:
        return x, reason
    return _descend(
        objective,
        x,
        (1.0,),
        tol=tol,
        max_iter=max_iter,
        report=lambda current, level, _: report(current, level, None),
    )


def _descend(
    objective: JointObjective,
    x: Array,
    levels: tuple[float, ...],
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Evaluation, float, Resumable | None], bool],
    resume: Resumable | None = None,
    curvature: dict[str, NDArray[np.float64]] | None = None,
) -> tuple[Array, StopReason]:
    """L-BFGS, and prox-linear steps after it where these are needed."""
    term, has_kinks = prox_linear_term(objective.problem), _has_kinks(objective.problem)
    found = minimise(
        objective,
        x,
        levels,
        tol=max(tol, ROUGH_TOL) if has_kinks else tol,
        max_iter=max_iter,
        report=lambda progress, pairs: report(
            progress.current, levels[progress.level], (progress, pairs)
        ),
        resume=resume,
        curvature=curvature,
    )
    converged_roughly = has_kinks and found.reason is StopReason.TOLERANCE
    if term is None or not (found.reason.is_blocked or converged_roughly):
        return found.x, found.reason
    shared = objective.sums.shared
    x, reason = (alternate_on_first if shared else alternate)(
        objective,
        term,
        found.x,
        tol=tol,
        max_iter=max_iter,
        report=lambda current: report(current, 1.0, None),
    )
    return x, found.reason if reason is StopReason.UNSOLVED else reason


def _has_kinks(problem: FactorisationProblem) -> bool:
    """Whether bins are so many eps apart that the loss is nearly piecewise linear."""
    term = prox_linear_term(problem)
    return term is not None and has_distant_bins(term.problem)
