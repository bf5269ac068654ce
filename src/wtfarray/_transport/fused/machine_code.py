"""Numba's compiler, with the options that all functions of this package have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

REORDERED = frozenset({"contract", "nsz", "reassoc"})
"""Sums may be reordered, so that they run in parallel lanes; inf and NaN are kept."""


def machine_code(function: Callable[..., Any]) -> Any:
    """A function in machine code, which holds no lock of Python while it runs."""
    return njit(fastmath=set(REORDERED), nogil=True, error_model="numpy")(function)


def machine_code_without_nan(function: Callable[..., Any]) -> Any:
    """The same for maxima of numbers, which the compiler reorders only if none is NaN."""
    return njit(fastmath={*REORDERED, "nnan"}, nogil=True, error_model="numpy")(function)


def ordered_machine_code(function: Callable[..., Any]) -> Any:
    """The same for formulas that rely on the order of their operations."""
    return njit(fastmath={"contract"}, nogil=True, error_model="numpy")(function)


class Kept:
    """
    A function that is called from Python; its machine code is kept on disk for other processes.

    Numba keeps it in the folder of the module or, if that cannot be written, in the user's cache,
    and finds it again while the module is the same, and what the function encloses. It does not
    look at what the module imports: let it enclose a number that stands for all of it, see
    `sources`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        try:
            self._function = njit(cache=True, **options)(function)
        except RuntimeError:  # no folder can be written
            self._function = njit(**options)(function)

    def __call__(self, *arguments: Any) -> Any:
        """Call the function; compiles it at first."""
        try:
            return self._function(*arguments)
        except OSError:
            # The disk is full: the machine code is there, but was not kept, and has not run yet.
            return self._function(*arguments)
