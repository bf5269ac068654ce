"""Checks of arguments: one namespace, a real floating dtype, finite non-negative data."""

import math
from collections.abc import Hashable, Iterable, Sequence
from numbers import Integral, Real

import numpy as np
from array_api_compat import device as device_of
from array_api_compat import is_jax_array, is_numpy_array, is_torch_array

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array, Device, DType, Namespace


def common_namespace(**arrays: Array) -> Namespace:
    """Return the namespace that the named arrays share; refuse several libraries or devices."""
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
        msg = (
            f"{name} is a masked array: expected a plain array; fill the masked entries, or pass "
            f"numpy.ma.getdata({name}) and, if there is such an option, "
            f"mask=~numpy.ma.getmaskarray({name})"
        )
        raise TypeError(msg)
    if isinstance(array, np.matrix):
        msg = f"{name} is a numpy.matrix: expected a plain array, numpy.asarray({name})"
        raise TypeError(msg)
    if isinstance(array, np.ndarray) and array.dtype == object:
        msg = f"{name} has dtype object: expected float32, float64, an integer or a bool dtype"
        raise TypeError(msg)
    if isinstance(array, (bool, int, float, complex)):
        msg = f"{name} is a Python {type(array).__name__}: expected an array"
        raise TypeError(msg)
    package = type(array).__module__.partition(".")[0]
    if package in _CONVERSIONS and not hasattr(array, "__array_namespace__"):
        msg = f"{name} is a {type(array).__name__} of {package}: expected a plain array, "
        msg += _CONVERSIONS[package].format(name=name)
        raise TypeError(msg)
    layout = str(getattr(array, "layout", ""))
    if is_torch_array(array) and layout != "torch.strided":
        msg = f"{name} is a sparse tensor of torch ({layout}): expected a dense one, "
        msg += f"{name}.to_dense(), or a sparse matrix of SciPy"
        raise TypeError(msg)
    if isinstance(array, (list, tuple)):
        msg = f"{name} is a {type(array).__name__}: expected an array, numpy.asarray({name})"
        raise TypeError(msg)
    try:
        return array_namespace(array)
    except TypeError:
        msg = (
            f"{name} is a {type(array).__name__}: expected an array of NumPy, torch, JAX, CuPy or "
            f"another library that follows the Array API standard"
        )
        raise TypeError(msg) from None


_CONVERSIONS = {
    "pandas": "{name}.to_numpy()",
    "polars": "{name}.to_numpy()",
    "xarray": "{name}.to_numpy()",
    "scipy": "{name}.toarray()",
    "sparse": "{name}.todense()",
    "dask": (
        "{name}.compute(); or, if it is too large for one process, one shard on each of several:\n"
        "    begin, end = (len({name}) * k // comm.size for k in (comm.rank, comm.rank + 1))\n"
        "    shard = {name}[begin:end].compute()\n"
        "    fit = wtfarray.nmf(shard, rank, loss, rng=0, comm=comm)"
    ),
}
"""How to convert containers that are not arrays, by the package that defines them."""


def on_one_device(name: str, array: Array) -> Array:
    """Return the array; refuse one of JAX that is divided among several devices."""
    devices = getattr(device_of(array), "device_set", ())
    if len(devices) > 1:
        msg = (
            f"{name} is divided among {len(devices)} devices: expected one device; start one "
            "process for each, and pass its own samples and comm, of wtfarray.distributed"
        )
        raise ValueError(msg)
    return array


def as_floating(name: str, array: Array, xp: Namespace) -> Array:
    """Return ``array`` as float32 or float64; integers and bools become the default float."""
    if is_torch_array(array):
        array = array.detach()  # otherwise every iteration would extend the caller's graph
    if array.dtype in (xp.float32, xp.float64):
        return array
    if xp.isdtype(array.dtype, ("integral", "bool")):
        default = xp.__array_namespace_info__().default_dtypes(device=device_of(array))
        return xp.astype(array, default["real floating"])
    msg = f"{name} has dtype {array.dtype}: expected float32, float64, an integer or a bool dtype"
    raise TypeError(msg)


def as_nonnegative(name: str, array: Array, xp: Namespace) -> Array:
    """Return a non-empty array of non-negative, finite floating numbers."""
    array = as_floating(name, array, xp)
    if array.ndim == 0 or math.prod(array.shape) == 0:
        msg = f"{name} has shape {tuple(array.shape)}: expected at least one mode, none empty"
        raise ValueError(msg)
    # One pass for valid data, which NaN and inf are not either.
    if not bool(_all_usable(array)):
        refuse_where(
            xp.isnan(array),
            name,
            array,
            f"finite values, or mask=~isnan({name}) for missing entries, where there is a mask",
        )
        refuse_where(~xp.isfinite(array), name, array, "finite values")
        refuse_where(array < 0, name, array, f"non-negative values; {negative_advice(name, array)}")
    return array


@compiled()
def _all_usable(array: Array) -> Array:
    """Whether all numbers are finite and not negative, ()."""
    return array_namespace(array).all((array >= 0) & (array < math.inf))


def refuse_taken_for_zero(name: str, array: Array) -> None:
    """
    Refuse positive numbers that JAX takes for 0: those below the smallest normal one.

    Among data they are as good as 0. A model is not: where it is 0 no mass can arrive, and where it
    is positive, however small, some can.
    """
    if is_jax_array(array):
        least = float(array_namespace(array).finfo(array.dtype).smallest_normal)
        expected = f"0 or at least {least:.3g}{or_float64(array)}; JAX takes smaller numbers for 0"
        refuse_where(_are_subnormal(array), name, array, expected)


def as_computed(array: Array) -> Array:
    """Non-negative numbers, 0 where JAX takes them for 0: what a fit returns is what it used."""
    if not is_jax_array(array):
        return array
    return array_namespace(array).where(_are_subnormal(array), 0.0, array)


@compiled()
def _are_subnormal(array: Array) -> Array:
    """Whether non-negative numbers are subnormal, of the shape of the array, on JAX."""
    xp = array_namespace(array)
    # By their bits as integers: JAX compares the numbers themselves as 0.
    integers = xp.int64 if array.dtype == xp.float64 else xp.int32
    least = np.asarray(xp.finfo(array.dtype).smallest_normal, dtype=array.dtype)
    bits = array.view(integers)
    return (bits > 0) & (bits < int(least.view(f"int{8 * least.itemsize}")))


def negative_advice(name: str, array: Array) -> str:
    """How large the negative entries are, and what is usually done about small ones."""
    xp = array_namespace(array)
    lowest, highest = float(xp.min(array)), float(xp.max(array))
    share = f" ({-lowest / highest:.2g} of the largest entry)" if highest > 0 else ""
    count = int(xp.sum(xp.astype(array < 0, xp.int64)))
    return (
        f"{count} of {math.prod(array.shape)} entries are negative, down to {lowest:.3g}{share}: "
        f"small negative noise is usually set to 0, for example by clip({name}, 0, None)"
    )


def as_shard(name: str, array: Array, xp: Namespace) -> Array:
    """As `as_data` for the samples of one process of several: none, or all zero, are allowed."""
    if array.ndim > 0 and array.shape[0] == 0 and math.prod(array.shape[1:]) > 0:
        return as_floating(name, array, xp)
    return as_nonnegative(name, array, xp)


def as_data(name: str, array: Array, xp: Namespace) -> Array:
    """Return non-negative, finite floating data with at least one positive entry."""
    array = as_nonnegative(name, array, xp)
    total = float(xp.sum(array))
    refuse_total(name, total, array, positive=total != 0.0 or bool(xp.any(array > 0)))
    return array


def refuse_total(name: str, total: float, like: Array, *, positive: bool, ranks: str = "") -> None:
    """
    Refuse data of which none is positive, or whose products would underflow or overflow.

    ``like`` has the dtype of the data; ``ranks`` says of several processes that all are meant.
    """
    if not positive:
        msg = f"{name} is zero everywhere{ranks}: expected at least one positive entry"
        raise ValueError(msg)
    info = array_namespace(like).finfo(like.dtype)
    least, most = math.sqrt(float(info.smallest_normal)), math.sqrt(float(info.max))
    if not least <= total <= most:
        msg = f"{name} sums to {total:g}{ranks}: expected {least:.0e} to {most:.0e}; rescale it"
        raise ValueError(msg)


def or_float64(array: Array) -> str:
    """The advice to use float64, for messages about arrays that are not."""
    return "" if array.dtype == array_namespace(array).float64 else ", or float64"


def as_potential(name: str, array: Array, shape: tuple[int, ...], xp: Namespace) -> Array:
    """Return a finite floating array of the given shape, that of the data."""
    array = as_floating(name, array, xp)
    check_shape(name, array, shape)
    refuse_where(~xp.isfinite(array), name, array, "finite values")
    return array


def same_dtype(name: str, array: Array, like_name: str, like: Array) -> Array:
    """Return ``array``; refuse a dtype other than that of ``like``."""
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
    """If any entry of ``bad`` is true, raise an error that names the first one."""
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
    """Refuse an argument that is not an instance of ``kind``; classes are refused too."""
    if isinstance(value, type) or not isinstance(value, kind):
        msg = f"{name} is a {type(value).__name__}: expected {expected}"
        raise TypeError(msg)


def positive_number(name: str, value: object, *, infinite: bool = False) -> float:
    """Return ``value`` as a positive float; infinity only if ``infinite``."""
    expected = "a positive number" + (" or inf" if infinite else "")
    if isinstance(value, bool) or not isinstance(value, Real):
        msg = f"{name} is {value!r}: expected {expected}"
        raise TypeError(msg)
    number = float(value)
    if not number > 0 or (math.isinf(number) and not infinite):
        msg = f"{name} is {value!r}: expected {expected}"
        raise ValueError(msg)
    return number


def nonnegative_number(name: str, value: object) -> float:
    """Return ``value`` as a finite float of at least zero."""
    msg = f"{name} is {value!r}: expected a finite number of at least 0"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(msg)
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(msg)
    return number


def positive_integer(name: str, value: object, *, least: int = 1) -> int:
    """Return ``value`` as an integer of at least one, or of at least ``least``."""
    expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
    msg = f"{name} is {value!r}: expected {expected}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(msg)
    if int(value) < least:
        raise ValueError(msg)
    return int(value)


def check_function(name: str, value: object, *, optional: bool = True) -> None:
    """Refuse a value that is neither callable nor, if ``optional``, None."""
    if callable(value) or (optional and value is None):
        return
    msg = f"{name} is {value!r}: expected a function{' or None' if optional else ''}"
    raise TypeError(msg)


def one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a value that is not among the choices."""
    if not isinstance(value, Hashable) or value not in choices:  # arrays are not hashable
        expected = ", ".join(repr(choice) for choice in choices)
        msg = f"{name} is {value!r}: expected one of {expected}"
        raise ValueError(msg)


def known_options(function: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown keywords of a function; the message lists the known ones."""
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
    """Convert a NumPy array to the library, dtype and device of the data; others must match."""
    if is_numpy_array(array):
        # A copy, because torch warns about memory that is not writable.
        return xp.asarray(np.array(array, dtype=np.float64), dtype=dtype, device=device)
    space = array_namespace(array)
    if space.__name__ != xp.__name__:
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
    """Return a list or tuple of arrays as a tuple; refuse a single array."""
    if not isinstance(arrays, Sequence):
        msg = f"{name} is a {type(arrays).__name__}: expected a list or tuple of arrays"
        raise TypeError(msg)
    if len(arrays) == 0:
        msg = f"{name} is empty: expected at least one array"
        raise ValueError(msg)
    return tuple(arrays)
