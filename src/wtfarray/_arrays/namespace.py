"""The namespace of arrays, quickly where it is asked for most."""

import array_api_compat

from wtfarray._arrays.typing import Array, Namespace

__all__ = ["array_namespace", "has_float64"]

_BY_TYPE: dict[type, Namespace] = {}


def array_namespace(*arrays: Array) -> Namespace:
    """
    The array API namespace of arrays of one library, as array_api_compat finds it.

    An iteration asks some forty times, mostly for a single array. That takes array_api_compat 3 us
    for NumPy, as long as an operation on a small array itself: here it is answered from the type.
    Frequent functions of NumPy and torch are called directly, see `numpy_namespace` and
    `torch_namespace`.
    """
    kind = type(arrays[0])
    if len(arrays) > 1 and any(type(array) is not kind for array in arrays):
        return _direct(array_api_compat.array_namespace(*arrays))
    found = _BY_TYPE.get(kind)
    if found is None:
        found = _BY_TYPE[kind] = _direct(array_api_compat.array_namespace(arrays[0]))
    return found


def has_float64(array: Array) -> bool:
    """Whether the library has float64 on the device of the array: JAX by default has not."""
    info = array_namespace(array).__array_namespace_info__()
    return "float64" in info.dtypes(device=array_api_compat.device(array), kind="real floating")


def _direct(found: Namespace) -> Namespace:
    """The same namespace, with direct functions if there are any for the library."""
    # Not imported at the top: that takes half as long as the library itself, and torch may be
    # missing.
    if array_api_compat.is_numpy_namespace(found):
        from wtfarray._arrays.numpy_namespace import NUMPY

        return NUMPY
    if array_api_compat.is_torch_namespace(found):
        from wtfarray._arrays.torch_namespace import TORCH

        return TORCH
    return found
