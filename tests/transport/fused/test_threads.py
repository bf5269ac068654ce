"""Threads that share samples."""

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

from wtfarray._transport.fused import threads
from wtfarray._transport.fused.threads import on_threads, thread_count

SOME = threads.PARTS * 4 * threads.LEAST_ENTRIES
"""Enough for four threads, each with as few parts as possible."""


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

    on_threads(task, count, SOME)
    assert sorted(seen) == list(range(count))


def test_several_threads_work(four):
    barrier = threading.Barrier(4)
    names = set()

    def task(start, stop):
        if start < 4 * (stop - start):  # one of the first four parts
            barrier.wait(timeout=30)
        names.add(threading.current_thread().name)

    on_threads(task, 1600, SOME)
    assert len(names) == 4


def test_little_work_is_left_to_one_thread(four):
    names = []
    on_threads(lambda *_: names.append(threading.current_thread()), 1000, threads.LEAST_ENTRIES)
    assert names == [threading.current_thread()]


def test_nothing_to_do(four):
    on_threads(lambda *_: None, 0, 0)


@pytest.mark.parametrize("number", [1, 4])
def test_long_work_can_be_interrupted(monkeypatch, number):
    """Between two parts, also where one thread does it all."""
    monkeypatch.setattr(threads, "thread_count", lambda: number)
    started = []

    def task(start, stop):
        started.append(stop - start)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_threads(task, 100, 100 * threads.MOST_ENTRIES)
    assert set(started) == {1}
    assert len(started) <= number


def test_interrupt_while_threads_are_started(four, monkeypatch):
    """The executor has queued the work, but has not said so."""
    release, late = threading.Event(), []
    executor = threads._pool()

    def submit(work):
        def delayed():
            release.wait(30)
            work()
            late.append(True)

        executor.submit(delayed)
        raise KeyboardInterrupt

    done = []
    monkeypatch.setattr(threads, "_pool", lambda: SimpleNamespace(submit=submit))
    with pytest.raises(KeyboardInterrupt):
        on_threads(lambda *part: done.append(part), 1600, SOME)
    release.set()
    executor.shutdown(wait=True)
    assert late == [True]
    assert done == []


def test_thread_that_was_not_announced_is_waited_for(four, monkeypatch):
    """No more threads can be started, but one serves what had been queued."""
    executor = threads._pool()
    here, begun, done = threading.current_thread(), threading.Event(), []

    def submit(work):
        executor.submit(work)
        begun.wait(30)
        msg = "can't start new thread"
        raise RuntimeError(msg)

    def task(start, stop):
        if threading.current_thread() is not here:
            begun.set()
            time.sleep(0.2)
        done.extend(range(start, stop))

    monkeypatch.setattr(threads, "_pool", lambda: SimpleNamespace(submit=submit))
    on_threads(task, 1600, SOME)
    assert sorted(done) == list(range(1600))


def test_error_ends_all_and_is_raised(four):
    started = []

    def task(start, stop):
        started.append(start)
        if start == 0:
            raise KeyboardInterrupt
        time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        on_threads(task, 1600, SOME)
    number = len(started)
    assert number < 16  # of the parts
    time.sleep(0.1)
    assert len(started) == number


def test_interrupt_waits_for_the_others(four):
    """Which may still be writing."""
    here, begun, started, done = threading.current_thread(), threading.Event(), [], []

    def task(start, stop):
        if threading.current_thread() is here:
            begun.wait(30)
            return
        begun.set()
        started.append(start)
        time.sleep(0.2)  # this thread waits for the others by now
        if start == started[0]:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        done.append(start)

    # A process that was started in the background may ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            on_threads(task, 1600, SOME)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done
    assert sorted(done) == sorted(started)


def test_background_thread_goes_on_when_the_main_one_has_ended():
    """The interpreter then starts no more threads."""
    program = """
import threading
from wtfarray._transport.fused import threads

def late():
    threading.main_thread().join()
    seen = []
    threads.thread_count = lambda: 4
    threads.on_threads(lambda start, stop: seen.extend(range(start, stop)), 100, 2**18)
    print(sorted(seen) == list(range(100)))

threading.Thread(target=late).start()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_error_in_another_thread_is_raised(four):
    here = threading.current_thread()

    def task(start, stop):
        if threading.current_thread() is not here:
            msg = "elsewhere"
            raise ValueError(msg)
        time.sleep(0.02)

    with pytest.raises(ValueError, match="elsewhere"):
        on_threads(task, 1600, SOME)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_process_has_threads_of_its_own():
    program = """
import os
from wtfarray._transport.fused import threads

def run():
    seen = []
    threads.on_threads(lambda start, stop: seen.extend(range(start, stop)), 100, 2**18)
    return sorted(seen) == list(range(100))

threads.thread_count = lambda: 4
before = run()
if os.fork() == 0:
    os._exit(0 if run() else 1)
_, status = os.wait()
print(before, status)
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "True 0", done.stderr


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("1", 1), ("2", 2), ("2,1", 2), ("99", 4), ("0", 1), ("many", 4), ("", 4)],
)
def test_number_of_threads(monkeypatch, asked, expected):
    monkeypatch.setattr(threads.config, "NUMBA_NUM_THREADS", 4)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert thread_count() == expected
