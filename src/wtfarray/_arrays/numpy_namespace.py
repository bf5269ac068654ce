"""
The namespace of NumPy, with its most frequent functions called directly.

An operation on a small array takes less than 1 us. NumPy and array_api_compat each wrap reductions
and changes of shape in functions of Python, which take several times as long. These call the same
methods and ufuncs, and return the same bits.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import array_api_compat.numpy as wrapped
import numpy as np

from wtfarray._arrays.direct_namespace import direct_namespace
from wtfarray._arrays.typing import Array, DType

_usual: Any = wrapped
Axes = int | tuple[int, ...] | None


def _reduction(ufunc: np.ufunc) -> Any:
    reduce: Any = ufunc.reduce

    def call(x: Array, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
        return reduce(x, axis=axis, keepdims=keepdims)

    return call


_add: Any = np.add.reduce


def _sum(
    x: Array, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False
) -> Array:
    return _add(x, axis=axis, dtype=dtype, keepdims=keepdims)


def _reshape(x: Array, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Array:
    return x.reshape(shape) if copy is None else _usual.reshape(x, shape, copy=copy)


def _stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    if axis == 0:
        return np.concatenate([array[None] for array in arrays])
    if axis == 1:
        return np.concatenate([array[:, None] for array in arrays], axis=1)
    return np.stack(arrays, axis=axis)


def _astype(x: Array, dtype: DType, /, *, copy: bool = True, device: str | None = None) -> Array:
    if device is not None:
        return _usual.astype(x, dtype, copy=copy, device=device)
    return x.astype(dtype, copy=copy)


def _squeeze(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    return x.squeeze(axis)


def _permute_dims(x: Array, /, axes: tuple[int, ...]) -> Array:
    return x.transpose(axes)


NUMPY = direct_namespace(
    _usual,
    {
        "astype": _astype,
        "sum": _sum,
        "max": _reduction(np.maximum),
        "min": _reduction(np.minimum),
        "all": _reduction(np.logical_and),
        "any": _reduction(np.logical_or),
        "reshape": _reshape,
        "stack": _stack,
        "squeeze": _squeeze,
        "permute_dims": _permute_dims,
        "matmul": np.matmul,
        "finfo": cache(np.finfo),
    },
    {"vecdot": np.vecdot},
)
