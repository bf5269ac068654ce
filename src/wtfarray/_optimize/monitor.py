"""Stopping criteria and history, shared by the optimisers."""

import math
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from wtfarray._arrays.validation import check_function, nonnegative_number, positive_integer
from wtfarray._optimize.line_search import Failure
from wtfarray._optimize.objective import Objective, Point
from wtfarray._optimize.result import OptimizeRecord, OptimizeResult, OptimizeState

__all__ = ["Callback", "Monitor"]

Callback: TypeAlias = Callable[[OptimizeState], Any]


class Monitor:
    """
    Record the accepted iterates and check the stopping criteria.

    Parameters
    ----------
    objective : Objective
        Counts the evaluations.
    patience : int
        The number of iterations over which `ftol` and the lack of progress are checked.
    max_iter, gtol, ftol, stop, callback
        As in `lbfgs`.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        patience: int,
        max_iter: int,
        gtol: float,
        ftol: float,
        stop: Callback | None,
        callback: Callback | None,
    ) -> None:
        self._clock = time.perf_counter()
        self._objective = objective
        self._patience = patience
        self._max_iter = positive_integer("max_iter", max_iter, least=0)
        self._gtol = nonnegative_number("gtol", gtol)
        self._ftol = nonnegative_number("ftol", ftol)
        check_function("stop", stop)
        check_function("callback", callback)
        self._stop = stop
        self._callback = callback
        self._history: list[OptimizeRecord] = []
        self._best_norm = math.inf
        self._last_progress = 0
        self.best_value = math.inf

    @property
    def n_iter(self) -> int:
        """Number of accepted iterations."""
        return len(self._history) - 1

    def accept(self, point: Point) -> OptimizeResult | None:
        """Record an accepted iterate; return the result if the run ends with it."""
        self._history.append(
            OptimizeRecord(
                time=time.perf_counter() - self._clock,
                value=point.value,
                gradient_norm=point.norm,
                evaluations=self._objective.n_evaluations,
            )
        )
        # Progress: a new lowest value, by more than rounding, or a new smallest gradient norm.
        if not point.value >= self.best_value - self._objective.eps * abs(point.value):
            self._last_progress = self.n_iter
        if point.norm < self._best_norm:
            self._last_progress = self.n_iter
        self.best_value = min(self.best_value, point.value)
        self._best_norm = min(self._best_norm, point.norm)
        return self._check(point)

    def _check(self, point: Point) -> OptimizeResult | None:
        state = self._state(point)
        if self._callback is not None and self.n_iter > 0:
            self._callback(state)
        if self._stop is not None and self._stop(state):
            message = f"`stop` returned true after {self.n_iter} iterations"
            return self._finish(point, message, converged=True)
        if point.norm <= self._gtol:
            message = f"gradient norm {point.norm:.1e} is at most `gtol` = {self._gtol:.1e}"
            return self._finish(point, message, converged=True)
        if self._ftol > 0 and self.n_iter >= self._patience:
            decrease = self._history[-1 - self._patience].value - point.value
            if decrease <= self._ftol * abs(point.value):
                message = (
                    f"relative decrease over {self._patience} iterations is at most "
                    f"`ftol` = {self._ftol:.1e}, gradient norm {point.norm:.1e}"
                )
                return self._finish(point, message, converged=True)
        if self.n_iter - self._last_progress >= self._patience:
            return self._precision(point)
        if self.n_iter >= self._max_iter:
            message = (
                f"stopped after {self.n_iter} iterations, gradient norm {point.norm:.1e}: "
                "increase `max_iter` or loosen `gtol`"
            )
            return self._finish(point, message, converged=False)
        return None

    def give_up(self, point: Point, failure: Failure, decrease: float) -> OptimizeResult:
        """End without a step; converged if the predicted `decrease` is lost in rounding."""
        if failure is Failure.STUCK and self._objective.lost_in_rounding(point, decrease):
            return self._precision(point)
        message = (
            f"stopped after {self._objective.n_evaluations} evaluations, gradient norm "
            f"{point.norm:.1e}: {failure.value}"
        )
        return self._finish(point, message, converged=False)

    def _finish(self, point: Point, message: str, *, converged: bool) -> OptimizeResult:
        """Build the result from the last accepted iterate."""
        state = self._state(point)
        return OptimizeResult(
            x=state.x,
            value=state.value,
            gradient=state.gradient,
            converged=converged,
            message=message,
            n_iter=state.n_iter,
            n_evaluations=state.n_evaluations,
            history=list(self._history),
        )

    def _precision(self, point: Point) -> OptimizeResult:
        """End because rounding prevents further progress."""
        message = (
            f"precision of {self._objective.dtype} reached: neither value nor gradient norm "
            f"{point.norm:.1e} can be improved"
        )
        return self._finish(point, message, converged=True)

    def _state(self, point: Point) -> OptimizeState:
        return OptimizeState(
            x=self._objective.unflatten(point.x),
            value=point.value,
            gradient=self._objective.unflatten(point.gradient),
            gradient_norm=point.norm,
            n_iter=self.n_iter,
            n_evaluations=self._objective.n_evaluations,
        )
