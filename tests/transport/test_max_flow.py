"""Infeasible balanced transport: found by a maximum flow, without iterations."""

import itertools

import numpy as np
import pytest
from helpers import numpy_only

import wtfarray as wtf
from wtfarray._transport.max_flow import bottleneck


def is_feasible(supply, demand, allowed):
    """Hall's condition for every set of sources."""
    for size in range(1, len(supply) + 1):
        for sources in itertools.combinations(range(len(supply)), size):
            targets = allowed[list(sources)].any(axis=0)
            if supply[list(sources)].sum() > demand[targets].sum() + 1e-12:
                return False
    return True


@numpy_only
def test_bottleneck_agrees_with_the_condition_of_hall():
    rng = np.random.default_rng(0)
    counts = {True: 0, False: 0}
    for _ in range(400):
        m = int(rng.integers(1, 6))
        allowed = (rng.random((m, m)) < rng.uniform(0.2, 0.9)) | np.eye(m, dtype=bool)
        supply, demand = (rng.multinomial(12, np.ones(m) / m) / 12.0 for _ in range(2))
        found = bottleneck(supply, demand, allowed, 1e-9)
        expected = is_feasible(supply, demand, allowed)
        assert (found is None) == expected
        counts[expected] += 1
        if found is not None:
            targets = allowed[found.sources].any(axis=0)
            assert found.supply == pytest.approx(supply[found.sources].sum())
            assert found.demand == pytest.approx(demand[targets].sum())
            assert found.supply > found.demand
    assert min(counts.values()) > 50


@numpy_only
def test_mass_within_the_tolerance_is_let_pass():
    allowed = np.asarray([[True, True], [False, True]])
    supply, demand = np.asarray([0.5, 0.5]), np.asarray([0.5 + 1e-7, 0.5 - 1e-7])
    assert bottleneck(supply, demand, allowed, 1e-6) is None
    assert bottleneck(supply, demand, allowed, 1e-8) is not None


def test_infeasible_transport_is_refused_at_once(array):
    """Forty bins and seven samples, as many iterations as there are: refused before the first."""
    rng = np.random.default_rng(0)
    C = np.abs(np.subtract.outer(np.arange(40.0), np.arange(40.0)))
    C = np.where(rng.random((40, 40)) < 0.9, np.inf, C)
    np.fill_diagonal(C, 0.0)
    X, Y = (rng.dirichlet(np.full(40, 0.3), 7) for _ in range(2))
    loss = wtf.Wasserstein(C, eps=0.05)
    with pytest.raises(ValueError, match=r"Y cannot be reached .* sample 0: the bins .* in Y:"):
        wtf.wasserstein(array(X), array(Y), loss, max_iter=10**9)
