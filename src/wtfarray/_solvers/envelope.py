"""
The joint solver: L-BFGS over all blocks at once on the value function of the inner problems.

The value is known up to the error of the inner solution. Two rules keep the line search honest: a
rejected trial puts the inner problems back to where the base point left them, and a base value from
an unconverged inner problem is never compared with: it is a lower bound that no step can beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from wtfarray._arrays.typing import Array
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._optimize.objective import Point
from wtfarray._solvers.objective import Evaluation, JointObjective
from wtfarray._solvers.stop_reason import StopReason


@dataclass(frozen=True)
class EnvelopeSettings:
    """How the joint solver goes about its steps."""

    memory: int = 20
    """Curvature pairs of L-BFGS."""
    trials: int = 10
    """Steps that a line search tries."""
    inner_error: float = 0.03
    """Of the inner problems, as a share of the decrease that is expected."""
    negligible: float = 1e-3
    """Where a step promises less than this share of the objective, there is little left to gain."""
    small_steps: int = 3
    """In a row; then the solver has converged."""
    failures: int = 3
    """Of the line search in a row, after which the solver gives up."""
    level_tol: float = 1e-3
    """Tolerance at larger smoothings, which only have to bring the blocks near."""
    level_iterations: int = 40
    """Iterations at a larger smoothing at most."""


SETTINGS = EnvelopeSettings()


@dataclass(frozen=True, eq=False)
class Progress:
    """Where the joint solver stands; all that a later call needs to go on."""

    level: int
    """Which of the smoothing levels."""
    n_iter: int
    """Iterations at this level."""
    current: Evaluation
    decrease: float
    """Of the last step; sets how well the inner problems are solved."""
    tightness: float
    small_steps: int
    failures: int


@dataclass(frozen=True, eq=False)
class Minimised:
    """What the joint solver found."""

    x: Array
    reason: StopReason
    accepted: int
    """Steps that were accepted, at all levels."""
    n_iter: int
    """Iterations at the last level, up to its last accepted step."""
    pairs: CurvaturePairs
    """The curvature there."""


def minimise(
    objective: JointObjective,
    x: Array,
    levels: tuple[float, ...],
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Progress, CurvaturePairs], bool],
    resume: tuple[Progress, CurvaturePairs] | None = None,
    curvature: dict[str, NDArray[np.float64]] | None = None,
) -> Minimised:
    """
    Minimise the joint objective, from the coarsest smoothing to the finest.

    ``report`` sees every accepted step and ends the solve by returning True; what it saw is what
    ``resume`` takes to go on from there. ``curvature`` is what `CurvaturePairs.export` gave of a
    similar problem. The result says STUCK if no step leads down, and UNSOLVED if none was found
    because the inner problems were not solved well enough.
    """
    scale = objective.problem.scale
    reason, accepted = StopReason.ITERATIONS, 0
    for number, level in enumerate(levels):
        last = number == len(levels) - 1
        if resume is not None and number < resume[0].level:
            continue
        objective.problem.set_level(level)
        if resume is not None and number == resume[0].level:
            progress, pairs = resume
        else:
            first = evaluate_until_solved(objective, x, max(0.02 * scale * level, 1e-300))
            near = number > 0 or curvature is not None
            if number == 0:
                pairs = new_pairs(first.point)
                if curvature is not None:
                    pairs.restore(curvature)
            if near:
                pairs.renew(first.point)
            # Slopes at a new level say little: expect what is left to gain to be small.
            expected = 5e-3 * abs(first.point.value) if near else math.inf
            progress = Progress(number, 0, first, expected, 1.0, 0, 0)
        goal, limit = (tol, max_iter)
        if not last:
            goal, limit = SETTINGS.level_tol, SETTINGS.level_iterations
        reason, n_iter = StopReason.ITERATIONS, 0
        while progress.n_iter < limit:
            moved = _advance(objective, pairs, progress, goal, last=last)
            if isinstance(moved, StopReason):
                reason = moved
                break
            progress = moved
            if progress.failures == 0:
                accepted, n_iter = accepted + 1, progress.n_iter
                if report(progress, pairs):
                    x = progress.current.point.x
                    return Minimised(x, StopReason.CALLBACK, accepted, n_iter, pairs)
        x = progress.current.point.x
    return Minimised(x, reason, accepted, n_iter, pairs)


def _advance(
    objective: JointObjective, pairs: CurvaturePairs, progress: Progress, goal: float, *, last: bool
) -> Progress | StopReason:
    """One iteration, or why there is none."""
    slow = progress.small_steps >= SETTINGS.small_steps
    moved = StopReason.TOLERANCE if slow else _step(objective, pairs, progress, goal)
    if isinstance(moved, StopReason) and last:
        return _raise(objective, pairs, progress, goal) or moved
    return moved


def evaluate_until_solved(objective: JointObjective, x: Array, tolerance: float) -> Evaluation:
    """Evaluate until the inner problems are solved; each call goes on where the last one ended."""
    for _ in range(20):
        first = objective.evaluate(x, tolerance)
        if first.converged:
            break
    return first


def new_pairs(point: Point) -> CurvaturePairs:
    """An empty memory of curvature."""
    xp = array_namespace(point.x)
    return CurvaturePairs(point, SETTINGS.memory, float(xp.finfo(point.x.dtype).eps), xp)


def _step(
    objective: JointObjective, pairs: CurvaturePairs, progress: Progress, goal: float
) -> Progress | StopReason:
    """One iteration; STUCK or UNSOLVED when nothing more can be gained."""
    base = progress.current
    direction, slope = pairs.direction(base.point)
    if not slope < 0:
        pairs.clear()
        direction, slope = pairs.direction(base.point)
    if not slope < 0:
        return StopReason.STUCK if base.converged else StopReason.UNSOLVED
    found = _search(objective, pairs, progress, direction, slope)
    if found.accepted is None:
        objective.restore(found.states)
        if progress.failures == SETTINGS.failures:
            slight = -slope <= smallest_drop(objective, base, SETTINGS.negligible)
            return StopReason.STUCK if found.sound or slight else StopReason.UNSOLVED
        pairs.clear()
        return replace(
            progress,
            current=found.base,
            tightness=found.tightness * 0.3,
            failures=progress.failures + 1,
            n_iter=progress.n_iter + 1,
        )
    base, new = found.base, found.accepted
    pairs.update(base.point, new.point)
    drop = base.point.value - new.point.value
    magnitude = abs(base.point.value)
    decrease = max(drop, 1e-12 * magnitude)
    if drop <= 0:
        decrease = 0.5 * min(progress.decrease, -slope)
    small = drop < smallest_drop(objective, base, goal)
    return Progress(
        progress.level,
        progress.n_iter + 1,
        new,
        decrease,
        min(1.0, 2.0 * found.tightness),
        progress.small_steps + 1 if small else 0,
        0,
    )


def _raise(
    objective: JointObjective, pairs: CurvaturePairs, progress: Progress, goal: float
) -> Progress | None:
    """Raise entries that are stuck next to 0; None if that would not pay."""
    base = progress.current
    worthwhile = smallest_drop(objective, base, goal)
    raised, gain = objective.raised(base.point)
    if gain < worthwhile:
        return None
    states = objective.states()
    for t in (1.0, 0.3, 0.1):
        x = base.point.x + t * (raised - base.point.x)
        new = objective.evaluate(x, SETTINGS.inner_error * worthwhile)
        drop = base.point.value - new.point.value
        if new.point.finite and new.converged and drop >= worthwhile:
            pairs.renew(new.point)
            return Progress(progress.level, progress.n_iter + 1, new, drop, 1.0, 0, 0)
        objective.restore(states)
    return None


def smallest_drop(objective: JointObjective, base: Evaluation, goal: float) -> float:
    """A smaller one does not count as progress."""
    return goal * max(abs(base.point.value), objective.problem.scale)


@dataclass(frozen=True, eq=False)
class _Found:
    """What a line search came to."""

    base: Evaluation
    """The base point, perhaps evaluated again more tightly."""
    accepted: Evaluation | None
    tightness: float
    states: list[Array]
    """Where the inner problems of the base stand."""
    sound: bool = True
    """Whether the values by which the shortest step was refused are to be trusted."""


def _search(
    objective: JointObjective,
    pairs: CurvaturePairs,
    progress: Progress,
    direction: Array,
    slope: float,
) -> _Found:
    """Backtrack from the full step; the error of the values counts as noise."""
    base, tightness = progress.current, progress.tightness
    states = objective.states()
    xp = array_namespace(direction)
    rounding = max(1e-11, 10.0 * float(xp.finfo(direction.dtype).eps)) * abs(base.point.value)
    t = 1.0
    for trial in range(SETTINGS.trials):
        if trial:
            objective.restore(states)
        allowed = max(
            SETTINGS.inner_error * tightness * min(progress.decrease, -slope), rounding, 1e-300
        )
        new = objective.evaluate(base.point.x + t * direction, allowed, direction)
        rise = new.point.value - base.point.value
        finite = new.point.finite
        if finite and new.converged:
            noise = base.error + new.error + rounding
            if rise <= 1e-4 * t * slope:
                return _Found(base, new, tightness, states)
            if rise <= noise and new.point.slope <= 0.5 * abs(slope):
                return _Found(base, new, tightness, states)
        elif trial < 3 or not finite:
            t *= 0.3  # the inner problem is too far away: the step was too long
            continue
        if trial in (1, 4) and base.error > 10.0 * rounding:
            # The base value may be off: sharpen it before it rejects another step.
            tightness *= 0.3
            objective.restore(states)
            base = objective.evaluate(base.point.x, 0.3 * min(base.error, allowed), direction)
            states = objective.states()
            pairs.renew(base.point)
            slope = base.point.slope
            rise = new.point.value - base.point.value
            if new.converged and rise <= 1e-4 * t * slope:
                return _Found(base, new, tightness, states)
            if slope >= 0:
                break
        curvature = rise - slope * t
        best = -slope * t * t / (2.0 * curvature) if curvature > 0 else 0.5 * t
        t = min(max(best, 0.1 * t), 0.5 * t)
    return _Found(base, None, tightness, states, base.converged and new.converged)
