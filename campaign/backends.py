"""The array libraries that the campaign runs on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wtfarray import _dispatch

QUICK_COMPILATION = {
    # What one process has compiled, others read; also what takes little time.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    # Code that is not optimised is compiled in about half the time.
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
}
"""Settings of JAX, which would else compile for most of the time."""
MOST_MAPS = 40_000
"""Linux allows a process 65,530 by default."""


@contextmanager
def shared_compilation(name: str) -> Iterator[None]:
    """A temporary folder for what the processes of a campaign compile, unless one is set."""
    if name != "jax" or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["JAX_COMPILATION_CACHE_DIR"]


@dataclass
class Backend:
    """An array library."""

    name: str
    asarray: Callable[..., Any]
    few_shapes: bool = False
    patience: float = 1.0
    """Multiplies the time after which a problem is given up."""
    flushes: bool = False
    """Whether numbers below the smallest normal one are taken for 0."""
    forget: Callable[[], object] = lambda: None
    """Forget what was compiled: thousands of functions would take more memory maps than allowed."""

    def array(self, values: np.ndarray) -> Any:
        """A copy of the values as an array of the library, of the same dtype."""
        return self.asarray(np.array(values, copy=True))


def _forget_if_many() -> None:
    """Let JAX forget what it has compiled if that takes many memory maps."""
    import jax

    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


def backend(name: str) -> Backend:
    """The array library of this name; "numba" is NumPy with iterations in machine code."""
    if name == "torch":
        import torch

        torch.set_num_threads(1)
        return Backend(name, torch.asarray, patience=2.0)
    if name == "jax":
        for setting, value in QUICK_COMPILATION.items():
            os.environ.setdefault(setting, value)
        import jax

        jax.config.update("jax_enable_x64", True)  # noqa: FBT003
        options = {"few_shapes": True, "patience": 20.0, "flushes": True}
        return Backend(name, jax.numpy.asarray, forget=_forget_if_many, **options)
    if name == "strict":
        import array_api_strict

        return Backend(name, array_api_strict.asarray, patience=3.0)
    if name == "numba":
        set_fused_entries(0)
    return Backend(name, np.asarray)


def set_fused_entries(entries: int) -> None:
    """
    Solve problems of so many entries and more in machine code.

    By default only problems that are larger than those of a campaign are.
    """
    _dispatch.THRESHOLDS = replace(_dispatch.THRESHOLDS, fused_entries=entries)


def to_numpy(array: Any) -> np.ndarray:
    """Any array as one of NumPy, in double."""
    return np.array(np.from_dlpack(array) if not isinstance(array, np.ndarray) else array, float)
