"""The solver "dual": block descent that leaves the saddle points of small fits."""

import itertools
import math

import numpy as np
import pytest
from fitting import unfinished
from helpers import numpy_only, set_thresholds
from joint_problems import matrix_problem, samples

import wtfarray as wtf
from wtfarray._solvers import block_descent, blockwise
from wtfarray._solvers import problem as problems
from wtfarray._solvers.blockwise import solve_blockwise
from wtfarray._solvers.stop_reason import StopReason

pytestmark = numpy_only


X = np.random.default_rng(1).dirichlet(np.full(12, 0.3), 2).reshape(2, 3, 4)
LOSS = wtf.Wasserstein(wtf.grid_cost(3, 4), eps=0.3, lam=10.0)
SADDLE = -2.1057
"""The objective at which block descent stays, within its tolerance."""
TOL = 1e-3


@pytest.fixture(autouse=True)
def few_sweeps(monkeypatch):
    """The initial factors from which block descent comes to the saddle point."""
    set_thresholds(monkeypatch, most_sweeps=20)


def fitted(**options):
    return wtf.tucker(X, (2, 2, 2), LOSS, rho=1e-2, rng=1, tol=TOL, **options)


def test_fit_leaves_a_saddle_point():
    fit = fitted(solver="dual")
    assert fit.converged
    assert fit.objective < SADDLE - 0.05
    again = fitted(init=fit)
    assert fit.objective - again.objective < 1e-3 * abs(fit.objective)
    objectives = [record.objective for record in fit.history]
    assert all(b <= a for a, b in itertools.pairwise(objectives))
    evaluations = [record.evaluations for record in fit.history]
    assert all(a <= b for a, b in itertools.pairwise(evaluations))


def test_larger_fits_are_not_restarted(monkeypatch):
    """What the restarts are good for: without them the fit stays at the saddle point."""
    set_thresholds(monkeypatch, escape_entries=X.size - 1)
    assert fitted(solver="dual").objective == pytest.approx(SADDLE, rel=TOL)


def test_callback_sees_the_lower_point_and_can_stop_there():
    states = []

    def stop(state):
        states.append(state)
        return state.objective < SADDLE - 1e-3

    with unfinished("stopped by the callback"):
        fit = fitted(solver="dual", callback=stop)
    assert fit.stopped
    assert states[-1].objective < SADDLE - 1e-3 <= min(s.objective for s in states[:-1])
    assert [state.n_iter for state in states] == list(range(1, len(states) + 1))
    for mine, last in zip([*fit.factors, fit.core], states[-1].blocks(), strict=True):
        np.testing.assert_array_equal(mine, last)


def test_fit_whose_restart_took_too_much_work_has_not_converged(monkeypatch):
    def exhausted(problem, *_, **options):
        problem.terms[0].count_evaluations(10**6, 1.0)

    monkeypatch.setattr(blockwise, "_lower_point", exhausted)
    with unfinished("very many evaluations"):
        fit = fitted(solver="dual")
    assert not fit.converged
    assert fit.objective == pytest.approx(SADDLE, rel=TOL)


def test_sweep_without_an_upper_bound_is_reported_with_a_lower_one(monkeypatch):
    """Balanced, with infinite costs, and too few iterations to find a feasible plan."""
    monkeypatch.setattr(block_descent, "BLOCK_ITERATIONS", 1)
    monkeypatch.setattr(problems, "ROUGH_ITERATIONS", 1)
    certify = problems.FactorisationProblem.certify
    monkeypatch.setattr(
        problems.FactorisationProblem,
        "certify",
        lambda problem, blocks, share: certify(problem, blocks, share, 1),
    )
    cost = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
    loss = wtf.Wasserstein(np.where(cost > 1, np.inf, cost), 1e-3, math.inf)
    X, sweeps = samples(), []
    problem, blocks = matrix_problem(np.asarray, loss, X)
    found = solve_blockwise(
        problem,
        loss.bind(X),
        blocks,
        tol=1e-6,
        max_iter=9,
        report=lambda sweep: bool(sweeps.append(sweep)),
    )
    assert found.reason is StopReason.UNSOLVED
    (sweep,) = sweeps
    assert math.isfinite(sweep.objective)
    assert sweep.gap == math.inf
