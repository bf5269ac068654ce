"""The inner solver that iterates one sample after the other, on several threads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.host import from_host, to_host
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import falls_back_to_newton
from wtfarray._transport.fused.iteration import iterate
from wtfarray._transport.fused.state import (
    Course,
    Limits,
    Result,
    as_rows,
    copy_of,
    first_state,
    new_result,
    samples_of,
)
from wtfarray._transport.fused.threads import on_threads
from wtfarray._transport.iterate import Iterate, Until
from wtfarray._transport.problem import Marginal, TransportProblem
from wtfarray._transport.sinkhorn import LONG_MEMORY, LONG_SOLVE, MANY_BINS, PLAIN_WORK, memory_for
from wtfarray._transport.stragglers import POLICY

SHARE = 0.2
"""Samples are iterated to this share of the error that is allowed, which saves steps of a fit."""
LATE_RATIO = 64
"""
Late samples may take so many iterations for each that is allowed, where Newton's method follows.

All samples take part in its steps, which for 64 bins take a hundred times as long as an iteration.
"""
ONWARD = Course()
LASTING = ("ahead", "g", "rest", "size", "safe")
"""What is known of a sample apart from its secants."""


def common_limit(errors: NDArray[np.float64], total: float) -> float:
    """
    The error down to which samples have to be iterated so that all add up to ``total``.

    Samples with smaller ``errors``, (N,), stay as they are.
    """
    ordered = np.sort(errors)
    before = np.concatenate([[0.0], np.cumsum(ordered)[:-1]])
    limits = (total - before) / np.arange(len(ordered), 0, -1)
    larger = ~(ordered <= limits)
    return float(limits[np.argmax(larger)]) if larger.any() else float(ordered[-1])


class FusedSinkhorn:
    """
    Solves the inner problem by Sinkhorn iterations in machine code.

    For finite costs, an exact first marginal and samples that are not empty; whatever the dtype of
    the problem, it computes in float64. Every sample is iterated until its own error is small.
    """

    patience = math.inf
    sums: Sums = ALONE
    work_per_evaluation = PLAIN_WORK

    def __init__(self, problem: TransportProblem, g: Array, weights: Array | None = None) -> None:
        self.problem = problem
        self.sample_weights = weights
        self.g = g
        """Where the next solve starts."""
        self.continues = False
        """Whether that is where the last solve ended."""
        self._iterations = 0
        """Of single samples, so far."""
        self._shape = tuple(g.shape)
        self._samples = samples_of(problem)
        self._count, self._bins = self._samples.X.shape
        self._weights = np.ones(self._count) if weights is None else to_host(weights)
        self._state = first_state(self._count, self._bins, memory_for(self._bins))
        kernel, balanced = problem.kernel, problem.conserves_mass
        newton_follows = not balanced and falls_back_to_newton(
            self._bins, kernel.spacing(), kernel.eps, balanced=balanced
        )
        self._late_ratio = LATE_RATIO if newton_follows else POLICY.max_iter_ratio
        self._late_share = 1.0 if newton_follows else POLICY.max_share
        self._length = 0
        """Number of iterations of the last solve, of the sample with the most; 0 before any."""

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the marginal so far, averaged over the samples."""
        return math.ceil(self._iterations / self._count)

    def iterates(
        self,
        Y: Array,
        tolerance: float = 0.0,  # noqa: ARG002
        max_iter: int | None = None,  # noqa: ARG002
        *,
        positive: bool | None = None,  # noqa: ARG002
        until: Until | None = None,
    ) -> Iterator[Iterate]:
        """
        The iterates for this Y, without end; `g` runs one step ahead of them.

        Samples that account for little of the error are left as they are.
        """
        if self._length > LONG_SOLVE and self._bins >= MANY_BINS:
            self._remember_more()
        predicts = self.continues and self._length > 0
        if not predicts:
            self._state.ahead[...] = as_rows(self.g)
        until = Until() if until is None else until
        model, result = as_rows(Y), new_result(self._count, self._bins)
        n = max(1, min(until.least, until.most))
        course = Course(begins=True, predicts=predicts)
        self._run(model, result, np.arange(self._count), Limits(0.0, 0.0, n, n), course)
        rest = until.most - n
        self._finish(model, result, until, rest, 1.0)
        self._finish(model, result, until, (self._late_ratio - 1) * rest, self._late_share)
        n, self._length = 0, int(result.iterations.max())
        while True:
            yield self._point(result, self._length - n)
            n = self._length
            result = copy_of(result)
            error = POLICY.error_share * self._error(result) / self._count
            limits = Limits(error, math.inf, 1, 1)
            late = self._late(result, limits)
            # A few samples make several iterations, which take no longer than one of all.
            most = min(POLICY.check_every, self._count // max(1, len(late)))
            self._run(model, result, late, limits._replace(most=most))
            self._length += 1

    def _finish(
        self,
        model: NDArray[np.float64],
        result: Result,
        until: Until,
        most: int,
        share: float,
    ) -> None:
        """Iterate the samples that are late, unless they are more than a share of all."""
        limits = self._limits(result, until)
        if limits is None or most <= 0:
            return
        late = self._late(result, limits)
        if len(late) <= share * self._count:
            self._run(model, result, late, limits._replace(most=most))

    def _error(self, result: Result) -> float:
        """The error of all samples, with their weights."""
        return float((result.decrement * self._weights).sum())

    def _limits(self, result: Result, until: Until) -> Limits | None:
        """What samples have to reach, so that the totals are small enough; None if they are."""
        error, distance = self._error(result), float(result.size.sum())
        if error <= until.error and distance <= until.distance:
            return None
        limits = Limits(math.inf, math.inf, 1, 1)
        if not error <= until.error:
            errors = result.decrement * self._weights
            limits = limits._replace(error=common_limit(errors, SHARE * until.error))
        if not distance <= until.distance:
            mass = float(self._samples.mass.sum())
            limits = limits._replace(distance=SHARE * until.distance / mass)
        return limits

    def _late(self, result: Result, limits: Limits) -> NDArray[np.intp]:
        """The samples that are not within the limits."""
        near = result.decrement * self._weights <= limits.error
        near &= result.size <= limits.distance * self._samples.mass
        return np.nonzero(~near)[0]

    def _run(
        self,
        model: NDArray[np.float64],
        result: Result,
        chosen: NDArray[np.intp],
        limits: Limits,
        course: Course = ONWARD,
    ) -> None:
        """Iterate the ``chosen`` samples."""

        def task(start: int, stop: int) -> None:
            samples, state, weights = self._samples, self._state, self._weights
            iterate(samples, state, result, model, weights, chosen, start, stop, limits, course)

        on_threads(task, len(chosen), limits.most * len(chosen) * self._bins)

    def _point(self, result: Result, iterations: int) -> Iterate:
        """The last iterates, in the library of the problem."""

        def stacked(values: NDArray[np.float64]) -> Array:
            return from_host(values.reshape(self._shape), self.g)

        self._iterations += int(result.iterations.sum())
        self.g = stacked(self._state.ahead.copy())
        return Iterate(
            stacked(result.g),
            Marginal(stacked(result.q), None, None, stacked(result.log_Kf)),
            from_host(result.shift, self.g),
            stacked(result.residual),
            self.problem.damping,
            stacked(result.gradient),
            from_host(result.decrement, self.g),
            from_host(result.size, self.g),
            error=self._error(result),
            distance=float(result.size.sum()),
            iterations=iterations,
        )

    def _remember_more(self) -> None:
        """Room for more secants; those that are known are forgotten."""
        if self._state.scales.shape[1] < LONG_MEMORY:
            kept = {name: getattr(self._state, name) for name in LASTING}
            self._state = first_state(0, 0, 0)  # frees the memory of those that are forgotten
            self._state = first_state(self._count, self._bins, LONG_MEMORY)._replace(**kept)
