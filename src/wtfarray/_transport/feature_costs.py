"""Ground costs between features in no order, from the data themselves."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.containers import is_a, without_labels
from wtfarray._arrays.samples import flat
from wtfarray._arrays.sparse import (
    gram_of_columns,
    is_mostly_zero,
    is_sparse,
    refuse_bad_entries,
)
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import as_nonnegative, common_namespace, one_of
from wtfarray._transport.costs import SCALES, Scale, scale_of_points

Metric = Literal["cosine", "correlation", "euclidean"]
METRICS = ("cosine", "correlation", "euclidean")
CONSTANT = 8.0
"""A column is constant if its standard deviation is at most so many units in the last place."""


def feature_cost(X: Array, /, metric: Metric = "cosine", *, scale: Scale = "mean") -> Any:
    """
    Cost between features: the distance of their columns in the data.

    For features without positions, such as genes or words. Transport is then cheap between
    features that occur together.

    Parameters
    ----------
    X : array (n, m) or (n, m_1, ..., m_t), DataFrame, or sparse matrix
        Non-negative samples. Several feature modes are taken together, in C order. A sparse matrix
        of SciPy or pydata is not made dense.
    metric : {"cosine", "correlation", "euclidean"}
        Of the columns x and y: ``1 - <x, y>/(|x| |y|)``, the same for columns minus their means,
        or ``|x - y|``. The first two do not depend on the scales of the features. A column that
        is zero, or constant for "correlation", is at distance 1 from all others.
    scale : {"mean", "max", "median", None}
        The statistic of the cost that is normalised to 1.

    Returns
    -------
    array (m, m)
        The cost, in the library, dtype and device of X; a DataFrame with the names of the columns
        if X is one.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> X = np.array([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 3.0]])
    >>> wtf.feature_cost(X, scale=None).round(12)
    array([[0., 0., 1.],
           [0., 0., 1.],
           [1., 1., 0.]])
    """
    one_of("metric", metric, METRICS)
    one_of("scale", scale, SCALES)
    if is_sparse(X) and is_mostly_zero(X) and len(X.shape) == 2:
        return _sparse_cost(X, metric, scale)
    data, _ = without_labels("X", X)
    xp = common_namespace(X=data)
    data = as_nonnegative("X", data, xp)
    if data.ndim < 2:
        msg = f"X has shape {tuple(data.shape)}: expected samples x features"
        raise ValueError(msg)
    cost = column_distances(flat(data), metric)
    cost = cost / scale_of_points(cost, scale, xp)
    if is_a(X, "pandas", "DataFrame"):
        return X.__class__(cost, index=X.columns, columns=X.columns)
    return cost


def _sparse_cost(X: Any, metric: Metric, scale: Scale) -> NDArray[np.float64]:
    """The cost of a sparse matrix, which is not made dense; float64 of NumPy."""
    refuse_bad_entries("X", X)
    cost = sparse_column_distances(X, metric)
    found: NDArray[np.float64] = cost / scale_of_points(cost, scale, np)
    return found


def sparse_column_distances(
    rows: Any, metric: Metric, weights: NDArray[np.float64] | None = None
) -> Array:
    """As `column_distances` for a sparse matrix, which is not made dense; float64 of NumPy."""
    gram, sums = gram_of_columns(rows, weights)
    least = np.zeros(gram.shape[0])
    if metric == "correlation":
        # The difference of two sums has their rounding errors.
        least = rows.shape[0] * np.finfo(np.float64).eps * gram.diagonal()
        gram = gram - np.outer(sums, sums) / (rows.shape[0] if weights is None else weights.sum())
    return _distances(gram, metric, least)


def column_distances(rows: Array, metric: Metric, weights: Array | None = None) -> Array:
    """
    Distances of the columns of (n, m), which are (m, m); ``weights`` (n,) repeat the rows.

    All metrics follow from the Gram matrix of the columns. Each column is judged by its own scale:
    where only directions count, it is first divided by a power of two, which is exact.
    """
    xp = common_namespace(X=rows)
    if metric != "euclidean":
        top = xp.max(rows, axis=0)
        power = xp.floor(xp.log2(xp.where(top > 0, top, xp.ones_like(top))))
        rows = rows / 2.0**power

    def weighted(values: Array) -> Array:
        return values if weights is None else values * weights[:, None]

    least = 0.0 * rows[0, :]
    if metric == "correlation":
        squares = xp.sum(weighted(rows * rows), axis=0)
        least = (CONSTANT * float(xp.finfo(rows.dtype).eps)) ** 2 * squares
        total = rows.shape[0] if weights is None else float(xp.sum(weights))
        for _ in range(2):  # the second pass removes the rounding error of the first mean
            rows = rows - xp.sum(weighted(rows), axis=0)[None, :] / total
    return _distances(xp.matmul(weighted(rows).mT, rows), metric, least)


def _distances(gram: Array, metric: Metric, least: Array) -> Array:
    """
    Distances (m, m) from the Gram matrix of columns, which are centred for "correlation".

    Columns whose square is at most ``least``, (m,), are rounding noise and have no direction.
    """
    xp = common_namespace(gram=gram)
    m = gram.shape[0]
    squares = xp.linalg.diagonal(gram)
    same = xp.eye(m, dtype=gram.dtype, device=device_of(gram)) > 0
    if metric == "euclidean":
        cost = xp.sqrt(xp.maximum(squares[:, None] + squares[None, :] - 2.0 * gram, 0.0 * gram))
    else:
        positive = squares > least
        norm = xp.sqrt(xp.where(positive, squares, 1.0))
        cosine = xp.where(
            positive[:, None] & positive[None, :], gram / (norm[:, None] * norm[None, :]), 0.0
        )
        cost = xp.maximum(1.0 - cosine, 0.0 * gram)
    return xp.where(same, 0.0 * gram, cost)
