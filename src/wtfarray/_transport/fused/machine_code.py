"""Numba's compiler, with the options that all functions of this package have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Set
from typing import Any

import numba
from numba import njit
from numba.core.registry import cpu_target

REORDERED = frozenset({"contract", "nsz", "reassoc"})
"""Sums may be reordered, so that they run in parallel lanes; inf and NaN are kept."""


OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
"""Machine code holds no lock of Python while it runs, and divides by zero as NumPy does."""


def machine_code(function: Callable[..., Any]) -> Any:
    """A function in machine code, to be called from others."""
    return _compiled(function, REORDERED)


def machine_code_without_nan(function: Callable[..., Any]) -> Any:
    """The same for maxima of numbers, which the compiler reorders only if none is NaN."""
    return _compiled(function, {*REORDERED, "nnan"})


def ordered_machine_code(function: Callable[..., Any]) -> Any:
    """The same for formulas that rely on the order of their operations."""
    return _compiled(function, {"contract"})


def _compiled(function: Callable[..., Any], fastmath: Set[str]) -> Any:
    # Copies that are not part of their caller are optimised anew where machine code is read from
    # the disk, and would round differently than in the process that compiled it.
    return njit(fastmath=set(fastmath), forceinline=True, **OPTIONS)(function)


class Kept:
    """
    A function that is called from Python; its machine code is kept on disk for other processes.

    Numba keeps it in the folder of the module or, if that cannot be written, in the user's cache.
    It looks neither at what the module imports nor, before it reads a file, at which processor the
    file was written for. So both are part of the file's name: ``sources`` stands for all that the
    function is made of.
    """

    def __init__(self, function: Callable[..., Any], sources: int) -> None:
        machine = repr(cpu_target.target_context.codegen().magic_tuple())
        digest = hashlib.sha256(f"{sources} {machine} {numba.__version__}".encode())
        function.__qualname__ = f"{function.__name__}_{digest.hexdigest()[:16]}"
        try:
            self._function = njit(cache=True, **OPTIONS)(function)
        except RuntimeError:  # no folder can be written
            self._function = njit(**OPTIONS)(function)

    def __call__(self, *arguments: Any) -> Any:
        """Call the function; compiles it at first."""
        try:
            return self._function(*arguments)
        except Exception:  # noqa: BLE001
            # Machine code raises nothing: its file is damaged, or the disk is full.
            self._function = njit(**OPTIONS)(self._function.py_func)
            return self._function(*arguments)
