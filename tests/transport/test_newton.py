"""Newton's method for the inner problem of samples of few bins that lie far apart."""

import itertools
import math

import numpy as np
import ot
import pytest
from array_api_compat import is_array_api_strict_namespace
from fitting import spare_jax
from helpers import numpy_only, set_thresholds, to_numpy
from hypothesis import given
from hypothesis import strategies as st

import wtfarray as wtf
from wtfarray._transport.inner_solver import inner_solver
from wtfarray._transport.newton import Newton
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.sinkhorn import Sinkhorn

LAMS = [0.5, 1e3, math.inf]


def spare(xp):
    """Skip the libraries that are slow at many small steps."""
    spare_jax(xp)
    if is_array_api_strict_namespace(xp):
        pytest.skip("slow on array-api-strict: one case is tested with it")


def histograms(n=3, m=6, seed=0, zeros=0.0):
    """Two stacks of samples that weigh 1."""
    rng = np.random.default_rng(seed)
    stacks = rng.gamma(0.7, size=(2, n, m)) + 1e-6
    stacks[rng.random(stacks.shape) < zeros] = 0.0
    stacks[:, :, 0] += 1e-3
    return stacks / stacks.sum(axis=2, keepdims=True)


def bound(array, X, m, eps, lam):
    """The problem of X on a line of m bins."""
    return wtf.Wasserstein(wtf.grid_cost(m), eps=eps, lam=lam).bind(array(X))


def solved(solver, Y, iterations=40):
    """The last of some iterates."""
    points = solver.iterates(Y)
    return [next(points) for _ in range(iterations)][-1]


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize("eps", [1e-4, 1e-3, 0.03])
def test_newton_converges_where_sinkhorn_does_not(xp, array, eps, lam):
    if (eps, lam) != (1e-3, 1e3):
        spare(xp)
    X, Y = map(array, histograms(zeros=0.2))
    problem = bound(array, to_numpy(X), 6, eps, lam)
    solver = inner_solver(problem, xp.zeros_like(Y))
    assert isinstance(solver, Newton)
    point = solved(solver, Y)
    _, gaps, _ = problem.bounds(point.g, Y)
    scale = eps + abs(float(xp.sum(problem.bounds(point.g, Y)[0])))
    assert float(xp.sum(gaps)) <= 1e-8 * scale


@pytest.mark.parametrize("eps", [1e-4, 1e-2])
def test_value_is_the_earth_movers_distance_up_to_smoothing(xp, array, eps):
    if eps != 1e-2:
        spare(xp)
    X, Y = histograms(seed=1)
    cost = np.asarray(wtf.grid_cost(6)[0])
    exact = sum(ot.emd2(x, y, cost) for x, y in zip(X, Y, strict=True))
    loss = wtf.Wasserstein([cost], eps=eps, lam=math.inf)
    result = wtf.wasserstein(array(X), array(Y), loss)
    assert result.converged
    # eps E(P) of a plan of mass 1 lies between that of a spread plan and that of a single entry.
    least = exact - eps * len(X) * (1.0 + math.log(36.0))
    assert least <= float(result.value) <= exact - eps * len(X) + result.gap + 1e-12


@numpy_only
@given(
    seed=st.integers(0, 10_000),
    m=st.integers(2, 8),
    eps=st.floats(-4.0, -1.0).map(lambda x: 10.0**x),
    lam=st.sampled_from([0.1, 10.0, 1e4, math.inf]),
)
def test_dual_value_rises_and_the_decrement_bounds_its_error(seed, m, eps, lam):
    X, Y = histograms(m=m, seed=seed)
    problem = bound(np.asarray, X, m, eps, lam)
    points = Newton(problem, np.zeros_like(Y)).iterates(Y)
    values, errors = [], []
    for _ in range(30):
        point = next(points)
        values.append(problem.bounds(point.g, Y)[0])
        errors.append(point.decrement)
    best = values[-1]
    rounding = 1e-10 * (np.abs(best) + eps)
    assert all(np.all(best - v <= e + rounding) for v, e in zip(values, errors, strict=True))
    rises = [np.all(b - a >= -rounding) for a, b in itertools.pairwise(values)]
    assert all(rises)
    assert np.all(errors[-1] <= 1e-6 * (np.abs(best) + eps))


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_newton_agrees_with_sinkhorn_where_both_converge(xp, array, dtype, lam):
    if (dtype, lam) != ("float64", 0.5):
        spare(xp)
    X, Y = (array(stack, dtype) for stack in histograms(seed=2, zeros=0.1))
    problem = wtf.Wasserstein(wtf.grid_cost(6), eps=0.3, lam=lam).bind(X)
    start = xp.zeros_like(Y)
    solvers = Newton(problem, start), Sinkhorn(problem, start)
    points = [solved(solver, Y).g for solver in solvers]
    values = [to_numpy(problem.bounds(g, Y)[0]) for g in points]
    assert np.allclose(*values, rtol=1e-9 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize("lam", LAMS)
def test_potentials_of_nearly_empty_bins_converge(xp, array, lam):
    """The gradient there decides whether a factor grows, however small the mass."""
    if lam != math.inf:
        spare(xp)
    X, Y = histograms(seed=5)
    Y[:, 2], Y[1, 4], Y[2, 5] = 1e-30, 1e-300, 1e-9
    Y /= Y.sum(axis=1, keepdims=True)
    point = solved(Newton(bound(array, X, 6, 0.01, lam), array(0.0 * Y)), array(Y))
    assert np.max(np.abs(to_numpy(point.residual))) <= 1e-6 * point.unit


@numpy_only
@pytest.mark.parametrize("lam", [10.0, math.inf])
def test_chunks_of_samples_give_the_same_marginals(monkeypatch, lam):
    X, Y = histograms(n=7, seed=3)
    problem = bound(np.asarray, X, 6, 1e-3, lam)
    whole = solved(Newton(problem, np.zeros_like(Y)), Y)
    set_thresholds(monkeypatch, newton_entries=80)  # two samples
    parts = solved(Newton(problem, np.zeros_like(Y)), Y)
    assert np.allclose(whole.marginal.q, parts.marginal.q, rtol=1e-9, atol=1e-14)


@numpy_only
@pytest.mark.parametrize("lam", [10.0, math.inf])
def test_empty_samples_and_single_bins_are_solved(lam):
    X, Y = histograms(n=4, seed=4)
    X[0] = Y[0] = 0.0
    X[1], X[2] = np.eye(6)[5], np.eye(6)[0]
    Y[2] = np.eye(6)[5]
    if not math.isinf(lam):
        Y[0] = 1.0 / 6.0
    problem = bound(np.asarray, X, 6, 1e-3, lam)
    point = solved(Newton(problem, np.zeros_like(Y)), Y)
    values, gaps, _ = problem.bounds(point.g, Y)
    assert np.all(gaps <= 1e-8)
    assert values[0] == pytest.approx(0.0 if math.isinf(lam) else lam)
    if math.isinf(lam):  # all of the mass goes from one end to the other
        assert values[2] == pytest.approx(wtf.grid_cost(6)[0][0, 5] - 1e-3)


@numpy_only
@pytest.mark.parametrize(
    ("shape", "eps", "lam", "few"),
    [
        ((9, 4), 0.01, 10.0, True),
        ((9, 4), 1.0, math.inf, False),
        ((9, 64), 1e-3, math.inf, True),
        ((9, 64), 1e-3, 10.0, False),
        ((9, 65), 1e-4, 10.0, False),
        ((9, 12, 12), 1e-3, math.inf, True),
        ((9, 17, 17), 1e-3, math.inf, False),
        ((1, 1), 1e-3, 10.0, False),
    ],
)
def test_newton_is_chosen_for_few_bins_that_lie_far_apart(shape, eps, lam, few):
    loss = wtf.Wasserstein(wtf.grid_cost(*shape[1:]), eps=eps, lam=lam)
    problem = loss.bind(np.ones(shape))
    assert isinstance(problem, TransportProblem)
    assert isinstance(inner_solver(problem, np.zeros(shape)), Newton) == few


@numpy_only
@pytest.mark.parametrize("seed", [5, 7, 8, 11, 13])
@pytest.mark.parametrize("lam", [1e3, math.inf])
def test_fits_with_few_bins_converge(seed, lam):
    rng = np.random.default_rng(seed)
    m, rank = int(rng.integers(2, 7)), int(rng.integers(1, 4))
    X = rng.dirichlet(np.ones(m), int(rng.integers(2, 8)))
    loss = wtf.Wasserstein(wtf.grid_cost(m), eps=10.0 ** rng.uniform(-2.5, -1.3), lam=lam)
    fit = wtf.nmf(X, rank, loss, rho=10.0 ** rng.uniform(-5, -1), rng=seed, tol=1e-5)
    assert fit.converged, fit.message


def at_the_limit_of_float32(array):
    """A solver in float32 whose exponents, of order 1e4, leave three digits; and Y."""
    X, Y = (array(stack, "float32") for stack in histograms(n=4, m=6, seed=6))
    loss = wtf.Wasserstein([25.0 * np.asarray(wtf.grid_cost(6)[0])], eps=1e-3, lam=math.inf)
    return Newton(loss.bind(X), 0.0 * Y), Y


@pytest.mark.parametrize("case", ["float64", "float32"])
def test_iterates_at_the_accuracy_of_the_arithmetic_cost_nothing(xp, array, case):
    spare(xp)
    solver, Y = at_the_limit_of_float32(array)
    if case == "float64":
        X, Y = map(array, histograms(seed=6))
        solver = Newton(bound(array, to_numpy(X), 6, 1e-3, math.inf), 0.0 * Y)
    points = solver.iterates(Y)
    for _ in range(100):
        before = next(points)
    spent = solver.evaluations
    for _ in range(200):
        after = next(points)
    assert solver.evaluations == spent
    np.testing.assert_array_equal(to_numpy(after.g), to_numpy(before.g))


def test_solve_that_starts_where_the_last_one_settled_repeats_it(xp, array):
    spare(xp)
    solver, Y = at_the_limit_of_float32(array)
    last = solved(solver, Y, 100)
    spent = solver.evaluations
    again = solved(solver, array(to_numpy(Y), "float32"), 100)
    assert solver.evaluations == spent + 1
    np.testing.assert_allclose(to_numpy(again.decrement), to_numpy(last.decrement), rtol=1e-6)
    # Another model is solved again.
    solved(solver, Y[:, ::-1] if isinstance(Y, np.ndarray) else xp.flip(Y, axis=1), 3)
    assert solver.evaluations > spent + 3


@numpy_only
def test_settled_samples_do_not_hold_back_the_others():
    """One sample starts at its solution, another far from it: the latter is still solved."""
    X, Y = histograms(n=2, m=6, seed=7)
    problem = bound(np.asarray, X, 6, 1e-3, 10.0)
    exact = solved(Newton(problem, np.zeros_like(Y)), Y, 100).g
    start = np.stack([exact[0], 0.0 * exact[1]])
    point = solved(Newton(problem, start), Y, 60)
    _, gaps, _ = problem.bounds(point.g, Y)
    assert np.all(gaps <= 1e-10)
