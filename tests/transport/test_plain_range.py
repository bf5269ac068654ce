"""Where plain kernel products may be used, problems of some samples, and saturated potentials."""

import math
from dataclasses import replace

import numpy as np
import pytest
from exact_transport import samples_with_zeros
from fitting import spare_jax
from helpers import assert_close, to_numpy
from infinite_costs import band, loss_with

import wtfarray as wtf
from wtfarray import _dispatch
from wtfarray._transport.logarithms import smallest_sum
from wtfarray._transport.potential import SATURATION, dual_of_potential, shrinkage
from wtfarray._transport.problem import PlainRange, TransportProblem

COST = wtf.grid_cost(6)[0]
DTYPES = ["float32", "float64"]
some_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture(autouse=True)
def not_on_jax(xp):
    spare_jax(xp)


def plain_range(array, X, eps, dtype="float64", cost=COST):
    return wtf.Wasserstein(cost, eps).bind(array(X, dtype)).plain


class TestPlainRange:
    @some_dtype
    def test_products_above_the_threshold_do_not_feel_the_floor(self, array, xp, dtype):
        info = np.finfo(dtype)
        found = plain_range(array, np.ones((3, 6)), 1.0, dtype)
        assert found.floor / found.threshold <= info.eps
        assert found.threshold >= smallest_sum(array(0.0, dtype).dtype, 6, xp)
        assert found.floor >= float(info.smallest_normal)

    @some_dtype
    def test_quotients_by_the_floor_stay_finite(self, array, dtype):
        """Even of masses that are next to the largest number."""
        largest = float(np.finfo(dtype).max)
        mass, kernel = (
            largest / 100.0,
            wtf.Wasserstein(COST, 1.0).bind(array(np.ones((3, 6)))).kernel,
        )
        data = array(np.full((3, 6), mass / 6.0), dtype)
        found = PlainRange.of(data, array([mass] * 3, dtype), kernel)
        assert mass / found.floor <= largest / 16.0

    def test_zeros_in_the_data_are_noticed(self, array):
        X = np.ones((3, 6))
        assert plain_range(array, X, 1.0).positive
        X[1, 2] = 0.0
        assert not plain_range(array, X, 1.0).positive

    def test_empty_samples_are_noticed(self, array):
        X = np.ones((3, 6))
        assert plain_range(array, X, 1.0).filled
        X[1] = 0.0
        assert not plain_range(array, X, 1.0).filled

    @some_dtype
    def test_small_eps_may_underflow(self, array, dtype):
        found = [
            plain_range(array, np.ones((3, 6)), eps, dtype).never_underflows
            for eps in (10.0, 1.0, 0.1, 1e-3)
        ]
        assert found[0]
        assert not found[-1]
        assert found == sorted(found, reverse=True)

    def test_range_of_the_potential_decides(self, array):
        """The weakest link, times the least mass over all pairs of bins, against the threshold."""
        X = np.ones((3, 6))
        kernel = wtf.Wasserstein(COST, 1.0).bind(array(X)).kernel
        longest = kernel.potential_range()
        assert longest >= COST.max()
        threshold = plain_range(array, X, 1.0).threshold
        edge = longest / -math.log(threshold * 36.0 / 6.0)
        assert plain_range(array, X, 1.001 * edge).never_underflows
        assert not plain_range(array, X, 0.999 * edge).never_underflows

    @pytest.mark.parametrize("mass", [0.0, 1e-300])
    def test_sample_of_little_mass_may_underflow(self, array, mass):
        X = np.ones((3, 6))
        X[1] = mass
        assert not plain_range(array, X, 10.0).never_underflows

    def test_infinite_costs_may_underflow(self, array):
        assert not plain_range(array, np.ones((3, 6)), 10.0, cost=band(1)).never_underflows

    def test_range_is_that_of_the_data_masses_and_kernel(self, array):
        X, _ = samples_with_zeros(1.0)
        problem = wtf.Wasserstein(COST, 0.1).bind(array(X))
        assert PlainRange.of(problem.data, problem.mass, problem.kernel) == problem.plain


class TestSomeSamples:
    @pytest.mark.parametrize("lam", [1.0, math.inf])
    def test_samples_have_the_same_conjugate_on_their_own(self, array, lam):
        X, _ = samples_with_zeros(lam)
        problem = wtf.Wasserstein(COST, 0.1, lam).bind(array(X))
        g = np.random.default_rng(0).normal(size=X.shape)
        values, q = (to_numpy(a) for a in problem.safe_conjugate(array(g)))
        parts = [
            (problem.samples(slice(1, 3)), [1, 2]),
            (problem.some_samples(np.asarray([2, 0, 2])), [2, 0, 2]),
        ]
        for part, some in parts:
            found, marginal = part.safe_conjugate(array(g[some]))
            np.testing.assert_allclose(to_numpy(found), values[some], rtol=1e-13)
            np.testing.assert_allclose(to_numpy(marginal), q[some], rtol=1e-13)
            assert part.lam == lam

    @pytest.mark.parametrize("lam", [1.0, math.inf])
    def test_bounds_do_not_depend_on_batches(self, array, lam, monkeypatch):
        X, Y = samples_with_zeros(lam)
        problem = wtf.Wasserstein(COST, 0.1, lam).bind(array(X))
        g = array(np.random.default_rng(1).normal(size=X.shape))
        whole = problem.bounds(g, array(Y))
        small = replace(_dispatch.THRESHOLDS, certificate_entries=12, queued_certificate_entries=12)
        monkeypatch.setattr(_dispatch, "THRESHOLDS", small)
        sizes, of = [], TransportProblem._bounds
        monkeypatch.setattr(
            TransportProblem,
            "_bounds",
            lambda self, g, Y: sizes.append(Y.shape[0]) or of(self, g, Y),
        )
        for found, expected in zip(problem.bounds(g, array(Y)), whole, strict=True):
            assert_close(found, expected, rtol=1e-12, atol=1e-13)
        assert sizes == [2, 1]

    def test_other_smoothing_keeps_everything_else(self, array):
        X, _ = samples_with_zeros(1.0)
        problem = wtf.Wasserstein(COST, 0.1, 2.0).bind(array(X))
        other = problem.at_eps(0.4)
        direct = wtf.Wasserstein(COST, 0.4, 2.0).bind(array(X))
        g = array(np.random.default_rng(2).normal(size=X.shape))
        assert_close(other.safe_conjugate(g)[0], direct.safe_conjugate(g)[0], rtol=1e-14)
        assert (other.lam, other.order) == (problem.lam, problem.order)
        assert other.damping == pytest.approx(0.4 * 2.0 / 2.4)


class TestMarginal:
    @pytest.mark.parametrize("safe", [True, False])
    @pytest.mark.parametrize("eps", [0.05, 5.0], ids=["checked", "never underflows"])
    def test_has_the_value_of_the_conjugate(self, array, eps, safe):
        X, _ = samples_with_zeros(1.0)
        problem = wtf.Wasserstein(COST, eps, 1.0).bind(array(X))
        g = array(np.random.default_rng(3).normal(size=X.shape))
        marginal, logs, offset = problem.marginal(g, safe=safe)
        values, q = problem.safe_conjugate(g)
        assert_close(problem.value(marginal), values, rtol=1e-11)
        assert_close(marginal.q, q, rtol=1e-11)
        log_q = (to_numpy(g) - to_numpy(offset)[:, None]) / eps + to_numpy(logs)
        np.testing.assert_allclose(log_q, np.log(to_numpy(q)), rtol=0, atol=1e-11)

    def test_dead_bins_stay_empty(self, array):
        X, Y = samples_with_zeros(1.0)
        problem = wtf.Wasserstein(COST, 0.5, 1.0).bind(array(X))
        g = array(np.where(Y > 0, 0.0, -math.inf))
        for safe in (True, False):
            q = to_numpy(problem.marginal(g, safe=safe)[0].q)
            np.testing.assert_array_equal(q[Y == 0], 0.0)
            np.testing.assert_allclose(q.sum(axis=1), X.sum(axis=1), rtol=1e-12)

    def test_reachable_bins_are_those_within_the_band(self, array):
        X = np.eye(3, 6)
        problem = loss_with(band(1), 1.0).bind(array(X))
        expected = np.abs(np.subtract.outer(np.arange(3), np.arange(6))) <= 1
        np.testing.assert_array_equal(to_numpy(problem.reachable), expected)
        np.testing.assert_array_equal(to_numpy(problem.unreachable), ~expected)


class TestSaturation:
    @some_dtype
    @pytest.mark.parametrize("lam", [0.1, 25.0])
    def test_dual_variable_is_lam_to_rounding(self, array, xp, dtype, lam):
        u = to_numpy(dual_of_potential(array([SATURATION * lam], dtype), lam, xp))
        np.testing.assert_allclose(u, lam, rtol=2 * np.finfo(dtype).eps)

    def test_faster_exponential_is_chosen_by_its_threshold(self, array, xp, monkeypatch):
        """Without expm1 the digits of a small potential are lost."""
        g, lam = array([1e-13]), 1.0
        errors = []
        for allowed in (0.0, 1.0):
            other = replace(_dispatch.THRESHOLDS, exponent_error=allowed)
            monkeypatch.setattr(_dispatch, "THRESHOLDS", other)
            shrunk, slope, outside = shrinkage(g, lam, 1.0, xp)
            errors.append(abs(float(shrunk[0]) / -1e-13 - 1.0))
            assert float(slope[0]) == pytest.approx(1.0)
            assert not bool(outside)
        assert errors[0] < 1e-12
        assert errors[1] > 1e-5
