"""The processors of this machine, for which several kinds of threads compete."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any


class _OtherThreads:
    """Those of BLAS and OpenMP: each allows itself as many as there are processors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fits = 0
        self._limits: Any = None

    def begin(self) -> None:
        """A fit begins."""
        with self._lock:
            self._fits += 1

    def limit(self) -> None:
        """Allow one of them, until no fit runs any more."""
        with self._lock:
            if self._fits > 0 and self._limits is None and find_spec("threadpoolctl") is not None:
                self._limits = import_module("threadpoolctl").threadpool_limits(1)

    def end(self) -> None:
        """A fit ends; after the last one as many are allowed as before."""
        with self._lock:
            self._fits -= 1
            if self._fits == 0 and self._limits is not None:
                self._limits.restore_original_limits()
                self._limits = None


_others = _OtherThreads()


@contextmanager
def one_fit() -> Iterator[None]:
    """
    What is done within belongs together: `take_processors` holds until its end.

    Between the inner problems of a fit there are products, after which the threads of OpenBLAS wait
    actively for some milliseconds: with two processors, a fit would take twice as long.
    """
    _others.begin()
    try:
        yield
    finally:
        _others.end()


def take_processors() -> None:
    """
    Limit BLAS and OpenMP to one thread, so that the processors are free for threads of ours.

    Outside of a fit, and where threadpoolctl is not installed, nothing is changed.
    """
    _others.limit()
