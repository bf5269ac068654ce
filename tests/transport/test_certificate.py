"""The duality gap: of rounded plans, and of corrected plans where transport is forbidden."""

import math
import warnings

import numpy as np
import pytest
from fitting import spare_jax
from helpers import assert_close, numpy_only, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from infinite_costs import N, band, loss_with, plain_sinkhorn, reachable
from oracles import (
    LAMS,
    SHAPE,
    dense_plans,
    every_lam,
    exponent,
    few,
    free,
    kl,
    plan_value,
    random_cost,
    random_data,
    random_dual,
    some_seed,
    xlogx,
)
from scipy.optimize import linprog

import wtfarray as wtf
from wtfarray._arrays.samples import stack


def rounded_bound(X, Y, g, cost, eps):
    """One sample: the two bounds of the rounded plan, U1 and U2, and the rounded plan itself."""
    plan = dense_plans(X[None], g[None], cost, eps)[0]
    q = plan.sum(axis=0)
    kept = plan * np.minimum(1.0, Y / q)
    rr, rc = X - kept.sum(axis=1), Y - kept.sum(axis=0)
    m, mR = X.sum(), rr.sum()
    m1 = m - mR
    log_a = np.log(X) - np.log(np.exp(-cost / eps) @ np.exp(g / eps))
    t = m / m1
    log_s = np.minimum(0.0, np.log(Y / q))
    U1 = t * (kept.sum(axis=1) @ log_a + kept.sum(axis=0) @ (g / eps + log_s) + m1 * np.log(t))
    t = m / mR
    entropies = xlogx(rr).sum() + xlogx(rc).sum() - mR * np.log(mR) + mR * np.log(t)
    U2 = t * (eps * entropies + rr @ cost @ rc / mR) - eps * m
    bound = m1 / m * eps * (U1 - m) + mR / m * U2
    return bound, kept + np.outer(rr, rc) / mR


class TestGap:
    @few
    @given(
        lam=st.sampled_from(LAMS),
        eps=exponent(-3, 1),
        spread=exponent(-2, 2),
        distance=exponent(-8, 1),
        dtype=st.sampled_from(["float32", "float64"]),
        seed=some_seed,
    )
    def test_gap_is_never_negative(self, array, lam, eps, spread, distance, dtype, seed):
        rng = np.random.default_rng(seed)
        X, g = random_data(rng), np.maximum(spread * rng.normal(size=SHAPE), -20 * lam)
        mass = X.sum(axis=1, keepdims=True)
        bound = wtf.Wasserstein(random_cost(rng, 6), eps, lam).bind(array(X, dtype))
        _, q = bound.safe_conjugate(array(g, dtype))
        Y = to_numpy(q).astype("float64") * np.exp(distance * rng.normal(size=SHAPE))
        Y *= (
            mass / Y.sum(axis=1, keepdims=True)
            if math.isinf(lam)
            else np.exp(np.minimum(g / lam, 20))
        )
        gaps = to_numpy(bound.gap(array(g, dtype), q, array(Y, dtype)))
        # The mass of q is as exact as the exponents g/eps and C/eps.
        largest = np.abs(g).max() + 1.0
        lost_mass = np.finfo(dtype).eps * (1.0 + largest / eps) * mass[:, 0]
        assert np.all(gaps >= (-lost_mass * (30 * eps + largest) if math.isinf(lam) else 0.0))

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_subnormal_mass_in_an_empty_bin_adds_only_rounding(self, array, dtype):
        """Both rows prefer bin 0; bin 1 gets less than a normal number, and Y has none there."""
        info = np.finfo(dtype)
        eps = 1.0 / (math.log(70.0) - math.log(float(info.smallest_subnormal)))
        loss = wtf.Wasserstein(np.array([[0.0, 1.0], [0.0, 1.0]]), eps)
        bound = loss.bind(array([[100.0, 100.0]], dtype))
        g = array([[0.0, 0.0]], dtype)
        _, q = bound.safe_conjugate(g)
        Y = array([[200.0 * (1.0 + info.eps), 0.0]], dtype)
        gap = float(bound.gap(g, q, Y)[0])
        assert abs(gap) <= 200.0 * info.eps

    def test_rounding_does_not_grow_with_a_constant(self, array):
        """Exponents differ by 1e3 and are of order 1e7: only the former may cost digits."""
        X = np.random.default_rng(0).dirichlet(np.ones(5), 3)
        bound = wtf.Wasserstein(wtf.grid_cost(5), 1e-3, 1e4).bind(array(X))
        g = np.random.default_rng(1).normal(size=X.shape)
        values, q = bound.safe_conjugate(array(g))
        far, same = bound.safe_conjugate(array(g + 1e4))
        np.testing.assert_allclose(to_numpy(same).sum(axis=1), X.sum(axis=1), rtol=1e-12)
        assert_close(same, q, rtol=1e-8)
        assert_close(far, values + array(1e4 * X.sum(axis=1)), rtol=1e-14)

    @pytest.mark.parametrize("lam", [0.5, 5.0])
    def test_unbalanced_gap_is_primal_minus_dual(self, array, lam):
        rng = np.random.default_rng(1)
        X, Y, eps, cost = random_data(rng), rng.exponential(size=SHAPE), 0.2, random_cost(rng, 6)
        g = rng.normal(size=SHAPE)
        bound = wtf.Wasserstein(cost, eps, lam).bind(array(X))
        values, q = bound.conjugate(array(g))
        gaps = to_numpy(bound.gap(array(g), q, array(Y)))
        u, plans = -lam * np.expm1(-g / lam), dense_plans(X, g, cost, eps)
        for k in range(3):
            primal = plan_value(plans[k], cost, eps) + lam * kl(plans[k].sum(axis=0), Y[k])
            expected = primal + float(values[k]) - u[k] @ Y[k]
            assert gaps[k] == pytest.approx(expected, rel=1e-11)

    @pytest.mark.parametrize("distance", [3.0, 0.1, 1e-3])
    def test_balanced_gap_is_that_of_the_rounded_plan(self, array, distance):
        rng = np.random.default_rng(2)
        X, g, eps, cost = (
            rng.exponential(size=SHAPE),
            rng.normal(size=SHAPE),
            0.3,
            random_cost(rng, 6),
        )
        bound = wtf.Wasserstein(cost, eps).bind(array(X))
        values, q = bound.conjugate(array(g))
        Y = to_numpy(q) * np.exp(distance * rng.normal(size=SHAPE))
        Y *= X.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
        gaps = to_numpy(bound.gap(array(g), q, array(Y)))
        for k in range(3):
            dual = g[k] @ Y[k] - float(values[k])
            primal, plan = rounded_bound(X[k], Y[k], g[k], cost, eps)
            assert gaps[k] == pytest.approx(primal - dual, rel=1e-10, abs=1e-13)
            np.testing.assert_allclose(plan.sum(axis=0), Y[k], rtol=1e-12)
            np.testing.assert_allclose(plan.sum(axis=1), X[k], rtol=1e-12)
            assert gaps[k] >= plan_value(plan, cost, eps) - dual - 1e-13

    def test_gaps_of_separable_and_dense_costs_agree(self, array):
        rng = np.random.default_rng(3)
        shape = (3, 2, 4)
        X, Y = rng.exponential(size=(2, *shape))
        Y *= X.sum(axis=(1, 2), keepdims=True) / Y.sum(axis=(1, 2), keepdims=True)
        g, costs = rng.normal(size=shape), [random_cost(rng, 2), random_cost(rng, 4)]
        full = (costs[0][:, None, :, None] + costs[1][None, :, None, :]).reshape(8, 8)
        separable, dense = wtf.Wasserstein(costs, 0.3), wtf.Wasserstein(full, 0.3, modes=((1, 2),))
        gaps = []
        for loss in (separable, dense):
            bound = loss.bind(array(X))
            h, model = stack(bound, array(g)), stack(bound, array(Y))
            gaps.append(bound.gap(h, bound.conjugate(h)[1], model))
        assert_close(gaps[0], gaps[1], rtol=1e-12)

    @every_lam
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_gap_vanishes_at_the_optimum(self, array, lam, dtype):
        rng = np.random.default_rng(4)
        X, U = random_data(rng), random_dual(rng, lam)
        loss = wtf.Wasserstein(random_cost(rng, 6), 0.1, lam)
        bound = loss.bind(array(X, dtype))
        g = array(free(U, lam), dtype)
        _, q = bound.safe_conjugate(g)
        _, Y = loss.conjugate(array(X, dtype), array(U, dtype))
        tiny = 100 * np.finfo(dtype).eps
        assert to_numpy(bound.gap(g, q, Y)).max() <= tiny * X.sum(axis=1).max()
        previous = math.inf
        for distance in (0.1, 1e-2, 1e-3):
            near = to_numpy(Y) * np.exp(distance * rng.normal(size=SHAPE))
            if math.isinf(lam):
                near *= X.sum(axis=1, keepdims=True) / near.sum(axis=1, keepdims=True)
            gap = to_numpy(bound.gap(g, q, array(near, dtype))).max()
            assert gap <= 0.2 * previous
            previous = gap


class TestForbiddenTransport:
    """Balanced transport with infinite costs within a connected component."""

    @pytest.mark.parametrize("eps", [0.01, 0.1, 1.0])
    def test_value_agrees_with_plain_sinkhorn(self, array, eps):
        X, Y = reachable()
        found = wtf.wasserstein(array(X), array(Y), loss_with(band(1), eps=eps), tol=1e-10)
        expected = [plain_sinkhorn(x, y, band(1), eps, math.inf) for x, y in zip(X, Y, strict=True)]
        assert found.converged
        assert float(found.value) == pytest.approx(sum(expected), rel=1e-9)

    @pytest.mark.parametrize("iterations", [3, 6, 10, 20])
    def test_value_and_gap_enclose_the_loss(self, array, iterations):
        X, Y = reachable(seed=iterations)
        expected = sum(
            plain_sinkhorn(x, y, band(1), 0.1, math.inf) for x, y in zip(X, Y, strict=True)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = wtf.wasserstein(
                array(X), array(Y), loss_with(band(1)), tol=1e-15, max_iter=iterations
            )
        assert float(found.value) <= expected + 1e-12
        assert expected <= float(found.value) + found.gap + 1e-12

    @numpy_only
    def test_small_eps_tends_to_the_linear_programme(self):
        X, Y = reachable(2, (1, 8))
        C, n = band(2, 8), 8
        open_ = np.isfinite(C).ravel()
        marginals = np.vstack([np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))])
        exact = linprog(C.ravel()[open_], A_eq=marginals[:, open_], b_eq=np.append(X[0], Y[0])).fun
        for eps in (1e-3, 1e-4):
            found = wtf.wasserstein(X, Y, loss_with(C, eps=eps), max_iter=20_000)
            m = X.sum()
            assert found.converged
            # E of a plan lies between those of a uniform one and of one in a single place.
            assert eps * m * (math.log(m / open_.sum()) - 1.0) <= float(found.value) - exact
            assert float(found.value) - exact <= eps * m * (math.log(m) - 1.0) + found.gap

    @numpy_only
    @pytest.mark.parametrize("width", [1, 5])
    def test_long_chains_of_bins_take_few_iterations(self, width):
        """Potentials vary by the cost of many bins: accelerated steps must be as long."""
        X, Y = reachable(width, (2, 64))
        found = wtf.wasserstein(X, Y, loss_with(band(width, 64)))
        assert found.converged
        assert found.n_iter < 300

    def test_float32_agrees_with_float64(self, xp, array):
        spare_jax(xp)
        X, Y = reachable()
        found = wtf.wasserstein(array(X, "float32"), array(Y, "float32"), loss_with(band(1)))
        assert found.converged
        expected = float(wtf.wasserstein(X, Y, loss_with(band(1)), tol=1e-10).value)
        assert expected - 2e-4 * abs(expected) <= float(found.value)
        assert float(found.value) == pytest.approx(expected, rel=2e-4)

    def test_gap_encloses_the_loss_when_potentials_diverge(self, array):
        """The only feasible plan is zero at a finite cost: potentials diverge."""
        C = np.where(np.tri(N) > 0, 1.0, math.inf)
        X = np.ones((3, N))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = wtf.wasserstein(array(X), array(X), loss_with(C), max_iter=200)
        exact = 3 * N * (1.0 - 0.1)
        assert float(found.value) <= exact
        assert exact <= float(found.value) + found.gap
        assert found.gap < 0.05 * exact

    @pytest.mark.parametrize("eps", [1e-3, 0.1, 1.0])
    def test_feasible_set_of_a_single_plan_converges(self, array, eps):
        """Transport is allowed in one direction only: the only feasible plan is diagonal."""
        C, X = np.asarray([[0.0, 1.0], [math.inf, 0.0]]), np.full((1, 2), 0.5)
        found = wtf.wasserstein(array(X), array(X), loss_with(C, eps=eps))
        assert found.converged
        exact = eps * (math.log(0.5) - 1.0)
        assert float(found.value) == pytest.approx(exact, abs=2e-6 * eps)

    @pytest.mark.parametrize("eps", [1e-4, 2e-3])
    def test_large_exponents_converge(self, array, eps):
        """No mass moves, but the scaling of the plan is exp(C/eps), whose rounding matters."""
        C = np.asarray([[0.5, math.inf], [math.inf, 0.3]])
        X = np.asarray([[0.999, 0.001], [0.3, 0.7]])
        found = wtf.wasserstein(array(X), array(X), loss_with(C, eps=eps))
        assert found.converged

    def test_warning_names_forbidden_transport(self, array):
        X, Y = reachable()
        with pytest.warns(UserWarning, match=r"infinite costs forbid .* a finite lam allows"):
            found = wtf.wasserstein(array(X), array(Y), loss_with(band(1)), max_iter=2)
        assert not found.converged
