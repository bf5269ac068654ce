"""Infinite costs: bins that no mass can reach, and fits where transport is forbidden."""

import math
import warnings

import numpy as np
import pytest
from array_api_compat import is_jax_namespace
from fitting import entropies_of, spare_jax
from helpers import assert_close, numpy_only, to_numpy
from infinite_costs import CLOSED, LAMS, N, apart, band, loss_with, partly_reachable, plain_sinkhorn

import wtfarray as wtf


class TestUnreachableBins:
    @pytest.mark.parametrize("lam", LAMS)
    def test_loss_agrees_with_plain_sinkhorn(self, array, lam):
        X, Y = partly_reachable()
        found = wtf.wasserstein(array(X), array(Y), loss_with(band(1), lam), tol=1e-13)
        expected = [plain_sinkhorn(x, y, band(1), 0.1, lam) for x, y in zip(X, Y, strict=True)]
        assert found.converged
        assert float(found.value) == pytest.approx(sum(expected), rel=1e-12)

    @pytest.mark.parametrize("lam", LAMS)
    @pytest.mark.parametrize("eps", [1e-3, 0.1])
    def test_unreachable_mass_costs_lam_per_unit(self, array, lam, eps):
        """The reachable bins keep their own loss; the gradient in the others is lam."""
        X, Y = partly_reachable()
        found = wtf.wasserstein(array(X), array(Y), loss_with(band(1), lam, eps), tol=1e-13)
        total, gradient = 0.0, np.full(Y.shape, lam)
        for i in range(3):
            keep = ~CLOSED[i]
            part = loss_with(band(1)[np.ix_(keep, keep)], lam, eps)
            one = wtf.wasserstein(X[i, keep], Y[i, keep], part, tol=1e-13)
            total += float(one.value) + lam * Y[i, CLOSED[i]].sum()
            gradient[i, keep] = one.gradient
        assert float(found.value) == pytest.approx(total, rel=1e-12)
        assert_close(found.gradient, array(gradient), rtol=1e-5, atol=1e-6)
        assert np.all(to_numpy(found.gradient)[CLOSED] == lam)

    @pytest.mark.parametrize("lam", LAMS)
    def test_loss_is_the_limit_of_large_costs(self, xp, array, lam):
        spare_jax(xp)
        X, Y = partly_reachable()
        huge = np.where(np.isfinite(band(1)), band(1), 1e6)
        found = wtf.wasserstein(array(X), array(Y), loss_with(band(1), lam), tol=1e-14)
        close = wtf.wasserstein(array(X), array(Y), loss_with(huge, lam), tol=1e-14)
        assert float(found.value) == pytest.approx(float(close.value), rel=1e-12)
        live = np.where(Y > 0, 1.0, 0.0)
        got, expected = (np.where(Y > 0, to_numpy(r.gradient), 0.0) for r in (found, close))
        assert_close(array(got * live), array(expected), rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("lam", LAMS)
    @pytest.mark.parametrize("iterations", [1, 3, 10])
    def test_value_and_gap_enclose_the_loss(self, array, lam, iterations):
        X, Y = partly_reachable()
        expected = sum(plain_sinkhorn(x, y, band(1), 0.1, lam) for x, y in zip(X, Y, strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = wtf.wasserstein(
                array(X), array(Y), loss_with(band(1), lam), tol=1e-15, max_iter=iterations
            )
        assert float(found.value) <= expected + 1e-12
        assert expected <= float(found.value) + found.gap + 1e-12

    def test_float32_agrees_with_float64(self, xp, array):
        spare_jax(xp)
        X, Y = partly_reachable()
        found = wtf.wasserstein(array(X, "float32"), array(Y, "float32"), loss_with(band(1), 2.0))
        expected = float(wtf.wasserstein(X, Y, loss_with(band(1), 2.0)).value)
        assert found.converged
        assert float(found.value) == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("lam", LAMS)
    def test_separable_and_dense_costs_agree(self, array, xp, lam):
        spare_jax(xp)
        rng = np.random.default_rng(0)
        X, Y = rng.gamma(1.0, size=(2, 2, 3, 4))
        X[0, :2] = X[0, :, :2] = 0.0
        C1, C2 = band(1, 3), band(1, 4)
        whole = (C1[:, None, :, None] + C2[None, :, None, :]).reshape(12, 12)
        found = wtf.wasserstein(array(X), array(Y), loss_with((C1, C2), lam), tol=1e-13)
        flat = wtf.wasserstein(X.reshape(2, 12), Y.reshape(2, 12), loss_with(whole, lam), tol=1e-13)
        assert float(found.value) == pytest.approx(float(flat.value), rel=1e-12)
        assert np.any(flat.gradient == lam)
        assert_close(found.gradient, array(flat.gradient.reshape(2, 3, 4)), rtol=1e-6, atol=1e-6)

    def test_costs_may_be_asymmetric(self, array):
        """Mass can leave a bin that no mass can reach."""
        C = np.where(np.eye(N) > 0, 0.0, 1.0)
        C[:, 2] = math.inf
        X, Y = (A + 0.1 for A in partly_reachable())
        rest = np.arange(N) != 2
        found = wtf.wasserstein(array(X), array(Y), loss_with(C, 1.0), tol=1e-13)
        expected = sum(plain_sinkhorn(x, y, C, 0.1, 1.0) for x, y in zip(X, Y, strict=True))
        assert float(found.value) == pytest.approx(expected, rel=1e-12)
        assert np.all(to_numpy(found.gradient)[:, 2] == 1.0)
        assert np.all(to_numpy(found.gradient)[:, rest] < 1.0)

    def test_warm_start_takes_few_iterations(self, array):
        X, Y = (array(A) for A in partly_reachable())
        first = wtf.wasserstein(X, Y, loss_with(band(1), 1.0), tol=1e-12)
        again = wtf.wasserstein(X, Y, loss_with(band(1), 1.0), tol=1e-12, potential=first.potential)
        assert again.n_iter < 3
        assert float(again.value) == pytest.approx(float(first.value), rel=1e-12)


def fit_of(model, X, C, lam, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rank = (2, 2) if model == "tucker" else 2
        return getattr(wtf, model)(X, rank, loss_with(C, lam), rho=0.05, rng=0, **options)


def objective(fit, X):
    loss = float(wtf.wasserstein(X, fit.to_tensor(), fit.loss, tol=1e-10).value)
    return loss + entropies_of(fit)


class TestFits:
    @pytest.mark.parametrize("model", ["nmf", "cp", "tucker"])
    def test_objective_is_that_of_the_factors(self, array, xp, model):
        if is_jax_namespace(xp) and model != "nmf":
            spare_jax(xp)
        X = partly_reachable()[0]
        fit = fit_of(model, array(X), band(1), 1.0)
        assert fit.converged
        assert fit.objective == pytest.approx(objective(fit, array(X)), rel=1e-7)

    @numpy_only
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    @pytest.mark.parametrize("model", ["nmf", "cp", "tucker"])
    def test_objective_is_the_limit_of_large_costs(self, model, solver):
        X = partly_reachable()[0]
        fit = fit_of(model, X, band(1), 1.0, solver=solver)
        huge = np.where(np.isfinite(band(1)), band(1), 1e3)
        close = fit_of(model, X, huge, 1.0, solver=solver, init=fit)
        assert fit.converged
        assert fit.objective == pytest.approx(objective(fit, X), rel=1e-6)
        assert close.objective == pytest.approx(fit.objective, rel=1e-3)

    @numpy_only
    @pytest.mark.parametrize("lam", [1.0, 5.0])
    def test_fits_converge_when_most_mass_is_unreachable(self, lam):
        """Accelerated steps diverge where most of the mass is unreachable."""
        X = np.random.default_rng(1).gamma(1.0, size=(8, 12))
        X[1, 5:9] = X[3, 2] = X[4, 1:] = 0.0
        for seed in range(3):
            fit = wtf.nmf(X, 2, loss_with(6.0 * band(1, 12), lam, 0.05), rng=seed)
            assert fit.converged

    @numpy_only
    def test_batches_and_sample_weights_keep_the_objective(self):
        X = np.vstack([partly_reachable(seed)[0] for seed in range(3)])
        whole = fit_of("nmf", X, band(1), 1.0)
        parts = fit_of("nmf", X, band(1), 1.0, batch=2)
        assert parts.objective == pytest.approx(whole.objective, rel=1e-4)
        weights = np.arange(9) % 3 + 1.0
        fit = fit_of("nmf", X, band(1), 1.0, sample_weight=weights)
        each = [
            float(wtf.wasserstein(x, y, loss_with(band(1), 1.0), tol=1e-10).value)
            for x, y in zip(X, fit.to_tensor(), strict=True)
        ]
        assert fit.objective == pytest.approx(weights @ each + entropies_of(fit), rel=1e-7)

    @numpy_only
    def test_projection_is_a_minimum_along_scalings(self):
        X = partly_reachable()[0]
        fit = fit_of("nmf", X, band(1), 1.0)
        fresh = partly_reachable(seed=5)[0]
        found = fit.project(fresh)

        def value(A):
            Y = A @ fit.factors[1].T
            transported = wtf.wasserstein(fresh, Y, loss_with(band(1), 1.0), tol=1e-12).value
            s = fit.references[0]
            return float(transported) + 0.05 * s * float(wtf.entropy(A / s)[0])

        assert all(value(found) < value(found * scale) for scale in (0.97, 1.03))


@numpy_only
class TestBalancedFits:
    def test_costs_of_several_components_are_refused(self):
        X = np.ones((3, N)) / N
        C = apart(band(2, 2), band(4, 4))
        expected = "loss is balanced .* separate the bins into connected components"
        with pytest.raises(ValueError, match=expected):
            wtf.nmf(X, 2, loss_with(C), rng=0)
        with pytest.raises(ValueError, match=expected):
            wtf.cp_dual(X, [np.ones((3, 2)), np.ones((N, 2))], 0, loss_with(C), rho=0.1)

    def test_samples_with_unreachable_bins_are_refused(self):
        X = np.eye(3, N)
        expected = r"X.* is 0\.0 at index \(0, 2\).*: expected mass .* at a finite cost, or a"
        with pytest.raises(ValueError, match=expected):
            wtf.nmf(X, 2, loss_with(band(1)), rng=0)

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_fits_with_banded_costs_converge(self, solver):
        places = np.arange(12.0)
        centres = np.asarray([[2.5, 8.0], [3.0, 8.5], [3.5, 9.0]])
        bumps = np.exp(-((places - centres[:, :, None]) ** 2) / 8.0).sum(axis=1) + 0.01
        X = bumps / bumps.sum(axis=1, keepdims=True)
        fit = wtf.nmf(X, 2, loss_with(band(3, 12)), rho=0.05, rng=0, solver=solver)
        assert fit.converged
        assert fit.objective == pytest.approx(objective(fit, X), rel=1e-5)

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_infeasible_fits_advise_a_finite_lam(self, solver):
        X = np.full((3, N), 0.01)
        X[0, 0] = X[1, 2] = X[2, 5] = 0.95
        with pytest.warns(UserWarning, match="if some costs are infinite, a finite lam"):
            fit = wtf.nmf(X, 1, loss_with(band(1)), rng=0, solver=solver, max_iter=20)
        assert not fit.converged
        assert all(np.isfinite(factor).all() for factor in fit.factors)
