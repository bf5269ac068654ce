"""Vectorised exp and log, against those of NumPy."""

import math

import numpy as np
import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

from numba import njit

from wtfarray._transport.fused import exponentials


@njit
def exp(values):
    return np.array([exponentials.exp(x) for x in values])


@njit
def log(values):
    return np.array([exponentials.log(x) for x in values])


@njit
def log_of_any(values):
    return np.array([exponentials.log_of_any(x) for x in values])


def ulps(found, exact):
    """The largest error in units of the last place."""
    return float(np.max(np.abs(found - exact) / np.spacing(np.abs(exact))))


def test_exp():
    x = np.concatenate([np.linspace(-707.9, 709.0, 200_001), np.linspace(-1.0, 1.0, 200_001)])
    assert ulps(exp(x), np.exp(x)) <= 2.0


def test_exp_of_very_small_and_large_numbers():
    np.testing.assert_array_equal(exp(np.array([-math.inf, -709.0, -1e308])), 0.0)
    np.testing.assert_array_equal(exp(np.array([0.0, -0.0])), 1.0)
    np.testing.assert_array_equal(exp(np.array([710.0, 1e308])), exp(np.array([709.0, 709.0])))


def test_log():
    x = np.exp(np.linspace(-700.0, 700.0, 200_001))
    assert ulps(log(x), np.log(x)) <= 2.0
    near = np.linspace(0.7, 1.5, 200_001)
    near = near[near != 1.0]
    assert ulps(log(near), np.log(near)) <= 2.0
    np.testing.assert_array_equal(log(np.array([1.0, 2.0**-1022])), [0.0, -1022 * math.log(2.0)])


def test_log_of_numbers_that_are_not_normal():
    x = np.array([5e-324, 1e-310, 2.0**-1022, 1.0, 1.7e308])
    np.testing.assert_allclose(log_of_any(x), np.log(x), rtol=4e-16)
