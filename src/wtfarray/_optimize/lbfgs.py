"""L-BFGS for any array type, with few host synchronisations."""

import math

from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import positive_integer
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._optimize.line_search import Failure, line_search
from wtfarray._optimize.monitor import Callback, Monitor
from wtfarray._optimize.objective import Fun, Objective, Point
from wtfarray._optimize.result import OptimizeResult

__all__ = ["lbfgs"]

_PATIENCE = 10


def lbfgs(
    fun: Fun,
    x0: Array,
    /,
    *,
    memory: int = 10,
    max_iter: int = 500,
    max_evaluations: int | None = None,
    gtol: float = 1e-8,
    ftol: float = 0.0,
    stop: Callback | None = None,
    safe_fun: Fun | None = None,
    callback: Callback | None = None,
) -> OptimizeResult:
    """
    Minimise a smooth function by L-BFGS.

    Parameters
    ----------
    fun : callable
        ``fun(x) -> (value, gradient)``; the value is a 0-d array or a float, the gradient has the
        shape, dtype and device of `x0`. Both may be NaN or infinite outside the domain; such
        points are rejected.
    x0 : array
        The initial point, float32 or float64, of any shape. Not modified.
    memory : int
        The number of curvature pairs; ``2 * memory`` arrays of the size of `x0` are stored.
    max_iter : int
        The largest number of iterations.
    max_evaluations : int, optional
        The largest number of evaluations; a last one by `safe_fun` may exceed it.
    gtol : float
        Converged if the largest absolute entry of the gradient is at most this.
    ftol : float
        Converged if the value decreased by at most ``ftol * abs(value)`` over 10 iterations.
        Not used if 0.
    stop : callable, optional
        ``stop(state) -> bool``, called at the start and after every iteration with an
        `OptimizeState`; true means converged.
    safe_fun : callable, optional
        A slower, more robust `fun`, used where `fun` is not finite.
    callback : callable, optional
        ``callback(state)``, called after every iteration.

    Returns
    -------
    OptimizeResult
        The last iterate, and why the run ended.

    See Also
    --------
    gradient_descent : Stores no curvature pairs, for very large problems.

    Notes
    -----
    One host synchronisation per evaluation and one per iteration. The run also counts as converged
    if rounding prevents further progress: neither a new lowest value nor a new smallest gradient
    norm in 10 iterations, or no step found and a predicted decrease below rounding.

    Examples
    --------
    >>> import numpy as np
    >>> target = np.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> def fun(x):
    ...     return np.sum((x - target) ** 4), 4 * (x - target) ** 3
    >>> result = lbfgs(fun, np.zeros((2, 2)))
    >>> result.converged
    True
    >>> np.round(result.x, 1)
    array([[1., 2.],
           [3., 4.]])
    """
    return shared_lbfgs(
        fun,
        x0,
        ALONE,
        memory=memory,
        max_iter=max_iter,
        max_evaluations=max_evaluations,
        gtol=gtol,
        ftol=ftol,
        stop=stop,
        safe_fun=safe_fun,
        callback=callback,
    )


def shared_lbfgs(
    fun: Fun,
    x0: Array,
    sums: Sums,
    /,
    *,
    memory: int = 10,
    max_iter: int = 500,
    max_evaluations: int | None = None,
    gtol: float = 1e-8,
    ftol: float = 0.0,
    stop: Callback | None = None,
    safe_fun: Fun | None = None,
    callback: Callback | None = None,
) -> OptimizeResult:
    """As `lbfgs`, for variables that several processes share: see `Objective`."""
    memory = positive_integer("memory", memory)
    limit = math.inf
    if max_evaluations is not None:
        limit = positive_integer("max_evaluations", max_evaluations)
    objective = Objective(fun, safe_fun, x0, limit, sums)
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
    size = point.x.shape[0]
    pairs = CurvaturePairs(point, memory, objective.eps, objective.xp, sums=sums, shared=size)
    result = monitor.accept(point)
    while result is None:
        direction, slope = pairs.direction(point)
        if not -math.inf < slope < 0:
            pairs.clear()
            direction, slope = pairs.direction(point)
        ceiling = monitor.best_value + objective.noise(point)
        found = line_search(objective, point, direction, slope, ceiling)
        if isinstance(found, Point):
            result = monitor.accept(found)
            if result is None:
                pairs.update(point, found)
            point = found
        elif found is not Failure.BUDGET and not pairs.empty:
            pairs.clear()
        else:
            result = monitor.give_up(point, found, -slope)
    return result
