"""One iteration of Sinkhorn with its secants, and samples taken out of a solve and put back."""

import math

import numpy as np
import pytest
from exact_transport import exact_potentials, samples_with_zeros
from fitting import spare_jax
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._transport.anderson import Secants
from wtfarray._transport.iterate import search_radius
from wtfarray._transport.sinkhorn import GROWTH, History, Sinkhorn, Target, sinkhorn_step

COST, EPS = wtf.grid_cost(6)[0], 0.1
LAMS = [1.0, math.inf]
some_lam = pytest.mark.parametrize("lam", LAMS)


@pytest.fixture(autouse=True)
def not_on_jax(xp):
    spare_jax(xp)


def problem_of(array, lam, seed=0, eps=EPS):
    """A problem with zeros in X and Y; its model; both as NumPy arrays too."""
    X, Y = samples_with_zeros(lam, seed)
    return wtf.Wasserstein(COST, eps, lam).bind(array(X)), array(Y), X, Y


def step_from(problem, Y, g, history):
    return sinkhorn_step(
        problem, Target.of(problem, Y), g, history, lambda h: problem.marginal(h, safe=True)
    )


def new_history(problem, Y, memory=3):
    return History(Secants(memory, Y, search_radius(problem)))


def plain_step(X, Y, g, lam):
    """``g + damping (log Y - g/lam - log q)``, densely, g having the best constant; 0 if dead."""
    live = Y > 0
    if not math.isinf(lam):
        total = np.sum(Y * np.exp(-g / lam), axis=1) / X.sum(axis=1)
        g = g + lam * np.log(total)[:, None]
    h = np.where(live, g / EPS, -math.inf)
    K = np.exp(-COST / EPS)
    q = np.exp(h) * ((X / (np.exp(h) @ K.T)) @ K)
    damping = EPS if math.isinf(lam) else EPS * lam / (EPS + lam)
    off = np.log(np.where(live, Y, 1.0)) - np.log(np.where(live, q, 1.0)) - g / lam
    return g, g + damping * np.where(live, off, 0.0)


class TestTarget:
    def test_positive_model_has_no_mask(self, array):
        problem, _, X, _ = problem_of(array, 1.0)
        assert Target.of(problem, array(X + 1.0)).live is None

    def test_mask_is_where_the_model_is_positive(self, array):
        problem, Y, _, host = problem_of(array, 1.0)
        target = Target.of(problem, Y)
        np.testing.assert_array_equal(to_numpy(target.live), host > 0)
        np.testing.assert_array_equal(to_numpy(target.log_Y)[host == 0], 0.0)

    def test_residual_is_zero_in_dead_bins(self, array):
        problem, Y, _, host = problem_of(array, 1.0)
        phi = np.random.default_rng(0).normal(size=host.shape)
        found = to_numpy(Target.of(problem, Y).residual(array(phi), 0.3))
        expected = np.where(host > 0, 0.3 * np.log(np.where(host > 0, host, 1.0)) - phi, 0.0)
        np.testing.assert_allclose(found, expected, rtol=1e-14)


class TestStep:
    @some_lam
    def test_first_step_is_the_plain_one(self, array, lam):
        problem, Y, X, host = problem_of(array, lam)
        g = np.random.default_rng(0).normal(size=X.shape)
        point, following = step_from(problem, Y, array(g), new_history(problem, Y))
        moved, expected = plain_step(X, host, g, lam)
        np.testing.assert_allclose(to_numpy(point.g), moved, rtol=1e-12)
        np.testing.assert_allclose(to_numpy(following), expected, rtol=1e-11)

    @some_lam
    def test_solution_is_a_fixed_point(self, array, lam):
        problem, Y, X, host = problem_of(array, lam)
        g = exact_potentials(X, host, COST, EPS, lam)
        point, following = step_from(problem, Y, array(g), new_history(problem, Y))
        np.testing.assert_allclose(to_numpy(following), g, rtol=0, atol=1e-12)
        np.testing.assert_allclose(to_numpy(point.log_ratio), 0.0, atol=1e-11)
        np.testing.assert_allclose(to_numpy(point.gradient), 0.0, atol=1e-12)
        np.testing.assert_allclose(to_numpy(point.decrement), 0.0, atol=1e-12)

    @some_lam
    def test_iterates_tend_to_the_solution(self, array, lam):
        problem, Y, X, host = problem_of(array, lam)
        history, g = new_history(problem, Y), array(np.zeros(X.shape))
        for _ in range(60):
            point, g = step_from(problem, Y, g, history)
        found = np.where(host > 0, to_numpy(point.g), 0.0)
        expected = exact_potentials(X, host, COST, EPS, lam)
        if math.isinf(lam):  # up to a constant in each sample
            found, expected = (
                np.where(
                    host > 0, h - np.sum(h * host, axis=1, keepdims=True) / host.sum(1)[:, None], 0
                )
                for h in (found, expected)
            )
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)

    def test_point_has_the_marginal_of_its_potential(self, array):
        problem, Y, X, host = problem_of(array, 1.0)
        g = np.random.default_rng(1).normal(size=X.shape)
        point, _ = step_from(problem, Y, array(g), new_history(problem, Y))
        masked = array(np.where(host > 0, to_numpy(point.g), -math.inf))
        q = to_numpy(problem.safe_conjugate(masked)[1])
        np.testing.assert_allclose(to_numpy(point.marginal.q), q, rtol=1e-12)
        shrunk = host * np.exp(-to_numpy(point.g))
        np.testing.assert_allclose(to_numpy(point.gradient), shrunk - q, rtol=1e-11, atol=1e-14)

    def test_history_grows_to_its_memory(self, array):
        problem, Y, X, _ = problem_of(array, 1.0)
        history, g = new_history(problem, Y, memory=3), array(np.zeros(X.shape))
        sizes = []
        for _ in range(6):
            point, g = step_from(problem, Y, g, history)
            assert history.last[0] is point.g
            assert history.size is point.size
            sizes.append(len(history.secants.moves))
        assert sizes == [0, 1, 2, 3, 3, 3]
        assert tuple(history.secants.gram.shape) == (3, 3, 3)

    def test_secant_is_the_difference_of_two_points(self, array):
        problem, Y, X, _ = problem_of(array, 1.0)
        history, g = new_history(problem, Y), array(np.zeros(X.shape))
        _, g = step_from(problem, Y, g, history)
        before = [to_numpy(a) for a in history.last]
        step_from(problem, Y, g, history)
        after = [to_numpy(a) for a in history.last]
        dg, dphi = (new - old for new, old in zip(after, before, strict=True))
        np.testing.assert_allclose(to_numpy(history.secants.moves[0]), dg - dphi, atol=1e-14)


class TestGrowingResidual:
    def stepped(self, array, lam=1.0):
        """Three steps, after which sample 1 is told that its residual was tiny before."""
        problem, Y, X, host = problem_of(array, lam)
        history, g = new_history(problem, Y), array(np.zeros(X.shape))
        for _ in range(3):
            point, g = step_from(problem, Y, g, history)
        last = to_numpy(point.g)
        history.size = array([math.inf, 1e-30, math.inf])
        return problem, Y, X, host, history, g, last

    @some_lam
    def test_sample_returns_to_its_plain_step(self, array, lam):
        problem, Y, X, host, history, g, last = self.stepped(array, lam)
        point, following = step_from(problem, Y, g, history)
        expected = plain_step(X, host, last, lam)[1]
        np.testing.assert_allclose(to_numpy(following)[1], expected[1], rtol=1e-10, atol=1e-12)
        assert to_numpy(point.size)[1] == math.inf
        assert np.all(np.isfinite(to_numpy(point.size)[[0, 2]]))

    def test_sample_forgets_its_secants(self, array):
        problem, Y, _, _, history, g, _ = self.stepped(array)
        assert np.all(to_numpy(history.secants.valid))
        step_from(problem, Y, g, history)
        valid = to_numpy(history.secants.valid)
        assert valid.shape == (3, 3)
        assert not np.any(valid[1])
        assert np.all(valid[[0, 2]])

    def test_other_samples_do_not_notice(self, array):
        ends = []
        for grows in (True, False):
            problem, Y, _, _, history, g, _ = self.stepped(array)
            if not grows:
                history.size = array([math.inf] * 3)
            ends.append(to_numpy(step_from(problem, Y, g, history)[1]))
        np.testing.assert_array_equal(ends[0][[0, 2]], ends[1][[0, 2]])
        assert np.any(ends[0][1] != ends[1][1])

    @pytest.mark.parametrize(("factor", "grows"), [(1.01, False), (0.99, True)])
    def test_growth_decides(self, array, factor, grows):
        problem, Y, X, _ = problem_of(array, 1.0)
        history, g = new_history(problem, Y), array(np.zeros(X.shape))
        size = to_numpy(step_from(problem, Y, g, new_history(problem, Y))[0].size)
        step_from(problem, Y, g, history)
        history.size = array(size / GROWTH * factor)
        point, _ = step_from(problem, Y, g, history)
        np.testing.assert_array_equal(np.isinf(to_numpy(point.size)), [grows] * 3)


class TestSolver:
    def advanced(self, array, steps=4, lam=1.0, weights=None):
        problem, Y, X, _ = problem_of(array, lam)
        solver = Sinkhorn(problem, array(np.zeros(X.shape)), weights=weights)
        points = solver.iterates(Y)
        for _ in range(steps):
            next(points)
        return solver, Y

    def contents(self, solver):
        """Everything that a solver knows, as NumPy arrays."""
        history = solver._history
        secants = history.secants
        arrays = (solver.g, *history.last, *secants.moves, *secants.changes)
        return [to_numpy(a) for a in (*arrays, secants.valid, secants.gram)]

    def test_split_takes_what_is_known_of_the_samples(self, array):
        solver, _ = self.advanced(array, weights=array([1.0, 2.0, 3.0]))
        part = solver.split(np.asarray([2, 0]))
        for whole, some in zip(self.contents(solver), self.contents(part), strict=True):
            np.testing.assert_array_equal(some, whole[[2, 0]])
        np.testing.assert_array_equal(to_numpy(part.sample_weights), [3.0, 1.0])
        np.testing.assert_array_equal(
            to_numpy(part.problem.data), to_numpy(solver.problem.data)[[2, 0]]
        )

    def test_merge_is_the_inverse_of_split(self, array):
        solver, _ = self.advanced(array)
        before = self.contents(solver)
        some = np.asarray([2, 0])
        solver.merge(solver.split(some), some)
        for old, new in zip(before, self.contents(solver), strict=True):
            np.testing.assert_array_equal(new, old)

    def test_split_is_the_inverse_of_merge(self, array):
        """What samples learn on their own replaces what the others' solver knew of them."""
        solver, Y = self.advanced(array)
        before, some = self.contents(solver), np.asarray([2, 0])
        part = solver.split(some)
        points = part.iterates(array(to_numpy(Y)[some]))
        for _ in range(3):
            next(points)
        solver.merge(part, some)
        after = self.contents(solver)
        for mine, theirs in zip(
            self.contents(solver.split(some)), self.contents(part), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
        for old, new in zip(before, after, strict=True):
            np.testing.assert_array_equal(new[1], old[1])

    def test_merge_counts_the_evaluations_of_some_samples(self, array):
        solver, Y = self.advanced(array, steps=2)
        some = np.asarray([1])
        part = solver.split(some)
        points = part.iterates(array(to_numpy(Y)[some]))
        for _ in range(6):
            next(points)
        spent, evaluations = solver.spent, solver.evaluations
        solver.merge(part, some)
        assert solver.spent == spent + 5
        assert solver.evaluations == evaluations + 2  # six of a third of the samples

    def test_potential_runs_one_step_ahead(self, array):
        problem, Y, X, _ = problem_of(array, math.inf)
        solver = Sinkhorn(problem, array(np.zeros(X.shape)))
        points = solver.iterates(Y)
        for _ in range(3):
            next(points)
            ahead = to_numpy(solver.g)
            np.testing.assert_array_equal(to_numpy(next(points).g), ahead)

    def test_secants_outlast_a_change_of_the_model(self, array):
        """A solve that goes on from the last one starts with a step that costs no evaluation."""
        solver, Y = self.advanced(array, steps=6)
        near = array(to_numpy(Y) * np.exp(0.1 * np.cos(np.arange(6.0))))
        errors = []
        for continues in (False, True):
            again = solver.split(np.arange(3))
            again.continues = continues
            errors.append(to_numpy(next(again.iterates(near)).decrement).sum())
            assert again.evaluations == 1
        assert errors[1] < 0.1 * errors[0]

    def test_memory_is_at_most_half_the_unknowns(self, array):
        solver, _ = self.advanced(array, steps=9)
        assert len(solver._history.secants.moves) == 3

    def test_products_that_lose_digits_are_replaced_by_logarithms(self, array):
        X, Y = samples_with_zeros(1.0)
        problem = wtf.Wasserstein(COST, 1e-4, 1.0).bind(array(X))
        solver = Sinkhorn(problem, array(np.zeros(X.shape)))
        point = next(solver.iterates(array(Y)))
        masked = array(np.where(Y > 0, to_numpy(point.g), -math.inf))
        q = to_numpy(problem.safe_conjugate(masked)[1])
        np.testing.assert_allclose(to_numpy(point.marginal.q), q, rtol=1e-9)
        assert solver._safe
