"""Ground costs between features in no order, from the data themselves."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.containers import is_a, without_labels
from wtfarray._arrays.samples import flat
from wtfarray._arrays.sparse import gram_of_columns, is_sparse, refuse_bad_entries
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import as_nonnegative, common_namespace, one_of
from wtfarray._transport.costs import SCALES, Scale, scale_of_points

Metric = Literal["cosine", "correlation", "euclidean"]
METRICS = ("cosine", "correlation", "euclidean")


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
    if is_sparse(X) and len(X.shape) == 2:
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
    gram, sums = gram_of_columns(X)
    samples = X.shape[0]
    if metric == "correlation":
        gram = gram - np.outer(sums, sums) / samples
    cost = _distances(gram, metric, samples)
    found: NDArray[np.float64] = cost / scale_of_points(cost, scale, np)
    return found


def column_distances(rows: Array, metric: Metric, weights: Array | None = None) -> Array:
    """
    Distances of the columns of (n, m), which are (m, m); ``weights`` (n,) repeat the rows.

    All metrics follow from the Gram matrix of the columns.
    """
    xp = common_namespace(X=rows)
    weighted = rows if weights is None else rows * weights[:, None]
    if metric == "correlation":
        total = rows.shape[0] if weights is None else float(xp.sum(weights))
        rows = rows - xp.sum(weighted, axis=0)[None, :] / total
        weighted = rows if weights is None else rows * weights[:, None]
    return _distances(xp.matmul(weighted.mT, rows), metric, rows.shape[0])


def _distances(gram: Array, metric: Metric, samples: int) -> Array:
    """Distances (m, m) from the Gram matrix of columns, which are centred for "correlation"."""
    xp = common_namespace(gram=gram)
    m = gram.shape[0]
    squares = xp.linalg.diagonal(gram)
    same = xp.eye(m, dtype=gram.dtype, device=device_of(gram)) > 0
    if metric == "euclidean":
        cost = xp.sqrt(xp.maximum(squares[:, None] + squares[None, :] - 2.0 * gram, 0.0 * gram))
    else:
        # Columns whose norm is rounding noise have no direction.
        noise = float(xp.finfo(gram.dtype).eps) * float(xp.max(squares))
        positive = squares > noise * (samples if metric == "correlation" else 0.0)
        norm = xp.sqrt(xp.where(positive, squares, 1.0))
        cosine = xp.where(
            positive[:, None] & positive[None, :], gram / (norm[:, None] * norm[None, :]), 0.0
        )
        cost = xp.maximum(1.0 - cosine, 0.0 * gram)
    return xp.where(same, 0.0 * gram, cost)
