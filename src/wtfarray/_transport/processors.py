"""The processors of this machine, for which several kinds of threads compete."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec

_holders: dict[int, threading.Lock] = {}
"""
For this process a lock, held by the fit that has limited the threads of BLAS and OpenMP.

The thread that limits those of OpenBLAS has to lift that as well: calls of others have no effect.
That of the process that this one was forked from may be held for ever.
"""
_thread = threading.local()
"""``end`` is what to undo at the end of the fit that runs in a thread."""


@contextmanager
def one_fit() -> Iterator[None]:
    """
    What is done within belongs together: `take_processors` holds until its end.

    Between the inner problems of a fit there are products, after which the threads of OpenBLAS wait
    actively for some milliseconds: with two processors, a fit would take twice as long.
    """
    if getattr(_thread, "end", None) is not None:  # a part of another one
        yield
        return
    with ExitStack() as end:
        _thread.end = end
        try:
            yield
        finally:
            _thread.end = None


def take_processors() -> None:
    """
    Limit BLAS and OpenMP to one thread, so that the processors are free for threads of ours.

    Nothing is changed outside of a fit, where threadpoolctl is not installed, and while a fit in
    another thread has done so.
    """
    end = getattr(_thread, "end", None)
    if end is None or find_spec("threadpoolctl") is None:
        return
    holder = _holders.setdefault(os.getpid(), threading.Lock())
    if not holder.acquire(blocking=False):
        return
    end.callback(holder.release)
    end.enter_context(import_module("threadpoolctl").threadpool_limits(1))
