"""Problems in float32 whose kernel products are computed in float64."""

import numpy as np
import pytest
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._transport.double_products import with_double_products


def problem_of(array, dtype, lam=10.0, source_lam=float("inf"), eps=0.01):
    X = np.random.default_rng(0).dirichlet(np.ones(24), 3)
    loss = wtf.Wasserstein(wtf.grid_cost(24), eps=eps, lam=lam, source_lam=source_lam)
    return loss.bind(array(X, dtype))


def potential(array, dtype):
    return array(np.random.default_rng(1).normal(0.0, 0.3, (3, 24)), dtype)


def test_problem_in_float64_stays_as_it_is(array):
    assert with_double_products(problem_of(array, "float64")) is None


@pytest.mark.parametrize("source_lam", [float("inf"), 2.0])
def test_marginal_is_that_of_float64_rounded(xp, array, source_lam):
    """At this eps the exponents span more than float32 holds."""
    single, double = (problem_of(array, d, source_lam=source_lam) for d in ("float32", "float64"))
    g = potential(array, "float32")
    found, logs, offset = with_double_products(single).marginal(g, safe=False, masked=False)
    wide = xp.astype(g, xp.float64)
    expected, expected_logs, expected_offset = double.marginal(wide, safe=False, masked=False)
    assert found.q.dtype == logs.dtype == offset.dtype == found.top.dtype == xp.float32
    assert found.denominator.dtype == xp.float64
    assert np.allclose(to_numpy(found.q), to_numpy(expected.q), rtol=1e-4, atol=1e-12)
    difference = to_numpy(logs) - to_numpy(offset)[:, None]
    assert np.allclose(
        difference, to_numpy(expected_logs) - to_numpy(expected_offset)[:, None], rtol=1e-5
    )
    value = to_numpy(with_double_products(single).value(found))
    assert np.allclose(value, to_numpy(double.value(expected)), rtol=1e-5)


def test_log_domain_is_that_of_float32(array):
    single = problem_of(array, "float32")
    g = potential(array, "float32")
    found = with_double_products(single).marginal(g, safe=True)[0]
    expected = single.marginal(g, safe=True)[0]
    assert np.array_equal(to_numpy(found.q), to_numpy(expected.q))
