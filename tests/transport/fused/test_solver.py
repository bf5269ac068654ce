"""The solver that iterates samples one by one: totals, warm starts, threads, libraries."""

import math

import numpy as np
import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

from fitting import data, spare_jax
from helpers import set_thresholds, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import wtfarray as wtf
from wtfarray._arrays.host import is_on_host
from wtfarray._transport.fused import threads
from wtfarray._transport.fused.solver import LATE_RATIO, FusedSinkhorn, common_limit
from wtfarray._transport.inner_solver import inner_solver
from wtfarray._transport.iterate import Until
from wtfarray._transport.sinkhorn import LONG_MEMORY, Sinkhorn
from wtfarray._transport.stragglers import POLICY

BINS, SAMPLES = 12, 40


def stacks(lam=1.0, bins=BINS, samples=SAMPLES, seed=0):
    rng = np.random.default_rng(seed)
    X, Y = rng.gamma(0.3, size=(2, samples, bins)) + 1e-3
    if math.isinf(lam):
        Y *= X.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
    return X, Y


def solver_for(array, lam=1.0, dtype="float64", weights=None, **options):
    X, Y = stacks(lam, **options)
    problem = wtf.Wasserstein(wtf.grid_cost(X.shape[1]), eps=0.02, lam=lam).bind(array(X, dtype))
    given_weights = None if weights is None else array(weights, dtype)
    return FusedSinkhorn(problem, array(0.0 * X, dtype), given_weights), array(Y, dtype)


@pytest.mark.parametrize("lam", [1.0, math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_totals_are_met(array, xp, lam, dtype):
    solver, Y = solver_for(array, lam, dtype)
    until = Until(1e-6, 1e-2, least=2, most=400)
    point = next(solver.iterates(Y, until=until))
    assert point.error <= until.error
    assert point.distance <= until.distance
    assert 2 <= point.iterations <= 400
    assert solver.evaluations <= point.iterations
    assert point.g.dtype == Y.dtype
    assert point.error == pytest.approx(float(xp.sum(point.decrement)), rel=1e-5)
    assert point.distance == pytest.approx(float(xp.sum(point.size)), rel=1e-5)
    values, gaps, _ = solver.problem.bounds(point.g, Y)
    if math.isinf(lam):
        assert float(xp.sum(gaps)) < 1e-2
    else:
        assert float(xp.sum(gaps)) < (1e-4 if dtype == "float64" else 1e-2)
    expected = solver.problem.value(point.marginal) + solver.problem.mass * point.shift
    dual = to_numpy(xp.sum(Y, axis=1) - solver.problem.mass) * lam if lam == 1.0 else None
    if dual is not None:
        np.testing.assert_allclose(
            dual - to_numpy(expected), to_numpy(values), rtol=1e-3, atol=1e-4
        )


def test_agrees_with_the_solver_of_all_samples_together(array):
    X, Y = stacks()
    problem = wtf.Wasserstein(wtf.grid_cost(BINS), eps=0.02, lam=1.0).bind(array(X))
    start, until, found = array(0.0 * X), Until(1e-11, 1e-5, least=2, most=1000), []
    for kind in (FusedSinkhorn, Sinkhorn):
        points, n = kind(problem, start).iterates(array(Y), 1e-11, 1000, until=until), 0
        while n < until.most:
            point = next(points)
            n += point.iterations
            if point.error <= until.error and point.distance <= until.distance:
                break
        found.append(to_numpy(problem.bounds(point.g, array(Y))[0]))
    np.testing.assert_allclose(*found, rtol=1e-8, atol=1e-9)


def test_weights_of_samples_count(array):
    weights = np.where(np.arange(SAMPLES) % 2, 1.0, 1e-6)
    solver, Y = solver_for(array, weights=weights)
    point = next(solver.iterates(Y, until=Until(1e-7, math.inf, least=2, most=400)))
    errors = to_numpy(point.decrement)
    assert float(np.sum(errors * weights)) <= 1e-7
    assert errors[::2].max() > errors[1::2].max()


def test_next_model_continues(array):
    """From where it ended, a near model takes fewer iterations."""
    until = Until(1e-8, 1e-2, least=2, most=400)
    numbers = []
    for continues in (False, True):
        solver, Y = solver_for(array)
        next(solver.iterates(Y, until=until))
        before = solver.evaluations
        solver.continues = continues
        if not continues:
            solver.g = 0.0 * Y
        assert next(solver.iterates(Y * 1.001, until=until)).error <= until.error
        numbers.append(solver.evaluations - before)
    assert numbers[1] < numbers[0]


def test_first_model_starts_from_the_given_potential(array):
    """Whatever the caller knows of the solver before: there are no secants to follow."""
    solver, Y = solver_for(array)
    start = array(np.random.default_rng(3).normal(size=(SAMPLES, BINS)))
    solver.g, solver.continues = start, True
    point = next(solver.iterates(Y))
    shift = to_numpy(point.g) - to_numpy(start)
    np.testing.assert_allclose(shift, shift[:, :1] + 0.0 * shift, atol=1e-12)


def test_iterates_without_end(array):
    """One iteration each, of the samples that still matter; earlier ones are not overwritten."""
    solver, Y = solver_for(array)
    points, before, errors = solver.iterates(Y), None, []
    for _ in range(60):
        point = next(points)
        assert point.iterations == 1
        if before is not None:
            np.testing.assert_array_equal(to_numpy(before[0].g), before[1])
        before = point, to_numpy(point.g).copy()
        errors.append(point.error)
    assert errors[-1] < 1e-6 * errors[0]
    assert solver.evaluations < 60


def test_few_samples_make_several_iterations(array):
    """Which take no longer than one of all samples."""
    solver, Y = solver_for(array, weights=np.where(np.arange(SAMPLES) < 3, 1.0, 1e-300))
    points = solver.iterates(Y)
    next(points)
    assert solver._iterations == SAMPLES
    assert next(points).iterations == 1
    assert SAMPLES + 3 < solver._iterations <= SAMPLES + 3 * POLICY.check_every


def test_number_of_iterations_is_limited(array):
    """All samples have to go on: no more than asked; a few of them: some times as many."""
    solver, Y = solver_for(array)
    assert next(solver.iterates(Y, until=Until(1e-300, 0.0, least=2, most=5))).iterations == 5
    solver, Y = solver_for(array, weights=np.where(np.arange(SAMPLES) < 3, 1.0, 1e-300))
    point = next(solver.iterates(Y, until=Until(1e-200, math.inf, least=2, most=5)))
    assert point.iterations == 2 + POLICY.max_iter_ratio * 3


@pytest.mark.parametrize(("eps", "ratio"), [(0.002, LATE_RATIO), (0.02, POLICY.max_iter_ratio)])
def test_more_iterations_where_newton_follows(array, eps, ratio):
    """Bins 13 eps apart: its steps would take longer."""
    X, Y = (array(stack) for stack in stacks())
    problem = wtf.Wasserstein(wtf.grid_cost(BINS), eps=eps, lam=1.0).bind(X)
    assert (problem.kernel.spacing() > 4 * eps) == (ratio == LATE_RATIO)
    weights = array(np.where(np.arange(SAMPLES) < 3, 1.0, 1e-300))
    solver = FusedSinkhorn(problem, 0.0 * X, weights)
    point = next(solver.iterates(Y, until=Until(1e-200, math.inf, least=2, most=5)))
    assert point.iterations == 2 + ratio * 3


def test_more_secants_after_a_long_solve(array):
    solver, Y = solver_for(array, bins=300, samples=2)
    until = Until(1e-9, 1e-3, least=2, most=400)
    next(solver.iterates(Y, until=until))
    assert solver._state.scales.shape[1] < LONG_MEMORY
    solver.continues = True
    point = next(solver.iterates(Y * 1.01, until=until))
    assert solver._state.scales.shape[1] == LONG_MEMORY
    assert point.error <= until.error


def test_result_does_not_depend_on_the_number_of_threads(array, monkeypatch):
    monkeypatch.setattr(threads, "LEAST_ENTRIES", 1)
    found = []
    for count in (1, 3):
        monkeypatch.setattr(threads, "thread_count", lambda count=count: count)
        monkeypatch.setattr(threads, "_pools", {})
        solver, Y = solver_for(array)
        point = next(solver.iterates(Y, until=Until(1e-8, 1e-2, least=2, most=400)))
        found.append((to_numpy(point.g), point.error, point.iterations))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


@given(hnp.arrays(float, st.integers(1, 20), elements=st.floats(0.0, 1e3)), st.floats(1e-9, 1e4))
def test_common_limit(errors, total):
    """Those above it come down to it, and together they have the total."""
    limit = common_limit(errors, total)
    reached = np.minimum(errors, limit)
    assert reached.sum() <= total * (1 + 1e-12) or errors.sum() <= total
    if errors.sum() > total:
        assert reached.sum() == pytest.approx(total)


def test_common_limit_of_errors_that_are_not_known():
    assert common_limit(np.asarray([1.0, math.nan]), 1.0) <= 1.0


@pytest.mark.parametrize("lam", [1.0, math.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fits_are_those_of_the_other_solver(array, xp, monkeypatch, lam, dtype):
    if math.isinf(lam):
        spare_jax(xp)
    X = data((30, 5, 4))
    loss = wtf.Wasserstein(wtf.grid_cost(5, 4), eps=0.05, lam=lam)
    options = {"rho": 0.01, "rng": 0, "constraints": ("rows", None, None)}
    if math.isinf(lam):
        options = {"rho": 0.01, "rng": 0, "constraints": ("rows", "columns", "columns")}
    objectives = []
    for least in (0, 10**9):
        set_thresholds(monkeypatch, fused_entries=least, escape_entries=0)
        fit = wtf.cp(array(X, dtype), 2, loss, **options)
        assert fit.converged
        assert fit.factors[0].dtype == array(X, dtype).dtype
        objectives.append(fit.objective)
    assert objectives[0] == pytest.approx(objectives[1], rel=2e-4)


def test_values_and_gradients_are_those_of_the_other_solver(array, monkeypatch):
    X, Y = (array(stack) for stack in stacks())
    loss = wtf.Wasserstein(wtf.grid_cost(BINS), eps=0.02, lam=1.0)
    set_thresholds(monkeypatch, fused_entries=0)
    assert isinstance(inner_solver(loss.bind(X), 0.0 * X), FusedSinkhorn) == is_on_host(X)
    fused = wtf.wasserstein(X, Y, loss, tol=1e-10)
    set_thresholds(monkeypatch, fused_entries=10**9)
    other = wtf.wasserstein(X, Y, loss, tol=1e-10)
    assert fused.converged
    np.testing.assert_allclose(to_numpy(fused.value), to_numpy(other.value), rtol=1e-8)
    np.testing.assert_allclose(
        to_numpy(fused.gradient), to_numpy(other.gradient), rtol=1e-3, atol=1e-3
    )
