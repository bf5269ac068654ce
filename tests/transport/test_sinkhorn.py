"""One iteration of Sinkhorn with its secants, and samples taken out of a solve and put back."""

import math
from dataclasses import replace

import numpy as np
import pytest
from array_api_compat import is_torch_namespace
from exact_transport import exact_potentials, samples_with_zeros
from fitting import spare_jax
from helpers import to_numpy
from infinite_costs import band, loss_with, partly_reachable

import wtfarray as wtf
from wtfarray._transport import sinkhorn
from wtfarray._transport.anderson import new_secants, predicted
from wtfarray._transport.iterate import Until, search_radius
from wtfarray._transport.sinkhorn import (
    GROWTH,
    MEMORY,
    STRAGGLER_RIDGE,
    Sinkhorn,
    advance,
    first_state,
    memory_for,
    predicted_potential,
    sinkhorn_step,
    summary,
)
from wtfarray._transport.target import target_of

COST, EPS = wtf.grid_cost(6)[0], 0.1
LAMS = [1.0, math.inf]
some_lam = pytest.mark.parametrize("lam", LAMS)
some_domain = pytest.mark.parametrize("safe", [False, True])


@pytest.fixture(autouse=True)
def not_on_jax(xp):
    spare_jax(xp)


def problem_of(array, lam, seed=0, eps=EPS, dtype="float64"):
    """A problem with zeros in X and Y; its model; both as NumPy arrays too."""
    X, Y = samples_with_zeros(lam, seed)
    loss = wtf.Wasserstein(COST, eps, lam)
    return loss.bind(array(X, dtype=dtype)), array(Y, dtype=dtype), X, Y


def secants_for(problem, Y, memory=3):
    return new_secants(memory, Y, problem.damping)


def step_from(problem, Y, state, secants, *, safe=True, target=None):
    """One iteration from a state; secants of samples that grow worse are left as they are."""
    return sinkhorn_step(
        problem,
        target_of(problem, Y) if target is None else target,
        state,
        secants,
        safe=safe,
        max_step=search_radius(problem),
    )


def iterated(problem, Y, g, steps, *, safe=True, memory=3):
    """The state, the secants and the last iterate after some steps."""
    state, secants, point = first_state(problem, g), secants_for(problem, Y, memory), None
    for _ in range(steps):
        state, secants, point = step_from(problem, Y, state, secants, safe=safe)
    return state, secants, point


def plain_step(X, Y, g, lam, eps=EPS):
    """``g + damping (log Y - g/lam - log q)``, densely, g having the best constant; 0 if dead."""
    live = Y > 0
    if not math.isinf(lam):
        total = np.sum(Y * np.exp(-g / lam), axis=1) / X.sum(axis=1)
        g = g + lam * np.log(total)[:, None]
    h = np.where(live, g / eps, -math.inf)
    K = np.exp(-COST / eps)
    q = np.exp(h) * ((X / (np.exp(h) @ K.T)) @ K)
    damping = eps if math.isinf(lam) else eps * lam / (eps + lam)
    off = np.log(np.where(live, Y, 1.0)) - np.log(np.where(live, q, 1.0)) - g / lam
    return g, g + damping * np.where(live, off, 0.0)


def without_constant(g, Y):
    """g minus its mean, weighted by Y; 0 where Y is 0."""
    mean = np.sum(np.where(Y > 0, g, 0.0) * Y, axis=1) / Y.sum(axis=1)
    return np.where(Y > 0, g - mean[:, None], 0.0)


def assert_solution(g, X, Y, lam, atol, eps=EPS):
    """The potential is the exact one in live bins; balanced, up to a constant in each sample."""
    found, expected = np.where(Y > 0, g, 0.0), exact_potentials(X, Y, COST, eps, lam)
    if math.isinf(lam):
        found, expected = (without_constant(h, Y) for h in (found, expected))
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


class TestMemory:
    def test_is_at_most_half_the_unknowns(self):
        assert [memory_for(bins) for bins in (1, 2, 3, 6, 10)] == [1, 1, 1, 3, 5]

    def test_grows_with_the_bins_up_to_a_limit(self):
        sizes = [memory_for(bins) for bins in (12, 48, 72, 96, 10**4)]
        assert sizes == sorted(sizes)
        assert sizes[0] == 6
        assert sizes[-1] == MEMORY


class TestStep:
    @some_lam
    @some_domain
    def test_first_step_is_the_plain_one(self, array, lam, safe):
        problem, Y, X, host = problem_of(array, lam)
        g = np.random.default_rng(0).normal(size=X.shape)
        state, _, point = iterated(problem, Y, array(g), 1, safe=safe)
        moved, expected = plain_step(X, host, g, lam)
        np.testing.assert_allclose(to_numpy(point.g), moved, rtol=1e-12)
        np.testing.assert_allclose(to_numpy(state.ahead), expected, rtol=1e-11)
        residual = np.where(host > 0, expected - moved, 0.0)
        np.testing.assert_allclose(to_numpy(point.residual), residual, rtol=0, atol=1e-12)
        assert point.unit == problem.damping

    @some_lam
    @some_domain
    def test_solution_is_a_fixed_point(self, array, lam, safe):
        problem, Y, X, host = problem_of(array, lam)
        g = exact_potentials(X, host, COST, EPS, lam)
        state, _, point = iterated(problem, Y, array(g), 1, safe=safe)
        np.testing.assert_allclose(to_numpy(state.ahead), g, rtol=0, atol=1e-12)
        for zero in (point.residual, point.gradient, point.decrement):
            np.testing.assert_allclose(to_numpy(zero), 0.0, atol=1e-12)

    @some_lam
    @some_domain
    def test_iterates_tend_to_the_solution(self, array, lam, safe):
        problem, Y, X, host = problem_of(array, lam)
        _, _, point = iterated(problem, Y, array(0.0 * X), 60, safe=safe)
        assert_solution(to_numpy(point.g), X, host, lam, 1e-9)

    @some_lam
    def test_single_precision_is_enough_for_its_rounding(self, array, xp, lam):
        problem, Y, X, host = problem_of(array, lam, dtype="float32")
        state, secants, point = iterated(problem, Y, array(0.0 * X, dtype="float32"), 60)
        for found in (state.ahead, state.rest, point.g, point.decrement, secants.moves):
            assert found.dtype == xp.float32
        assert_solution(to_numpy(point.g), X, host, lam, 1e-5)

    @some_lam
    def test_secants_save_steps(self, array, lam):
        """Compared with plain steps only, for a small eps."""
        problem, Y, X, _ = problem_of(array, lam, eps=0.05)
        g = array(0.0 * X)
        accelerated = iterated(problem, Y, g, 30)[2]
        for _ in range(30):
            state, _, point = iterated(problem, Y, g, 1)
            g = state.ahead
        found, plain = (to_numpy(p.size).sum() for p in (accelerated, point))
        assert found < 1e-3 * plain

    def test_point_has_the_marginal_of_its_potential(self, array):
        problem, Y, X, host = problem_of(array, 1.0)
        g = np.random.default_rng(1).normal(size=X.shape)
        _, _, point = iterated(problem, Y, array(g), 1)
        masked = array(np.where(host > 0, to_numpy(point.g), -math.inf))
        q = to_numpy(problem.safe_conjugate(masked)[1])
        np.testing.assert_allclose(to_numpy(point.marginal.q), q, rtol=1e-12)
        shrunk = host * np.exp(-to_numpy(point.g))
        np.testing.assert_allclose(to_numpy(point.gradient), shrunk - q, rtol=1e-11, atol=1e-14)
        expected = np.abs(shrunk - q).sum(axis=1)
        np.testing.assert_allclose(to_numpy(point.size), expected, rtol=1e-11)

    def test_state_remembers_the_point(self, array):
        problem, Y, X, _ = problem_of(array, 1.0)
        state = first_state(problem, array(0.0 * X))
        assert np.all(np.isnan(to_numpy(state.size)))  # of which nothing is known
        state, _, point = step_from(problem, Y, state, secants_for(problem, Y))
        np.testing.assert_array_equal(to_numpy(state.g), to_numpy(point.g))
        np.testing.assert_array_equal(to_numpy(state.size), to_numpy(point.size))
        assert np.all(np.isfinite(to_numpy(state.size)))

    def test_secant_is_the_difference_of_two_points(self, array):
        problem, Y, X, _ = problem_of(array, 1.0)
        before, secants, _ = iterated(problem, Y, array(0.0 * X), 1)
        assert np.all(to_numpy(secants.scales) == 0.0)  # one point makes no pair
        after, secants, _ = step_from(problem, Y, before, secants)
        dg = to_numpy(after.g) - to_numpy(before.g)
        move = to_numpy(before.rest) - to_numpy(after.rest)
        slot = (int(secants.slot) - 1) % 3
        np.testing.assert_allclose(to_numpy(secants.moves)[:, slot], move, rtol=1e-6)
        np.testing.assert_allclose(
            to_numpy(secants.changes)[:, slot], dg - move, rtol=1e-5, atol=1e-7
        )
        assert np.all(to_numpy(secants.scales)[:, slot] > 0.0)

    def test_phi_does_not_depend_on_the_model(self, array):
        """The rest is ``damping log q - damping g / eps``, to which g is added."""
        problem, Y, X, host = problem_of(array, 1.0)
        g = np.random.default_rng(2).normal(size=X.shape)
        state, _, point = iterated(problem, Y, array(g), 1)
        live = host > 0
        q, moved = to_numpy(point.marginal.q), to_numpy(point.g)
        phi = problem.damping * (moved + np.log(np.where(live, q, 1.0)))
        expected = np.where(live, phi - moved, -moved)
        np.testing.assert_allclose(to_numpy(state.rest), expected, rtol=0, atol=1e-12)

    def test_potential_of_the_caller_is_not_touched(self, array):
        problem, Y, X, host = problem_of(array, 1.0)
        start = np.random.default_rng(3).normal(size=X.shape)
        g = array(start)
        iterated(problem, Y, g, 3, safe=False)
        np.testing.assert_array_equal(to_numpy(g), start)
        np.testing.assert_array_equal(to_numpy(Y), host)
        np.testing.assert_array_equal(to_numpy(problem.data), X)

    @some_lam
    @some_domain
    def test_empty_sample_stays_and_others_do_not_notice(self, array, lam, safe):
        X, Y = samples_with_zeros(lam)
        others = [0, 2]
        expected = iterated(
            wtf.Wasserstein(COST, EPS, lam).bind(array(X[others])),
            *(array(Y[others]), array(np.zeros((2, 6))), 6),
            safe=safe,
        )[2]
        X[1] = 0.0
        if math.isinf(lam):
            Y[1] = 0.0
        problem = wtf.Wasserstein(COST, EPS, lam).bind(array(X))
        state, _, point = iterated(problem, array(Y), array(0.0 * X), 6, safe=safe)
        assert np.all(to_numpy(point.residual)[1] == 0.0)
        assert np.all(np.isfinite(to_numpy(state.ahead)[1]))
        assert to_numpy(point.marginal.q)[1].sum() < 1e-300
        found = to_numpy(point.g)[others]
        np.testing.assert_allclose(found, to_numpy(expected.g), rtol=1e-6, atol=1e-7)

    def test_infinite_costs(self, array):
        X, Y = partly_reachable()
        cost = band(1)
        problem = loss_with(cost, 1.0).bind(array(X))
        _, _, point = iterated(problem, array(Y), array(0.0 * X), 80)
        eps, live = problem.kernel.eps, to_numpy(target_of(problem, array(Y)).live)
        expected = exact_potentials(X, Y, cost, eps, 1.0)
        np.testing.assert_allclose(to_numpy(point.g)[live], expected[live], rtol=0, atol=1e-8)


class TestGrowingGradient:
    def stepped(self, array, lam=1.0):
        """Four steps, after which sample 1 is told that its gradient was tiny before."""
        problem, Y, X, host = problem_of(array, lam)
        state, secants, _ = iterated(problem, Y, array(0.0 * X), 4)
        state = state._replace(size=array([math.inf, 1e-30, math.inf]))
        return problem, Y, X, host, state, secants

    @some_lam
    def test_sample_returns_to_its_plain_step(self, array, lam):
        """As exactly as a move in single precision allows."""
        problem, Y, X, host, state, secants = self.stepped(array, lam)
        last = to_numpy(state.g)
        state, _, point = step_from(problem, Y, state, secants)
        expected = plain_step(X, host, last, lam)[1]
        np.testing.assert_allclose(to_numpy(state.ahead)[1], expected[1], rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(to_numpy(point.worse), [False, True, False])
        assert to_numpy(point.size)[1] == math.inf
        assert np.all(np.isfinite(to_numpy(point.size)[[0, 2]]))

    def test_pair_is_not_used(self, array):
        problem, Y, _, _, state, secants = self.stepped(array)
        slot = int(secants.slot)
        _, secants, _ = step_from(problem, Y, state, secants)
        used = to_numpy(secants.scales)[:, slot] > 0.0
        np.testing.assert_array_equal(used, [True, False, True])

    def test_other_samples_do_not_notice(self, array):
        ends = []
        for grows in (True, False):
            problem, Y, _, _, state, secants = self.stepped(array)
            if not grows:
                state = state._replace(size=array([math.inf] * 3))
            ends.append(to_numpy(step_from(problem, Y, state, secants)[0].ahead))
        np.testing.assert_array_equal(ends[0][[0, 2]], ends[1][[0, 2]])
        assert np.any(ends[0][1] != ends[1][1])

    def test_first_point_has_nowhere_to_return_to(self, array):
        problem, Y, X, host = problem_of(array, 1.0)
        state = first_state(problem, array(0.0 * X))
        state, _, _ = step_from(problem, Y, state, secants_for(problem, Y))
        np.testing.assert_allclose(
            to_numpy(state.ahead), plain_step(X, host, 0.0 * X, 1.0)[1], rtol=1e-11
        )

    @pytest.mark.parametrize(("factor", "grows"), [(1.01, False), (0.99, True)])
    def test_growth_decides(self, array, factor, grows):
        problem, Y, X, _ = problem_of(array, 1.0)
        state, secants, point = iterated(problem, Y, array(0.0 * X), 1)
        size = to_numpy(step_from(problem, Y, state, secants_for(problem, Y))[2].size)
        state = state._replace(size=array(size / GROWTH * factor))
        _, _, point = step_from(problem, Y, state, secants)
        np.testing.assert_array_equal(to_numpy(point.worse), [grows] * 3)

    def test_solver_forgets_the_secants_of_the_sample(self, array):
        problem, Y, X, _ = problem_of(array, 1.0)
        solver = Sinkhorn(problem, array(0.0 * X))
        points = solver.iterates(Y)
        for _ in range(4):
            next(points)
        solver._state = solver._state._replace(size=array([math.inf, 1e-30, math.inf]))
        next(points)
        scales = to_numpy(solver._secants.scales)
        assert np.all(scales[1] == 0.0)
        assert np.all(scales[[0, 2]] > 0.0)


class TestPrediction:
    def test_same_model_gives_the_same_potential(self, array):
        problem, Y, X, _ = problem_of(array, 1.0)
        state, secants, _ = iterated(problem, Y, array(0.0 * X), 5)
        found = predicted_potential(target_of(problem, Y), state, secants, search_radius(problem))
        np.testing.assert_allclose(to_numpy(found), to_numpy(state.ahead), rtol=1e-6, atol=1e-9)

    def test_potential_is_a_plain_step_and_what_the_secants_add(self, array):
        problem, Y, X, host = problem_of(array, 1.0)
        state, secants, _ = iterated(problem, Y, array(0.0 * X), 5)
        other = host * np.exp(0.1 * np.cos(np.arange(6.0)))
        radius = search_radius(problem)
        found = predicted_potential(target_of(problem, array(other)), state, secants, radius)
        last = to_numpy(state.g)
        live = host > 0
        phi = to_numpy(state.rest) + last
        logs = np.log(np.where(live, other, 1.0))
        residual = np.where(live, problem.damping * logs - phi, 0.0)
        extra = to_numpy(predicted(secants, array(residual), radius))
        np.testing.assert_allclose(to_numpy(found), last + residual + extra, rtol=1e-6, atol=1e-9)

    def test_bins_may_die_and_come_to_life(self, array):
        problem, Y, X, host = problem_of(array, 1.0)
        state, secants, _ = iterated(problem, Y, array(0.0 * X), 5)
        other = np.where(host > 0, host, 0.1)
        other[2, 3] = 0.0
        target = target_of(problem, array(other))
        found = predicted_potential(target, state, secants, search_radius(problem))
        state = state._replace(ahead=found, size=array([math.inf] * 3))
        for _ in range(60):
            state, secants, point = step_from(problem, array(other), state, secants)
        assert_solution(to_numpy(point.g), X, other, 1.0, 1e-8)


class TestOperations:
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_a_step_has_few_operations_and_reads_nothing(self, xp, array, dtype):
        """What a device has to launch, and to wait for."""
        if not is_torch_namespace(xp):
            pytest.skip("operations are counted on torch")
        from _torch_counts import TorchCounts

        rng = np.random.default_rng(0)
        X, Y = (array(rng.uniform(0.1, 1.0, (5, 6, 4)), dtype) for _ in range(2))
        problem = wtf.Wasserstein(wtf.grid_cost(6, 4), 0.1, 1.0).bind(X)
        target, secants = target_of(problem, Y), secants_for(problem, xp.reshape(Y, (5, 24)))
        state, radius = first_state(problem, 0.0 * X), search_radius(problem)
        with TorchCounts() as counts:
            sinkhorn_step(problem, target, state, secants, safe=False, max_step=radius)
        assert counts.operations <= 92
        assert counts.synchronisations == 0


class TestSummary:
    @pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5]])
    def test_sums_over_the_samples(self, array, weights):
        problem, Y, X, _ = problem_of(array, 1.0)
        state = first_state(problem, array(0.0 * X))._replace(size=array([math.inf, 1e-30, 9.0]))
        arguments = (problem, target_of(problem, Y), state, secants_for(problem, Y))
        given = None if weights is None else array(weights)
        _, _, point, sums = advance(*arguments, given, search_radius(problem), True, Until())
        factors = np.ones(3) if weights is None else np.asarray(weights)
        assert sums.error == pytest.approx(np.sum(to_numpy(point.decrement) * factors))
        assert sums.distance == math.inf  # the size of a sample that has grown
        assert sums.worse
        assert sums.lost == 0.0
        np.testing.assert_array_equal(sums[:2], to_numpy(summary(point, given)))

    def test_counts_samples_that_lost_digits(self, array):
        problem, Y, X, _ = problem_of(array, 1.0, eps=1e-4)
        state = first_state(problem, array(0.0 * X))
        arguments = (problem, target_of(problem, Y), state, secants_for(problem, Y))
        state, _, point, sums = advance(*arguments, None, search_radius(problem), False, Until())
        lost = to_numpy(point.marginal.lost)
        assert lost.any()
        assert sums.lost == lost.sum()
        np.testing.assert_array_equal(np.isnan(to_numpy(state.size)), lost)

    def test_digits_that_only_the_first_of_two_iterations_loses_are_reported(
        self, array, monkeypatch
    ):
        problem, Y, X, _ = problem_of(array, 1.0)
        state, secants = first_state(problem, array(0.0 * X)), secants_for(problem, Y)
        flags = [array([0.0, 1.0, 1.0]) > 0, array([1.0, 0.0, 1.0]) > 0]

        def step(*arguments, **options):
            state, secants, point = sinkhorn_step(*arguments, **options)
            marginal = replace(point.marginal, lost=flags.pop(0))
            return state, secants, replace(point, marginal=marginal)

        monkeypatch.setattr(sinkhorn, "sinkhorn_step", step)
        arguments = (problem, target_of(problem, Y), state, secants, None, search_radius(problem))
        *_, totals = advance(*arguments, False, Until(least=2, most=9))
        assert (totals.iterations, totals.lost) == (2, 3.0)


class TestRepeated:
    def test_what_has_lost_digits_makes_no_pair_when_it_is_repeated(self, array):
        """Its g and rest are those of the products that have failed."""
        problem, Y, X, _ = problem_of(array, 1.0, eps=1e-4)
        solver, seen = Sinkhorn(problem, array(0.0 * X)), []

        def recorded(problem, target, state, *arguments):
            seen.append(to_numpy(state.size))
            found = advance(problem, target, state, *arguments)
            seen.append(found[2].marginal.lost)
            return found

        solver._advance = recorded
        next(solver.iterates(Y))
        before, lost, repeated, *_ = seen
        lost = to_numpy(lost)
        assert lost.any()
        assert np.all(np.isnan(repeated[lost]))
        np.testing.assert_array_equal(repeated[~lost], before[~lost])


class TestSolver:
    def advanced(self, array, steps=4, lam=1.0, weights=None):
        problem, Y, X, _ = problem_of(array, lam)
        solver = Sinkhorn(problem, array(np.zeros(X.shape)), weights=weights)
        points = solver.iterates(Y)
        for _ in range(steps):
            next(points)
        return solver, Y

    def contents(self, solver):
        """The potential and the state of a solver, as NumPy arrays."""
        return [to_numpy(a) for a in (solver.g, *solver._state)]

    def test_split_takes_the_state_of_the_samples(self, array):
        solver, _ = self.advanced(array, weights=array([1.0, 2.0, 3.0]))
        part = solver.split(np.asarray([2, 0]))
        for whole, some in zip(self.contents(solver), self.contents(part), strict=True):
            np.testing.assert_array_equal(some, whole[[2, 0]])
        np.testing.assert_array_equal(to_numpy(part.sample_weights), [3.0, 1.0])
        np.testing.assert_array_equal(
            to_numpy(part.problem.data), to_numpy(solver.problem.data)[[2, 0]]
        )

    def test_split_has_secants_of_its_own_with_a_larger_ridge(self, array):
        solver, Y = self.advanced(array)
        before, some = to_numpy(solver._secants.scales), np.asarray([2, 0])
        part = solver.split(some)
        points = part.iterates(array(to_numpy(Y)[some]))
        next(points)
        next(points)
        assert np.all(np.count_nonzero(to_numpy(part._secants.scales), axis=1) <= 2)
        assert float(part._secants.ridge) == STRAGGLER_RIDGE > float(solver._secants.ridge)
        np.testing.assert_array_equal(to_numpy(solver._secants.scales), before)

    def test_split_before_the_first_solve(self, array):
        problem, Y, X, _ = problem_of(array, 1.0)
        start = np.random.default_rng(0).normal(size=X.shape)
        solver, some = Sinkhorn(problem, array(start)), np.asarray([2, 0])
        part = solver.split(some)
        found = next(part.iterates(array(to_numpy(Y)[some]))).g
        expected = to_numpy(next(solver.iterates(Y)).g)[some]
        np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-12)

    def test_merge_is_the_inverse_of_split(self, array):
        solver, _ = self.advanced(array)
        before = self.contents(solver)
        some = np.asarray([2, 0])
        solver.merge(solver.split(some), some)
        for old, new in zip(before, self.contents(solver), strict=True):
            np.testing.assert_array_equal(new, old)

    def test_split_is_the_inverse_of_merge(self, array):
        """Where samples get to on their own replaces where they were with the others."""
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

    def test_merged_samples_forget_their_secants(self, array):
        solver, _ = self.advanced(array)
        before, some = to_numpy(solver._secants.scales), np.asarray([2, 0])
        solver.merge(solver.split(some), some)
        after = to_numpy(solver._secants.scales)
        assert np.all(after[some] == 0.0)
        assert np.all(after[1] == before[1])
        assert np.all(before > 0.0)

    def test_split_works_on_arrays_of_its_own(self, array):
        solver, Y = self.advanced(array)
        before, some = self.contents(solver), np.arange(3)
        points = solver.split(some).iterates(Y)
        for _ in range(5):
            next(points)
        for old, new in zip(before, self.contents(solver), strict=True):
            np.testing.assert_array_equal(new, old)

    def test_work_grows_with_masks_and_logarithms(self, array):
        """An evaluation takes longer with them, and small fits are limited in their time."""
        X = np.random.default_rng(0).dirichlet(np.ones(4), 3)
        cost = np.array(wtf.grid_cost(4)[0])
        forbidden = np.where(cost > 1.5 * cost[0, 1], np.inf, cost)
        plain, masked = (
            Sinkhorn(wtf.Wasserstein(c, 0.1, 1.0).bind(array(X)), array(0.0 * X))
            for c in (cost, forbidden)
        )
        work = plain.work_per_evaluation
        assert work < masked.work_per_evaluation
        plain._safe = True
        assert work < plain.work_per_evaluation

    def test_work_in_the_log_domain_counts_pairs_of_bins_only_where_it_sums_over_them(self, array):
        def in_log_domain(samples, bins):
            X = array(np.full((samples, bins), 1.0 / bins))
            solver = Sinkhorn(wtf.Wasserstein(wtf.grid_cost(bins), 0.1, 1.0).bind(X), 0.0 * X)
            plain, solver._safe = solver.work_per_evaluation, True
            return solver.work_per_evaluation / plain

        assert in_log_domain(10, 50) > 3.0
        assert in_log_domain(4, 256) < 2.0

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

    @pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5]])
    def test_iterates_carry_their_sums(self, array, weights):
        problem, Y, X, _ = problem_of(array, 1.0)
        given = None if weights is None else array(weights)
        point = next(Sinkhorn(problem, array(0.0 * X), weights=given).iterates(Y))
        factors = np.ones(3) if weights is None else np.asarray(weights)
        assert point.error == pytest.approx(np.sum(to_numpy(point.decrement) * factors))
        assert point.distance == pytest.approx(np.sum(to_numpy(point.size)))

    @some_lam
    def test_solves_the_problem(self, array, lam):
        solver, Y = self.advanced(array, steps=60, lam=lam)
        X = to_numpy(solver.problem.data)
        assert_solution(to_numpy(solver.g), X, to_numpy(Y), lam, 1e-9)
        assert solver.evaluations == 60

    def test_secants_outlast_a_change_of_the_model(self, array):
        """A solve that goes on from the last one starts with a step that costs no evaluation."""
        errors = []
        for continues in (False, True):
            solver, Y = self.advanced(array, steps=6)
            solver.continues = continues
            near = array(to_numpy(Y) * np.exp(0.1 * np.cos(np.arange(6.0))))
            errors.append(to_numpy(next(solver.iterates(near)).decrement).sum())
            assert solver.evaluations == 7
        assert errors[1] < 0.1 * errors[0]

    def test_new_solver_starts_where_it_is_told(self, array):
        """There is nothing to go on from, whatever the caller says."""
        problem, Y, X, _ = problem_of(array, math.inf)
        start = np.random.default_rng(0).normal(size=X.shape)
        solver = Sinkhorn(problem, array(start))
        solver.continues = True
        np.testing.assert_array_equal(to_numpy(next(solver.iterates(Y)).g), start)

    def test_secants_of_a_sample_whose_model_changed_much_are_forgotten(self, array):
        solver, Y = self.advanced(array, steps=6)
        other = to_numpy(Y)
        other[1, 0] = 20.0  # was 0
        next(solver.iterates(array(other)))
        used = to_numpy(solver._secants.scales) > 0.0
        assert not np.any(np.delete(used[1], (int(solver._secants.slot) - 1) % 3))
        assert np.all(used[[0, 2]])

    def test_memory_is_at_most_half_the_unknowns(self, array):
        solver, _ = self.advanced(array, steps=9)
        assert tuple(solver._secants.moves.shape) == (3, 3, 6)
        assert tuple(solver._secants.inverse.shape) == (3, 3, 3)

    @some_lam
    def test_products_that_lose_digits_are_replaced_by_logarithms(self, array, lam):
        problem, Y, X, host = problem_of(array, lam, eps=1e-4)
        solver = Sinkhorn(problem, array(np.zeros(X.shape)))
        points = solver.iterates(Y)
        point = next(points)
        masked = array(np.where(host > 0, to_numpy(point.g), -math.inf))
        q = to_numpy(problem.safe_conjugate(masked)[1])
        np.testing.assert_allclose(to_numpy(point.marginal.q), q, rtol=1e-9)
        assert point.marginal.lost is None
        assert solver._safe
        assert solver.evaluations == 2
        next(points)
        assert solver.evaluations == 3

    @some_lam
    def test_digits_lost_on_the_way_do_not_spoil_the_solution(self, array, lam):
        """A start at which plain products are exact, and a solution at which they are not."""
        eps = 0.02
        X, Y = np.full((2, 2, 6), 1e-12)
        X[0, 0], X[1, :] = 1.0, 0.3
        Y[0, 5], Y[1, :] = 1.0, 0.3
        Y *= X.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
        cost = 10.0 * COST
        problem = wtf.Wasserstein(cost, eps, lam).bind(array(X))
        solver = Sinkhorn(problem, array(np.zeros(X.shape)))
        points = solver.iterates(array(Y))
        for _ in range(150):
            point = next(points)
        assert solver._safe
        np.testing.assert_allclose(to_numpy(point.residual) / problem.damping, 0.0, atol=1e-7)
