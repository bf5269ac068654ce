"""Fits of several processes, as threads of one, beside the fit of a single process."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers import to_numpy

import wtfarray as wtf
from wtfarray.distributed import run_threads

quietly = pytest.mark.filterwarnings("ignore:(cp|nmf|tucker). (stopped|interrupted):UserWarning")
"""Filters of warnings hold for all threads: they are set for a whole test."""
TIMEOUT = 60.0
"""Seconds after which a rank that waits for ever fails a test."""


@dataclass(frozen=True)
class Trace:
    """A fit, and the objective of each of its steps."""

    fit: Any
    steps: list[float]


def traced(function, X, *args, last=math.inf, **options):
    """A fit of at most ``last`` steps, with the objective of each."""
    steps = []

    def keep(state):
        steps.append(state.objective)
        return len(steps) >= last

    return Trace(function(X, *args, callback=keep, **options), steps)


def parts(values, cuts):
    """Values cut along the first axis, one part for each rank; None for all if there are none."""
    return [None] * (len(cuts) + 1) if values is None else np.split(values, cuts)


def team_fit(array, function, X, cuts, *args, sample_weight=None, **options):
    """The traces of all ranks, of which rank k has the k-th part of the samples."""
    shares, weights = parts(X, cuts), parts(sample_weight, cuts)

    def fit(comm):
        mine = dict(options)
        if sample_weight is not None:
            mine["sample_weight"] = array(weights[comm.rank])
        return traced(function, array(shares[comm.rank]), *args, comm=comm, **mine)

    return run_threads(fit, len(cuts) + 1, timeout=TIMEOUT)


def relative_differences(one, other, count=10):
    """Of the first steps of two traces."""
    assert min(len(one.steps), len(other.steps)) >= count
    pairs = zip(one.steps[:count], other.steps[:count], strict=True)
    return np.asarray([abs(a - b) / abs(a) for a, b in pairs])


def blocks_but_first(fit):
    """All that every rank has to have alike."""
    last = [block for block in (fit.core, fit.weights) if block is not None]
    return [to_numpy(block) for block in (*fit.factors[1:], *last)]


def assert_alike(traces):
    """Every rank has the same bits of everything but the rows of its samples."""
    first = traces[0].fit
    for trace in traces[1:]:
        fit = trace.fit
        pairs = zip(blocks_but_first(first), blocks_but_first(fit), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)
        assert trace.steps == traces[0].steps
        assert (fit.objective, fit.gap, fit.message) == (first.objective, first.gap, first.message)
        assert [r.evaluations for r in fit.history] == [r.evaluations for r in first.history]


def images(n=24, shape=(6, 6), concentration=1.0, seed=0):
    """Random images of mass one."""
    rng = np.random.default_rng(seed)
    X = rng.dirichlet(np.full(int(np.prod(shape)), concentration), n)
    return X.reshape(n, *shape)


GRID_LOSS = wtf.Wasserstein(wtf.grid_cost(6, 6), eps=0.05, lam=10.0)
