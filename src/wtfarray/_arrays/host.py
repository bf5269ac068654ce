"""Transfers from the device to the host: all of them go through `to_host`."""

import numpy as np
from array_api_compat import is_cupy_array, is_torch_array, to_device
from numpy.typing import NDArray

from wtfarray._arrays.typing import Array

__all__ = ["to_host"]


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
