"""Threads that share the samples: machine code holds no lock of Python."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import pairwise

from numba import config

PARTS = 4
"""Parts of the samples for each thread: some take longer than others."""
LEAST_ENTRIES = 2**14
"""Entries, times iterations, for each thread: waking it takes as long as half as many."""

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

    ``entries`` is the number of their entries, times iterations. Returns when no thread works any
    more, also if it is interrupted or a task has failed.
    """
    threads = min(thread_count(), count, entries // LEAST_ENTRIES)
    if threads <= 1:
        task(0, count)
        return
    parts = min(count, PARTS * threads)
    edges = [count * k // parts for k in range(parts + 1)]
    ranges = list(pairwise(edges))[::-1]
    lock = threading.Lock()

    def stop() -> None:
        with lock:
            ranges.clear()

    def work() -> None:
        try:
            while True:
                with lock:
                    if not ranges:
                        return
                    start, end = ranges.pop()
                task(start, end)
        except BaseException:
            stop()
            raise

    helpers: list[Future[None]] = []
    try:
        # No thread can be started while the interpreter shuts down: then this one does it all.
        with suppress(RuntimeError):
            pool = _pool()
            for _ in range(threads - 1):
                helpers.append(pool.submit(work))  # noqa: PERF401 -- kept if it is interrupted
        work()
    finally:
        stop()
        waiting = [helper for helper in helpers if not helper.cancel()]
        _wait_for(waiting)
    for helper in waiting:
        helper.result()


def _wait_for(helpers: list[Future[None]]) -> None:
    """Wait until all have ended; an interrupt is raised after that."""
    try:
        wait(helpers)
    except BaseException:
        _wait_for(helpers)
        raise
