"""Samples that converge late: they are iterated without the others."""

import math

import numpy as np
import pytest
from fitting import spare_jax
from helpers import set_thresholds, to_numpy

import wtfarray as wtf
from wtfarray._transport import stragglers
from wtfarray._transport.sinkhorn import Sinkhorn
from wtfarray._transport.stragglers import StragglerPolicy


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    set_thresholds(monkeypatch, straggler_least=0)


def few_are_hard(n=40, m=20, hard=4):
    """Smooth samples, and some narrow ones whose model lies far from the data."""
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, m)
    centres = rng.uniform(0.4, 0.6, size=(2, n, 1))
    centres[1, :hard] = 0.05
    widths = np.full((2, n, 1), 3.0)
    widths[:, :hard] = 0.03
    stacks = np.exp(-0.5 * ((x - centres) / widths) ** 2) + 1e-9
    return stacks / stacks.sum(axis=2, keepdims=True)


def iterations(problem, xp, Y):
    """Solve to an estimated error; the last point, how many there were, and the solver."""
    solver = Sinkhorn(problem, xp.zeros_like(Y))
    for n, point in enumerate(solver.iterates(Y), start=1):
        if float(xp.sum(point.decrement)) <= 1e-11 or n == 2000:
            return point, n, solver
    raise AssertionError


@pytest.mark.parametrize("lam", [5.0, math.inf])
def test_stragglers_converge_without_the_others_iterating(xp, array, lam, monkeypatch):
    if lam == math.inf:
        spare_jax(xp)
    X, Y = map(array, few_are_hard())
    problem = wtf.Wasserstein(wtf.grid_cost(20), eps=0.01, lam=lam).bind(X)
    point, n, solver = iterations(problem, xp, Y)
    set_thresholds(monkeypatch, straggler_samples=10**9)
    together, patient, waiting = iterations(problem, xp, Y)
    assert waiting.spent == patient - 1  # no sample was iterated alone
    assert n < 0.7 * patient
    assert n < solver.spent
    values = [to_numpy(problem.bounds(p.g, Y)[0]) for p in (point, together)]
    np.testing.assert_allclose(*values, rtol=0, atol=1e-9)


def test_stragglers_that_do_not_converge_are_split_off_once(xp, array, monkeypatch):
    """With an allowance of one iteration the stragglers fail, and all samples iterate together."""
    spare_jax(xp)
    X, Y = map(array, few_are_hard())
    problem = wtf.Wasserstein(wtf.grid_cost(20), eps=0.01, lam=5.0).bind(X)
    monkeypatch.setattr(stragglers, "POLICY", StragglerPolicy(max_iter=1))
    _, n, solver = iterations(problem, xp, Y)
    assert n < 2000
    assert solver.spent == n - 1  # the stragglers took one iteration, and no second
    assert solver.evaluations == n + 1


def test_samples_of_weight_zero_are_no_stragglers(xp, array):
    """Samples of weight zero neither delay the others nor are iterated alone."""
    spare_jax(xp)
    X, Y = map(array, few_are_hard())
    problem = wtf.Wasserstein(wtf.grid_cost(20), eps=0.01, lam=5.0).bind(X)
    weights = array(np.where(np.arange(40) < 4, 0.0, 1.0))
    spent = []
    for given in (weights, None):
        solver = Sinkhorn(problem, xp.zeros_like(Y), weights=given)
        points = solver.iterates(Y)
        for _ in range(23):
            point = next(points)
        assert float(xp.sum(point.decrement * weights)) <= 1e-8
        spent.append(solver.spent)
    assert spent[0] == 22
    assert spent[1] > 22


def test_iterations_of_stragglers_are_bounded_by_max_iter(xp, array):
    """`max_iter` bounds the iterations of all samples and of the stragglers."""
    X, Y = map(array, few_are_hard())
    problem = wtf.Wasserstein(wtf.grid_cost(20), eps=0.005, lam=math.inf).bind(X)
    solver = Sinkhorn(problem, xp.zeros_like(Y))
    points = solver.iterates(Y, max_iter=9)
    for _ in range(9):
        next(points)
    assert 9 < solver.spent <= 9 + 4 * 9


def test_value_is_the_sum_over_parts_for_zeros_and_any_mass(xp, array):
    spare_jax(xp)
    X, Y = few_are_hard()
    X[5], Y[6, :10] = 0.0, 0.0
    X[:10] *= 100.0
    loss = wtf.Wasserstein(wtf.grid_cost(20), eps=0.05, lam=2.0)
    whole = wtf.wasserstein(array(X), array(Y), loss, tol=1e-9)
    assert whole.converged
    parts = [
        wtf.wasserstein(array(X[i : i + 8]), array(Y[i : i + 8]), loss, tol=1e-9)
        for i in range(0, 40, 8)
    ]
    assert float(whole.value) == pytest.approx(sum(float(p.value) for p in parts), rel=1e-8)
