"""What a fit reports: its history, the progress bar and the caller's callback."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

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
    """The objective is at most this much larger; balanced: an estimate, but in the last record."""
    evaluations: int
    """Of the inner problem, or of the block dual."""


@dataclass(frozen=True, eq=False)
class FitState:
    """What a callback sees after every step of a fit."""

    n_iter: int
    time: float
    """Seconds since the start."""
    objective: float
    """At the present smoothing: comparable with the result only at ``level`` 1."""
    gap: float
    evaluations: int
    level: float
    """The smoothing as a multiple of eps; inf while the grid is coarser than that of X."""
    blocks: Callable[[], list[Array]]
    """The present factors, then the core or the learned weights."""


class Journal:
    """The history of one start, its progress bar and the caller's callback."""

    def __init__(self, callback: Callable[[FitState], object] | None, bar: ProgressBar) -> None:
        self.records: list[Record] = []
        self.n_iter = 0
        self.latest: Callable[[], list[Array]] = list
        """The blocks after the last step."""
        self._values: list[float] = []
        self._callback = callback
        self._bar = bar
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._begin

    def resume(self, records: list[Record], n_iter: int, seconds: float) -> None:
        """Continue an earlier journal."""
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
    ) -> bool:
        """Take note of a step; True if the caller wants to stop."""
        self.n_iter += 1
        self.latest = blocks
        if level == 1.0:
            self._record(objective, gap, evaluations)
        self._bar.step(objective, gap)
        if self._callback is None:
            return False
        state = FitState(self.n_iter, self.seconds, objective, gap, evaluations, level, blocks)
        return wants_to_stop(self._callback(state))

    def certify(self, value: TermValue, evaluations: int, noise: float) -> float:
        """
        Take note of the certified value; returns how far below it late steps were thought to be.

        No step can have been below it: those that were thought to be are raised to it. Early steps
        are rough; if any in the second half was far off, the steps need not have led anywhere.
        """
        least, late = value.value, self._values[len(self._values) // 2 :]
        if self.records:
            evaluations = max(evaluations, self.records[-1].evaluations)
            if least > self.records[-1].objective + noise:
                self.records = [replace(r, objective=max(r.objective, least)) for r in self.records]
        self._record(least, value.gap, evaluations)
        return least - min(late, default=least)

    def _record(self, objective: float, gap: float, evaluations: int) -> None:
        """Keep a step; an error of the inner problem does not count as a rise."""
        self._values.append(objective)
        if self.records:
            objective = min(objective, self.records[-1].objective)
        self.records.append(Record(self.seconds, objective, gap, evaluations))


def wants_to_stop(answer: object) -> bool:
    """Whether a callback has returned True, Python's or NumPy's; other answers mean nothing."""
    return isinstance(answer, bool | np.bool_) and bool(answer)
