"""Sparse samples by Newton's method: the same loss, gradient and bounds as by Sinkhorn."""

import warnings

import numpy as np
import pytest
from fitting import spare_jax
from helpers import set_thresholds, to_numpy

import wtfarray as wtf
from wtfarray._losses.sparse_samples import SparseSamplesTerm, has_sparse_samples

SAMPLES, BINS = 30, 40


def sparse_stack(seed=0):
    """Samples of one to three bins, most of them empty, and a positive model."""
    rng = np.random.default_rng(seed)
    X = np.zeros((SAMPLES, BINS))
    for i in range(0, SAMPLES, 3):
        X[i, rng.choice(BINS, 1 + i % 4, replace=False)] = rng.uniform(0.1, 1.0, 1 + i % 4)
    return X, rng.uniform(0.01, 1.0, X.shape) / 20


@pytest.fixture(params=[1.0, 25.0], ids=["lam=1", "lam=25"])
def loss(request):
    return wtf.Wasserstein(wtf.grid_cost(BINS), eps=0.05, lam=request.param)


def test_value_and_gradient_agree_with_wasserstein(array, loss):
    X, Y = sparse_stack()
    term = SparseSamplesTerm(loss.bind(array(X)), X.shape)
    found = term.evaluate(array(Y), 1e-10, 100)
    expected = wtf.wasserstein(X, Y, loss, tol=1e-10, max_iter=5000)
    assert found.converged
    np.testing.assert_allclose(found.value, float(expected.value), rtol=1e-8)
    np.testing.assert_allclose(to_numpy(found.gradient), expected.gradient, atol=1e-4)


def test_certificate_encloses_the_loss(array, loss):
    X, Y = sparse_stack()
    term = SparseSamplesTerm(loss.bind(array(X)), X.shape)
    exact = float(wtf.wasserstein(X, Y, loss, tol=1e-10, max_iter=5000).value)
    rough = term.certify(array(Y), np.inf, 1)
    assert rough.value <= exact <= rough.value + rough.gap
    assert rough.gap > 1e-3
    fine = term.certify(array(Y), 1e-8, 200)
    assert fine.converged
    assert fine.gap <= 1e-8
    np.testing.assert_allclose(fine.value, exact, rtol=1e-8)


def test_models_of_empty_samples_are_summed_without_cancellation(array):
    """With a large lam the rounding of the mass of the other samples would be seen."""
    X = np.zeros((3, 8))
    X[1, 0] = 1.0
    atom = np.random.default_rng(0).dirichlet(np.full(8, 0.1))
    Y = np.outer([1.39e-10, 1.0001, 1.39e-10], 0.9 * np.eye(8)[0] + 0.1 * atom)
    loss = wtf.Wasserstein(wtf.grid_cost(8), eps=4e-4, lam=2e3)
    term = SparseSamplesTerm(loss.bind(array(X)), X.shape)
    found = term.certify(array(Y), 1e-12, 500)
    expected = float(wtf.wasserstein(X, Y, loss, tol=1e-12, max_iter=5000).value)
    assert found.value == pytest.approx(expected, rel=0, abs=5e-15)


def test_smoothing_can_be_changed_and_restored(array, loss):
    X, Y = sparse_stack()
    term = SparseSamplesTerm(loss.bind(array(X)), X.shape)
    term.set_level(3.0)
    found = term.evaluate(array(Y), 1e-10, 100)
    blurred = wtf.Wasserstein(loss.costs, 3 * loss.eps, loss.lam)
    expected = wtf.wasserstein(X, Y, blurred, tol=1e-10, max_iter=5000)
    np.testing.assert_allclose(found.value, float(expected.value), rtol=1e-8)
    term.set_level(1.0)
    term.start_from(term.potential)
    expected = wtf.wasserstein(X, Y, loss, tol=1e-10, max_iter=5000)
    found = term.evaluate(array(Y), 1e-10, 100)
    np.testing.assert_allclose(found.value, float(expected.value), rtol=1e-8)


class TestSelection:
    def test_samples_of_few_bins_are_sparse(self, array, loss):
        assert has_sparse_samples(loss.bind(array(sparse_stack()[0])))

    def test_dense_samples_are_not_sparse(self, array, loss):
        assert not has_sparse_samples(loss.bind(array(sparse_stack()[1])))

    def test_balanced_losses_are_not_served(self, array, loss):
        balanced = wtf.Wasserstein(loss.costs, loss.eps)
        assert not has_sparse_samples(balanced.bind(array(sparse_stack()[0])))


class TestFit:
    """Fits of samples that the sparse term serves."""

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_factors_stay_finite_when_marginals_underflow(self, xp, array, dtype, monkeypatch):
        """
        Marginals underflow, and Newton's matrix has no row for them.

        They do so in the first steps from a new start, at the smallest smoothing: a few steps of
        each inner problem and one level are enough.
        """
        if dtype == "float64":
            spare_jax(xp)
        set_thresholds(monkeypatch, blurred_cost=0.0)
        solve = SparseSamplesTerm._solve

        def few_steps(term, model, tolerance, max_iter):
            return solve(term, model, tolerance, min(max_iter, 3))

        monkeypatch.setattr(SparseSamplesTerm, "_solve", few_steps)
        rng = np.random.default_rng(0)
        X = np.zeros((40, 60))
        for row in X:
            row[rng.choice(60, 2, replace=False)] = rng.dirichlet(np.ones(2))
        atoms = np.zeros((60, 3))
        atoms[[3, 30, 55], [0, 1, 2]] = 1.0
        loss = wtf.Wasserstein(wtf.grid_cost(60), eps=1e-3, lam=10.0)
        assert has_sparse_samples(loss.bind(array(X, dtype)))
        start = [array(np.ones((40, 3)), dtype), array(atoms, dtype)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "nmf: ")
            fit = wtf.nmf(array(X, dtype), 3, loss, init=start, max_iter=1)
        assert np.isfinite(fit.objective)
        assert all(np.isfinite(to_numpy(factor)).all() for factor in fit.factors)

    def test_many_bins_per_sample_are_not_served(self, array):
        X = np.zeros((40, 600))
        X[:, :28] = 1.0
        loss = wtf.Wasserstein(wtf.grid_cost(600), eps=0.05, lam=1.0)
        assert not has_sparse_samples(loss.bind(array(X)))

    def test_small_lam_is_not_served(self, array):
        little = wtf.Wasserstein(wtf.grid_cost(BINS), eps=0.05, lam=0.01)
        assert not has_sparse_samples(little.bind(array(sparse_stack()[0])))
