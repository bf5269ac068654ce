"""Accelerated gradient descent with adaptive restart, for problems too large for L-BFGS."""

import math

from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import positive_number
from wtfarray._optimize.line_search import Failure
from wtfarray._optimize.monitor import Callback, Monitor
from wtfarray._optimize.objective import Fun, Objective, Point
from wtfarray._optimize.result import OptimizeResult

__all__ = ["gradient_descent"]

_PATIENCE = 100
_MAX_HALVINGS = 60
_GROWTH = 1.1


def gradient_descent(
    fun: Fun,
    x0: Array,
    /,
    *,
    step: float | None = None,
    max_iter: int = 10_000,
    gtol: float = 1e-8,
    ftol: float = 0.0,
    stop: Callback | None = None,
    safe_fun: Fun | None = None,
    callback: Callback | None = None,
) -> OptimizeResult:
    """
    Minimise a smooth function by accelerated gradient descent.

    Parameters
    ----------
    fun : callable
        ``fun(x) -> (value, gradient)``, as in `lbfgs`.
    x0 : array
        The initial point, float32 or float64, of any shape. Not modified.
    step : float, optional
        The first step size, ideally one over the largest curvature; adapted afterwards. By default
        the first step has length one.
    max_iter : int
        The largest number of iterations. Each takes at most two evaluations, plus those of
        rejected steps.
    gtol : float
        Converged if the largest absolute entry of the gradient is at most this.
    ftol : float
        Converged if the value decreased by at most ``ftol * abs(value)`` over 100 iterations.
        Not used if 0.
    stop, safe_fun, callback : callable, optional
        As in `lbfgs`.

    Returns
    -------
    OptimizeResult
        The last iterate, and why the run ended.

    See Also
    --------
    lbfgs : Far fewer iterations; stores ``2 * memory`` more arrays.

    Notes
    -----
    Nesterov's method with the gradient restart of O'Donoghue and Candès (2015, Found. Comput.
    Math. 15). The step size is halved until the quadratic upper bound holds, and then grows
    slowly. One host synchronisation per evaluation. The run also counts as converged if rounding
    prevents further progress: neither a new lowest value nor a new smallest gradient norm in 100
    iterations.

    Examples
    --------
    >>> import numpy as np
    >>> curvature = np.asarray([1.0, 10.0, 100.0])
    >>> def fun(x):
    ...     return 0.5 * np.sum(curvature * x**2), curvature * x
    >>> result = gradient_descent(fun, np.ones(3))
    >>> result.converged, bool(np.max(np.abs(result.x)) < 1e-7)
    (True, True)
    """
    return shared_gradient_descent(
        fun,
        x0,
        ALONE,
        step=step,
        max_iter=max_iter,
        gtol=gtol,
        ftol=ftol,
        stop=stop,
        safe_fun=safe_fun,
        callback=callback,
    )


def shared_gradient_descent(
    fun: Fun,
    x0: Array,
    sums: Sums,
    /,
    *,
    step: float | None = None,
    max_iter: int = 10_000,
    gtol: float = 1e-8,
    ftol: float = 0.0,
    stop: Callback | None = None,
    safe_fun: Fun | None = None,
    callback: Callback | None = None,
) -> OptimizeResult:
    """As `gradient_descent`, for variables that several processes share: see `Objective`."""
    if step is not None:
        step = positive_number("step", step)
    objective = Objective(fun, safe_fun, x0, sums=sums)
    monitor = Monitor(
        objective,
        patience=_PATIENCE,
        max_iter=max_iter,
        gtol=gtol,
        ftol=ftol,
        stop=stop,
        callback=callback,
    )
    point = objective.start()
    if step is None:
        step = 1.0 / math.sqrt(point.square) if point.square > 0 else 1.0
    result = monitor.accept(point)
    base, momentum = point, 1.0
    while result is None:
        first, ceiling = step, monitor.best_value + objective.noise(point)
        step, found = _descend(objective, base, first, ceiling)
        if base is not point and (isinstance(found, Failure) or found.value > ceiling):
            # The extrapolated point failed: take a plain gradient step from the iterate.
            base, momentum, step = point, 1.0, first
            continue
        if isinstance(found, Failure):
            return monitor.give_up(point, found, first * point.square)
        result = monitor.accept(found)
        if result is None:
            # Restart if the step opposes the momentum: `base.slope` is the gradient
            # at the base times (base - point), so this is the gradient times (found - point).
            if base is not point and base.slope - step * base.square > 0:
                momentum = 1.0
            base, momentum = _extrapolate(objective, point, found, momentum)
            step *= _GROWTH
        point = found
    return result


def _descend(
    objective: Objective, base: Point, step: float, ceiling: float
) -> tuple[float, Point | Failure]:
    """Take a gradient step from the base, halved until the quadratic upper bound holds."""
    direction = -base.gradient
    failure = Failure.DOMAIN
    for _ in range(_MAX_HALVINGS):
        found = objective.evaluate(base.x + step * direction, direction)
        if found.finite:
            if step * base.square > objective.noise(base):
                bounded = found.value <= base.value - 0.5 * step * base.square
            else:
                # The bound is lost in rounding. For a parabola it holds if and only if the slope
                # has not changed sign (Becker, Candès and Grant 2011, Math. Prog. Comp. 3, 5.3).
                bounded = found.slope <= 0
                if bounded and found.value > ceiling:
                    return step, Failure.STUCK
            if bounded:
                return step, found
            failure = Failure.STUCK
        step *= 0.5
    return step, failure


def _extrapolate(
    objective: Objective, old: Point, new: Point, momentum: float
) -> tuple[Point, float]:
    """Nesterov's extrapolation; none after a restart or if it leaves the domain."""
    following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
    if momentum == 1.0:
        return new, following
    ahead = (momentum - 1.0) / following * (new.x - old.x)
    base = objective.evaluate(new.x + ahead, ahead)
    return (base, following) if base.finite else (new, 1.0)
