"""The debiased loss: against definitions written out, its laws, its certificate, its refusals."""

import math

import numpy as np
import ot
import pytest
import scipy.optimize
from helpers import numpy_only, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import wtfarray as wtf
from wtfarray._transport.debiased import debiased_bounds
from wtfarray._transport.symmetric import self_transport

LAMS = [0.4, 10.0, math.inf]
SHAPE = (3, 6)
few = settings(max_examples=20, deadline=None)


@pytest.fixture(autouse=True)
def few_elsewhere(request, backend):
    """Leave some numbers to NumPy: array-api-strict is slow, and JAX compiles each of them."""
    chosen = getattr(request.node, "callspec", None)
    if backend.name != "numpy" and chosen is not None and chosen.params.get("lam") == 0.4:
        pytest.skip("this lam is left to NumPy")


def loss_of(lam, eps=0.1, debias=True, n=6, p=2):
    return wtf.Wasserstein(wtf.grid_cost(n, p=p), eps, lam, debias=debias)


def pair(lam, seed=0, shape=SHAPE):
    """Positive samples, of equal mass if balanced."""
    rng = np.random.default_rng(seed)
    X, Y = rng.gamma(1.0, size=shape) + 0.02, rng.gamma(1.0, size=shape) + 0.02
    if math.isinf(lam):
        Y *= X.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
    return X, Y


def transport(x, y, C, eps):
    """``eps H(G|K)`` of the balanced plan of POT."""
    G = ot.bregman.sinkhorn_log(x, y, C, eps, numItermax=2000, stopThr=1e-11)
    return float(np.sum(G * C) + eps * np.sum(G * (np.log(np.maximum(G, 1e-300)) - 1.0)))


def quick_transport(x, y, C, eps):
    """The same by plain iterations, for a large eps."""
    K, b = np.exp(-C / eps), np.ones_like(y)
    for _ in range(100):
        a = x / (K @ b)
        b = y / (K.T @ a)
    return eps * float(x @ np.log(a) + y @ np.log(b) - x.sum())


def divergence(x, y, C, eps, transport=transport):
    return transport(x, y, C, eps) - 0.5 * (transport(x, x, C, eps) + transport(y, y, C, eps))


@numpy_only
class TestValue:
    def test_balanced_loss_is_the_sinkhorn_divergence_of_pot(self):
        X, Y = pair(math.inf)
        (C,) = wtf.grid_cost(6)
        expected = sum(divergence(x, y, C, 0.3) for x, y in zip(X, Y, strict=True))
        found = wtf.wasserstein(X, Y, loss_of(math.inf, 0.3), tol=1e-10)
        assert float(found.value) == pytest.approx(expected, abs=1e-7)

    @pytest.mark.parametrize("lam", [0.4, 10.0])
    def test_relaxed_loss_is_a_minimum_over_the_second_marginal(self, lam):
        X, Y = (A[:1, :4] for A in pair(lam))
        (C,) = wtf.grid_cost(4)
        x, y, mass = X[0], Y[0], float(X.sum())

        def value(logits):
            q = mass * np.exp(logits - np.logaddexp.reduce(logits))
            kl = float(np.sum(q * np.log(q / y) - q + y))
            return divergence(x, q, C, 0.5, quick_transport) + lam * kl

        expected = scipy.optimize.minimize(
            value, np.log(y), method="BFGS", options={"gtol": 1e-5}
        ).fun
        found = wtf.wasserstein(X, Y, loss_of(lam, 0.5, n=4), tol=1e-10)
        assert float(found.value) == pytest.approx(expected, abs=1e-6)

    def test_large_lam_tends_to_balanced(self):
        X, Y = pair(math.inf)
        balanced = float(wtf.wasserstein(X, Y, loss_of(math.inf), tol=1e-10).value)
        near = float(wtf.wasserstein(X, Y, loss_of(1e5), tol=1e-10).value)
        assert near == pytest.approx(balanced, rel=1e-3)
        assert near <= balanced + 1e-9

    @given(st.integers(0, 10_000), st.sampled_from(LAMS), st.floats(-2.0, -0.5))
    @few
    def test_is_positive_but_at_the_data(self, seed, lam, exponent):
        X, Y = pair(lam, seed)
        X[0, :2] = 0.0
        if math.isinf(lam):
            Y *= X.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
        loss = loss_of(lam, 10.0**exponent)
        scale = loss.eps * float(X.sum())
        same = wtf.wasserstein(X, X, loss)
        assert 0.0 <= float(same.value) <= 1e-10 * scale
        assert same.gap <= 1e-5 * scale
        other = wtf.wasserstein(X, Y, loss)
        assert float(other.value) > 1e-3 * scale * float(np.abs(X - Y).sum() / X.sum()) ** 2

    @given(st.integers(0, 10_000), st.sampled_from([0.4, 10.0]))
    @few
    def test_is_homogeneous(self, seed, lam):
        X, Y = pair(lam, seed)
        values = [float(wtf.wasserstein(t * X, t * Y, loss_of(lam)).value) for t in (1.0, 7.0)]
        assert values[1] == pytest.approx(7.0 * values[0], rel=1e-4)


class TestGradient:
    @pytest.mark.parametrize("lam", LAMS)
    def test_agrees_with_differences(self, array, lam):
        X, Y = pair(lam)
        direction = Y * np.random.default_rng(1).normal(size=SHAPE)
        if math.isinf(lam):
            direction -= Y * direction.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
        tol = 1e-9 if math.isinf(lam) else 1e-12
        step = 1e-4

        def value(t):
            result = wtf.wasserstein(array(X), array(Y + t * direction), loss_of(lam), tol=tol)
            return float(result.value)

        expected = (value(step) - value(-step)) / (2.0 * step)
        gradient = wtf.wasserstein(array(X), array(Y), loss_of(lam), tol=tol).gradient
        found = float(np.sum(to_numpy(gradient) * direction))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)

    @numpy_only
    def test_is_finite_and_right_where_the_model_is_zero(self):
        X, Y = pair(5.0)
        Y[0, 2] = 0.0
        gradient = wtf.wasserstein(X, Y, loss_of(5.0), tol=1e-12).gradient
        other = Y.copy()
        other[0, 2] = 1e-6
        values = [float(wtf.wasserstein(X, A, loss_of(5.0), tol=1e-12).value) for A in (Y, other)]
        assert gradient[0, 2] == pytest.approx((values[1] - values[0]) / 1e-6, rel=1e-3)

    @numpy_only
    def test_vanishes_at_the_data(self):
        X, _ = pair(5.0)
        assert np.abs(wtf.wasserstein(X, X, loss_of(5.0), tol=1e-12).gradient).max() < 1e-4

    def test_samples_that_are_empty_cost_lam(self, array):
        X, Y = pair(5.0)
        X[1] = 0.0
        value, gradient = wtf.wasserstein(array(X), array(Y), loss_of(5.0))
        np.testing.assert_allclose(to_numpy(gradient)[1], 5.0, rtol=1e-9)
        rest = float(wtf.wasserstein(X[[0, 2]], Y[[0, 2]], loss_of(5.0)).value)
        expected = rest + 5.0 * Y[1].sum()
        assert float(value) == pytest.approx(expected, rel=1e-4)


class TestCertificate:
    @pytest.mark.parametrize("lam", LAMS)
    def test_any_potentials_give_bounds(self, xp, array, lam):
        X, Y = pair(lam)
        exact = float(wtf.wasserstein(X, Y, loss_of(lam), tol=1e-11).value)
        problem = loss_of(lam).bind(array(X))
        own = self_transport(problem.kernel, problem.data)
        rng = np.random.default_rng(2)
        for size in (0.03, 0.3):
            g, p = (array(size * rng.normal(size=SHAPE)) for _ in range(2))
            bounds = debiased_bounds(problem, own, g, array(Y), p).bounds
            lower, gap = float(xp.sum(bounds.values)), float(xp.sum(bounds.gaps))
            assert lower <= exact + 1e-9
            assert lower + gap >= exact - 1e-9
            assert gap > 1e-6

    @pytest.mark.parametrize("lam", LAMS)
    def test_gap_meets_the_tolerance(self, array, lam):
        X, Y = (array(A) for A in pair(lam))
        result = wtf.wasserstein(X, Y, loss_of(lam), tol=1e-8)
        assert result.converged
        assert result.gap <= 1e-8 * max(float(result.value), 0.1 * float(np.sum(to_numpy(X))))
        again = wtf.wasserstein(X, Y, loss_of(lam), tol=1e-8, potential=result.potential)
        assert again.n_iter <= result.n_iter
        assert float(again.value) == pytest.approx(float(result.value), rel=1e-6)

    @numpy_only
    def test_kernel_that_is_not_definite_is_said(self):
        X, Y = pair(10.0)
        assert "not a bound" in wtf.wasserstein(X, Y, loss_of(10.0, 1.0, p=3, n=6)).message
        assert "not a bound" not in wtf.wasserstein(X, Y, loss_of(10.0)).message
        fit = wtf.nmf(X, 2, loss_of(10.0, 1.0, p=3), rng=0)
        assert "not a bound" in fit.message

    @numpy_only
    def test_float32_agrees_with_float64(self):
        X, Y = pair(10.0)
        single = wtf.wasserstein(*(A.astype(np.float32) for A in (X, Y)), loss_of(10.0))
        assert single.gradient.dtype == np.float32
        double = wtf.wasserstein(X, Y, loss_of(10.0))
        assert float(single.value) == pytest.approx(float(double.value), rel=2e-4)

    @numpy_only
    def test_infinite_costs(self):
        X, Y = pair(5.0)
        X[0, 1:] = 0.0
        (cost,) = wtf.grid_cost(6)
        band = np.where(cost <= cost[0, 2], cost, math.inf)
        loss = wtf.Wasserstein(band, 0.1, 5.0, debias=True)
        result = wtf.wasserstein(X, Y, loss)
        assert result.converged
        assert result.gradient[0, 4] == pytest.approx(5.0)
        assert float(wtf.wasserstein(X, X, loss).value) < 1e-10

    @numpy_only
    def test_banded_cost_agrees_with_the_dense_one(self):
        X, Y = pair(5.0, shape=(3, 20))
        (band,) = wtf.grid_cost(20, reach=6.0)
        found, expected = (
            wtf.wasserstein(X, Y, wtf.Wasserstein(cost, 0.05, 5.0, debias=True), tol=1e-9)
            for cost in (band, band.to_dense())
        )
        assert float(found.value) == pytest.approx(float(expected.value), rel=1e-7)

    @numpy_only
    def test_missing_bins_do_not_count(self):
        X, Y = pair(5.0)
        mask = np.ones(SHAPE, dtype=bool)
        mask[:, 4:] = False
        loss = loss_of(5.0)
        found = wtf.wasserstein(X, Y, loss, mask=mask)
        other = np.where(mask, Y, 7.0)
        assert float(wtf.wasserstein(X, other, loss, mask=mask).value) == float(found.value)
        (cost,) = loss.costs
        short = wtf.Wasserstein(cost[:4, :4], loss.eps, 5.0, debias=True)
        expected = wtf.wasserstein(X[:, :4], Y[:, :4], short)
        assert float(found.value) == pytest.approx(float(expected.value), rel=1e-5)


@numpy_only
class TestRefusals:
    def test_cost_that_is_not_symmetric(self):
        cost = np.random.default_rng(0).uniform(size=(6, 6))
        with pytest.raises(ValueError, match=r"costs\[0\].*symmetric"):
            wtf.Wasserstein(cost, 0.1, debias=True)

    def test_flag_that_is_no_bool(self):
        with pytest.raises(ValueError, match="debias is 'yes'"):
            wtf.Wasserstein(wtf.grid_cost(6), 0.1, debias="yes")

    def test_methods_that_need_the_conjugate(self):
        X, _ = pair(5.0)
        loss = loss_of(5.0)
        with pytest.raises(ValueError, match="debias=True"):
            loss.conjugate(X, 0.0 * X)
        with pytest.raises(ValueError, match="debias=True"):
            wtf.cp_dual(X, [np.ones((3, 2)), np.ones((6, 2))], 0, loss, rho=0.1)
        with pytest.raises(ValueError, match="debias=True"):
            wtf.nmf(X, 2, loss, solver="dual")
