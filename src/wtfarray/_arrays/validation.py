"""What comes in from the caller: one namespace, a real floating dtype, finite non-negative data."""

import math
from collections.abc import Hashable, Iterable, Sequence
from numbers import Integral, Real

import numpy as np
from array_api_compat import array_namespace, is_numpy_array, is_torch_array
from array_api_compat import device as device_of

from wtfarray._arrays.typing import Array, Device, DType, Namespace


def common_namespace(**arrays: Array) -> Namespace:
    """Return the one namespace and device that all the named arrays share, or say which differs."""
    names = list(arrays)
    spaces = [_namespace(name, array) for name, array in arrays.items()]
    for name, space in zip(names[1:], spaces[1:], strict=True):
        if space is not spaces[0]:
            msg = (
                f"{name} is an array of {space.__name__} and {names[0]} one of "
                f"{spaces[0].__name__}: expected arrays of one library; convert one of them"
            )
            raise TypeError(msg)
        if device_of(arrays[name]) != device_of(arrays[names[0]]):
            msg = (
                f"{name} is on device {device_of(arrays[name])} and {names[0]} on "
                f"{device_of(arrays[names[0]])}: expected one device; move one of them"
            )
            raise ValueError(msg)
    return spaces[0]


def _namespace(name: str, array: Array) -> Namespace:
    if isinstance(array, np.ma.MaskedArray):
        msg = f"{name} is a masked array: expected a plain array; fill the masked entries first"
        raise TypeError(msg)
    if isinstance(array, np.matrix):
        msg = f"{name} is a matrix, whose * is another: expected a plain array, np.asarray of it"
        raise TypeError(msg)
    if isinstance(array, np.ndarray) and array.dtype == object:
        msg = f"{name} has dtype object: expected float32, float64, an integer or a bool dtype"
        raise TypeError(msg)
    if isinstance(array, (bool, int, float, complex)):
        msg = f"{name} is a Python {type(array).__name__}: expected an array"
        raise TypeError(msg)
    try:
        return array_namespace(array)
    except TypeError:
        msg = (
            f"{name} is a {type(array).__name__}: expected an array of NumPy, torch, JAX, CuPy or "
            f"another library that follows the Array API standard"
        )
        raise TypeError(msg) from None


def as_floating(name: str, array: Array, xp: Namespace) -> Array:
    """Return ``array`` as float32 or float64; integers and bools take the default float."""
    if is_torch_array(array):
        array = array.detach()  # or every iterate would grow the caller's graph
    if array.dtype in (xp.float32, xp.float64):
        return array
    if xp.isdtype(array.dtype, ("integral", "bool")):
        default = xp.__array_namespace_info__().default_dtypes(device=device_of(array))
        return xp.astype(array, default["real floating"])
    msg = f"{name} has dtype {array.dtype}: expected float32, float64, an integer or a bool dtype"
    raise TypeError(msg)


def as_nonnegative(name: str, array: Array, xp: Namespace) -> Array:
    """Return non-negative, finite floating numbers, at least one of them."""
    array = as_floating(name, array, xp)
    if array.ndim == 0 or math.prod(array.shape) == 0:
        msg = f"{name} has shape {tuple(array.shape)}: expected at least one mode, none empty"
        raise ValueError(msg)
    refuse_where(~xp.isfinite(array), name, array, "finite values")
    refuse_where(array < 0, name, array, "non-negative values")
    return array


def as_data(name: str, array: Array, xp: Namespace) -> Array:
    """Return non-negative, finite floating data with at least one positive entry."""
    array = as_nonnegative(name, array, xp)
    if not bool(xp.any(array > 0)):
        msg = f"{name} is zero everywhere: expected at least one positive entry"
        raise ValueError(msg)
    info, total = xp.finfo(array.dtype), float(xp.sum(array))
    least, most = math.sqrt(float(info.smallest_normal)), math.sqrt(float(info.max))
    if not least <= total <= most:
        # Products of such numbers would be 0 or infinite.
        msg = f"{name} sums to {total:g}: expected {least:.0e} to {most:.0e}; multiply it"
        raise ValueError(msg)
    return array


def or_float64(array: Array) -> str:
    """What else may help, for the advice of a message."""
    return "" if array.dtype == array_namespace(array).float64 else ", or float64"


def as_potential(name: str, array: Array, shape: tuple[int, ...], xp: Namespace) -> Array:
    """Return a finite floating array of the shape that the data have."""
    array = as_floating(name, array, xp)
    check_shape(name, array, shape)
    refuse_where(~xp.isfinite(array), name, array, "finite values")
    return array


def same_dtype(name: str, array: Array, like_name: str, like: Array) -> Array:
    """Refuse two floating dtypes in one call."""
    if array.dtype != like.dtype:
        msg = (
            f"{name} has dtype {array.dtype} and {like_name} {like.dtype}: expected one dtype; "
            f"convert one of them"
        )
        raise TypeError(msg)
    return array


def check_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    """Refuse an array of another shape."""
    if tuple(array.shape) != tuple(shape):
        msg = f"{name} has shape {tuple(array.shape)}: expected {tuple(shape)}"
        raise ValueError(msg)


def refuse_where(bad: Array, name: str, array: Array, expected: str) -> None:
    """Raise an error that names the first offending entry, if there is one."""
    xp = array_namespace(bad)
    if not bool(xp.any(bad)):
        return
    flat = xp.reshape(bad, (-1,))
    first = int(xp.argmax(xp.astype(flat, xp.int64)))
    where = tuple(int(i) for i in np.unravel_index(first, tuple(bad.shape)))
    found = float(xp.reshape(array, (-1,))[first])
    count = int(xp.sum(xp.astype(flat, xp.int64)))
    others = "" if count == 1 else f" and at {count - 1} more places"
    msg = f"{name} is {found} at index {where}{others}: expected {expected}"
    raise ValueError(msg)


def instance_of(name: str, value: object, kind: type, expected: str) -> None:
    """Refuse an argument of another kind; a class is none of its instances."""
    if isinstance(value, type) or not isinstance(value, kind):
        msg = f"{name} is a {type(value).__name__}: expected {expected}"
        raise TypeError(msg)


def positive_number(name: str, value: object, *, infinite: bool = False) -> float:
    """Return ``value`` as a positive float; infinity only where it has a meaning."""
    expected = "a positive number" + (" or inf" if infinite else "")
    if isinstance(value, bool) or not isinstance(value, Real):
        msg = f"{name} is {value!r}: expected {expected}"
        raise TypeError(msg)
    number = float(value)
    if not number > 0 or (math.isinf(number) and not infinite):
        msg = f"{name} is {value!r}: expected {expected}"
        raise ValueError(msg)
    return number


def positive_integer(name: str, value: object) -> int:
    """Return ``value`` as an integer of at least one."""
    msg = f"{name} is {value!r}: expected a positive integer"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(msg)
    if int(value) < 1:
        raise ValueError(msg)
    return int(value)


def one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a word that means nothing here."""
    if not isinstance(value, Hashable) or value not in choices:  # an array is not, for one
        expected = ", ".join(repr(choice) for choice in choices)
        msg = f"{name} is {value!r}: expected one of {expected}"
        raise ValueError(msg)


def known_options(function: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Refuse keywords that a function does not have, and say which it has."""
    unknown = set(options) - set(known)
    if unknown:
        msg = f"{function}() has no option {min(unknown)!r}: expected some of {', '.join(known)}"
        raise TypeError(msg)


def axis_index(name: str, axis: object, ndim: int) -> int:
    """Return a mode as a non-negative integer."""
    if isinstance(axis, bool) or not isinstance(axis, Integral):
        msg = f"{name} is {axis!r}: expected an integer"
        raise TypeError(msg)
    index = int(axis)
    if not -ndim <= index < ndim:
        msg = f"{name} is {index}: expected a mode of an array with {ndim} modes"
        raise ValueError(msg)
    return index % ndim


def follow(name: str, array: Array, xp: Namespace, dtype: DType, device: Device) -> Array:
    """Bring a small array to the data: NumPy arrays follow, other libraries must match."""
    if is_numpy_array(array):
        # A copy, because torch warns when it is given memory that it may not write to.
        return xp.asarray(np.array(array, dtype=np.float64), dtype=dtype, device=device)
    space = array_namespace(array)
    if space is not xp:
        msg = (
            f"{name} is an array of {space.__name__} and the data are of {xp.__name__}: expected "
            f"NumPy or the library of the data"
        )
        raise TypeError(msg)
    if device_of(array) != device:
        msg = f"{name} is on device {device_of(array)}: expected {device}, where the data are"
        raise ValueError(msg)
    return xp.astype(array, dtype)


def sequence_of_arrays(name: str, arrays: object) -> tuple[Array, ...]:
    """Return the arrays of a list or tuple; a single array is an error that says so."""
    if not isinstance(arrays, Sequence):
        msg = f"{name} is a {type(arrays).__name__}: expected a list or tuple of arrays"
        raise TypeError(msg)
    if len(arrays) == 0:
        msg = f"{name} is empty: expected at least one array"
        raise ValueError(msg)
    return tuple(arrays)
