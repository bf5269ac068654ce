"""Solving for one Y: levels of smoothing, warm starts and messages."""

import math

import numpy as np
import pytest
from exact_transport import exact_potentials, exact_values, samples_with_zeros
from fitting import spare_jax
from helpers import to_numpy
from infinite_costs import N, band, loss_with

import wtfarray as wtf
from wtfarray._transport import solve
from wtfarray._transport.inner_solver import CHECK_EVERY, inner_solver
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.solve import (
    LEVEL_ERROR,
    LEVEL_ITERATIONS,
    approximate,
    centred,
    relative_gap,
    solve_to_bounds,
    solve_transport,
    within_reach,
)

COST, EPS = wtf.grid_cost(6)[0], 0.1
LAMS = [1.0, math.inf]
some_lam = pytest.mark.parametrize("lam", LAMS)


@pytest.fixture(autouse=True)
def not_on_jax(xp):
    spare_jax(xp)


def bound(array, lam, dtype="float64"):
    X, Y = samples_with_zeros(lam)
    return wtf.Wasserstein(COST, EPS, lam).bind(array(X, dtype)), array(Y, dtype), X, Y


@pytest.fixture
def smoothings(monkeypatch):
    """The eps of every solver that is made, in order."""
    used = []

    def recorded(problem, g):
        used.append(problem.kernel.eps)
        return inner_solver(problem, g)

    monkeypatch.setattr(solve, "inner_solver", recorded)
    return used


@pytest.fixture
def gaps(monkeypatch):
    """The potentials whose gap is computed."""
    computed = []
    original = TransportProblem.gap

    def recorded(self, g, *arguments):
        computed.append(g)
        return original(self, g, *arguments)

    monkeypatch.setattr(TransportProblem, "gap", recorded)
    return computed


class TestSolveTransport:
    @some_lam
    @pytest.mark.parametrize("levels", [(1.0,), (9.0, 3.0, 1.0)])
    def test_agrees_with_plain_sinkhorn(self, array, lam, levels):
        problem, Y, X, host = bound(array, lam)
        found = solve_transport(problem, Y, levels, tol=1e-10, max_iter=2000)
        exact = exact_values(X, host, COST, EPS, lam)
        assert found.converged
        np.testing.assert_allclose(to_numpy(found.values), exact, rtol=0, atol=1e-9)
        assert np.all(to_numpy(found.values) <= exact + 1e-13)
        assert np.all(np.isneginf(to_numpy(found.u)[host == 0]))
        g = exact_potentials(X, host, COST, EPS, lam)
        if math.isinf(lam):
            g = g - (np.sum(g * host, axis=1) / host.sum(axis=1))[:, None]
        live = host > 0
        np.testing.assert_allclose(to_numpy(found.g)[live], g[live], rtol=0, atol=1e-4)

    def test_levels_are_multiples_of_eps(self, array, smoothings):
        problem, Y, *_ = bound(array, 1.0)
        solve_transport(problem, Y, (9.0, 3.0, 1.0), tol=1e-6, max_iter=2000)
        assert smoothings == pytest.approx([0.9, 0.3, 0.1])

    def test_given_potential_starts_at_the_last_level(self, array, smoothings):
        problem, Y, *_ = bound(array, 1.0)
        start = array(np.zeros((3, 6)))
        solve_transport(problem, Y, (9.0, 3.0, 1.0), tol=1e-6, max_iter=2000, potential=start)
        assert smoothings == [0.1]

    @some_lam
    def test_solution_is_a_warm_start(self, array, lam):
        problem, Y, *_ = bound(array, lam)
        cold = solve_transport(problem, Y, (1.0,), tol=1e-8, max_iter=2000)
        warm = solve_transport(problem, Y, (1.0,), tol=1e-8, max_iter=2000, potential=cold.g)
        assert warm.n_iter == 1 < cold.n_iter
        np.testing.assert_allclose(to_numpy(warm.values), to_numpy(cold.values), atol=1e-7)

    def test_iterations_of_all_levels_are_counted(self, array, monkeypatch):
        problem, Y, *_ = bound(array, 1.0)
        allowed = []

        def at_level(solver, Y, max_iter):
            allowed.append(max_iter)
            return solver.g, 7

        def at_last(solver, Y, gap, max_iter):
            allowed.append(max_iter)
            return solver.g, solver.problem.bounds_with_logs(solver.g, Y), 7

        monkeypatch.setattr(solve, "approximate", at_level)
        monkeypatch.setattr(solve, "solve_to_bounds", at_last)
        with pytest.warns(UserWarning, match="after 21 iterations: increase"):
            found = solve_transport(problem, Y, (9.0, 3.0, 1.0), tol=1e-6, max_iter=300)
        assert found.n_iter == 21
        assert allowed == [LEVEL_ITERATIONS, LEVEL_ITERATIONS, 300]

    @some_lam
    def test_gap_is_computed_a_few_times_in_a_solve(self, array, lam, gaps):
        problem, Y, *_ = bound(array, lam)
        found = solve_transport(problem, Y, (9.0, 3.0, 1.0), tol=1e-8, max_iter=2000)
        assert found.converged
        assert 1 <= len(gaps) <= (1 if lam == 1.0 else 3)

    @some_lam
    def test_bounds_are_those_of_the_potential(self, array, lam):
        """Balanced, g is centred after its bounds have been computed."""
        problem, Y, *_ = bound(array, lam)
        found = solve_transport(problem, Y, (1.0,), tol=1e-6, max_iter=2000)
        for known, expected in zip(found.bounds, problem.bounds_with_logs(found.g, Y), strict=True):
            np.testing.assert_allclose(to_numpy(known), to_numpy(expected), rtol=1e-9, atol=1e-12)

    def test_message_tells_the_gap_and_the_iterations(self, array):
        problem, Y, *_ = bound(array, 1.0)
        found = solve_transport(problem, Y, (1.0,), tol=1e-6, max_iter=2000)
        assert found.message == f"duality gap {found.gap:.1e} after {found.n_iter} iterations"

    @pytest.mark.parametrize(("dtype", "float64"), [("float32", True), ("float64", False)])
    def test_warning_says_what_to_do(self, array, dtype, float64):
        problem, Y, *_ = bound(array, 1.0, dtype)
        with pytest.warns(UserWarning, match="increase `max_iter`, loosen `tol` or choose a"):
            found = solve_transport(problem, Y, (1.0,), tol=1e-12, max_iter=2)
        assert not found.converged
        assert ("float64" in found.message) == float64
        assert "infinite costs" not in found.message

    def test_warning_names_infinite_costs_where_balanced(self, array):
        X = np.ones((3, N))
        Y = X * np.linspace(0.9, 1.1, N)
        problem = loss_with(band(1)).bind(array(X))
        with pytest.warns(UserWarning, match=r"infinite costs forbid some transport, and Y may be"):
            solve_transport(problem, array(Y), (1.0,), tol=1e-12, max_iter=2)


class TestApproximate:
    @some_lam
    def test_result_is_close_and_takes_few_iterations(self, array, lam, gaps):
        problem, Y, X, host = bound(array, lam)
        g, n = approximate(inner_solver(problem, array(np.zeros(host.shape))), Y, 100)
        assert 1 < n < 20
        assert not gaps
        error = exact_values(X, host, COST, EPS, lam) - to_numpy(problem.bounds(g, Y)[0])
        assert 0 <= error.sum() <= 3 * LEVEL_ERROR * EPS * X.sum()

    def test_iterations_are_limited(self, array):
        problem, Y, _, host = bound(array, math.inf)
        assert approximate(inner_solver(problem, array(np.zeros(host.shape))), Y, 2)[1] == 2


class TestSolveToBounds:
    @some_lam
    @pytest.mark.parametrize("allowed", [1e-3, 1e-6, 1e-9])
    def test_gap_is_at_most_what_is_allowed(self, array, lam, allowed):
        problem, Y, X, host = bound(array, lam)
        solver = inner_solver(problem, array(np.zeros(host.shape)))
        g, bounds, n = solve_to_bounds(solver, Y, lambda _: allowed, 2000)
        assert float(to_numpy(bounds.gaps).sum()) <= allowed
        assert n < 100
        values = to_numpy(problem.bounds(g, Y)[0])
        np.testing.assert_allclose(to_numpy(bounds.values), values, rtol=1e-12)
        assert exact_values(X, host, COST, EPS, lam).sum() - values.sum() <= allowed

    @some_lam
    def test_gap_that_is_never_small_enough_is_computed_now_and_then(self, array, lam, gaps):
        problem, Y, _, host = bound(array, lam)
        solver = inner_solver(problem, array(np.zeros(host.shape)))
        _, _, n = solve_to_bounds(solver, Y, lambda _: -1.0, 2 * CHECK_EVERY)
        assert n == 2 * CHECK_EVERY
        assert len(gaps) >= 2


class TestWithinReach:
    @some_lam
    def test_solutions_are_kept(self, array, lam):
        problem, Y, X, host = bound(array, lam)
        g = exact_potentials(X, host, COST, EPS, lam)
        found = to_numpy(within_reach(problem, array(g), Y))
        if math.isinf(lam):
            g = g - np.max(np.where(host > 0, g, -math.inf), axis=1, keepdims=True)
        np.testing.assert_array_equal(found[host > 0], g[host > 0])

    @some_lam
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_potential_of_any_size_becomes_a_start(self, array, lam, dtype):
        problem, Y, *_ = bound(array, lam, dtype)
        most = float(np.finfo(dtype).max)
        g = np.asarray([[most, -most, 0.0, 1.0, -1.0, most / 2]] * 3)
        start = within_reach(problem, array(g, dtype), Y)
        assert np.all(np.isfinite(to_numpy(start) / EPS))
        tol = 1e-8 if dtype == "float64" else 1e-3
        cold = solve_transport(problem, Y, (1.0,), tol=tol, max_iter=2000)
        warm = solve_transport(
            problem, Y, (1.0,), tol=tol, max_iter=2000, potential=array(g, dtype)
        )
        assert warm.converged
        np.testing.assert_allclose(
            to_numpy(warm.values), to_numpy(cold.values), rtol=2.0 * tol, atol=tol
        )


class TestCentred:
    def test_product_with_the_model_vanishes(self, array):
        _, _, _, Y = bound(array, 1.0)
        g = np.random.default_rng(0).normal(size=Y.shape)
        found = to_numpy(centred(array(g), array(Y)))
        np.testing.assert_allclose(np.sum(found * Y, axis=1), 0.0, atol=1e-14)
        moves = found - g
        np.testing.assert_allclose(moves, moves[:, :1] * np.ones(6), atol=1e-15)

    def test_empty_model_leaves_the_potential_alone(self, array):
        g = np.random.default_rng(0).normal(size=(3, 6))
        np.testing.assert_array_equal(to_numpy(centred(array(g), array(np.zeros((3, 6))))), g)


def test_relative_gap_has_a_floor_of_eps_times_the_mass(array):
    problem, _, X, _ = bound(array, 1.0)
    allowed = relative_gap(problem, 1e-3)
    assert allowed(-100.0) == pytest.approx(0.1)
    assert allowed(0.0) == pytest.approx(1e-3 * EPS * X.sum())
