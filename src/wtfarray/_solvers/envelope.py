"""
The joint solver: L-BFGS over all blocks at once on the value function of the inner problems.

The value is known up to the error of the inner solution. The line search therefore follows two
rules. A rejected trial restores the potentials of the base point. A base value from an inner
problem that has not converged is not compared with: it is a lower bound, below which no step may be
found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._optimize.objective import Point
from wtfarray._optimize.scaled_curvature import ScaledCurvaturePairs
from wtfarray._solvers.objective import Evaluation, JointObjective
from wtfarray._solvers.stop_reason import StopReason


@dataclass(frozen=True)
class EnvelopeSettings:
    """Constants of the joint solver."""

    memory: int = 20
    """Number of curvature pairs of L-BFGS."""
    trials: int = 10
    """Largest number of trial steps of a line search."""
    inner_error: float = 0.03
    """Tolerance of the inner problems, as a fraction of the expected decrease."""
    negligible: float = 1e-3
    """A predicted decrease below this fraction of the objective counts as negligible."""
    small_steps: int = 3
    """Converged after this number of consecutive steps with a decrease below the tolerance."""
    failures: int = 3
    """Stop after this number of consecutive failures of the line search."""
    level_tol: float = 1e-3
    """Tolerance at larger smoothing, which only provides initial blocks."""
    level_iterations: int = 40
    """Largest number of iterations at each larger smoothing."""


SETTINGS = EnvelopeSettings()


@dataclass(frozen=True, eq=False)
class Progress:
    """The state of the joint solver, from which it can be resumed."""

    level: int
    """Index of the smoothing level."""
    n_iter: int
    """Iterations at this level."""
    current: Evaluation
    decrease: float
    """Decrease of the last step, which sets the tolerance of the inner problems."""
    tightness: float
    """Factor on the tolerance of the inner problems, at most 1; smaller after failures."""
    small_steps: int
    failures: int
    inherited: bool = False
    """Whether all curvature pairs are those of a similar problem."""


@dataclass(frozen=True, eq=False)
class Minimised:
    """The result of the joint solver."""

    x: Array
    reason: StopReason
    accepted: int
    """Number of accepted steps, at all levels."""
    n_iter: int
    """Iterations at the last level, up to its last accepted step."""
    pairs: CurvaturePairs
    """The curvature pairs at the last point."""
    progress: Progress
    """The state at the last point, from which the solve can be continued."""


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
    least: int = 0,
) -> Minimised:
    """
    Minimise the joint objective, from the largest smoothing to the smallest.

    ``report`` is called after every accepted step and ends the solve by returning True. ``resume``
    is a pair of its arguments, to continue from that step. ``curvature`` holds the pairs of a
    similar problem, from `CurvaturePairs.export`. However little they gain, ``least`` steps are
    taken at every level: those before the curvature is known may be short. The reason is STUCK if
    no step decreases the objective, and UNSOLVED if none was found because the inner problems did
    not converge.
    """
    scale = objective.problem.scale
    reason, accepted = StopReason.ITERATIONS, 0
    for number, level in enumerate(levels):
        last = number == len(levels) - 1
        if resume is not None and number < resume[0].level:
            continue
        objective.set_level(level)
        if resume is not None and number == resume[0].level:
            progress, pairs = resume
        else:
            first = evaluate_until_solved(objective, x, max(0.02 * scale * level, 1e-300))
            near = number > 0 or curvature is not None
            if number == 0:
                pairs = new_pairs(first.point, objective.sums, objective.shared)
                if curvature is not None:
                    pairs.restore(curvature)
            if near:
                pairs.renew(first.point)
            # The slope at a new level predicts the decrease poorly: assume a small one.
            expected = 5e-3 * abs(first.point.value) if near else math.inf
            inherited = number == 0 and curvature is not None
            progress = Progress(number, 0, first, expected, 1.0, 0, 0, inherited)
        goal, limit = (tol, max_iter)
        if not last:
            goal, limit = SETTINGS.level_tol, SETTINGS.level_iterations
        reason, n_iter = StopReason.ITERATIONS, 0
        while progress.n_iter < limit:
            moved = _advance(objective, pairs, progress, goal, last=last, least=least)
            if isinstance(moved, StopReason):
                reason = moved
                break
            progress = moved
            if progress.failures == 0:
                accepted, n_iter = accepted + 1, progress.n_iter
                if report(progress, pairs):
                    x = progress.current.point.x
                    return Minimised(x, StopReason.CALLBACK, accepted, n_iter, pairs, progress)
        x = progress.current.point.x
    return Minimised(x, reason, accepted, n_iter, pairs, progress)


def _advance(
    objective: JointObjective,
    pairs: CurvaturePairs,
    progress: Progress,
    goal: float,
    *,
    last: bool,
    least: int,
) -> Progress | StopReason:
    """One iteration, or the reason to stop."""
    if objective.is_exhausted:
        return StopReason.WORK
    slow = progress.small_steps >= SETTINGS.small_steps and progress.n_iter >= least
    moved = StopReason.TOLERANCE if slow else _step(objective, pairs, progress, goal)
    if isinstance(moved, StopReason) and last:
        return _raise_small_entries(objective, pairs, progress, goal) or moved
    return moved


def evaluate_until_solved(objective: JointObjective, x: Array, tolerance: float) -> Evaluation:
    """Evaluate until the inner problems converge; each call continues from the last potential."""
    for _ in range(20):
        first = objective.evaluate(x, tolerance)
        if first.converged or objective.is_exhausted:
            break
    return first


def new_pairs(point: Point, sums: Sums = ALONE, shared: int = 0) -> CurvaturePairs:
    """An empty set of curvature pairs; of the vector, ``shared`` entries differ by process."""
    xp = array_namespace(point.x)
    eps = float(xp.finfo(point.x.dtype).eps)
    return ScaledCurvaturePairs(point, SETTINGS.memory, eps, xp, sums=sums, shared=shared)


def _step(
    objective: JointObjective, pairs: CurvaturePairs, progress: Progress, goal: float
) -> Progress | StopReason:
    """One iteration; STUCK or UNSOLVED if no step decreases the objective."""
    base = progress.current
    if not base.point.finite:
        return StopReason.NOT_FINITE
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
            negligible = -slope <= smallest_drop(objective, base, SETTINGS.negligible)
            return StopReason.STUCK if found.reliable or negligible else StopReason.UNSOLVED
        pairs.clear()
        return replace(
            progress,
            current=found.base,
            tightness=found.tightness * 0.3,
            failures=progress.failures + 1,
            n_iter=progress.n_iter + 1,
        )
    base, new = found.base, found.accepted
    if progress.inherited and found.shortened:
        pairs.clear()  # those of the similar problem mislead
    pairs.update(base.point, new.point, new.measured)
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


def _raise_small_entries(
    objective: JointObjective, pairs: CurvaturePairs, progress: Progress, goal: float
) -> Progress | None:
    """Raise entries that are stuck near 0; None if that does not decrease the objective."""
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
    """The smallest decrease that counts as progress."""
    return goal * max(abs(base.point.value), objective.problem.scale)


@dataclass(frozen=True, eq=False)
class _SearchResult:
    """The result of a line search."""

    base: Evaluation
    """The base point, possibly evaluated again to a smaller tolerance."""
    accepted: Evaluation | None
    tightness: float
    states: list[Array]
    """The states of the inner problems at the base point."""
    shortened: bool = False
    """Whether a longer step was rejected before one was accepted."""
    reliable: bool = True
    """Whether the inner problems had converged when the last trial was rejected."""


def _search(
    objective: JointObjective,
    pairs: CurvaturePairs,
    progress: Progress,
    direction: Array,
    slope: float,
) -> _SearchResult:
    """Backtrack from the full step, treating the error of the values as noise."""
    base, tightness = progress.current, progress.tightness
    states = objective.states()
    xp = array_namespace(direction)
    rounding = max(1e-11, 10.0 * float(xp.finfo(direction.dtype).eps)) * abs(base.point.value)
    t = 1.0
    for trial in range(SETTINGS.trials):
        if trial:
            objective.restore(states)
            if objective.is_exhausted:
                break
        allowed = max(
            SETTINGS.inner_error * tightness * min(progress.decrease, -slope), rounding, 1e-300
        )
        x = base.point.x + t * direction
        measure = partial(pairs.measure_ahead, base.point, x)
        new = objective.evaluate(x, allowed, direction, measure)
        rise = new.point.value - base.point.value
        finite = new.point.finite
        if finite and new.converged:
            noise = base.error + new.error + rounding
            if rise <= 1e-4 * t * slope:
                return _SearchResult(base, new, tightness, states, shortened=t < 1.0)
            if rise <= noise and new.point.slope <= 0.5 * abs(slope):
                return _SearchResult(base, new, tightness, states, shortened=t < 1.0)
        elif trial < 3 or not finite:
            t *= 0.3  # the inner problems did not converge: the step was too long
            continue
        doubtful = base.error > 10.0 * rounding
        if direction.dtype == xp.float32:
            # Rounding makes errors larger than estimated. Convex functions rise by at most t times
            # their slope at the new point.
            doubtful = doubtful or rise > t * max(new.point.slope, 0.0) + rounding
        if trial in (1, 4) and doubtful:
            # The base value may be inaccurate: evaluate it again before it rejects more steps.
            tightness *= 0.3
            objective.restore(states)
            base = objective.evaluate(base.point.x, 0.3 * min(base.error, allowed), direction)
            states = objective.states()
            pairs.renew(base.point)
            slope = base.point.slope
            rise = new.point.value - base.point.value
            if new.converged and rise <= 1e-4 * t * slope:
                return _SearchResult(base, new, tightness, states, shortened=t < 1.0)
            if slope >= 0:
                break
        curvature = rise - slope * t
        best = -slope * t * t / (2.0 * curvature) if curvature > 0 else 0.5 * t
        t = min(max(best, 0.1 * t), 0.5 * t)
    reliable = base.converged and new.converged
    return _SearchResult(base, None, tightness, states, reliable=reliable)
