"""
The default solver of a fit, "envelope".

L-BFGS over all blocks at once, then prox-linear steps where the loss has kinks. A small fit that
has converged is restarted from perturbed points, in case it is at a saddle point. If the model is
then close to the data, the objective is nearly its smallest possible value, next to which the
differences that matter are small: L-BFGS is continued with a smaller tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.typing import Array
from wtfarray._dispatch import refinement_steps, tries_to_escape
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._solvers import escape
from wtfarray._solvers.envelope import Minimised, Progress, minimise
from wtfarray._solvers.gathered import alternate_on_first
from wtfarray._solvers.objective import Evaluation, JointObjective
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.prox_linear import alternate, prox_linear_term
from wtfarray._solvers.stop_reason import StopReason
from wtfarray._transport.inner_solver import has_distant_bins

ROUGH_TOL = 1e-3
"""Tolerance of L-BFGS if the loss has kinks, where prox-linear steps follow."""

EXCESS_SHARE = 3.0
"""
A fit is continued until its steps decrease it by less than this times tol times its excess.

The excess is the objective above the smallest loss that any model could have. On trilinear data
with 1 % of noise it is a thousandth of the objective, and a tolerance relative to the objective
gives concentrations with up to 30 times the error of those at the minimum. Where the excess is
above a third of the objective nothing changes.
"""
EXCESS_FLOOR = 1e-3
"""The excess counts as at least this share of eps times the mass."""
FINEST_TOL = 1e-9
"""No fit is continued to a smaller tolerance than this."""

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
    found, x, reason = descend(
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
    small = tries_to_escape(problem.entries, len(problem.free))
    for attempt in range(escape.SETTINGS.attempts if small else 0):
        if not reason.is_optimal:
            break
        lower = escape.escaped(
            objective,
            x,
            tol=tol,
            descend=partial(descend, objective),
            report=lambda current: report(current, 1.0, None),
            attempt=attempt,
        )
        if lower is None:
            if objective.is_exhausted:
                reason = StopReason.WORK  # the restart ended early: there may be a lower point
            break
        x, reason = lower
        if reason.by_caller:
            break
        found, x, reason = descend(
            objective,
            x,
            (1.0,),
            tol=tol,
            max_iter=max_iter,
            report=lambda current, level, _: report(current, level, None),
        )
    if reason is not StopReason.TOLERANCE or _has_kinks(problem):
        return x, reason
    return _refined(objective, found, tol=tol, max_iter=max_iter, report=report)


def _refined(
    objective: JointObjective,
    found: Minimised,
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Evaluation, float, Resumable | None], bool],
) -> tuple[Array, StopReason]:
    """
    Continue a solve that has converged if the model is close to the data.

    The number of steps is limited, and it has converged whatever they find.
    """
    problem = objective.problem
    more_steps = refinement_steps(problem.entries, len(problem.free), found.n_iter, tol)
    steps = min(found.n_iter + more_steps, max_iter)
    if steps <= found.n_iter:
        return found.x, found.reason
    value = found.progress.current.point.value + objective.offset
    excess = max(abs(value - problem.least()), EXCESS_FLOOR * problem.scale)
    goal = max(tol * EXCESS_SHARE * excess / problem.magnitude(value), FINEST_TOL)
    if not goal < tol:
        return found.x, found.reason
    more = minimise(
        objective,
        found.x,
        (1.0,),
        tol=goal,
        max_iter=steps,
        report=lambda progress, _: report(progress.current, 1.0, None),
        resume=(replace(found.progress, level=0, small_steps=0), found.pairs),
    )
    return more.x, more.reason if more.reason.by_caller else found.reason


def descend(
    objective: JointObjective,
    x: Array,
    levels: tuple[float, ...],
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Evaluation, float, Resumable | None], bool],
    resume: Resumable | None = None,
    curvature: dict[str, NDArray[np.float64]] | None = None,
    least: int = 0,
) -> tuple[Minimised, Array, StopReason]:
    """
    L-BFGS, with at least ``least`` steps, and prox-linear steps after it where these are needed.

    Returns what L-BFGS found, the last point and the reason to stop.
    """
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
        least=least,
    )
    converged_roughly = has_kinks and found.reason is StopReason.TOLERANCE
    if term is None or not (found.reason.is_blocked or converged_roughly):
        return found, found.x, found.reason
    shared = objective.sums.shared
    x, reason = (alternate_on_first if shared else alternate)(
        objective,
        term,
        found.x,
        tol=tol,
        max_iter=max_iter,
        report=lambda current: report(current, 1.0, None),
    )
    return found, x, found.reason if reason is StopReason.UNSOLVED else reason


def _has_kinks(problem: FactorisationProblem) -> bool:
    """Whether bins are so many eps apart that the loss is nearly piecewise linear."""
    term = prox_linear_term(problem)
    return term is not None and has_distant_bins(term.problem)
