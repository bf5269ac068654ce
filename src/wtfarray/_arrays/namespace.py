"""The namespace of arrays, quickly where it is asked for most."""

import array_api_compat

from wtfarray._arrays.typing import Array, Namespace

__all__ = ["array_namespace"]

_BY_TYPE: dict[type, Namespace] = {}


def array_namespace(*arrays: Array) -> Namespace:
    """
    The array API namespace of arrays of one library, as array_api_compat finds it.

    An iteration asks some forty times, mostly for a single array. That takes array_api_compat 3 us
    for NumPy, as long as an operation on a small array itself: here it is answered from the type.
    """
    if len(arrays) > 1:
        return array_api_compat.array_namespace(*arrays)
    kind = type(arrays[0])
    found = _BY_TYPE.get(kind)
    if found is None:
        found = _BY_TYPE[kind] = array_api_compat.array_namespace(*arrays)
    return found
