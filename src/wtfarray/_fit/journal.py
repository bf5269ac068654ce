"""Progress of a fit: history, progress bar and callback."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from wtfarray._arrays.shards import WHOLE, News, Shards
from wtfarray._arrays.typing import Array
from wtfarray._fit.progress_bar import ProgressBar
from wtfarray._losses.term import TermValue


@dataclass(frozen=True)
class Record:
    """One accepted step of a fit."""

    time: float
    """Seconds since the start."""
    objective: float
    gap: float
    """Duality gap; for balanced transport an estimate, except in the last record."""
    evaluations: int
    """Evaluations of the inner problems, or of the block duals."""


@dataclass(frozen=True, eq=False)
class FitState:
    """The state of a fit after a step, as passed to the callback."""

    n_iter: int
    time: float
    """Seconds since the start."""
    objective: float
    """At the current smoothing: comparable with the result only if ``level`` is 1."""
    gap: float
    evaluations: int
    level: float
    """The smoothing as a multiple of eps; inf on a grid coarser than that of X."""
    blocks: Callable[[], list[Array]]
    """Returns the current factors, then the core or the learned weights."""


class Journal:
    """The history of one fit, its progress bar and the callback of the user."""

    def __init__(
        self,
        callback: Callable[[FitState], object] | None,
        bar: ProgressBar,
        shards: Shards = WHOLE,
        in_units_of_data: Callable[[list[Array]], list[Array]] = list,
    ) -> None:
        self._shards = shards
        self._in_units_of_data = in_units_of_data
        self._asks = shards.sums.any(callback is not None)
        """Whether this or another process has a callback."""
        self.records: list[Record] = []
        self.n_iter = 0
        self.latest: Callable[[], list[Array]] = list
        """The blocks after the last step, in the units in which they are fitted."""
        self.objective = math.inf
        """The objective after the last step, at the level of that step."""
        self.level = math.inf
        """The level of the last step, as in `FitState`."""
        self._values: list[float] = []
        self._callback = callback
        self._bar = bar
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._begin

    def resume(self, records: list[Record], n_iter: int, seconds: float) -> None:
        """Continue the history of a checkpoint."""
        self.records, self.n_iter = list(records), n_iter
        self._values = [record.objective for record in records]
        self._begin -= seconds

    def step(
        self,
        objective: float,
        gap: float,
        level: float,
        evaluations: int,
        blocks: Callable[[], list[Array]],
        news: News | None = None,
    ) -> bool:
        """
        Record a step; True if the callback ends the fit.

        If several processes share the samples, the callback of any of them ends the fit of all, and
        an interrupt of any of them is raised in all. ``news`` are given if they have told each
        other their evaluations and interrupts already.
        """
        self.n_iter += 1
        self.latest = blocks
        self.objective, self.level = objective, level
        evaluations = self.of_all(evaluations, news)
        if level == 1.0:
            self._record(objective, gap, evaluations)
        self._bar.step(objective, gap)
        if not self._asks:
            return False

        def current() -> list[Array]:
            return self._in_units_of_data(blocks())

        state = FitState(self.n_iter, self.seconds, objective, gap, evaluations, level, current)
        return self._answer(state)

    def _answer(self, state: FitState) -> bool:
        """Whether a callback ends the fit; one that is interrupted interrupts all processes."""
        stops = interrupted = False
        try:
            stops = self._callback is not None and wants_to_stop(self._callback(state))
        except KeyboardInterrupt:
            if not self._shards.shared:
                raise
            interrupted = True
        stopped, interrupts = self._shards.sums.numbers(float(stops), float(interrupted))
        if interrupts:
            raise KeyboardInterrupt
        return stopped > 0

    def of_all(self, evaluations: int, news: News | None = None) -> int:
        """
        The number of evaluations, averaged over the samples of all processes.

        An interrupt of one process is raised in all.
        """
        shards = self._shards
        if not shards.shared:
            return evaluations
        if news is None:
            news = News(*shards.sums.numbers(*shards.news(evaluations)))
        if news.interrupts:
            raise KeyboardInterrupt
        return math.ceil(news.evaluations / sum(shards.counts))

    def certify(self, value: TermValue, evaluations: int, noise: float) -> float:
        """
        Record the certified value; returns how far recorded late values lie below it.

        The objective decreases, so recorded values below the certified one are errors of the inner
        solution and are raised to it. Such errors are expected in early steps. In the second half
        of the history, a large one means that steps were accepted on inaccurate values.
        """
        least, late = value.value, self._values[len(self._values) // 2 :]
        if self.records:
            evaluations = max(evaluations, self.records[-1].evaluations)
            if least > self.records[-1].objective + noise:
                self.records = [replace(r, objective=max(r.objective, least)) for r in self.records]
        self._record(least, value.gap, evaluations)
        return least - min(late, default=least)

    def _record(self, objective: float, gap: float, evaluations: int) -> None:
        """Append a record; an apparent increase is an error of the inner solution."""
        self._values.append(objective)
        if self.records:
            objective = min(objective, self.records[-1].objective)
        self.records.append(Record(self.seconds, objective, gap, evaluations))


def wants_to_stop(answer: object) -> bool:
    """Whether a callback returned True (of Python or NumPy); other values are ignored."""
    return isinstance(answer, bool | np.bool_) and bool(answer)
