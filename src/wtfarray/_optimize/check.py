"""Argument checks; every message names the argument, what was found and what was expected."""

import math
import operator
from typing import Any

from array_api_compat import array_namespace, is_torch_array

from wtfarray._arrays.typing import Array

__all__ = ["check_callable", "check_integer", "check_number", "check_start"]


def check_callable(name: str, function: Any, /, *, optional: bool = True) -> None:
    """Refuse what is neither callable nor, if `optional`, None."""
    if callable(function) or (optional and function is None):
        return
    msg = f"`{name}` must be callable{' or None' if optional else ''}, got {function!r}"
    raise TypeError(msg)


def check_integer(name: str, number: Any, /, *, least: int) -> int:
    """Return `number` as an int of at least `least`."""
    try:
        integer = operator.index(number)
    except TypeError:
        msg = f"`{name}` must be an integer, got {number!r}"
        raise TypeError(msg) from None
    if integer < least:
        msg = f"`{name}` must be at least {least}, got {integer}"
        raise ValueError(msg)
    return integer


def check_number(name: str, number: Any, /, *, positive: bool = False) -> float:
    """Return `number` as a finite float, at least (if `positive`, above) zero."""
    try:
        value = float(number)
    except (TypeError, ValueError):
        msg = f"`{name}` must be a real number, got {number!r}"
        raise TypeError(msg) from None
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        msg = (
            f"`{name}` must be finite and {'positive' if positive else 'not negative'}, got {value}"
        )
        raise ValueError(msg)
    return value


def check_start(x0: Any, /) -> Array:
    """Return a private copy of `x0`, free of any autograd graph."""
    try:
        xp = array_namespace(x0)
    except TypeError:
        msg = f"`x0` must be a floating array, got {type(x0).__name__}"
        raise TypeError(msg) from None
    if x0.dtype not in (xp.float32, xp.float64):
        msg = f"`x0` must be of dtype float32 or float64, got {x0.dtype}"
        raise ValueError(msg)
    if 0 in x0.shape:
        msg = f"`x0` must not be empty, got shape {tuple(x0.shape)}"
        raise ValueError(msg)
    if is_torch_array(x0):
        x0 = x0.detach()
    return xp.asarray(x0, copy=True)
