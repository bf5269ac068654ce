"""The loss of samples that several processes hold is the loss of all of them."""

import numpy as np
import pytest
from helpers import numpy_only, set_thresholds

import wtfarray as wtf
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.sums import Sums
from wtfarray._losses.selection import terms_of
from wtfarray._losses.sparse_samples import SparseSamplesTerm
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._transport import anderson
from wtfarray.distributed import run_threads

pytestmark = numpy_only


def evaluated(loss, X, Y, shards):
    """Value and gradient, of an evaluation and of a certificate, and the term that found them."""
    (term,) = terms_of([loss], X, None, None, shards=shards)
    found = [term.evaluate(Y, 1e-7 * term.scale, 200), term.certify(Y, 1e-4 * term.scale, 500)]
    return term, [(v.value, v.error, v.gap, v.gradient, v.converged) for v in found]


def check(loss, X, Y, cuts, kind):
    """The sums over the parts are those of the whole; returns the term of the whole."""
    whole, expected = evaluated(loss, X, Y, WHOLE)
    assert isinstance(whole, kind)
    counts = tuple(len(part) for part in np.split(X, cuts))

    def part(comm):
        shards = Shards(Sums(comm), counts)
        mine = [np.split(array, cuts)[comm.rank] for array in (X, Y)]
        return evaluated(loss, *mine, shards)

    parts = run_threads(part, len(counts), timeout=30.0)
    for k, (value, error, gap, gradient, converged) in enumerate(expected):
        found = [values[k] for _, values in parts]
        assert sum(f[0] for f in found) == pytest.approx(value, rel=1e-11)
        assert sum(f[1] for f in found) == pytest.approx(error, rel=1e-3, abs=1e-14)
        assert sum(f[2] for f in found) == pytest.approx(gap, rel=1e-3, abs=1e-14)
        np.testing.assert_allclose(np.concatenate([f[3] for f in found]), gradient, atol=1e-9)
        assert converged
        assert all(f[4] for f in found)
    for term, _ in parts:
        assert isinstance(term, kind)
        assert term.scale == pytest.approx(whole.scale, rel=1e-14)
    return whole, [term for term, _ in parts]


@pytest.fixture(autouse=True)
def accurate_secants(monkeypatch):
    monkeypatch.setattr(anderson, "STORED", "float64")


@pytest.mark.parametrize("cuts", [[2, 22], [0, 30], [20]])
def test_stragglers_on_some_ranks_only(monkeypatch, cuts):
    set_thresholds(monkeypatch, straggler_least=0)
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, 20)
    centres = rng.uniform(0.4, 0.6, size=(2, 40, 1))
    centres[1, :3] = 0.05
    widths = np.full((2, 40, 1), 3.0)
    widths[:, :3] = 0.03
    stacks = np.exp(-0.5 * ((x - centres) / widths) ** 2) + 1e-9
    X, Y = stacks / stacks.sum(axis=2, keepdims=True)
    loss = wtf.Wasserstein(wtf.grid_cost(20), eps=0.01, lam=5.0)
    whole, parts = check(loss, X, Y, cuts, TransportTerm)
    assert whole._solvers[0].spent > whole._solvers[0]._length  # some went on alone
    for part in parts:
        for solver in part._solvers:
            assert solver.spent == whole._solvers[0].spent


def test_sparse_samples():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.5, 1.0, (30, 4, 64)) * (rng.uniform(size=(30, 4, 64)) < 0.01)
    Y = rng.dirichlet(np.ones(64), (30, 4))
    loss = wtf.Wasserstein(wtf.grid_cost(64), eps=0.05, lam=10.0, modes=(2,))
    check(loss, X, Y, [11], SparseSamplesTerm)


def test_newton_of_few_bins():
    rng = np.random.default_rng(0)
    X, Y = rng.dirichlet(np.ones(5), (2, 12))
    loss = wtf.Wasserstein(wtf.grid_cost(5), eps=1e-3, lam=1.0)
    check(loss, X, Y, [5, 6], TransportTerm)
