"""The change of variables between the potential g and the dual variable u."""

import math
import warnings

import numpy as np
import pytest
from fitting import spare_jax
from helpers import assert_close, to_numpy

import wtfarray as wtf
from wtfarray._transport.potential import dual_of_potential, potential_of_dual, shrinkage

LAMS = [0.1, 1.0, 25.0, 1e4]


class TestDualOfPotential:
    @pytest.mark.parametrize("lam", LAMS)
    def test_follows_the_formula(self, array, xp, lam):
        g = np.linspace(-20.0, 20.0, 41) * lam
        u = dual_of_potential(array(g), lam, xp)
        assert_close(u, array(lam - lam * np.exp(-g / lam)), rtol=1e-13, atol=1e-15 * lam)

    @pytest.mark.parametrize("lam", LAMS)
    def test_small_potentials_keep_their_digits(self, array, xp, lam):
        g = np.array([1e-12, -3e-9]) * lam
        u = dual_of_potential(array(g), lam, xp)
        assert_close(u, array(g - g**2 / (2 * lam)), rtol=1e-15)

    def test_identity_for_balanced_transport(self, array, xp):
        g = array([-1e5, 0.0, 1e5])
        assert_close(dual_of_potential(g, math.inf, xp), g, rtol=0)

    def test_dual_variable_is_finite_and_at_most_lam(self, array, xp):
        u = to_numpy(dual_of_potential(array([-1e5, 1e5]), 0.1, xp))
        assert np.all(np.isfinite(u))
        assert np.all(u <= 0.1)

    def test_tends_to_the_identity_as_lam_grows(self, array, xp):
        g = np.linspace(-3.0, 3.0, 7)
        for lam in (1e2, 1e4, 1e6):
            u = to_numpy(dual_of_potential(array(g), lam, xp))
            assert np.all(np.abs(u - g) <= 0.51 * g**2 / lam)


class TestShrinkage:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("lam", LAMS)
    @pytest.mark.parametrize("rho", [1e-12, 1e-2, 1e3])
    def test_gives_the_dual_variable_and_its_derivative(self, array, xp, lam, rho, dtype):
        g = np.linspace(-5.0, 5.0, 41) * min(lam, 10.0)
        shrunk, slope, outside = shrinkage(array(g, dtype), lam, rho, xp)
        assert not bool(outside)
        rounding = 10 * float(np.finfo(dtype).eps)
        assert_close(slope, array(np.exp(-g / lam), dtype), rtol=rounding, atol=rounding)
        u = -lam * to_numpy(shrunk)
        # For speed 1e-11 may be lost of what is divided by rho.
        bound = 2e-11 * rho + rounding * np.abs(lam * np.expm1(-g / lam))
        assert np.all(np.abs(u - to_numpy(dual_of_potential(array(g, dtype), lam, xp))) <= bound)

    @pytest.mark.parametrize("g", [-1e5, -math.inf, math.nan])
    @pytest.mark.parametrize("lam", [0.1, 1e4])
    def test_potentials_outside_the_domain_are_flagged_and_nan(self, array, xp, g, lam):
        shrunk, slope, outside = shrinkage(array([0.0, g * lam]), lam, 1e-2, xp)
        assert bool(outside)
        assert np.all(np.isnan(to_numpy(shrunk)))
        assert np.all(np.isnan(to_numpy(slope)))


class TestFreeOfDual:
    @pytest.mark.parametrize("lam", [*LAMS, math.inf])
    def test_is_the_left_inverse_of_dual_of_free(self, array, xp, lam):
        scale = min(lam, 1e4)
        g = np.linspace(-20.0, 20.0, 41) * scale
        u = dual_of_potential(array(g), lam, xp)
        back = to_numpy(potential_of_dual(u, lam, xp))
        # Close to lam one rounding of u is worth exp(g/lam) in g.
        bound = 4e-16 * (np.abs(g) + np.abs(to_numpy(u)) * np.exp(g / lam))
        assert np.all(np.abs(back - g) <= bound)

    @pytest.mark.parametrize("lam", [*LAMS, math.inf])
    def test_is_the_right_inverse_of_dual_of_free(self, array, xp, lam):
        scale = min(lam, 1e4)
        u = np.concatenate([-np.logspace(8, -12, 21), [0.0], np.linspace(0.05, 0.999, 10)]) * scale
        again = dual_of_potential(potential_of_dual(array(u), lam, xp), lam, xp)
        assert_close(again, array(u), rtol=1e-14)


class TestOverflow:
    """A tiny model: the dual variable is large, or too large for its dtype."""

    CASES = (
        ("float32", 1e-14, 1.0),
        ("float32", 1e-26, 1e3),
        ("float64", 1e-100, 1.0),
        ("float64", 1e-260, 1e20),
    )

    @pytest.mark.parametrize(("dtype", "factor", "mass"), CASES)
    def test_loss_scales_with_the_logarithm_of_the_model(self, array, dtype, factor, mass):
        """``Phi(X, cY) = Phi(X, Y) - lam <X, 1> log c + lam (c - 1) <Y, 1>`` exactly."""
        lam = 0.05
        loss = wtf.Wasserstein(wtf.grid_cost(4), eps=1.0, lam=lam)
        rng = np.random.default_rng(0)
        X, Y = mass * rng.dirichlet(np.ones(4), 2), rng.dirichlet(np.ones(4), 2)
        plain = wtf.wasserstein(X, Y, loss, tol=1e-10)
        expected = float(plain.value) + lam * ((factor - 1.0) * Y.sum() - X.sum() * np.log(factor))
        rounding = 1e-5 if dtype == "float32" else 1e-9
        found = wtf.wasserstein(array(X, dtype), array(factor * Y, dtype), loss, tol=rounding)
        assert found.converged
        assert float(found.value) == pytest.approx(expected, rel=rounding)

    @pytest.mark.parametrize(("dtype", "factor"), [("float32", 1e-37), ("float64", 1e-300)])
    def test_mass_so_small_that_ratios_underflow_is_refused(self, array, dtype, factor):
        loss = wtf.Wasserstein(wtf.grid_cost(4), eps=1.0, lam=0.05)
        X = np.full((1, 4), 0.25)
        with pytest.raises(ValueError, match=r"Y .* in sample 0, where X .*: expected a positive"):
            wtf.wasserstein(array(X, dtype), array(factor * X, dtype), loss)

    @pytest.mark.parametrize(("dtype", "factor", "mass"), CASES[:2])
    def test_gradient_scales_with_the_model(self, array, dtype, factor, mass):
        lam = 0.05
        loss = wtf.Wasserstein(wtf.grid_cost(4), eps=1.0, lam=lam)
        rng = np.random.default_rng(0)
        X, Y = mass * rng.dirichlet(np.ones(4), 2), rng.dirichlet(np.ones(4), 2)
        u = wtf.wasserstein(X, Y, loss, tol=1e-10).gradient
        found = wtf.wasserstein(array(X, dtype), array(factor * Y, dtype), loss, tol=1e-8)
        expected = lam - (lam - u) / factor
        np.testing.assert_allclose(to_numpy(found.gradient), expected, rtol=1e-3)

    def test_fit_of_fixed_atoms_is_not_clamped(self, xp, array):
        """The objective in float32 is that in float64, whatever the size of the dual variable."""
        spare_jax(xp)
        rng = np.random.default_rng(0)
        X = rng.dirichlet(np.ones(6), 4)
        atoms = np.full((6, 2), 1e-13)
        atoms[:2, 0] = atoms[2:4, 1] = 0.5
        loss = wtf.Wasserstein(wtf.grid_cost(6), eps=0.5, lam=0.02)
        found = {}
        for dtype in ("float32", "float64"):
            start = [array(np.full((4, 2), 0.5), dtype), array(atoms, dtype)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                fit = wtf.nmf(array(X, dtype), 2, loss, init=start, fixed=(1,), rho=1e-2)
            found[dtype] = fit.objective
        assert found["float32"] == pytest.approx(found["float64"], rel=1e-3)
