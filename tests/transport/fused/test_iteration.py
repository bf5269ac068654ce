"""Iterations in machine code, against those of all samples together."""

import math

import numpy as np
import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

import wtfarray as wtf
from wtfarray._transport.fused import iteration
from wtfarray._transport.fused.iteration import iterate
from wtfarray._transport.fused.state import (
    Course,
    Limits,
    as_rows,
    first_state,
    new_result,
    samples_of,
)
from wtfarray._transport.sinkhorn import Sinkhorn, memory_for

LAMS = [0.3, 10.0, math.inf]


def stacks(shape, lam, *, zeros, seed=0):
    """X and Y; with zeros in both, or in neither; balanced, of equal mass."""
    rng = np.random.default_rng(seed)
    X, Y = rng.gamma(0.5, size=(2, 4, *shape)) + 0.01
    if zeros:
        X[rng.random(X.shape) < 0.3] = Y[rng.random(Y.shape) < 0.3] = 0.0
        X.reshape(4, -1)[:, 0] = Y.reshape(4, -1)[:, -1] = 0.2
    if math.isinf(lam):
        axes = tuple(range(1, X.ndim))
        Y *= X.sum(axis=axes, keepdims=True) / Y.sum(axis=axes, keepdims=True)
    return X, Y


class Run:
    """Iterations of all samples of a problem."""

    def __init__(self, problem, *, safe=False):
        self.samples = samples_of(problem)
        count, bins = self.samples.X.shape
        self.state = first_state(count, bins, memory_for(bins))
        self.state.safe[...] = safe
        self.result = new_result(count, bins)

    def __call__(self, Y, limits, course, chosen=None, weights=None):
        count = Y.shape[0]
        chosen = np.arange(count) if chosen is None else chosen
        weights = np.ones(count) if weights is None else weights
        arguments = as_rows(Y), weights, chosen, 0, len(chosen), limits, course
        iterate(self.samples, self.state, self.result, *arguments)
        return self.result


def steps(n):
    return Limits(0.0, 0.0, n, n)


def assert_same(result, point, rtol):
    """The fields of a result, and those of an `Iterate`."""
    for name in ("g", "residual", "gradient", "decrement", "size", "shift"):
        found, expected = getattr(result, name), as_rows(getattr(point, name))
        expected = expected.reshape(found.shape)
        scale = np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * scale, err_msg=name)
    np.testing.assert_allclose(result.q, as_rows(point.marginal.q), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("shape", [(16,), (5, 4), (2, 3, 4)], ids=str)
def test_iterates_are_those_of_all_samples_together(shape, zeros, lam):
    X, Y = stacks(shape, lam, zeros=zeros)
    problem = wtf.Wasserstein(wtf.grid_cost(*shape), eps=0.1, lam=lam).bind(X)
    run = Run(problem)
    others = Sinkhorn(problem, np.zeros(X.shape)).iterates(Y)
    for n in range(6):
        result = run(Y, steps(1), Course(begins=n == 0))
        point = next(others)
        # Secants in float32 differ by rounding, and with them all that follows.
        assert_same(result, point, 1e-10 if n == 0 else 1e-4)
        values = problem.value(point.marginal) + problem.mass * point.shift
        logs = result.log_Kf.reshape(X.shape)
        np.testing.assert_allclose(
            problem.value_of_logs(logs) + problem.mass * result.shift, values, rtol=1e-5, atol=1e-5
        )
    np.testing.assert_array_equal(run.state.slot, 6 % memory_for(X[0].size))


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize("zeros", [False, True])
def test_log_domain(zeros, lam):
    X, Y = stacks((5, 4), lam, zeros=zeros)
    problem = wtf.Wasserstein(wtf.grid_cost(5, 4), eps=0.1, lam=lam).bind(X)
    plain, safe = Run(problem), Run(problem, safe=True)
    plain, safe = (run(Y, steps(1), Course(begins=True)) for run in (plain, safe))
    for name in ("g", "q", "residual", "gradient", "shift", "decrement", "size"):
        np.testing.assert_allclose(
            getattr(safe, name), getattr(plain, name), rtol=1e-10, atol=1e-12, err_msg=name
        )
    filled = X.reshape(4, -1) > 0
    np.testing.assert_allclose(safe.log_Kf[filled], plain.log_Kf[filled], rtol=1e-10, atol=1e-12)


def test_sample_that_loses_digits_goes_on_in_the_log_domain():
    X, Y = stacks((30,), 10.0, zeros=False)
    X[1, :-1] = 1e-9  # the mass has to go from one end to the other
    Y[1, 1:] = 1e-9
    problem = wtf.Wasserstein(wtf.grid_cost(30), eps=1e-3, lam=10.0).bind(X)
    run = Run(problem)
    result = run(Y, steps(200), Course(begins=True))
    assert run.state.safe.any()
    point_g = result.g.reshape(X.shape)
    _, q = problem.safe_conjugate(point_g)
    np.testing.assert_allclose(result.q, q, rtol=1e-8, atol=1e-12)


def test_goes_on_where_the_secants_lead():
    """A new model: the same step as of all samples together."""
    X, Y = stacks((16,), 1.0, zeros=True)
    problem = wtf.Wasserstein(wtf.grid_cost(16), eps=0.1, lam=1.0).bind(X)
    run, other = Run(problem), Sinkhorn(problem, np.zeros(X.shape))
    points = other.iterates(Y)
    for n in range(4):
        run(Y, steps(1), Course(begins=n == 0))
        next(points)
    for moved in (1.01 * Y, np.where(Y > 0, Y + 0.3, 0.0)):
        other.continues = True
        result = run(moved, steps(1), Course(begins=True, predicts=True))
        assert_same(result, next(other.iterates(moved)), 1e-3)


def test_every_sample_stops_on_its_own():
    X, Y = stacks((16,), 1.0, zeros=False)
    Y[0] = X[0]
    problem = wtf.Wasserstein(wtf.grid_cost(16), eps=0.05, lam=1.0).bind(X)
    run, weights = Run(problem), np.asarray([1.0, 1.0, 1e-6, 1.0])
    limits = Limits(1e-8, 1e-3, 2, 50)
    result = run(Y, limits, Course(begins=True), weights=weights)
    assert len(set(result.iterations.tolist())) > 1
    assert np.all((result.iterations >= 2) & (result.iterations < 50))
    assert np.all(result.decrement * weights <= 1e-8)
    assert np.all(result.size <= 1e-3 * X.sum(axis=1))


def test_only_the_chosen_samples_are_iterated():
    X, Y = stacks((16,), 1.0, zeros=False)
    problem = wtf.Wasserstein(wtf.grid_cost(16), eps=0.05, lam=1.0).bind(X)
    run = Run(problem)
    run(Y, steps(2), Course(begins=True))
    before = run.result.g.copy(), run.state.ahead.copy()
    result = run(Y, steps(1), Course(), chosen=np.asarray([2, 0]))
    np.testing.assert_array_equal(result.iterations, [3, 2, 3, 2])
    for old, new in zip(before, (result.g, run.state.ahead), strict=True):
        np.testing.assert_array_equal(new[[1, 3]], old[[1, 3]])
        assert not np.array_equal(new[[0, 2]], old[[0, 2]])


def test_subnormal_numbers():
    X, Y = stacks((16,), 1.0, zeros=False)
    X[0, 3] = Y[1, 5] = 1e-310
    problem = wtf.Wasserstein(wtf.grid_cost(16), eps=0.05, lam=1.0).bind(X)
    result = Run(problem)(Y, steps(30), Course(begins=True))
    values, gaps, _ = problem.bounds(result.g, Y)
    assert np.all(np.isfinite(values))
    assert np.all(gaps < 1e-6)


@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_extremes(size):
    values = np.random.default_rng(size).normal(size=size)
    assert iteration.largest(values) == values.max()
    assert iteration.smallest(values) == values.min()
    assert iteration.largest(np.full(size, -math.inf)) == -math.inf
    assert iteration.smallest(np.full(size, math.inf)) == math.inf


def test_difference():
    out = np.empty(2)
    assert iteration.difference(np.asarray([1.0, -2.0]), np.asarray([3.0, -1.0]), out) == 3.0
    np.testing.assert_array_equal(out, [-2.0, -1.0])
