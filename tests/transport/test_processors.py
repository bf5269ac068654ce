"""Threads of BLAS and OpenMP during fits whose inner problems have threads of their own."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import numpy_only, set_thresholds

import wtfarray as wtf
from wtfarray._transport import processors
from wtfarray._transport.processors import one_fit, take_processors

pytestmark = numpy_only


class Limits:
    """Stands for threadpoolctl."""

    now = 8

    def __init__(self, limits):
        self.before, Limits.now = Limits.now, limits

    def __enter__(self):
        pass

    def __exit__(self, *_):
        Limits.now = self.before


@pytest.fixture
def limits(monkeypatch):
    module = pytest.importorskip("threadpoolctl", reason="limits the threads of BLAS")
    monkeypatch.setattr(module, "threadpool_limits", Limits)


@pytest.fixture
def real():
    """BLAS with two threads, whatever the machine has."""
    control = pytest.importorskip("threadpoolctl", reason="sets the threads of BLAS")
    with control.threadpool_limits(2, user_api="blas"):
        if set(threads_of_blas()) != {2}:
            pytest.skip("BLAS cannot have two threads here")
        yield


def threads_of_blas():
    control = pytest.importorskip("threadpoolctl", reason="counts the threads of BLAS")
    pools = control.threadpool_info()
    return [pool["num_threads"] for pool in pools if pool["user_api"] == "blas"]


def test_other_threads_are_back_after_the_fit(limits):
    with one_fit():
        assert Limits.now == 8
        take_processors()
        assert Limits.now == 1
        with one_fit():
            take_processors()
        assert Limits.now == 1
    assert Limits.now == 8


def test_fits_in_two_threads(real):
    """The first one limits the others, and lifts that when it ends; the second one has no part."""
    taken, ended = threading.Event(), threading.Event()

    def second():
        with one_fit():
            take_processors()
            taken.set()
            ended.wait(30)
            return threads_of_blas()

    with ThreadPoolExecutor(1) as pool:
        with one_fit():
            take_processors()
            other = pool.submit(second)
            assert taken.wait(30)
            assert set(threads_of_blas()) == {1}
        assert set(threads_of_blas()) == {2}
        ended.set()
        assert set(other.result()) == {2}
    assert set(threads_of_blas()) == {2}
    with one_fit():
        take_processors()
        assert set(threads_of_blas()) == {1}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_process_that_is_forked_while_another_thread_fits():
    """That fit does not go on there, and does not lift the limit."""
    pytest.importorskip("threadpoolctl", reason="limits the threads of BLAS")
    program = """
import os
from wtfarray._transport import processors

with processors.one_fit():
    processors.take_processors()
    child = os.fork()
    if child == 0:
        processors._thread.end = None  # as in a process that another thread has forked
        with processors.one_fit():
            processors.take_processors()
            os._exit(int(processors._holders[os.getpid()].locked()))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "1", done.stderr


def test_other_threads_are_back_after_an_error(real):
    def fails():
        with one_fit():
            take_processors()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert set(threads_of_blas()) == {2}


def test_nothing_changes_outside_of_a_fit(limits):
    take_processors()
    assert Limits.now == 8


def test_threadpoolctl_is_not_needed(limits, monkeypatch):
    monkeypatch.setattr(processors, "find_spec", lambda _: None)
    with one_fit():
        take_processors()
        assert Limits.now == 8


def fits():
    X = np.random.default_rng(0).dirichlet(np.ones(6), 5)
    loss = wtf.Wasserstein(wtf.grid_cost(6), eps=0.3, lam=1.0)
    few = {"rng": 0, "tol": 1e-2, "max_iter": 20}
    return {
        "one": lambda seen: wtf.nmf(X, 2, loss, callback=seen, **few),
        "several": lambda seen: wtf.nmf(X, 2, loss, n_init=2, callback=seen, **few),
        "online": lambda seen: wtf.nmf(X, 2, loss, solver="online", callback=seen, rng=0),
    }


@pytest.mark.filterwarnings("ignore:.*stopped")
@pytest.mark.parametrize("kind", ["one", "several", "online"])
@pytest.mark.parametrize("entries", [0, 10**9])
def test_fits_with_threads_of_their_own_limit_the_others(limits, monkeypatch, kind, entries):
    pytest.importorskip("numba", reason="machine code needs Numba")
    set_thresholds(monkeypatch, fused_entries=entries)
    seen = []
    fits()[kind](lambda _: seen.append(Limits.now))
    assert set(seen) == {1 if entries == 0 else 8}
    assert Limits.now == 8
