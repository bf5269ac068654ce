"""The debiased loss that may leave mass of the data behind: definition, laws, certificate, fits."""

import math

import numpy as np
import pytest
import scipy.optimize
from helpers import numpy_only, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import wtfarray as wtf
from wtfarray._losses.gradients import losses_and_gradients
from wtfarray._transport.debiased import debiased_bounds
from wtfarray._transport.relaxed_source import debiased_problem

SHAPE = (3, 6)
few = settings(max_examples=15, deadline=None)


def loss_of(source_lam, lam=2.0, eps=0.1, n=6):
    return wtf.Wasserstein(wtf.grid_cost(n), eps, lam, source_lam=source_lam, debias=True)


def pair(seed=0, shape=SHAPE):
    rng = np.random.default_rng(seed)
    return rng.gamma(1.0, size=shape) + 0.02, 1.7 * rng.gamma(1.0, size=shape) + 0.02


def kl(a, b):
    return float(np.sum(a * np.log(a / b) - a + b))


def symmetric_potential(x, K, eps):
    p = np.zeros_like(x)
    for _ in range(500):
        p = 0.5 * (p + eps * np.log(x / (K @ np.exp(p / eps))))
    return p


@numpy_only
class TestValue:
    @pytest.mark.parametrize(("source_lam", "lam"), [(0.7, 2.0), (0.1, 0.4)])
    def test_is_a_minimum_over_plans_and_symmetric_potentials(self, source_lam, lam):
        eps, n = 0.3, 3
        (x,), (y,) = pair(shape=(1, n))
        (C,) = wtf.grid_cost(n)
        K = np.exp(-C / eps)
        p = symmetric_potential(x, K, eps)

        def value(logs):
            G, mu = np.exp(logs[: n * n].reshape(n, n)), np.exp(logs[n * n :])
            taken, q = G.sum(axis=1), G.sum(axis=0)
            transport = float(np.sum(G * C) + eps * np.sum(G * (np.log(G) - 1.0)))
            of_q = float(0.5 * eps * mu @ K @ mu - eps * q @ np.log(mu))
            of_x = float(p @ x - 0.5 * eps * x.sum() + p @ (taken - x))
            return transport - of_x + of_q + source_lam * kl(taken, x) + lam * kl(q, y)

        start = np.full(n * n + n, -1.0)
        expected = scipy.optimize.minimize(value, start, method="BFGS", options={"gtol": 1e-8}).fun
        found = wtf.wasserstein(x[None], y[None], loss_of(source_lam, lam, eps, n), tol=1e-10)
        assert float(found.value) == pytest.approx(expected, abs=1e-7)

    @given(st.integers(0, 10_000), st.floats(-1.5, 1.5), st.floats(-2.0, 1.0))
    @few
    def test_is_zero_at_the_data_and_positive_elsewhere(self, seed, source, target):
        X, Y = pair(seed)
        loss = loss_of(10.0**source, 10.0**target)
        assert float(wtf.wasserstein(X, X, loss, tol=1e-10).value) <= 1e-9
        assert float(wtf.wasserstein(X, Y, loss).value) > 1e-4

    @given(st.integers(0, 10_000))
    @few
    def test_large_source_lam_is_the_debiased_loss(self, seed):
        X, Y = pair(seed)
        values = [
            float(wtf.wasserstein(X, Y, loss_of(s), tol=1e-9).value) for s in (10.0, 1e6, math.inf)
        ]
        assert values[0] <= values[1] + 1e-6
        assert values[1] == pytest.approx(values[2], abs=1e-4)

    def test_units_of_mass_do_not_matter(self):
        X, Y = pair()
        one, thousand = (
            float(wtf.wasserstein(c * X, c * Y, loss_of(0.5), tol=1e-10).value) / c
            for c in (1.0, 1e3)
        )
        assert one == pytest.approx(thousand, rel=1e-8)


@numpy_only
@given(st.integers(0, 10_000))
@few
def test_bounds_hold_for_any_potentials(seed):
    X, Y = pair(seed)
    rng = np.random.default_rng(seed)
    loss = loss_of(0.4)
    exact = float(wtf.wasserstein(X, Y, loss, tol=1e-12).value)
    problem, own = debiased_problem(loss.bind(X))
    g, p = 0.3 * rng.normal(size=SHAPE), 0.1 * rng.normal(size=SHAPE) - 0.1
    found = debiased_bounds(problem, own, g, Y, p).bounds
    lower = float(found.values.sum())
    assert lower <= exact + 1e-9
    assert exact <= lower + float(found.gaps.sum()) + 1e-9


@pytest.mark.parametrize("source_lam", [0.1, 3.0])
def test_gradients_agree_with_differences(array, backend, source_lam):
    if backend.name == "jax":
        pytest.skip("tests/test_jax.py has the same for JAX, which compiles it anew")
    X, Y = pair()
    rng, step = np.random.default_rng(1), 1e-4
    in_X, in_Y = (A * rng.normal(size=SHAPE) for A in (X, Y))
    loss = loss_of(source_lam)

    def value(s, t):
        Z = array(X + s * in_X), array(Y + t * in_Y)
        return float(wtf.wasserstein(*Z, loss, tol=1e-12).value)

    found = losses_and_gradients(array(X), array(Y), loss, 1e-12, 2000)
    expected = (value(0, step) - value(0, -step)) / (2.0 * step)
    assert float(np.sum(to_numpy(found.in_Y) * in_Y)) == pytest.approx(expected, rel=1e-5)
    expected = (value(step, 0) - value(-step, 0)) / (2.0 * step)
    assert float(np.sum(to_numpy(found.in_X) * in_X)) == pytest.approx(expected, rel=1e-5)


class TestFits:
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_fit_is_certified(self, array, backend, dtype):
        if backend.name == "jax" and dtype == "float32":
            pytest.skip("this dtype is left to the other libraries: JAX compiles it anew")
        X, _ = pair()
        X /= X.sum(axis=1, keepdims=True)
        fit = wtf.nmf(array(X, dtype), 2, loss_of(1.0), rng=0, rho=1e-2, tol=1e-5)
        assert fit.converged
        model = array(to_numpy(fit.to_tensor()).astype(dtype), dtype)
        value = float(wtf.wasserstein(array(X, dtype), model, loss_of(1.0)).value)
        entropies = sum(float(wtf.entropy(block)[0]) for block in fit.factors)
        assert fit.objective == pytest.approx(value + 1e-2 * entropies, abs=1e-3)

    @numpy_only
    def test_weights_and_masks(self):
        X, _ = pair(shape=(4, 6))
        mask = np.ones(X.shape, dtype=bool)
        mask[0, :2] = False
        options = {"rng": 0, "rho": 1e-2, "tol": 1e-9}
        weight = np.asarray([2.0, 1.0, 1.0, 1.0])
        fit = wtf.nmf(X, 1, loss_of(1.0), mask=mask, sample_weight=weight, **options)
        again, more = np.concatenate([X[:1], X]), np.concatenate([mask[:1], mask])
        twice = wtf.nmf(again, 1, loss_of(1.0), mask=more, **options)
        np.testing.assert_allclose(fit.factors[1], twice.factors[1], atol=2e-3)

    @numpy_only
    def test_outlier_is_left_behind(self):
        at = np.arange(60)
        atoms = np.stack([np.exp(-0.5 * ((at - c) / 2.0) ** 2) for c in (12.0, 30.0)])
        atoms /= atoms.sum(axis=1, keepdims=True)
        X = 0.7 * np.roll(atoms[0], 1) + 0.3 * np.roll(atoms[1], -1)
        spoilt = X + 0.2 * np.exp(-0.5 * ((at - 50.0) / 2.0) ** 2) / 5.0
        cost = wtf.grid_cost(60, scale=None, spacing=0.25)
        shares = [
            wtf.unmix(spoilt, atoms, wtf.Wasserstein(cost, 0.5, 16.0, debias=True, source_lam=s))
            for s in (1.0, math.inf)
        ]
        errors = [np.abs(found.shares - [0.7, 0.3]).sum() for found in shares]
        assert all(found.converged for found in shares)
        assert errors[0] < 0.02
        assert errors[1] > 0.1

    @numpy_only
    def test_mass_out_of_reach_stays_behind(self):
        (cost,) = wtf.grid_cost(8, scale=None, reach=1.0)
        loss = wtf.Wasserstein(cost, 0.5, 5.0, debias=True, source_lam=2.0)
        X, Y = np.eye(8)[[0]], np.eye(8)[[7]]
        found = wtf.wasserstein(X, Y, loss)
        # The prices s + eps/2 of the data and lam of the model.
        assert float(found.value) == pytest.approx(2.25 + 5.0)


@numpy_only
def test_refuses_prices_far_below_the_smoothing():
    with pytest.raises(ValueError, match=r"source_lam is 0\.01 with debias=True and eps = 0\.1"):
        loss_of(0.01)
    with pytest.raises(ValueError, match=r"lam is 0\.001 with debias=True.*larger lam or a"):
        loss_of(1.0, 0.001)


@numpy_only
def test_saved_fit_keeps_both_options(tmp_path):
    wtf.nmf(pair()[0], 1, loss_of(0.5), rng=0).save(tmp_path / "fit.npz")
    loaded = wtf.load(tmp_path / "fit.npz").loss
    assert loaded.debias
    assert loaded.source_lam == 0.5
