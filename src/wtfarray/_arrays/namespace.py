"""The namespace of arrays that have been checked before, looked up by their type."""

import array_api_compat

from wtfarray._arrays.typing import Array, Namespace

__all__ = ["namespace_of"]

_BY_TYPE: dict[type, Namespace] = {}


def namespace_of(array: Array) -> Namespace:
    """
    As `array_api_compat.array_namespace`, for one array of a library that has been accepted.

    An iteration asks some dozens of times, and the general function takes microseconds: for
    small problems that would be a quarter of the time.
    """
    found = _BY_TYPE.get(type(array))
    if found is None:
        found = _BY_TYPE[type(array)] = array_api_compat.array_namespace(array)
    return found
