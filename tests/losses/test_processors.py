"""Threads of BLAS and OpenMP during the solve of terms that have threads of their own."""

import numpy as np
import pytest
from helpers import numpy_only, set_thresholds

import wtfarray as wtf
from wtfarray._losses.processors import processors_for
from wtfarray._losses.selection import terms_of

pytestmark = numpy_only


def threads_of_blas():
    control = pytest.importorskip("threadpoolctl", reason="counts the threads of BLAS")
    return [pool["num_threads"] for pool in control.threadpool_info()]


def terms(loss):
    return terms_of([loss], np.ones((2, 6)), None, None)


@pytest.fixture
def several():
    control = pytest.importorskip("threadpoolctl", reason="sets the threads of BLAS")
    with control.threadpool_limits(2):
        yield


@pytest.mark.parametrize("least", [0, 10**9])
def test_threads_are_limited_for_terms_with_their_own(several, monkeypatch, least):
    pytest.importorskip("numba", reason="machine code needs Numba")
    set_thresholds(monkeypatch, fused_entries=least)
    before = threads_of_blas()
    with processors_for(terms(wtf.Wasserstein(wtf.grid_cost(6), eps=1.0, lam=1.0))):
        now = threads_of_blas()
    assert now == ([1] * len(before) if least == 0 else before)
    assert threads_of_blas() == before


def test_other_losses_have_none(several):
    before = threads_of_blas()
    with processors_for(terms(wtf.Frobenius())):
        assert threads_of_blas() == before
