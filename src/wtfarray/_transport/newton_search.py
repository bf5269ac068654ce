"""
The line search of Newton's method, for all samples at once.

A step is shortened until the value increases; the last trial is a Sinkhorn step, which always
increases it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from wtfarray._arrays.compilation import argument, compiled
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array
from wtfarray._transport.newton_point import NewtonConstants, NewtonPoint, newton_point
from wtfarray._transport.problem import TransportProblem

IDLE_STEPS = 4
"""A sample is settled after this number of steps without progress beyond rounding."""


@argument()
@dataclass(frozen=True, eq=False)
class Progress:
    """Which samples still make progress beyond rounding; all fields are (N,)."""

    value: Array
    """The largest value so far."""
    size: Array
    """The smallest L1 norm of the gradient so far."""
    off: Array
    """The smallest ``max |log(Y exp(-g/lam) / q)|`` so far."""
    idle: Array
    """Number of steps since the last progress."""

    @property
    def settled(self) -> Array:
        """Samples, (N,) bool, that have reached the accuracy of their arithmetic."""
        return self.idle >= IDLE_STEPS

    @classmethod
    def begin(cls, point: NewtonPoint) -> Progress:
        """No progress yet."""
        huge = point.size + math.inf
        return cls(point.value, huge, huge, 0.0 * point.size)

    def after(self, value: Array, noise: Array, size: Array, off: Array) -> Progress:
        """The progress after a step to ``value``, known up to ``noise``, from size and off."""
        xp = array_namespace(size)
        better = (value > self.value + noise) | (size < 0.9 * self.size) | (off < 0.9 * self.off)
        idle = xp.where(better, 0.0 * self.idle, self.idle + 1.0)
        highest, least, closest = (
            xp.maximum(value, self.value),
            xp.minimum(size, self.size),
            xp.minimum(off, self.off),
        )
        return Progress(highest, least, closest, idle)

    def renewed(self, value: Array, samples: Array) -> Progress:
        """The progress of the given samples, (N,) bool, begins again, at ``value``."""
        xp = array_namespace(value)
        idle = xp.where(samples, 0.0 * self.idle, self.idle)
        return Progress(xp.maximum(value, self.value), self.size, self.off, idle)


class LineSearch(NamedTuple):
    """A line search; lengths are (N,)."""

    t: Array
    """The share of the Newton step that is tried next."""
    plain: Array
    """The Sinkhorn step, (N, m)."""
    noise: Array
    """The rounding error of a difference of two values."""
    near: Array
    """Samples, bool, whose step is so short that the quadratic model is good."""


@compiled()
def line_search(
    log_ratio: Array, point: NewtonPoint, problem: TransportProblem, radius: float
) -> LineSearch:
    """The line search from a point."""
    xp = array_namespace(log_ratio)
    tiny = float(xp.finfo(log_ratio.dtype).eps)
    t = xp.minimum(radius / xp.maximum(point.length, tiny * radius), 1.0)
    near = point.length <= problem.kernel.eps
    return LineSearch(t, log_ratio * problem.damping, noise_of(point, problem), near)


@compiled(static=("batch", "last"))
def trial_point(
    Y: Array,
    live: Array,
    point: NewtonPoint,
    search: LineSearch,
    searching: Array,
    problem: TransportProblem,
    constants: NewtonConstants,
    *,
    batch: int,
    last: bool,
) -> tuple[NewtonPoint, Array, Array]:
    """
    A trial of the line search: the new point, and the samples, (N,) bool, that take it.

    Also returns two numbers of samples: those that do not take it, and of these, those that are
    still ``searching``. The ``last`` trial is a Sinkhorn step, which all take.
    """
    xp = array_namespace(Y)
    t, plain, noise, near = search
    # A Sinkhorn step in any subset of the bins raises the value.
    step = plain if last else xp.where(point.light, plain, point.step * t[:, None])
    new = newton_point(point.g + step, Y, live, problem, constants, batch=batch)
    taken = searching
    if not last:
        gain = new.value - point.value
        rises = (gain > 0) & (gain >= 1e-2 * t * point.decrement)
        # If the gain is below rounding, rely on the quadratic model or the gradient.
        rounded = gain >= -125.0 * noise
        rises = rises | (rounded & (near | (new.size <= 0.9 * point.size)))
        taken = searching & rises
    counted = xp.stack([~taken, searching & ~taken])
    return new, taken, xp.sum(xp.astype(counted, Y.dtype), axis=1)


@compiled()
def replaced(samples: Array, point: NewtonPoint, other: NewtonPoint) -> NewtonPoint:
    """A point, replaced by another one in the given samples, (N,) bool."""
    return point.where(samples, other)


@compiled()
def progressed(
    log_ratio: Array, progress: Progress, new: NewtonPoint, old: NewtonPoint, noise: Array
) -> tuple[Progress, Array]:
    """The progress after a step, and the number of samples that are not settled."""
    xp = array_namespace(log_ratio)
    off = xp.max(xp.abs(log_ratio), axis=1)
    progress = progress.after(new.value, noise, old.size, off)
    return progress, xp.sum(xp.astype(~progress.settled, log_ratio.dtype))


def noise_of(point: NewtonPoint, problem: TransportProblem) -> Array:
    """The rounding error of a difference of two values, (N,)."""
    xp = array_namespace(point.value)
    magnitude = xp.abs(point.value) + problem.kernel.eps * problem.mass
    return 4.0 * float(xp.finfo(point.value.dtype).eps) * magnitude
