"""
The solver "dual": block descent, and restarts of small fits that have converged.

Block descent stops at the same saddle points as other methods. A small fit that has converged is
therefore restarted in all blocks at once, as by the solver "envelope". If that finds a lower point,
block descent continues there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from wtfarray._arrays.typing import Array
from wtfarray._dispatch import most_work, tries_to_escape
from wtfarray._losses.protocol import BoundLoss
from wtfarray._solvers import escape, joint
from wtfarray._solvers.block_descent import WORK_PER_EVALUATION, Descent, Sweep, descend
from wtfarray._solvers.objective import JointObjective
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason

ROUGH_SHARE = 1e-2
"""Duality gap of the objective at the start, as a share of it."""
LOWER_SHARE = 1e-5
"""The same at a lower point, which is accepted if its upper bound is lower."""


def solve_blockwise(
    problem: FactorisationProblem,
    bound: BoundLoss,
    blocks: list[Array],
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Sweep], bool],
    spent: float = 0.0,
) -> Descent:
    """
    Minimise over one block after the other, and leave the saddle points of small fits.

    ``bound`` is the loss of the problem, which has one term. ``report`` is called after every sweep
    and with each lower point that a restart finds. It ends the solve by returning True. Where no
    upper bound is known, the sweep that it sees has a lower bound and an infinite gap. Of the work
    that a small fit may take, ``spent`` was taken before, elsewhere.
    """
    (term,) = problem.terms
    begin = problem.work - spent
    value = problem.certify(blocks, ROUGH_SHARE)

    def report_finite(sweep: Sweep) -> bool:
        if sweep.objective == math.inf:
            # No block was solved: all are as they were, and so is the lower bound.
            sweep = replace(sweep, objective=value.value, gap=math.inf)
        return report(sweep)

    run = partial(
        descend,
        problem,
        bound,
        getattr(term, "weights", None),
        tol=tol,
        max_iter=max_iter,
        report=report_finite,
    )
    upper = value.value + value.gap
    found = run(blocks, term.potential, upper, spent=problem.work - begin)
    small = tries_to_escape(problem.entries, len(problem.free))
    for attempt in range(escape.SETTINGS.attempts if small else 0):
        if not found.reason.is_optimal:
            break
        term.start_from(found.potential)
        blockwise = WORK_PER_EVALUATION * found.evaluations
        spent = problem.work - begin + blockwise
        lower = _lower_point(problem, found, spent, tol=tol, attempt=attempt)
        if lower is None:
            if problem.work - begin + blockwise >= most_work(problem.entries):
                # The restart ended early: there may be a lower point.
                found = replace(found, reason=StopReason.WORK)
            break
        found = replace(
            found, blocks=lower.blocks, potential=term.potential, reason=StopReason.CALLBACK
        )
        if report(lower):
            break
        found = run(
            lower.blocks,
            term.potential,
            lower.objective,
            n_iter=lower.n_iter,
            evaluations=lower.evaluations,
            spent=problem.work - begin,
        )
    term.start_from(found.potential)
    return found


def _lower_point(
    problem: FactorisationProblem, found: Descent, spent: float, *, tol: float, attempt: int
) -> Sweep | None:
    """A point whose objective is lower, found by steps in all blocks at once; None if none is."""
    objective = JointObjective(problem, found.blocks, spent=spent)
    states = objective.states()
    lower = escape.escaped(
        objective,
        objective.pack(found.blocks),
        tol=tol,
        descend=partial(joint.descend, objective),
        report=lambda _: False,
        attempt=attempt,
    )
    if lower is not None:
        blocks = objective.blocks(lower[0])
        value = problem.certify(blocks, LOWER_SHARE)
        upper = value.value + value.gap
        if upper < found.objective:
            return Sweep(found.n_iter + 1, blocks, upper, value.gap, found.evaluations)
    objective.restore(states)
    return None
