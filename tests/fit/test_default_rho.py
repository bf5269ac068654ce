"""The default weights of the entropies: they follow the loss, and do not bias quantities."""

import itertools

import numpy as np
import pytest
from helpers import numpy_only, without_escape

import wtfarray as wtf
from wtfarray._arrays.shards import WHOLE
from wtfarray._fit.default_rho import default_rho

pytestmark = [numpy_only, without_escape]
COST = wtf.grid_cost(4)
SHAPES = [(6, 2), (4, 2)]


def weights(loss, X, constraints=("rows", "columns"), shapes=SHAPES):
    mass = float(X.sum())
    return default_rho([loss], X, mass, shapes, constraints, WHOLE, [mass] * len(shapes))


def trilinear(samples, seed):
    """Concentrations (samples, 3) times spectra of sum one, with 1 % of noise."""
    rng = np.random.default_rng(seed)
    factors = [rng.gamma(2.0, size=(samples, 3)) + 0.1]
    for n in (16, 12):
        centre = (rng.permutation(3) + 0.5 + rng.uniform(-0.15, 0.15, 3)) / 3
        width = 0.2 + 0.1 * rng.random(3)
        spectra = np.exp(-(((np.linspace(0, 1, n)[:, None] - centre) / width) ** 2))
        factors.append(spectra / spectra.sum(axis=0))
    X = wtf.cp_to_tensor(factors)
    return np.clip(X + 0.01 * X.mean() * rng.normal(size=X.shape), 0, None), factors[0]


def error(found, truth):
    """Relative error of the concentrations, under the best order of the components."""
    orders = itertools.permutations(range(truth.shape[1]))
    return min(np.linalg.norm(found[:, p] - truth) for p in orders) / np.linalg.norm(truth)


class TestDefaultRho:
    def test_scales_with_the_loss(self):
        X = np.random.default_rng(0).random((6, 4))
        for loss, power in ((wtf.Frobenius(), 2), (wtf.KullbackLeibler(), 1)):
            np.testing.assert_allclose(weights(loss, 3 * X), 3**power * np.array(weights(loss, X)))
        one, two = (wtf.Wasserstein([s * COST[0]], 0.1 * s, 5.0 * s) for s in (1.0, 2.0))
        np.testing.assert_allclose(weights(two, X), 2 * np.array(weights(one, X)))
        cheap = wtf.Wasserstein(COST, 0.1, lam=0.1)
        np.testing.assert_allclose(weights(cheap, X), 0.1 * np.array(weights(one, X)))

    def test_repeated_samples_change_the_atoms_only(self):
        X, loss = np.random.default_rng(0).random((6, 4)), wtf.KullbackLeibler()
        once, twice = weights(loss, X), weights(loss, np.tile(X, (2, 1)), shapes=[(12, 2), (4, 2)])
        np.testing.assert_allclose(twice, (once[0], 2 * once[1]))

    def test_every_constraint(self):
        X = np.full((6, 4), 0.5)
        found = weights(wtf.KullbackLeibler(), X, (None, "columns", "all"), [(6, 3), (4, 3), (3,)])
        np.testing.assert_allclose(found, np.array([1.0, 12.0 / 3, 12.0]) * 1e-5)

    def test_single_bin(self):
        loss = wtf.Wasserstein(np.zeros((1, 1)), 0.1, 5.0)
        assert min(weights(loss, np.ones((6, 1)), shapes=[(6, 2), (1, 2)])) > 0

    def test_dual_solver_has_more(self):
        X = trilinear(5, 5)[0][:, :, 0]
        loss = wtf.KullbackLeibler()
        one, two = (wtf.nmf(X, 2, loss, rng=0, solver=s, tol=1e-2) for s in ("envelope", "dual"))
        np.testing.assert_allclose(two.rho, 100 * np.array(one.rho))


class TestQuantities:
    @pytest.mark.parametrize("samples", [5, 20, 200])
    def test_concentrations_are_as_accurate_as_without_entropy(self, samples):
        decomposition = pytest.importorskip("tensorly.decomposition")
        X, truth = trilinear(samples, samples)
        reference = decomposition.non_negative_parafac_hals(
            X, 3, n_iter_max=1000, init="svd", tol=1e-9
        )
        expected = reference.factors[0] * reference.weights
        for factor in reference.factors[1:]:
            expected = expected * factor.sum(axis=0)
        fit = wtf.cp(X, 3, wtf.Frobenius(), rng=0, constraints=(None, "columns", "columns"))
        assert fit.converged
        assert error(fit.factors[0], truth) <= 1.2 * error(expected, truth)

    @pytest.mark.parametrize("eps", [0.02, 0.05])
    def test_default_tolerance_is_not_what_limits_the_accuracy(self, eps):
        """The model is close to the data, and the loss close to its smallest value."""
        X, truth = trilinear(20, 20)
        loss = wtf.Wasserstein(wtf.grid_cost(16, 12), eps=eps, lam=10.0)
        options = {"rng": 0, "constraints": (None, "columns", "columns")}
        fit = wtf.cp(X, 3, loss, **options)
        best = wtf.cp(X, 3, loss, **options, tol=1e-9, max_iter=1000)
        assert fit.converged
        assert error(fit.factors[0], truth) <= 1.2 * error(best.factors[0], truth)

    def test_unit_of_the_data_does_not_matter(self):
        X, _ = trilinear(5, 5)
        for loss, unit in ((wtf.Frobenius(), 64.0), (wtf.KullbackLeibler(), 64.0)):
            options = {"rng": 0, "constraints": (None, "columns", "columns"), "tol": 1e-9}
            one, two = (wtf.cp(s * X, 3, loss, **options) for s in (1.0, unit))
            np.testing.assert_allclose(two.factors[0] / unit, one.factors[0], rtol=1e-2, atol=1e-2)
