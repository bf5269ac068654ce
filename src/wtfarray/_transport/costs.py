"""Ground costs: the cost of moving one unit of mass from one bin to another."""

import math
from typing import Any, Literal

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array, Device, Namespace
from wtfarray._arrays.validation import (
    as_floating,
    common_namespace,
    follow,
    one_of,
    positive_integer,
    positive_number,
    refuse_where,
)
from wtfarray._transport.banded import BandedCost, map_cost

Scale = Literal["mean", "max", "median"] | None
SCALES = ("mean", "max", "median", None)


def grid_cost(
    *shape: int,
    p: float = 2,
    scale: Scale = "mean",
    spacing: float | tuple[float, ...] = 1.0,
    reach: float | tuple[float | None, ...] | None = None,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> tuple[Any, ...]:
    """
    Cost between the points of a regular grid, one matrix per axis.

    The cost of moving from point ``i`` to point ``j`` is the sum over the axes of
    ``|spacing_k (i_k - j_k)|**p``. Because it is a sum, its Gibbs kernel is applied axis by axis,
    and the full cost matrix is never formed.

    Parameters
    ----------
    *shape : int
        Number of points along each axis.
    p : float
        Exponent of the distance; 2 gives squared distances.
    scale : {"mean", "max", "median", None}
        The statistic of the full cost that is normalised to 1. With "mean", ``eps`` has the same
        meaning on every grid.
    spacing : float or tuple of float
        Distance between neighbouring points, for all axes or for each axis.
    reach : float or tuple of float or None, optional
        The largest distance of transport along each axis, in the units of ``spacing``; None for no
        limit. An axis with a limit is a `BandedCost`, which is never formed: axes may have tens of
        thousands of points. The scale is that of the cost without limits.
    xp, device
        Namespace and device of the result; NumPy if None. `Wasserstein` converts NumPy costs to
        the library and device of the data.

    Returns
    -------
    tuple of arrays (n_k, n_k) or BandedCost, float64
        One cost per axis.

    Examples
    --------
    >>> import wtfarray as wtf
    >>> rows, columns = wtf.grid_cost(3, 2, scale=None)
    >>> rows
    array([[0., 1., 4.],
           [1., 0., 1.],
           [4., 1., 0.]])
    >>> wtf.grid_cost(50_000, spacing=0.01, reach=5.0)
    (BandedCost(50000 bins, reach of 500),)
    """
    if not shape:
        msg = "shape is empty: expected the number of points along each axis"
        raise TypeError(msg)
    shape = tuple(positive_integer(f"shape[{k}]", n) for k, n in enumerate(shape))
    one_of("scale", scale, SCALES)
    power = positive_number("p", p)
    steps = [positive_number("spacing", s) for s in _per_axis("spacing", spacing, len(shape))]
    reaches = [
        step * n if limit is None else positive_number("reach", limit, infinite=True)
        for n, step, limit in zip(shape, steps, _per_axis("reach", reach, len(shape)), strict=True)
    ]
    axes = [(step * np.arange(n)) ** power for n, step in zip(shape, steps, strict=True)]
    factor = _scale_of_grid(axes, scale)
    costs = [
        _axis_cost(axis / factor, limit / step)
        for axis, limit, step in zip(axes, reaches, steps, strict=True)
    ]
    if xp is None:
        return tuple(costs)
    return tuple(map_cost(lambda c: xp.asarray(c, device=device), cost) for cost in costs)


def _per_axis(name: str, value: Any, count: int) -> tuple[Any, ...]:
    """One value per axis, from one for all axes or a tuple."""
    values = value if isinstance(value, tuple) else (value,) * count
    if len(values) != count:
        msg = f"{name} has {len(values)} entries: expected one number, or {count} of them"
        raise ValueError(msg)
    return values


def _axis_cost(steps: np.ndarray, reach: float) -> np.ndarray | BandedCost:
    """The cost of an axis with the given costs at each distance, up to ``reach`` bins."""
    n = steps.size
    bins = math.floor(min(reach * (1.0 + 1e-12), n))  # 0.3 / 0.1 is a rounding below 3
    if bins < n - 1:
        return BandedCost(steps[: bins + 1], n)
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return steps[distance]


def _scale_of_grid(axes: list[np.ndarray], scale: Scale) -> float:
    """The statistic of the full cost, from the costs at each distance along each axis."""
    if scale is None:
        return 1.0
    counts = [_pairs_at_distance(axis.size) for axis in axes]
    if scale == "mean":
        statistic = sum(float(a @ c) / float(c.sum()) for a, c in zip(axes, counts, strict=True))
    elif scale == "max":
        statistic = sum(float(a[-1]) for a in axes)
    else:
        total, weight = np.zeros(1), np.ones(1)
        for a, c in zip(axes, counts, strict=True):
            total = np.add.outer(total, a).ravel()
            weight = np.multiply.outer(weight, c).ravel()
        order = np.argsort(total)
        total, weight = total[order], np.cumsum(weight[order])
        lower = np.searchsorted(weight, weight[-1] / 2)
        upper = np.searchsorted(weight, weight[-1] / 2, side="right")
        statistic = float(total[lower] + total[upper]) / 2
    return _positive_scale(statistic, scale)


def _pairs_at_distance(n: int) -> np.ndarray:
    """Number of pairs among the n^2 of an axis at distance 0, 1, ..., n - 1, (n,)."""
    pairs = 2.0 * (n - np.arange(n))
    pairs[0] = n
    return pairs


def _positive_scale(statistic: float, scale: Scale) -> float:
    # A single point has cost 0, which needs no scaling. A median of 0 cannot be scaled to 1.
    if statistic == 0 and scale == "median":
        msg = "scale is 'median' and the median cost is 0: expected 'mean', 'max' or None here"
        raise ValueError(msg)
    return statistic or 1.0


def point_cost(points: Array, /, *, p: float = 2, scale: Scale = "mean") -> Array:
    """
    Cost between points: their Euclidean distance to the power ``p``.

    Parameters
    ----------
    points : array (n, d) or (n,)
        The positions of the bins.
    p : float
        Exponent of the distance; 2 gives squared distances.
    scale : {"mean", "max", "median", None}
        The statistic of the cost that is normalised to 1.

    Returns
    -------
    array (n, n)
        The cost, in the library, dtype and device of the points.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> wtf.point_cost(np.array([0.0, 1.0, 3.0]), scale="max")
    array([[0.        , 0.11111111, 1.        ],
           [0.11111111, 0.        , 0.44444444],
           [1.        , 0.44444444, 0.        ]])
    """
    xp = common_namespace(points=points)
    points = as_floating("points", points, xp)
    if points.ndim not in (1, 2) or math.prod(points.shape) == 0:
        msg = f"points has shape {tuple(points.shape)}: expected (n,) or (n, d), not empty"
        raise ValueError(msg)
    refuse_where(~xp.isfinite(points), "points", points, "finite values")
    one_of("scale", scale, SCALES)
    power = positive_number("p", p)
    points = xp.reshape(points, (points.shape[0], -1))
    squares = xp.zeros(
        (points.shape[0], points.shape[0]), dtype=points.dtype, device=device_of(points)
    )
    for k in range(points.shape[1]):
        squares = squares + (points[:, None, k] - points[None, :, k]) ** 2.0
    cost = squares ** (power / 2)
    return cost / scale_of_points(cost, scale, xp)


def scale_of_points(cost: Array, scale: Scale, xp: Namespace) -> float:
    """The statistic of a dense cost by which it is divided."""
    if scale is None:
        return 1.0
    if scale == "mean":
        statistic = float(xp.mean(cost))
    elif scale == "max":
        statistic = float(xp.max(cost))
    else:
        ordered = xp.sort(xp.reshape(cost, (-1,)))
        count = ordered.shape[0]
        statistic = float(ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return _positive_scale(statistic, scale)


def check_cost(name: str, cost: Any) -> Any:
    """Return a square matrix of non-negative numbers, inf for no transport; refuse others."""
    if isinstance(cost, BandedCost):
        return _check_banded(name, cost)
    xp = common_namespace(**{name: cost})
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1] or cost.shape[0] == 0:
        msg = f"{name} has shape {tuple(cost.shape)}: expected a square matrix"
        raise ValueError(msg)
    cost = as_floating(name, cost, xp)
    refuse_where(xp.isnan(cost), name, cost, "numbers, or inf for no transport")
    refuse_where(cost < 0, name, cost, "non-negative numbers, or inf for no transport")
    isolated = xp.all(xp.isinf(cost), axis=1)
    if bool(xp.any(isolated)):
        row = int(xp.argmax(xp.astype(isolated, xp.int64)))
        msg = f"{name} is inf along the whole of row {row}: expected a finite entry in every row"
        raise ValueError(msg)
    return cost


def _check_banded(name: str, cost: BandedCost) -> BandedCost:
    """Return a banded cost of finite non-negative numbers; refuse others."""
    name = f"steps of {name}"
    xp = common_namespace(**{name: cost.steps})
    bins = positive_integer(f"bins of {name}", cost.bins)
    if cost.steps.ndim != 1 or not 0 < cost.steps.shape[0] < max(bins, 2):
        msg = (
            f"{name} has shape {tuple(cost.steps.shape)}: expected one cost for each distance, "
            f"fewer than the {bins} bins"
        )
        raise ValueError(msg)
    steps = as_floating(name, cost.steps, xp)
    refuse_where(~(xp.isfinite(steps) & (steps >= 0)), name, steps, "finite non-negative numbers")
    return BandedCost(steps, bins)


def check_symmetric(name: str, cost: Any) -> None:
    """Refuse a cost that is not symmetric, up to rounding; a banded one is."""
    if isinstance(cost, BandedCost):
        return
    xp = array_namespace(cost)
    finite = xp.isfinite(cost) & xp.isfinite(cost.mT)
    size = xp.maximum(xp.where(finite, cost, 0.0), xp.where(finite, cost.mT, 0.0))
    difference = xp.abs(xp.where(finite, cost, 0.0) - xp.where(finite, cost.mT, 0.0))
    wrong = difference > 64.0 * float(xp.finfo(cost.dtype).eps) * size
    wrong = wrong | (xp.isfinite(cost) != xp.isfinite(cost.mT))
    refuse_where(wrong, name, cost, "a symmetric matrix for debias=True")


def place_cost(name: str, cost: Any, xp: Namespace, like: Array) -> Any:
    """Return a cost in the namespace, dtype and device of the data ``like``."""
    return map_cost(lambda c: follow(name, c, xp, like.dtype, device_of(like)), cost)
