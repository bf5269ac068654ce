"""What several test files share.

``assert_close`` compares namespace, dtype, shape, device and values; both sides are arrays.
"""

from typing import Any

import array_api_compat
import numpy as np
from array_api_extra.testing import assert_close

__all__ = ["assert_close", "to_numpy"]


def to_numpy(x: Any) -> np.ndarray:
    """Copy an array of any backend, on any of its devices, to NumPy."""
    if array_api_compat.is_array_api_strict_namespace(array_api_compat.array_namespace(x)):
        x = x.to_device(type(x.device)("CPU_DEVICE"))
    elif array_api_compat.is_torch_array(x):
        x = x.detach().cpu().numpy()
    elif array_api_compat.is_cupy_array(x):
        x = x.get()
    return np.array(x)
