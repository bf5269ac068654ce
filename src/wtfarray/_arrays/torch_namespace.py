"""
The namespace of torch, with its most frequent functions called directly.

Before each operation array_api_compat promotes the dtypes of its arguments, which takes as long as
the operation itself on a small array. Here it is asked only if they differ. The functions return
the same bits.
"""

from collections.abc import Callable
from typing import Any

import array_api_compat.torch as wrapped
import torch

from wtfarray._arrays.direct_namespace import direct_namespace
from wtfarray._arrays.typing import Array

_usual: Any = wrapped


def _have_one_dtype(x1: Array, x2: Array) -> bool:
    """Whether both are tensors of the same floating-point dtype."""
    return (
        isinstance(x1, torch.Tensor)
        and isinstance(x2, torch.Tensor)
        and x1.dtype is x2.dtype
        and x1.is_floating_point()
    )


def _matmul(x1: Array, x2: Array, /) -> Array:
    return torch.matmul(x1, x2) if _have_one_dtype(x1, x2) else _usual.matmul(x1, x2)


def _vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    if _have_one_dtype(x1, x2) and x1.shape == x2.shape:
        return torch.linalg.vecdot(x1, x2, dim=axis)
    return _usual.linalg.vecdot(x1, x2, axis=axis)


def _with_bound(
    function: Callable[..., Any], bounded: Callable[..., Any], usual: Callable[..., Any]
) -> Callable[..., Any]:
    """A maximum or minimum, of which the second argument may be a number."""

    def call(x1: Array, x2: Array, /) -> Array:
        if _have_one_dtype(x1, x2):
            return function(x1, x2)
        if isinstance(x2, float) and isinstance(x1, torch.Tensor) and x1.is_floating_point():
            return bounded(x1, x2)
        return usual(x1, x2)

    return call


TORCH = direct_namespace(
    _usual,
    {
        "matmul": _matmul,
        "maximum": _with_bound(torch.maximum, torch.clamp_min, _usual.maximum),
        "minimum": _with_bound(torch.minimum, torch.clamp_max, _usual.minimum),
    },
    {"vecdot": _vecdot},
)
