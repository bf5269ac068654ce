"""Certificates of small problems against exact values: [value, value + gap] holds the loss."""

import itertools
import math

import numpy as np
import pytest
from exact_transport import exact_potentials, exact_values, samples_with_zeros
from fitting import spare_jax
from helpers import numpy_only, to_numpy
from infinite_costs import N, band, reachable
from oracles import random_cost

import wtfarray as wtf
from wtfarray._transport.certificate import Plan, corrected_gap, rounded_gap, semi_unbalanced_gap
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.problem import TransportProblem

COST, EPS = wtf.grid_cost(6)[0], 0.3


@pytest.fixture(autouse=True)
def not_on_jax(xp):
    spare_jax(xp)


def dense_plan(array, X, g, cost, eps=EPS):
    """The plan of g, its second marginal and ``Phi*`` of every sample, computed densely."""
    h = g / eps
    log_Kf = np.logaddexp.reduce(h[:, None, :] - cost[None] / eps, axis=2)
    positive = X > 0
    log_X = np.log(np.where(positive, X, 1.0))
    log_a = np.where(positive, log_X - np.where(positive, log_Kf, 0.0), -math.inf)
    q = np.exp(h + np.logaddexp.reduce(log_a[:, :, None] - cost[None] / eps, axis=1))
    conjugate = eps * np.sum(X * np.where(positive, log_Kf, 0.0) - X * log_X + X, axis=1)
    kernel = GibbsKernel.of((array(cost),), eps)
    return Plan(kernel, array(log_a), array(h), array(X), array(q)), q, conjugate


def inner(g, Y):
    """<g, Y> where g may be -inf and Y is 0."""
    return np.sum(np.where(Y > 0, g, 0.0) * Y, axis=1)


def near(solution, distance, seed=0):
    """Potentials at a distance from the solutions, in units of eps."""
    noise = np.random.default_rng(seed).normal(size=solution.shape)
    return solution + distance * EPS * noise


class TestRoundedGap:
    @pytest.mark.parametrize("distance", [1e-6, 1e-2, 1.0, 10.0])
    def test_interval_holds_the_loss(self, array, distance):
        X, Y = samples_with_zeros(math.inf)
        exact = exact_values(X, Y, COST, EPS)
        g = near(exact_potentials(X, Y, COST, EPS), distance)
        g = np.where(Y > 0, g, -math.inf)
        plan, _, conjugate = dense_plan(array, X, g, COST)
        gap, value = to_numpy(rounded_gap(plan, array(Y))), inner(g, Y) - conjugate
        assert np.all(value <= exact + 1e-13)
        assert np.all(exact <= value + gap + 1e-13)
        assert np.all(gap >= 0.0)
        assert np.all(gap <= 100.0 * distance * EPS * X.sum(axis=1))

    def test_gap_vanishes_at_the_solution(self, array):
        X, Y = samples_with_zeros(math.inf)
        g = np.where(Y > 0, exact_potentials(X, Y, COST, EPS), -math.inf)
        gap = to_numpy(rounded_gap(dense_plan(array, X, g, COST)[0], array(Y)))
        assert np.all((gap >= 0.0) & (gap <= 1e-12))

    @numpy_only
    @pytest.mark.parametrize("bins", [3, 4, 5])
    def test_interval_holds_the_loss_of_random_problems(self, array, bins):
        rng = np.random.default_rng(bins)
        for _ in range(5):
            cost = random_cost(rng, bins)
            X, Y = rng.dirichlet(np.ones(bins), size=(2, 4))
            g = rng.normal(size=X.shape)
            plan, _, conjugate = dense_plan(array, X, g, cost)
            gap, value = rounded_gap(plan, Y), inner(g, Y) - conjugate
            exact = exact_values(X, Y, cost, EPS)
            assert np.all(value <= exact + 1e-12)
            assert np.all(exact <= value + gap + 1e-12)


class TestSemiUnbalancedGap:
    @pytest.mark.parametrize("lam", [0.5, 5.0])
    @pytest.mark.parametrize("distance", [1e-6, 1e-2, 1.0])
    def test_interval_holds_the_loss(self, array, lam, distance):
        X, Y = samples_with_zeros(lam)
        exact = exact_values(X, Y, COST, EPS, lam)
        g = near(exact_potentials(X, Y, COST, EPS, lam), distance)
        masked = np.where(Y > 0, g, -math.inf)
        _, q, conjugate = dense_plan(array, X, masked, COST)
        exponents = array(masked / EPS)
        gap = to_numpy(semi_unbalanced_gap(lam, array(masked), array(q), array(Y), exponents))
        value = np.sum(-lam * np.expm1(-g / lam) * Y, axis=1) - conjugate
        assert np.all(value <= exact + 1e-13)
        assert np.all(exact <= value + gap + 1e-13)
        assert np.all(gap >= 0.0)
        # Quadratic in the distance, unlike the gap of the rounded plan.
        assert np.all(gap <= 1e-12 + 100.0 * (1.0 + EPS / lam) * distance**2 * X.sum(axis=1))

    def test_is_lam_times_the_divergence(self, array):
        rng = np.random.default_rng(0)
        q, Y = rng.exponential(size=(2, 3, 6))
        g = rng.normal(size=(3, 6))
        s = Y * np.exp(-g / 2.0)
        expected = 2.0 * np.sum(q * np.log(q / s) - q + s, axis=1)
        found = to_numpy(semi_unbalanced_gap(2.0, array(g), array(q), array(Y), array(g)))
        np.testing.assert_allclose(found, expected, rtol=1e-12)

    def test_rounding_of_large_exponents_is_part_of_the_gap(self, array):
        """In float32, g of several lam are exponents of 1e6 to 1e7: q has no digits left."""
        rng = np.random.default_rng(0)
        X, Y = rng.dirichlet(np.ones(2), (2, 40)).astype("float32")
        lam, eps = 500.0, 1e-4
        # Without transport between the bins the loss is lam KL(X|Y) + eps E(X).
        kernel = GibbsKernel.of([array([[0.0, math.inf], [math.inf, 0.0]], "float32")], eps)
        problem = TransportProblem.of(array(X, "float32"), kernel, lam, (0, 1))
        x, y = X.astype(float), Y.astype(float)
        exact = np.sum(lam * (x * np.log(x / y) - x + y) + eps * (x * np.log(x) - x), axis=1)
        g = (lam * (np.log(y / x) + 0.2 * rng.normal(size=x.shape))).astype("float32")
        values, gaps, _ = map(to_numpy, problem.bounds(array(g, "float32"), array(Y, "float32")))
        slack = 1e-5 * lam
        assert np.all(values <= exact + slack)
        assert np.all(exact <= values + gaps + slack)


class TestCorrectedGap:
    def test_deficits_far_above_the_marginal_do_not_overflow(self, array):
        """In float32 the square of the deficit divided by q is above the largest number."""
        single = lambda values: array(np.asarray(values), "float32")  # noqa: E731
        kernel = GibbsKernel.of([single([[0.0, 1.0], [math.inf, 0.0]])], 0.01)
        X, Y = np.asarray([[1e3, 1e3]]), np.asarray([[4e2, 1.6e3]])
        for h, q in (([[0.0, -90.0]], [[2e3, 1e-37]]), ([[-90.0, 0.0]], [[1e-37, 2e3]])):
            log_a = np.log(X) - np.asarray(h)
            plan = Plan(kernel, *map(single, (log_a, h, X, q)))
            gap = to_numpy(corrected_gap(plan, single(0.01 * np.asarray(h)), single(Y)))
            assert gap.tolist() == [math.inf]

    def test_plans_without_digits_have_an_infinite_gap(self, array):
        """Exponents of 5e8 are known to 32 in float32, as those of a potential that diverges."""
        single = lambda values: array(np.asarray(values), "float32")  # noqa: E731
        kernel = GibbsKernel.of([single([[0.0, 1.0], [math.inf, 0.0]])], 0.01)
        X = np.asarray([[0.3, 0.7]])
        h, log_a = np.asarray([[5e8, 4e7]]), np.asarray([[-5e8, -4e7]])
        for q in ([[1.0, 0.1]], [[0.3, 0.7]]):
            plan = Plan(kernel, *map(single, (log_a, h, X, q)))
            gap = to_numpy(corrected_gap(plan, single(0.01 * h), single(X)))
            assert gap.tolist() == [math.inf]

    @pytest.mark.parametrize("distance", [1e-6, 1e-3, 1e-1])
    def test_interval_holds_the_loss(self, array, distance):
        X, Y = reachable()
        exact = exact_values(X, Y, band(1), EPS)
        g = near(exact_potentials(X, Y, band(1), EPS), distance)
        plan, _, conjugate = dense_plan(array, X, g, band(1))
        gap = to_numpy(corrected_gap(plan, array(g), array(Y)))
        value = inner(g, Y) - conjugate
        slack = 1e-13 * X.sum(axis=1)
        assert np.all(value <= exact + slack)
        assert np.all(exact <= value + gap + slack)
        assert np.all(gap >= 0.0)
        if distance < 1e-2:  # a feasible plan is found, and its gap is quadratic in the distance
            assert np.all(gap <= 1e-11 + 100.0 * distance**2 * X.sum(axis=1))

    def test_gap_vanishes_at_the_solution(self, array):
        X, Y = reachable()
        g = exact_potentials(X, Y, band(1), EPS)
        gap = to_numpy(corrected_gap(dense_plan(array, X, g, band(1))[0], array(g), array(Y)))
        assert np.all((gap >= 0.0) & (gap <= 1e-11))

    def test_agrees_with_the_rounded_plan_where_costs_are_finite(self, array):
        """Both certify the same plan of finite costs: both intervals hold the loss."""
        X, Y = samples_with_zeros(math.inf)
        Y = Y + 0.1
        Y *= X.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
        g = near(exact_potentials(X, Y, COST, EPS), 1e-3)
        plan, _, conjugate = dense_plan(array, X, g, COST)
        value, exact = inner(g, Y) - conjugate, exact_values(X, Y, COST, EPS)
        for gap in (rounded_gap(plan, array(Y)), corrected_gap(plan, array(g), array(Y))):
            assert np.all(exact <= value + to_numpy(gap) + 1e-13)
            assert np.all(np.isfinite(to_numpy(gap)))

    def test_samples_are_certified_one_by_one(self, array):
        """A sample that no plan can serve leaves the gaps of the others alone."""
        X, Y = reachable()
        g = exact_potentials(X, Y, band(1), EPS)
        expected = to_numpy(corrected_gap(dense_plan(array, X, g, band(1))[0], array(g), array(Y)))
        X[1], Y[1] = np.eye(N)[0], np.eye(N)[5] * 0.9 + 0.1 / N
        Y[1] /= Y[1].sum()
        found = to_numpy(corrected_gap(dense_plan(array, X, g, band(1))[0], array(g), array(Y)))
        assert found[1] == math.inf
        np.testing.assert_allclose(found[[0, 2]], expected[[0, 2]], rtol=0, atol=1e-13)


def excess_demand(x, y, open_):
    """By Hall's theorem: the most that a set of bins of y wants beyond what can arrive there."""
    subsets = itertools.chain.from_iterable(itertools.combinations(range(3), k) for k in (1, 2))
    found = []
    for subset in subsets:
        targets = list(subset)
        sources = open_[:, targets].any(axis=1)
        found.append(y[targets].sum() - x[sources].sum())
    return max(found)


@numpy_only
class TestThreeBins:
    """Every pattern of infinite costs between three bins, the diagonal being finite."""

    PATTERNS = tuple(p for p in itertools.product([True, False], repeat=6) if not all(p))

    def problems(self):
        """Cost, samples and how far the least feasible set of bins is from feasible."""
        rng = np.random.default_rng(0)
        for pattern in self.PATTERNS:
            open_ = np.eye(3, dtype=bool)
            open_[~np.eye(3, dtype=bool)] = pattern
            cost = np.where(open_, rng.uniform(0.1, 1.0, size=(3, 3)), math.inf)
            X, Y = rng.dirichlet(np.full(3, 2.0), size=(2, 4))
            excess = np.array([excess_demand(x, y, open_) for x, y in zip(X, Y, strict=True)])
            yield cost, X, Y, excess

    def test_gap_is_infinite_where_there_is_no_plan(self, array):
        infeasible = feasible = 0
        for cost, X, Y, excess in self.problems():
            problem = wtf.Wasserstein(cost, EPS).bind(X)
            g = np.zeros(X.shape)
            K = np.exp(-cost / EPS)
            for _ in range(400):  # plain Sinkhorn, whether it converges or not
                f = np.exp(g / EPS)
                g = np.clip(g + EPS * np.log(Y / (f * ((X / (f @ K.T)) @ K))), -50.0, 50.0)
            plan, q, conjugate = dense_plan(array, X, g, cost)
            gap, value = corrected_gap(plan, g, Y), inner(g, Y) - conjugate
            np.testing.assert_allclose(gap, problem.gap(g, q, Y), rtol=1e-6, atol=1e-15)
            assert np.all(gap >= 0.0)
            assert np.all(gap[excess > 1e-3] == math.inf)
            strictly = excess < -0.02
            assert np.all(gap[strictly] <= 1e-6)
            infeasible += np.sum(excess > 1e-3)
            feasible += np.sum(strictly)
            if np.any(strictly):
                exact = exact_values(X[strictly], Y[strictly], cost, EPS)
                assert np.all(value[strictly] <= exact + 1e-12)
                assert np.all(exact <= (value + gap)[strictly] + 1e-12)
        assert infeasible > 50
        assert feasible > 30

    def test_gap_far_from_the_solution_is_infinite_or_holds_the_loss(self, array):
        finite = 0
        for cost, sources, targets, excess in self.problems():
            strictly = excess < -0.02
            if not np.any(strictly):
                continue
            X, Y = sources[strictly], targets[strictly]
            g = near(exact_potentials(X, Y, cost, EPS), 0.3)
            plan, _, conjugate = dense_plan(array, X, g, cost)
            gap, value = corrected_gap(plan, g, Y), inner(g, Y) - conjugate
            assert np.all(gap >= 0.0)
            assert np.all(exact_values(X, Y, cost, EPS) <= value + gap + 1e-12)
            finite += np.sum(np.isfinite(gap))
        assert finite > 10
