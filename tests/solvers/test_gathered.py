"""Prox-linear steps of several processes."""

from functools import cache

import numpy as np
import pytest
from helpers import numpy_only
from teams import TIMEOUT, assert_alike, images, quietly, team_fit, traced

import wtfarray as wtf
from wtfarray._solvers import joint
from wtfarray._solvers.gathered import alternate_on_first
from wtfarray.distributed import run_threads

pytestmark = [numpy_only, quietly]
LOSS = wtf.Wasserstein(wtf.grid_cost(4), eps=5e-3, lam=1.0)


@cache
def of_one_process():
    return traced(wtf.nmf, images(6, (4,), 2.0), 2, LOSS, rng=0, tol=1e-5)


@pytest.mark.parametrize("cuts", [[3], [0, 4]])
def test_ends_where_one_process_does(array, cuts, monkeypatch):
    calls = []

    def counted(*args, **options):
        calls.append(1)
        return alternate_on_first(*args, **options)

    monkeypatch.setattr(joint, "alternate_on_first", counted)
    X, one = images(6, (4,), 2.0), of_one_process()
    team = team_fit(array, wtf.nmf, X, cuts, 2, LOSS, rng=0, tol=1e-5)
    assert calls
    assert len(calls) % len(team) == 0
    assert_alike(team)
    assert len({tuple(r.gap for r in trace.fit.history) for trace in team}) == 1
    fit = team[0].fit
    assert fit.converged == one.fit.converged
    assert fit.objective == pytest.approx(one.fit.objective, rel=1e-3)
    rows = np.concatenate([trace.fit.factors[0] for trace in team])
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)


def test_weights_missing_entries_and_a_fixed_first_factor(array):
    X = images(10, (4,), 2.0)
    mask = np.ones((10, 4), dtype=bool)
    mask[2, 1] = False
    first = np.random.default_rng(0).dirichlet(np.ones(2), 10)
    atoms = np.random.default_rng(1).dirichlet(np.ones(4), 2).T
    weights = np.linspace(0.5, 1.5, 10)
    options = {"fixed": (0,), "tol": 1e-4, "constraints": (None, "columns")}
    one = wtf.nmf(X, 2, LOSS, init=[first, atoms], mask=mask, sample_weight=weights, **options)

    def fit(comm):
        parts = [np.split(a, [4])[comm.rank] for a in (X, first, mask, weights)]
        more = {"init": [parts[1], atoms], "mask": parts[2], "sample_weight": parts[3]}
        return wtf.nmf(parts[0], 2, LOSS, comm=comm, **more, **options)

    for found in run_threads(fit, 2, timeout=TIMEOUT):
        assert found.objective == pytest.approx(one.objective, rel=1e-3)


def test_callback_of_another_rank_ends_the_steps():
    def fit(comm):
        mine = np.split(images(6, (4,), 2.0), [3])[comm.rank]
        last = 45 if comm.rank == 1 else np.inf
        return traced(wtf.nmf, mine, 2, LOSS, rng=0, tol=1e-7, last=last, comm=comm)

    first, second = run_threads(fit, 2, timeout=TIMEOUT)
    assert first.steps == second.steps
    assert first.fit.stopped or len(first.steps) < 45
