"""Transfers from the device to the host: all of them go through `to_host`."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import device as device_of
from array_api_compat import (
    is_cupy_array,
    is_jax_array,
    is_numpy_array,
    is_torch_array,
    to_device,
)
from numpy.typing import NDArray

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array

__all__ = ["from_host", "is_on_host", "is_queued", "to_host", "to_host_together"]


def to_host(x: Array, /) -> NDArray[np.float64]:
    """
    Copy a real array to the host.

    Every call waits for the device, however small ``x`` is: stack several numbers and copy them
    together.

    Parameters
    ----------
    x : array
        A real floating array of any namespace, shape and device.

    Returns
    -------
    numpy.ndarray
        The same values and shape in float64, detached from any autograd graph.

    Examples
    --------
    >>> import numpy as np
    >>> to_host(np.asarray([1.0, 2.0], dtype=np.float32))
    array([1., 2.])
    """
    if is_torch_array(x):
        x = x.detach()
    if is_torch_array(x) or is_cupy_array(x):
        x = to_device(x, "cpu")
    try:
        host = np.asarray(x)
    except RuntimeError:
        # array-api-strict converts arrays to NumPy on its CPU device only.
        host = np.asarray(x.to_device(type(x.device)("CPU_DEVICE")))
    return host.astype(np.float64)


def from_host(values: NDArray[np.float64], like: Array) -> Array:
    """
    Real numbers on the host as an array of the library, dtype and device of another.

    The result may share memory with ``values``.

    Examples
    --------
    >>> import numpy as np
    >>> from_host(np.asarray([1.0, 2.0]), np.zeros(3, dtype=np.float32))
    array([1., 2.], dtype=float32)
    """
    return array_namespace(like).asarray(values, dtype=like.dtype, device=device_of(like))


def is_on_host(x: Array) -> bool:
    """Whether x is of a library for numerical work, and in the memory of the processor."""
    if is_numpy_array(x):
        return True
    if is_torch_array(x):
        return bool(x.device.type == "cpu")
    if not is_jax_array(x) or isinstance(x, importlib.import_module("jax").core.Tracer):
        return False
    return [device.platform for device in x.devices()] == ["cpu"]


def to_host_together(items: Sequence[Array | float]) -> list[Any]:
    """
    Copy several arrays to the host in one transfer.

    Parameters
    ----------
    items : sequence of arrays and floats
        Real floating arrays of one dtype and device; numbers that are on the host already.

    Returns
    -------
    list of numpy.ndarray and float
        The arrays in float64, those of no dimension as a float, and the floats as they are.

    Examples
    --------
    >>> import numpy as np
    >>> to_host_together([np.asarray([1.0, 2.0]), np.asarray(3.0), 4.0])
    [array([1., 2.]), 3.0, 4.0]
    """
    arrays = [item for item in items if not isinstance(item, float)]
    if not arrays:
        return [float(item) for item in items]
    values, start = to_host(_joined(arrays)), 0
    found: list[Any] = []
    for item in items:
        if isinstance(item, float):
            found.append(float(item))
            continue
        shape = tuple(item.shape)
        size = int(np.prod(shape))
        part = values[start : start + size]
        found.append(part.reshape(shape) if shape else float(part[0]))
        start += size
    return found


@compiled()
def _joined(arrays: list[Array]) -> Array:
    """The entries of several arrays, one after the other."""
    xp = array_namespace(arrays[0])
    return xp.concat([xp.reshape(array, (-1,)) for array in arrays])


def is_queued(x: Array) -> bool:
    """Whether operations on x may run later than they are called, so that reading it waits."""
    return is_torch_array(x) or is_jax_array(x) or is_cupy_array(x)
