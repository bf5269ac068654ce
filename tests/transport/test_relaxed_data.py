"""Transport that may leave mass of the data behind: against POT, definitions, and its limits."""

import math

import numpy as np
import ot
import pytest
import scipy.optimize
from fitting import spare_jax
from helpers import numpy_only, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import wtfarray as wtf

SHAPE = (3, 6)
SETTINGS = [(0.3, 2.0), (5.0, 1.0)]
few = settings(max_examples=15, deadline=None)


def loss_of(source_lam, lam, eps=0.1, n=6):
    return wtf.Wasserstein(wtf.grid_cost(n), eps, lam, source_lam=source_lam)


def pair(seed=0):
    rng = np.random.default_rng(seed)
    return rng.gamma(1.0, size=SHAPE) + 0.02, 1.7 * rng.gamma(1.0, size=SHAPE) + 0.02


def kl(a, b):
    return float(np.sum(a * np.log(a / b) - a + b))


def objective(G, x, y, C, eps, source_lam, lam):
    smoothed = float(np.sum(G * C) + eps * np.sum(G * (np.log(G) - 1.0)))
    return smoothed + source_lam * kl(G.sum(axis=1), x) + lam * kl(G.sum(axis=0), y)


def value(X, Y, source_lam, lam):
    return float(wtf.wasserstein(X, Y, loss_of(source_lam, lam), tol=1e-9).value)


def assert_tends_to(exact, value_of):
    """What a large penalty lacks of the exact value is inversely proportional to it."""
    lacking, less = (exact - value_of(penalty) for penalty in (1e4, 1e5))
    assert less >= -1e-7
    assert lacking == pytest.approx(10.0 * less, rel=1e-2, abs=1e-5)


@numpy_only
class TestValue:
    @pytest.mark.parametrize(("source_lam", "lam"), [*SETTINGS, (0.05, 0.2)])
    def test_is_that_of_the_plan_of_pot(self, source_lam, lam):
        X, Y = pair()
        (C,) = wtf.grid_cost(6)
        expected = 0.0
        for x, y in zip(X, Y, strict=True):
            with pytest.warns(UserWarning, match="reg_type"):
                G = ot.sinkhorn_unbalanced(
                    *(x, y, C, 0.1, (source_lam, lam)),
                    reg_type="entropy",
                    numItermax=5000,
                    stopThr=1e-12,
                )
            expected += objective(G, x, y, C, 0.1, source_lam, lam)
        found = wtf.wasserstein(X, Y, loss_of(source_lam, lam), tol=1e-10)
        assert float(found.value) == pytest.approx(expected, abs=1e-8)

    def test_is_a_minimum_over_plans(self):
        X, Y = (A[:1, :3] for A in pair())
        (C,) = wtf.grid_cost(3)

        def value_of(logs):
            G = np.exp(logs.reshape(3, 3))
            return objective(G, X[0], Y[0], C, 0.2, 0.7, 2.0)

        expected = scipy.optimize.minimize(value_of, np.zeros(9), method="BFGS").fun
        found = wtf.wasserstein(X, Y, loss_of(0.7, 2.0, 0.2, 3), tol=1e-10)
        assert float(found.value) == pytest.approx(expected, abs=1e-7)

    @given(st.integers(0, 10_000), st.floats(-1.0, 1.0))
    @few
    def test_large_source_lam_is_an_exact_first_marginal(self, seed, exponent):
        X, Y = pair(seed)
        lam = 10.0**exponent
        exact = value(X, Y, math.inf, lam)
        assert value(X, Y, 10.0, lam) <= exact
        assert_tends_to(exact, lambda s: value(X, Y, s, lam))

    @given(st.integers(0, 10_000), st.floats(-1.0, 1.0))
    @few
    def test_large_lam_is_an_exact_second_marginal(self, seed, exponent):
        """By symmetry: with X and Y exchanged, lam is the penalty of the first marginal."""
        X, Y = pair(seed)
        s = 10.0**exponent
        assert_tends_to(value(Y, X, math.inf, s), lambda lam: value(X, Y, s, lam))

    def test_outlier_stays_behind(self):
        X, _ = pair()
        X[0, 5] += 3.0
        Y = X.copy()
        Y[0, 5] -= 3.0
        kept, moved = (
            float(wtf.wasserstein(X, Y, loss_of(s, 10.0)).value) for s in (0.05, math.inf)
        )
        assert moved - kept > 1.0


class TestGradient:
    @pytest.mark.parametrize(("source_lam", "lam"), SETTINGS)
    def test_agrees_with_differences(self, array, source_lam, lam):
        X, Y = pair()
        direction = Y * np.random.default_rng(1).normal(size=SHAPE)
        loss, step = loss_of(source_lam, lam), 1e-4

        def value(t):
            Z = array(Y + t * direction)
            return float(wtf.wasserstein(array(X), Z, loss, tol=1e-12).value)

        expected = (value(step) - value(-step)) / (2.0 * step)
        result = wtf.wasserstein(array(X), array(Y), loss, tol=1e-12)
        found = float(np.sum(to_numpy(result.gradient) * direction))
        assert found == pytest.approx(expected, rel=1e-5)
        assert result.gap <= 1e-10

    @numpy_only
    def test_conjugate_and_its_gradient(self):
        X, Y = pair()
        loss = loss_of(0.7, 2.0)
        result = wtf.wasserstein(X, Y, loss, tol=1e-12)
        value, model = loss.conjugate(X, result.gradient)
        np.testing.assert_allclose(model, Y, rtol=1e-4)
        assert float(value) == pytest.approx(float(np.sum(result.gradient * Y) - result.value))
        U = 0.3 * np.random.default_rng(0).normal(size=SHAPE)
        assert float(loss.conjugate(X, U)[0]) >= float(np.sum(U * Y) - result.value)


class TestFits:
    def test_both_solvers_find_the_same(self, xp, array):
        spare_jax(xp)
        X, _ = pair()
        loss = loss_of(1.0, 5.0)
        joint = wtf.nmf(array(X), 1, loss, rng=0, rho=0.1, tol=1e-5)
        dual = wtf.nmf(array(X), 1, loss, rng=0, rho=0.1, tol=1e-5, solver="dual")
        assert joint.converged
        assert dual.converged
        assert joint.objective == pytest.approx(dual.objective, abs=1e-3)

    @numpy_only
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    @pytest.mark.parametrize("debias", [False, True])
    def test_large_source_lam_in_float32(self, solver, debias):
        """The value is not the difference of two masses times source_lam."""
        if debias and solver == "dual":
            pytest.skip("the conjugate of the debiased loss has no closed form")
        X = pair()[0].astype(np.float32)
        options = {"rng": 0, "rho": 0.1, "tol": 1e-5, "solver": solver}
        exact, large = (
            wtf.nmf(X, 1, wtf.Wasserstein(wtf.grid_cost(6), 0.1, 5.0, **kind), **options)
            for kind in ({"debias": debias}, {"debias": debias, "source_lam": 1e7})
        )
        assert large.converged
        assert large.objective == pytest.approx(exact.objective, rel=1e-4)

    @numpy_only
    def test_block_dual_is_certified(self):
        X, _ = pair()
        factors = [np.full((3, 2), 0.5), np.random.default_rng(0).dirichlet(np.ones(6), 2).T]
        dual = wtf.cp_dual(X, factors, 0, loss_of(0.5, 5.0), rho=0.1)
        result = wtf.lbfgs(dual.value_and_gradient, dual.start())
        certificate = dual.certificate(result.x)
        assert certificate.gap < 1e-6
        model = certificate.factor @ factors[1].T
        loss = float(wtf.wasserstein(X, model, loss_of(0.5, 5.0), tol=1e-10).value)
        entropy = 0.1 * float(wtf.entropy(certificate.factor)[0])
        assert certificate.lower - 1e-8 <= loss + entropy <= certificate.upper + 1e-8

    @numpy_only
    def test_saved_fit_keeps_the_loss(self, tmp_path):
        fit = wtf.nmf(pair()[0], 1, loss_of(0.5, 5.0), rng=0)
        fit.save(tmp_path / "fit.npz")
        assert wtf.load(tmp_path / "fit.npz").loss.source_lam == 0.5

    @numpy_only
    def test_sparse_data_are_fitted(self):
        X = np.zeros((6, 6, 6))
        X[0, 0, 0] = X[5, 5, 5] = 0.5
        loss = wtf.Wasserstein(wtf.grid_cost(6, 6, 6), 0.1, 5.0, source_lam=1.0)
        assert wtf.cp(X, 1, loss, rng=0, rho=1e-2).converged


@numpy_only
def test_refusals():
    with pytest.raises(ValueError, match=r"source_lam is 1.0 and lam is inf"):
        loss_of(1.0, math.inf)
    with pytest.raises(ValueError, match="source_lam is -1"):
        loss_of(-1, 5.0)
