"""What is known at one dual point: the bound on its gap, the best constant, the search radius."""

import math

import numpy as np
import pytest
from exact_transport import exact_potentials, samples_with_zeros
from helpers import assert_close, numpy_only, to_numpy
from infinite_costs import band, loss_with, partly_reachable, reachable

import wtfarray as wtf
from wtfarray._transport.iterate import Iterate, search_radius, translation, translation_of_logs
from wtfarray._transport.problem import Marginal

COST, UNIT = wtf.grid_cost(6)[0], 0.3


def divergences(q, s):
    """KL(q|s) of every sample, 0 log 0 = 0."""
    logs = np.where(q > 0, np.log(np.where(q > 0, q, 1.0) / np.where(s > 0, s, 1.0)), 0.0)
    return np.sum(q * logs - q + s, axis=1)


def iterate_of(array, q, s):
    """The point with this marginal q and this target s, both positive or both 0 in every bin."""
    residual = UNIT * np.log(np.where(q > 0, s, 1.0) / np.where(q > 0, q, 1.0))
    none = array(np.zeros(q.shape[0]))
    marginal = Marginal(array(q), None, None, none)
    return Iterate(array(0.0 * q), marginal, none, array(residual), UNIT, array(s - q), none, none)


class TestGapBound:
    @pytest.mark.parametrize("distance", [1e-6, 1e-2, 1.0, 5.0])
    def test_is_above_the_divergence(self, array, distance):
        rng = np.random.default_rng(0)
        q = rng.exponential(size=(3, 6))
        q[1, 2:4] = 0.0
        s = q * np.exp(distance * rng.normal(size=(3, 6)))
        found = to_numpy(iterate_of(array, q, s).gap_bound(0.7))
        exact = 0.7 * divergences(q, s)
        assert np.all(found >= exact - 1e-15)
        if distance == 1e-2:  # close to the solution little is given away
            np.testing.assert_allclose(found, exact, rtol=0.05)

    def test_is_zero_at_the_solution(self, array):
        q = np.random.default_rng(1).exponential(size=(3, 6))
        np.testing.assert_array_equal(to_numpy(iterate_of(array, q, q).gap_bound(2.0)), 0.0)

    def test_is_proportional_to_the_factor(self, array):
        q, s = np.random.default_rng(2).exponential(size=(2, 3, 6))
        point = iterate_of(array, q, s)
        once, thrice = (to_numpy(point.gap_bound(factor)) for factor in (1.0, 3.0))
        np.testing.assert_allclose(thrice, 3.0 * once, rtol=1e-14)


class TestTranslation:
    @pytest.mark.parametrize("lam", [0.5, 5.0])
    def test_makes_the_masses_equal(self, array, lam):
        X, Y = samples_with_zeros(lam)
        problem = wtf.Wasserstein(COST, 0.1, lam).bind(array(X))
        g = np.random.default_rng(0).normal(size=X.shape)
        shift, shrunk = (to_numpy(a) for a in translation(problem, array(g), array(Y), None))
        np.testing.assert_allclose(shrunk.sum(axis=1), X.sum(axis=1), rtol=1e-14)
        np.testing.assert_allclose(shrunk, Y * np.exp(-(g + shift[:, None]) / lam), rtol=1e-13)

    @pytest.mark.parametrize("lam", [0.5, 5.0])
    def test_derivative_of_the_dual_value_vanishes(self, array, lam):
        X, Y = samples_with_zeros(lam)
        problem = wtf.Wasserstein(COST, 0.1, lam).bind(array(X))
        g = np.random.default_rng(1).normal(size=X.shape)
        shift = to_numpy(translation(problem, array(g), array(Y), None)[0])

        def values(move):
            moved = g + (shift + move)[:, None]
            conjugate = to_numpy(problem.safe_conjugate(array(moved))[0])
            return np.sum(-lam * np.expm1(-moved / lam) * Y, axis=1) - conjugate

        step = 1e-3 * lam
        best, ends = values(0.0 * shift), [values(0.0 * shift + t) for t in (step, -step)]
        assert all(np.all(end < best) for end in ends)
        # A second-order difference: the maximum is less than 1e-6 of a step away.
        slopes = (ends[0] - ends[1]) / (2.0 * step)
        np.testing.assert_allclose(slopes, 0.0, atol=1e-6 * X.sum())

    def test_empty_sample_is_left_alone(self, array):
        X, Y = samples_with_zeros(1.0)
        X[1] = 0.0
        problem = wtf.Wasserstein(COST, 0.1, 1.0).bind(array(X))
        g = np.random.default_rng(2).normal(size=X.shape)
        shift = to_numpy(translation(problem, array(g), array(Y), None)[0])
        assert shift[1] == 0.0
        assert np.all(shift[[0, 2]] != 0.0)

    def test_dead_bins_do_not_count(self, array):
        X, Y = partly_reachable()
        problem = loss_with(band(1), 1.0).bind(array(X))
        g = np.random.default_rng(3).normal(size=X.shape)
        live = (array(Y) > 0) & problem.reachable
        shift, shrunk = (to_numpy(a) for a in translation(problem, array(g), array(Y), live))
        other = np.where(to_numpy(live), g, g + 1e3)
        again, same = (to_numpy(a) for a in translation(problem, array(other), array(Y), live))
        np.testing.assert_array_equal(again, shift)
        np.testing.assert_array_equal(same, shrunk)
        assert np.all(shrunk[~to_numpy(live)] == 0.0)
        np.testing.assert_allclose(shrunk.sum(axis=1), X.sum(axis=1), rtol=1e-14)

    @pytest.mark.parametrize("offset", [-1e5, 1e5])
    def test_large_potentials_do_not_overflow(self, array, offset):
        X, Y = samples_with_zeros(1.0)
        problem = wtf.Wasserstein(COST, 0.1, 1.0).bind(array(X))
        g = np.random.default_rng(4).normal(size=X.shape)
        near, far = (
            to_numpy(translation(problem, array(h), array(Y), None)[0]) for h in (g, g + offset)
        )
        np.testing.assert_allclose(far + offset, near, rtol=0, atol=1e-10)

    def test_in_logarithms_it_is_the_same(self, array):
        X, Y = partly_reachable()
        problem = loss_with(band(1), 1.0).bind(array(X))
        g = np.random.default_rng(3).normal(size=X.shape)
        live = (array(Y) > 0) & problem.reachable
        expected = translation(problem, array(g), array(Y), live)
        found = translation_of_logs(problem, array(g), array(Y), live)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, rtol=1e-13, atol=1e-14)

    def test_smallest_entry_at_the_lowest_potential(self, array):
        """``Y exp(-g/lam)`` is 1 in both bins, and each factor of it underflows in one of them."""
        problem = wtf.Wasserstein(wtf.grid_cost(2), 0.1, 0.1).bind(array([[1e10, 1e10]]))
        Y = array([[1.0, 1e-307]])
        g = array([[0.0, -0.1 * 307.0 * math.log(10.0)]])
        shift, shrunk = translation_of_logs(problem, g, Y, Y > 0)
        np.testing.assert_allclose(to_numpy(shift), -0.1 * math.log(1e10), rtol=1e-12)
        np.testing.assert_allclose(to_numpy(shrunk), 1e10, rtol=1e-12)


class TestSearchRadius:
    @pytest.mark.parametrize("lam", [0.5, 5.0, math.inf])
    def test_contains_the_solution(self, array, lam):
        X, Y = samples_with_zeros(lam)
        radius = search_radius(wtf.Wasserstein(COST, 0.1, lam).bind(array(X)))
        g = exact_potentials(X, Y, COST, 0.1, lam)
        assert np.ptp(g) <= radius if math.isinf(lam) else np.abs(g).max() <= radius

    @numpy_only
    def test_contains_the_solution_at_the_end_of_a_chain(self):
        """With infinite costs potentials add up along the bins between which mass may move."""
        X, Y = reachable(1, (2, 64))
        loss = loss_with(band(1, 64))
        found = wtf.wasserstein(X, Y, loss, tol=1e-3)
        assert np.ptp(found.potential, axis=1).max() > 3.0 * loss.bind(X).kernel.potential_range()
        assert np.ptp(found.potential, axis=1).max() <= search_radius(loss.bind(X))

    @pytest.mark.parametrize("lam", [0.5, math.inf])
    def test_has_the_units_of_the_cost(self, array, lam):
        X = array(np.ones((3, 6)))
        radii = [
            search_radius(wtf.Wasserstein(c * COST, c * 0.1, c * lam).bind(X)) for c in (1.0, 7.0)
        ]
        assert radii[1] == pytest.approx(7.0 * radii[0], rel=1e-12)

    def test_grows_with_lam_and_stays_finite_balanced(self, array):
        X = array(np.ones((3, 6)))
        radii = {
            lam: search_radius(wtf.Wasserstein(COST, 0.1, lam).bind(X))
            for lam in (0.5, 5.0, math.inf)
        }
        assert radii[math.inf] < radii[0.5] < radii[5.0] < math.inf
        assert radii[5.0] - radii[math.inf] == pytest.approx(100.0)
