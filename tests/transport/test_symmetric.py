"""Transport of a measure to itself: the solution, its bounds, and which kernels are definite."""

import numpy as np
import pytest
from helpers import numpy_only, to_numpy

import wtfarray as wtf
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.symmetric import (
    are_positive_definite,
    lower_bound,
    self_transport,
    solve_symmetric,
)

EPS = 0.1


def samples():
    """Three samples of six bins: positive, with zeros, and empty."""
    q = np.random.default_rng(0).gamma(1.0, size=(3, 6)) + 0.01
    q[1, 2:4] = 0.0
    q[2] = 0.0
    return q


def kernel_of(array, eps=EPS, p=2):
    return GibbsKernel.of(tuple(array(cost) for cost in wtf.grid_cost(6, p=p)), eps)


@pytest.mark.parametrize("safe", [True, False])
def test_marginal_of_the_solution_is_q(xp, array, safe):
    q, kernel = array(samples()), kernel_of(array)
    found = solve_symmetric(kernel, q, xp.zeros_like(q), 1e-20, safe=safe)
    marginal = np.where(samples() > 0, np.exp(to_numpy(found.log_marginal(EPS))), 0.0)
    np.testing.assert_allclose(marginal, samples(), rtol=1e-9, atol=1e-12)
    assert int(found.applications) < 25


def test_known_product_saves_an_application(xp, array):
    q, kernel = array(samples()), kernel_of(array)
    first = solve_symmetric(kernel, q, xp.zeros_like(q), 1e-12)
    again = solve_symmetric(kernel, q, first.p, 1e-11, known=first.log_product)
    assert int(again.applications) == 0
    assert int(solve_symmetric(kernel, q, first.p, 1e-11).applications) == 1


def test_bounds_enclose_the_transport_to_itself(array):
    x = samples()[:2]
    own = self_transport(kernel_of(array), array(x))
    plain = wtf.Wasserstein(wtf.grid_cost(6), EPS)
    values = [float(wtf.wasserstein(row, row, plain, tol=1e-12).value) for row in x]
    np.testing.assert_allclose(to_numpy(own.lower), -0.5 * np.asarray(values), rtol=1e-9)
    assert np.all(to_numpy(own.gap) < 1e-12)


@numpy_only
def test_any_potential_gives_bounds():
    rng = np.random.default_rng(1)
    kernel, x = kernel_of(np.asarray), samples()[:2]
    exact = self_transport(kernel, x).lower
    live = x > 0
    for _ in range(20):
        p = rng.normal(size=x.shape) * EPS
        mu = np.where(live, np.exp(p / EPS), 0.0)
        product = kernel.apply(mu)
        total = np.sum(mu * product, axis=1)
        lower = lower_bound(EPS, x, np.log(product), total)
        upper = -np.sum(p * x, axis=1) + 0.5 * EPS * total
        assert np.all(lower <= exact + 1e-12)
        assert np.all(upper >= exact - 1e-12)


@numpy_only
def test_small_eps_is_solved_in_the_log_domain():
    q = np.zeros((1, 6))
    q[0, [0, 5]] = (1.0, 1e-12)
    found = solve_symmetric(kernel_of(np.asarray, 1e-3), q, 0.0 * q, 1e-20, safe=False)
    marginal = np.exp(found.log_marginal(1e-3))
    np.testing.assert_allclose(marginal[q > 0], q[q > 0], rtol=1e-2)


@numpy_only
@pytest.mark.parametrize(("p", "definite"), [(1, True), (2, True), (3, False)])
def test_kernels_are_definite_up_to_squared_distances(p, definite):
    for eps in (0.3, 1.0):
        assert are_positive_definite(wtf.grid_cost(40, p=p), eps) is definite


@numpy_only
def test_banded_kernel_is_definite_if_what_it_cuts_off_is_small():
    for reach, definite in ((6.0, False), (30.0, True)):
        cost = wtf.grid_cost(60, scale=None, reach=reach)
        assert are_positive_definite(cost, 10.0) is definite
        assert are_positive_definite([cost[0].to_dense()], 10.0) is definite
