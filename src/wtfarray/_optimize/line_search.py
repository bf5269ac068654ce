"""Line search with the approximate Wolfe conditions (Hager and Zhang 2005, SIAM J. Optim. 16)."""

import math
from enum import Enum
from typing import NamedTuple

from wtfarray._arrays.typing import Array
from wtfarray._optimize.objective import Objective, Point

__all__ = ["Failure", "line_search"]

# Hager and Zhang's delta and sigma: sufficient decrease and curvature.
_DECREASE = 0.1
_CURVATURE = 0.9
_MAX_TRIALS = 20


class Failure(Enum):
    """Why no step was found."""

    BUDGET = "increase `max_evaluations` or loosen `gtol`"
    DOMAIN = "`fun` is not finite near the last iterate, pass a `safe_fun` or start elsewhere"
    STUCK = "value and gradient of `fun` disagree, check the gradient or loosen `gtol`"


class _End(NamedTuple):
    """An end of the bracket; value and slope are NaN outside the domain."""

    step: float
    value: float
    slope: float


def line_search(
    objective: Objective, start: Point, direction: Array, slope: float, ceiling: float
) -> Point | Failure:
    """
    Find a step along a descent direction that satisfies the (approximate) Wolfe conditions.

    Parameters
    ----------
    objective : Objective
        The function to evaluate; not finite outside its domain.
    start : Point
        The point at step zero.
    direction : array, shape (n,)
        The search direction; step one is tried first.
    slope : float
        The slope at step zero, negative.
    ceiling : float
        The lowest value so far, plus an allowance for rounding.

    Returns
    -------
    Point or Failure
        The point found, or the reason why there is none.

    Notes
    -----
    The bracket ``[low, high]`` contains an acceptable step. At ``low`` the value is at most
    `ceiling` and the slope is negative; at ``high`` the slope is positive, the value is above
    `ceiling`, or the point is outside the domain. Near the minimum, differences of values are lost
    in rounding; the approximate conditions then use the slopes.
    """
    noise = ceiling - start.value
    low, high = _End(0.0, start.value, slope), None
    best: Point | None = None
    step, width = 1.0, math.inf
    for _ in range(_MAX_TRIALS):
        if objective.exhausted:
            return best or Failure.BUDGET
        point = objective.evaluate(start.x + step * direction, direction)
        end = _End(step, math.nan, math.nan)
        if point.finite:
            end = _End(step, point.value, point.slope)
        if _acceptable(start.value, slope, end, ceiling):
            return point
        if end.slope < 0 and end.value <= ceiling:
            if end.value <= start.value + _DECREASE * step * slope:
                best = point
            low, previous = end, low
        else:
            high = end
        if high is None:
            step = _extrapolate(previous, low)
            continue
        step = _interpolate(low, high, noise)
        shrunk, width = high.step - low.step < 0.66 * width, high.step - low.step
        if not shrunk:
            step = low.step + 0.5 * width
        if not low.step < step < high.step:
            break
    if best is not None:
        # Sufficient decrease without the curvature condition, which `CurvaturePairs` checks.
        return best
    return Failure.DOMAIN if high is not None and math.isnan(high.value) else Failure.STUCK


def _acceptable(value: float, slope: float, end: _End, ceiling: float) -> bool:
    """Wolfe, or approximate Wolfe (Hager and Zhang, conditions T1 and T2); False for NaN."""
    flatter = end.slope >= _CURVATURE * slope
    wolfe = end.value <= value + _DECREASE * end.step * slope
    approximate = end.value <= ceiling and end.slope <= (2 * _DECREASE - 1) * slope
    return flatter and (wolfe or approximate)


def _extrapolate(previous: _End, low: _End) -> float:
    """The zero of the secant of the slopes, limited to 2 to 10 times the step."""
    change = low.slope - previous.slope
    step = 10 * low.step
    if change > 0:
        step = low.step - low.slope * (low.step - previous.step) / change
    return min(max(step, 2 * low.step), 10 * low.step)


def _interpolate(low: _End, high: _End, noise: float) -> float:
    """The minimum of a cubic, or of a parabola if values differ by noise only, safeguarded."""
    width = high.step - low.step
    if math.isnan(high.value):
        return low.step + 0.2 * width
    rise = high.value - low.value
    if abs(rise) > noise:
        # Nocedal and Wright (2006), equation 3.59.
        d1 = low.slope + high.slope - 3 * rise / width
        d2 = math.sqrt(max(d1 * d1 - low.slope * high.slope, 0.0))
        numerator, denominator = d1 + d2 - low.slope, high.slope - low.slope + 2 * d2
    else:
        numerator, denominator = -low.slope, high.slope - low.slope
    fraction = numerator / denominator if denominator > 0 else 0.5
    return low.step + min(max(0.1, fraction), 0.9) * width
