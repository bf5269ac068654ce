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
from wtfarray._transport.inner_solver import inner_solver
from wtfarray._transport.solve import LEVEL_ITERATIONS, centred, relative_gap, solve_transport

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

        def recorded(solver, Y, gap, max_iter):
            allowed.append(max_iter)
            return solver.g, 7

        monkeypatch.setattr(solve, "solve_to_gap", recorded)
        with pytest.warns(UserWarning, match="after 21 iterations: increase"):
            found = solve_transport(problem, Y, (9.0, 3.0, 1.0), tol=1e-6, max_iter=300)
        assert found.n_iter == 21
        assert allowed == [LEVEL_ITERATIONS, LEVEL_ITERATIONS, 300]

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
