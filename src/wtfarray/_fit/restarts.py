"""
Several initialisations of one fit: those that fall behind are stopped early.

All initialisations run up to a common milestone, the better half of them up to the next, as in
successive halving (Jamieson and Talwalkar 2016). After the last milestone the best one is solved to
the end. The others follow, from the next best on, as long as all together have not taken twice as
many steps as the first. They share the data and the kernels, and run one after the other,
so that only the potentials, the blocks and the curvature of the others have to be kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wtfarray._arrays.typing import Array
from wtfarray._dispatch import most_work
from wtfarray._fit.coarse_to_fine import first_start
from wtfarray._fit.driver import FitSolution, Paused, certify, check_mass, solve, solve_jointly_from
from wtfarray._fit.journal import Journal
from wtfarray._fit.online import solve_online
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.progress_bar import ProgressBar
from wtfarray._fit.specification import Specification
from wtfarray._fit.starts import Start
from wtfarray._solvers.envelope import Progress
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason
from wtfarray._transport.processors import one_fit

LAST_MILESTONE = 10
"""Steps at the final smoothing before initialisations are compared for the last time."""
KEPT = 0.5
"""Share of the initialisations that is kept at every milestone but the last."""
COST = 2
"""Limit on the steps of all initialisations, as a multiple of those of the first to end."""
COARSE_TOL = 1e-3
"""Tolerance on coarser grids, on which all initialisations are solved before they are compared."""
KEPT_AFTER_COARSE_GRID = 0.25
"""Share of the initialisations that is kept after all have been solved on a coarser grid."""


def best_of(
    starts: int, spec: Specification, options: SolverOptions, rng: np.random.Generator
) -> FitSolution:
    """The best of several initialisations; an interrupt or the callback ends all of them."""
    if options.solver == "online":
        return solve_online(spec, options, rng, best_of)
    if starts == 1:
        return solve(spec, options, rng)
    if options.solver == "dual":
        return _best_of_complete(starts, spec, options, rng)
    with one_fit(), ProgressBar(spec.label, visible=options.progress) as bar:
        journals = [
            Journal(options.callback, bar, spec.shards, spec.in_units_of_data)
            for _ in range(starts)
        ]
        return _Race(spec, options).run(journals, rng)


def _best_of_complete(
    starts: int, spec: Specification, options: SolverOptions, rng: np.random.Generator
) -> FitSolution:
    """The best of several initialisations, each solved to the end."""
    found: list[FitSolution] = []
    whole = most_work(math.prod(spec.X.shape))
    # Each may take an equal part of the work of a small fit.
    spent = 0.0 if math.isinf(whole) else whole * (1.0 - 1.0 / starts)
    for _ in range(starts):
        try:
            found.append(solve(spec, options, rng, spent=spent))
        except KeyboardInterrupt:  # before this initialisation had a solution to return
            if not found:
                raise
            reason, message = StopReason.INTERRUPTED, StopReason.INTERRUPTED.value
            break
        if found[-1].reason.by_caller:
            reason, message = found[-1].reason, found[-1].message
            break
    else:
        return min(found, key=lambda solution: solution.objective)
    # Not all initialisations were run, even if an earlier one converged.
    best = min(found, key=lambda solution: solution.objective)
    return replace(best, converged=False, reason=reason, message=message)


@dataclass(frozen=True)
class Milestone:
    """A number of steps at one level of smoothing, where initialisations are compared."""

    level: int
    steps: int

    def passed(self, progress: Progress) -> bool:
        """Whether a fit has come that far."""
        return (progress.level, progress.n_iter) >= (self.level, self.steps)


def milestones(levels: int) -> list[Milestone]:
    """The end of each level of smoothing but the last, and a few steps at the last."""
    ends = [Milestone(level, 1) for level in range(1, levels - 1)]
    return [*ends, Milestone(levels - 1, LAST_MILESTONE)]


@dataclass(frozen=True, eq=False)
class Contender:
    """One initialisation: before its first step on the grid of the data, paused or ended."""

    start: Start
    journal: Journal
    states: list[Array]
    """The states of the inner problems."""
    paused: Paused | None = None
    ended: tuple[list[Array], StopReason] | None = None

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is better: the objective, and before that how far the smoothing has fallen."""
        value = self.journal.objective
        return self.journal.level, value if math.isfinite(value) else math.inf

    @property
    def level(self) -> float:
        """The level of smoothing of the states, as a multiple of eps."""
        return 1.0 if self.paused is None else self.start.levels[self.paused.progress.level]

    @property
    def by_caller(self) -> StopReason | None:
        """Why the caller ended this initialisation, and with it all of them."""
        reason = None if self.ended is None else self.ended[1]
        return reason if reason is not None and reason.by_caller else None


class _Race:
    """The initialisations of one fit, which share its problem."""

    def __init__(self, spec: Specification, options: SolverOptions) -> None:
        self._spec = spec
        self._options = options
        self._problem = spec.problem(options.batch)
        self._initial = self._problem.states()
        self._begin = self._problem.work
        """The work that a small fit may take is shared by all its initialisations."""

    def run(self, journals: Sequence[Journal], rng: np.random.Generator) -> FitSolution:
        """The best of those initialisations that are solved to the end."""
        contenders: list[Contender] = []
        for journal in journals:
            try:
                contender = self._prepare(journal, rng)
            except KeyboardInterrupt:  # before this initialisation had blocks to return
                if not contenders:
                    raise
                return self._stop(contenders, StopReason.INTERRUPTED)
            stages = milestones(len(contender.start.levels))
            if contender.start.curvature is None:  # not solved on a coarser grid yet
                contender = self._advance(contender, stages[0].passed)
            contenders.append(contender)
            if contender.by_caller is not None:
                return self._stop(contenders, contender.by_caller)
        if all(contender.start.curvature is not None for contender in contenders):
            contenders = _best(contenders, KEPT_AFTER_COARSE_GRID)
        for milestone in stages:
            for k, contender in enumerate(contenders):
                contenders[k] = self._advance(contender, milestone.passed)
                if (reason := contenders[k].by_caller) is not None:
                    return self._stop(contenders, reason)
            contenders = _best(contenders, 1.0 if milestone is stages[-1] else KEPT)
        limit = math.inf
        for k, contender in enumerate(contenders):

            def pause(_: Progress, limit: float = limit) -> bool:
                return sum(journal.n_iter for journal in journals) >= limit

            contenders[k] = self._advance(contender, pause)
            if (reason := contenders[k].by_caller) is not None:
                return self._stop(contenders, reason)
            limit = COST * contenders[0].journal.n_iter
        complete = [contender for contender in contenders if contender.ended is not None]
        return self._certify(min(complete, key=lambda contender: contender.rank))

    def _prepare(self, journal: Journal, rng: np.random.Generator) -> Contender:
        """The initial blocks, solved on a coarser grid if there is one."""
        problem = self._problem
        _restore(problem, 1.0, self._initial)
        start = first_start(self._spec, problem, self._options, rng, journal, tol=COARSE_TOL)
        check_mass(self._spec, problem, start.blocks, rng)
        ended = None if start.ended is None else (start.blocks, start.ended)
        return Contender(start, journal, problem.states(), ended=ended)

    def _advance(self, contender: Contender, pause: Callable[[Progress], bool]) -> Contender:
        """Continue until it pauses or ends."""
        paused = contender.paused
        if contender.ended is not None or (paused is not None and pause(paused.progress)):
            return contender
        problem, start = self._problem, contender.start
        _restore(problem, contender.level, contender.states)
        found = solve_jointly_from(
            problem,
            start,
            self._options,
            contender.journal,
            paused=paused,
            pause=pause,
            spent=problem.work - self._begin,
        )
        if isinstance(found, Paused):
            return replace(contender, paused=found, states=problem.states())
        problem.set_level(1.0)
        return replace(contender, paused=None, ended=found, states=problem.states())

    def _stop(self, contenders: Sequence[Contender], reason: StopReason) -> FitSolution:
        """The best so far, after the caller has ended all initialisations."""
        best = min(contenders, key=lambda c: c.rank)
        blocks = best.journal.latest() or best.start.blocks
        if best.ended is not None:
            blocks = best.ended[0]
        return self._certify(replace(best, ended=(blocks, reason)))

    def _certify(self, contender: Contender) -> FitSolution:
        """Certify the objective of an initialisation that has ended."""
        assert contender.ended is not None
        _restore(self._problem, contender.level, contender.states)
        blocks, reason = contender.ended
        return certify(self._spec, self._problem, blocks, reason, self._options, contender.journal)


def _best(contenders: Sequence[Contender], share: float) -> list[Contender]:
    """The best of several initialisations, sorted."""
    kept = math.ceil(share * len(contenders))
    return sorted(contenders, key=lambda contender: contender.rank)[:kept]


def _restore(problem: FactorisationProblem, level: float, states: Sequence[Array]) -> None:
    """Return to the states of inner problems at a level of smoothing."""
    problem.set_level(level)  # changes the units of some states
    problem.restore(states)
