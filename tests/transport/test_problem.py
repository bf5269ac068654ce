"""The conjugate in the potential: fast and safe evaluation, convexity, infinite costs."""

import math

import numpy as np
import pytest
from helpers import assert_close, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from infinite_costs import CLOSED, N, band, loss_with, partly_reachable
from oracles import (
    SHAPE,
    central_differences,
    dense_plans,
    evaluate,
    every_lam,
    exponent,
    few,
    free,
    random_cost,
    random_data,
    random_dual,
    some_seed,
    xlogx,
)

import wtfarray as wtf


class TestConjugateInThePotential:
    """The fast conjugate in the potential never gives a wrong finite number."""

    @few
    @given(
        eps=exponent(-3, 0),
        spread=exponent(-2, 4),
        dtype=st.sampled_from(["float32", "float64"]),
        forbidden=st.sampled_from([0.0, 0.6]),
        seed=some_seed,
    )
    def test_fast_conjugate_is_accurate_or_nan(self, array, eps, spread, dtype, forbidden, seed):
        rng = np.random.default_rng(seed)
        costs = [random_cost(rng, 3, forbidden), random_cost(rng, 4, forbidden)]
        X = random_data(rng, (4, 12)).reshape(4, 3, 4)
        X[1] *= 1e6
        X[2] *= 1e-6
        g = rng.uniform(-spread, spread, size=X.shape)
        self.check(wtf.Wasserstein(costs, eps), X, g, array, dtype)

    @staticmethod
    def check(loss, X, g, array, dtype):
        bound = loss.bind(array(X, dtype))
        fast, q = (to_numpy(a).astype("float64") for a in bound.conjugate(array(g, dtype)))
        safe, safe_q = (
            to_numpy(a).astype("float64") for a in bound.safe_conjugate(array(g, dtype))
        )
        assert np.all(np.isfinite(safe))
        assert np.all(np.isfinite(safe_q))
        known = ~np.isnan(fast)
        # Values of the exponents g/eps, C/eps and what a plain product can hold.
        info = np.finfo(dtype)
        largest = np.abs(g).max() + 10.0 - loss.eps * np.log(float(info.tiny))
        mass = X.sum(axis=(1, 2))
        size = mass * largest + loss.eps * np.abs(xlogx(X)).sum(axis=(1, 2))
        assert np.all(np.abs(fast - safe)[known] <= 10 * info.eps * size[known])
        error = np.abs(q - safe_q).max(axis=(1, 2))
        bound_q = 3 * info.eps * mass * (1.0 + largest / loss.eps)
        assert np.all(error[known] <= bound_q[known])
        np.testing.assert_allclose(safe_q.sum(axis=(1, 2)), mass, rtol=bound_q.max() / mass.max())
        return known

    def test_fast_conjugate_is_nan_only_where_kernels_underflow(self, array):
        rng = np.random.default_rng(0)
        X, g = random_data(rng, (4, 12)).reshape(4, 3, 4), rng.normal(size=(4, 3, 4))
        g[:2] *= 1e-2
        g[2:] *= 1e2
        loss = wtf.Wasserstein([random_cost(rng, 3), random_cost(rng, 4)], 2e-3)
        known = self.check(loss, X, g, array, "float64")
        np.testing.assert_array_equal(known, [True, True, False, False])

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_fast_conjugate_is_nan_beyond_the_edge_of_underflow(self, array, dtype):
        """One sample per shift, from no underflow to complete underflow."""
        rng = np.random.default_rng(1)
        eps, cost = 0.1, random_cost(rng, 6)
        cost[0, 1:] = np.inf  # what is at 0 stays there
        edge = -eps * math.log(float(np.finfo(dtype).tiny))
        g = rng.normal(size=(41, 1, 6)) * 0.1
        g[:, 0, 0] -= np.linspace(0.5, 1.5, 41) * edge
        loss = wtf.Wasserstein([np.zeros((1, 1)), cost], eps)
        known = self.check(loss, rng.exponential(size=g.shape), g, array, dtype)
        assert known[0]
        assert not known[-1]
        assert np.all(np.diff(known.astype(int)) <= 0)

    @few
    @given(spread=exponent(-2, 4), dtype=st.sampled_from(["float32", "float64"]), seed=some_seed)
    def test_fast_conjugate_is_accurate_for_every_g_where_no_digit_can_be_lost(
        self, array, spread, dtype, seed
    ):
        """Fast products are not checked there, and are accurate for every g, -inf included."""
        rng = np.random.default_rng(seed)
        costs = [random_cost(rng, 3), random_cost(rng, 4)]
        X = random_data(rng, (4, 12)).reshape(4, 3, 4)
        longest = sum(float(cost.max()) for cost in costs)
        # exp(-longest/eps) is as small as it may be: some 1e-25 in float32, 1e-280 in float64.
        eps = longest / (55.0 if dtype == "float32" else 645.0)
        loss = wtf.Wasserstein(costs, eps)
        bound = loss.bind(array(X, dtype))
        assert bound.plain_range.never_underflows
        sharper = wtf.Wasserstein(costs, 0.8 * eps).bind(array(X, dtype))
        assert not sharper.plain_range.never_underflows
        g = rng.uniform(-spread, spread, size=X.shape)
        assert np.all(self.check(loss, X, g, array, dtype))
        g[0, 1:] = -math.inf
        fast, *fast_logs = bound.marginal(array(g, dtype), safe=False)
        safe, *safe_logs = bound.marginal(array(g, dtype), safe=True)
        assert not np.any(to_numpy(fast.lost))
        rounding = 10 * np.finfo(dtype).eps * (spread / eps + 1000.0)
        found, expected = (
            to_numpy(logs) - to_numpy(offset)[:, None, None] / eps
            for logs, offset in (fast_logs, safe_logs)
        )
        np.testing.assert_allclose(found, expected, rtol=0, atol=rounding)
        assert_close(fast.q, safe.q, rtol=rounding, atol=float(np.finfo(dtype).eps * X.sum()))

    def test_sample_of_potential_minus_infinity_is_lost(self, array):
        g = np.zeros((2, 6))
        g[1] = -math.inf
        bound = wtf.Wasserstein(wtf.grid_cost(6), 1.0).bind(array(np.ones((2, 6))))
        assert bound.plain_range.never_underflows
        with np.errstate(invalid="ignore"):  # -inf less its own maximum
            lost = bound.marginal(array(g), safe=False)[0].lost
        np.testing.assert_array_equal(to_numpy(lost), [False, True])

    @few
    @given(eps=exponent(-3, 1), spread=exponent(-1, 3), seed=some_seed)
    def test_conjugate_is_convex_along_segments(self, array, eps, spread, seed):
        rng = np.random.default_rng(seed)
        bound = wtf.Wasserstein(random_cost(rng, 6), eps).bind(array(random_data(rng)))
        start, end = rng.normal(size=(2, *SHAPE)) * spread
        first, last = (to_numpy(bound.safe_conjugate(array(g))[0]) for g in (start, end))
        for t in (0.1, 0.5, 0.8):
            middle = to_numpy(bound.safe_conjugate(array((1 - t) * start + t * end))[0])
            mass = to_numpy(bound.mass)
            slack = 1e-14 * mass * (4 * spread + 10 + 10 * eps)
            assert np.all(middle <= (1 - t) * first + t * last + slack)

    def test_gradient_agrees_with_central_differences(self, array):
        rng = np.random.default_rng(2)
        bound = wtf.Wasserstein(random_cost(rng, 6), 0.2, 3.0).bind(array(random_data(rng)))
        g = rng.normal(size=SHAPE)
        expected = central_differences(
            lambda h: to_numpy(bound.conjugate(array(h))[0]).sum(), g, 1e-4
        )
        for method in (bound.conjugate, bound.safe_conjugate):
            np.testing.assert_allclose(
                to_numpy(method(array(g))[1]), expected, rtol=1e-6, atol=1e-8
            )

    @every_lam
    def test_value_is_that_of_the_conjugate_in_u(self, array, lam):
        rng = np.random.default_rng(3)
        X, U = random_data(rng), random_dual(rng, lam)
        loss = wtf.Wasserstein(random_cost(rng, 6), 0.1, lam)
        values, _ = loss.bind(array(X)).conjugate(array(free(U, lam)))
        assert to_numpy(values).sum() == pytest.approx(evaluate(loss, X, U, array)[0], rel=1e-13)

    def test_potential_minus_infinity_empties_a_bin(self, array):
        rng = np.random.default_rng(4)
        X, g, cost = random_data(rng), rng.normal(size=SHAPE), random_cost(rng, 6)
        g[:, 2] = -np.inf
        value, q = wtf.Wasserstein(cost, 0.1).bind(array(X)).safe_conjugate(array(g))
        plan = dense_plans(X, g, cost, 0.1)
        assert_close(q, array(plan.sum(axis=1)), rtol=1e-12)
        log_Kf = np.log(np.exp(g / 0.1) @ np.exp(-cost / 0.1).T)
        expected = 0.1 * (X * log_Kf - xlogx(X) + X).sum(axis=1)
        assert_close(value, array(expected), rtol=1e-12)


class TestInfiniteCosts:
    @pytest.mark.parametrize("safe", [False, True])
    def test_conjugate_does_not_depend_on_unreachable_bins(self, array, safe):
        problem = loss_with(band(1), 1.0).bind(array(partly_reachable()[0]))
        conjugate = problem.safe_conjugate if safe else problem.conjugate
        g = np.random.default_rng(0).normal(size=(3, N))
        values, q = conjugate(array(g))
        others, same = conjugate(array(np.where(CLOSED, 1e4, g)))
        assert_close(others, values, rtol=1e-15)
        assert_close(same, q, rtol=1e-15)
        assert np.all(to_numpy(q)[CLOSED] == 0.0)


class TestBounds:
    def test_constant_of_a_balanced_potential_costs_no_digits(self, array):
        """It adds nothing to the value: the plan is the same."""
        rng = np.random.default_rng(5)
        X, Y = (rng.dirichlet(np.ones(6), 3) for _ in range(2))
        problem = wtf.Wasserstein(random_cost(rng, 6), 1e-2, math.inf).bind(array(X))
        g = rng.uniform(size=(3, 6))
        for constant in (2.0**10, -(2.0**20)):
            shifted = (g + constant) - constant  # what is left of g next to the constant
            expected, _, _ = problem.bounds(array(shifted), array(Y))
            found, _, u = problem.bounds(array(g + constant), array(Y))
            assert_close(found, expected, rtol=1e-14, atol=1e-14)
            assert float(u[0, 0]) == pytest.approx(constant, rel=1e-2)


@pytest.mark.parametrize("seed", [4, 5])
def test_rounding_of_large_exponents_makes_no_mass(array, seed):
    """Exponents of 1e8 are multiples of 8 in float32: the marginal is at most the mass of X."""
    rng = np.random.default_rng(seed)
    X, cost = rng.dirichlet(np.ones(8), 3), 1e3 * rng.random((8, 8))
    np.fill_diagonal(cost, 0.0)
    problem = wtf.Wasserstein(cost, eps=1e-5, lam=1.0).bind(array(X, "float32"))
    _, q = problem.safe_conjugate(array(1e3 * rng.normal(size=X.shape), "float32"))
    assert float(np.max(to_numpy(q))) < 1.001
