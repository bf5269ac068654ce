"""Checks of the data and the parameters of an estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import device as device_of
from array_api_compat import is_array_api_obj, is_numpy_array
from sklearn import get_config
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sparse import is_sparse, to_dense
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import as_floating, common_namespace
from wtfarray._fit.specification import Kind
from wtfarray.sklearn._samples import refuse_negative


def validated(
    estimator: Any,
    X: Array,
    kind: Kind,
    sample_shape: tuple[int, ...] | None = None,
    *,
    may_be_sparse: bool = False,
) -> Array:
    """
    The samples as a floating-point array, of their own library if dispatch is enabled.

    Without ``sample_shape``, that of the samples of the fit, the number of features is stored. If
    ``may_be_sparse``, a sparse matrix stays one.
    """
    X = validate_data(
        estimator,
        X,
        reset=sample_shape is None,
        dtype="numeric",
        allow_nd=kind != "nmf",
        ensure_all_finite="allow-nan",
        accept_sparse="csr" if kind == "nmf" else False,
    )
    refuse_negative(X, type(estimator).__name__)
    if is_sparse(X) and not may_be_sparse:
        X = to_dense(X)
    if sample_shape is not None and tuple(X.shape[1:]) != sample_shape:
        expected = ", ".join(map(str, sample_shape))
        msg = f"X has shape {tuple(X.shape)}: expected (n, {expected})"
        raise ValueError(msg)
    return X if is_sparse(X) else as_floating("X", X, common_namespace(X=X))


def check_namespace(X: Array, fitted: Array, method: str) -> None:
    """If dispatch is enabled, refuse arrays of another library or device than ``components_``."""
    if not get_config()["array_api_dispatch"]:
        return
    X = X if hasattr(X, "__array_namespace__") or hasattr(X, "device") else np.empty(0)
    same = array_namespace(X) is array_namespace(fitted)
    if not same or (not is_numpy_array(X) and device_of(X) != device_of(fitted)):
        msg = (
            f"X is an array of {array_namespace(X).__name__} on device {device_of(X)} and "
            f"components_ one of {array_namespace(fitted).__name__} on {device_of(fitted)}: "
            f"inputs passed to {method}() must use the same namespace "
            f"and device as those of fit()"
        )
        raise ValueError(msg)


def refuse_changed_parameters(estimator: BaseEstimator, first: dict[str, Any]) -> None:
    """Refuse parameters of the objective other than those of the first batch, by name."""
    for name, before in first.items():
        now = getattr(estimator, name)
        if now is before or _same(now, before):
            continue
        msg = (
            f"{name} is {now!r}, but the first batch was fitted with {before!r}: expected no "
            f"change; call fit to begin anew"
        )
        raise ValueError(msg)


def _same(a: Any, b: Any) -> bool:
    """Whether two values of a parameter are equal, also if they are arrays or hold some."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if is_array_api_obj(a) and is_array_api_obj(b):
        x: Array = a
        y: Array = b
        xp = array_namespace(x)
        return xp is array_namespace(y) and x.shape == y.shape and bool(xp.all(x == y))
    return type(a) is type(b) and bool(a == b)
