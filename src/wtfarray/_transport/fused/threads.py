"""Threads that share the samples: machine code holds no lock of Python."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise

from numba import config

PARTS = 4
"""Least number of parts of the samples for each thread: some take longer than others."""
LEAST_ENTRIES = 2**14
"""Entries, times iterations, for each thread: waking it takes as long as half as many."""
MOST_ENTRIES = 2**20
"""Entries, times iterations, of a part: in the log domain they may take half a second."""

_pools: dict[int, ThreadPoolExecutor] = {}
"""The threads of this process; those of the process that it was forked from do not live here."""


def thread_count() -> int:
    """The number of threads: `NUMBA_NUM_THREADS`, or `OMP_NUM_THREADS` if that is less."""
    most = int(config.NUMBA_NUM_THREADS)
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, min(most, int(asked))) if asked.isdigit() else most


def _pool() -> ThreadPoolExecutor:
    pool = _pools.get(os.getpid())
    if pool is None:
        _pools.clear()
        pool = _pools[os.getpid()] = ThreadPoolExecutor(
            thread_count(), thread_name_prefix="wtfarray"
        )
    return pool


def on_threads(task: Callable[[int, int], None], count: int, entries: int) -> None:
    """
    Call ``task(start, stop)`` for ranges that cover ``count`` samples, on several threads.

    ``entries`` is the number of their entries, times the most iterations. Returns when no thread
    works any more, also if it is interrupted or a task has failed. The interpreter hears of an
    interrupt between two ranges.
    """
    if not count:
        return
    threads = max(1, min(thread_count(), count, entries // LEAST_ENTRIES))
    parts = min(count, max(1 if threads == 1 else PARTS * threads, entries // MOST_ENTRIES))
    shared = _Parts(task, [count * k // parts for k in range(parts + 1)])
    try:
        # No thread can be started while the interpreter shuts down: then this one does it all.
        with suppress(RuntimeError):
            for _ in range(threads - 1):
                _pool().submit(shared.help)
        shared.work()
    finally:
        shared.end()
    if shared.errors:
        raise shared.errors[0]


class _Parts:
    """
    Ranges of samples that several threads take, one after the other.

    What `end` does can be done again: an interrupt may come between any two of its lines.
    """

    def __init__(self, task: Callable[[int, int], None], edges: list[int]) -> None:
        self.errors: list[BaseException] = []
        """Of other threads than that which waits for them."""
        self._task = task
        self._ranges = list(pairwise(edges))[::-1]
        self._lock = threading.Lock()
        """Held by whoever changes the ranges or the helpers."""
        self._helpers: list[threading.Lock] = []
        """For each thread that helps a lock, which it holds while it works."""

    def work(self) -> None:
        """Serve ranges until none is left."""
        while True:
            with self._lock:
                if not self._ranges:
                    return
                start, stop = self._ranges.pop()
            self._task(start, stop)

    def help(self) -> None:
        """The same in another thread, unless all ranges have been taken before it starts."""
        busy = threading.Lock()
        with busy:
            with self._lock:
                if not self._ranges:
                    return
                self._helpers.append(busy)
            try:
                self.work()
            except BaseException as error:  # noqa: BLE001 -- raised where it is waited for
                self.errors.append(error)
                with self._lock:
                    self._ranges.clear()

    def end(self) -> None:
        """Leave the other ranges, and wait for the helpers; an interrupt is raised after that."""
        interrupts: list[BaseException] = []
        while True:
            try:
                with self._lock:
                    self._ranges.clear()
                for busy in self._helpers:
                    with busy:
                        pass
                break
            except BaseException as interrupt:  # noqa: BLE001
                interrupts.append(interrupt)
        if interrupts:
            raise interrupts[0]
