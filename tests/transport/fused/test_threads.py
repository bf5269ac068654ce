"""Threads that share samples."""

import os
import threading
import time

import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

from wtfarray._transport.fused import threads
from wtfarray._transport.fused.threads import on_threads, thread_count


@pytest.fixture
def four(monkeypatch):
    monkeypatch.setattr(threads, "thread_count", lambda: 4)
    monkeypatch.setattr(threads, "_pools", {})


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_every_sample_is_served_once(four, count):
    seen, lock = [], threading.Lock()

    def task(start, stop):
        with lock:
            seen.extend(range(start, stop))

    on_threads(task, count, 10**9)
    assert sorted(seen) == list(range(count))


def test_several_threads_work(four):
    barrier = threading.Barrier(4)
    names = set()

    def task(start, stop):
        if start < 4 * (stop - start):  # one of the first four parts
            barrier.wait(timeout=30)
        names.add(threading.current_thread().name)

    on_threads(task, 1600, 10**9)
    assert len(names) == 4


def test_little_work_is_left_to_one_thread(four):
    names = []
    on_threads(lambda *_: names.append(threading.current_thread()), 1000, threads.LEAST_ENTRIES)
    assert names == [threading.current_thread()]


def test_nothing_to_do(four):
    on_threads(lambda *_: None, 0, 0)


def test_error_ends_all_and_is_raised(four):
    started = []

    def task(start, stop):
        started.append(start)
        if start == 0:
            raise KeyboardInterrupt
        time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        on_threads(task, 1600, 10**9)
    number = len(started)
    assert number < 16  # of the parts
    time.sleep(0.1)
    assert len(started) == number


def test_error_in_another_thread_is_raised(four):
    here = threading.current_thread()

    def task(start, stop):
        if threading.current_thread() is not here:
            msg = "elsewhere"
            raise ValueError(msg)
        time.sleep(0.02)

    with pytest.raises(ValueError, match="elsewhere"):
        on_threads(task, 1600, 10**9)


def test_forked_process_has_threads_of_its_own(four, monkeypatch):
    on_threads(lambda *_: None, 1000, 10**9)
    (pool,) = threads._pools.values()
    assert threads._pool() is pool
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert threads._pool() is not pool
    assert list(threads._pools) == [-1]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("1", 1), ("2", 2), ("2,1", 2), ("99", 4), ("0", 1), ("many", 4), ("", 4)],
)
def test_number_of_threads(monkeypatch, asked, expected):
    monkeypatch.setattr(threads.config, "NUMBA_NUM_THREADS", 4)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert thread_count() == expected
