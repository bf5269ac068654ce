"""The line search of Newton's method: which samples take a trial, and when they are settled."""

import itertools
import math

import numpy as np
import pytest
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._arrays.namespace import array_namespace
from wtfarray._transport.newton import Newton
from wtfarray._transport.newton_point import log_ratio_at, newton_point
from wtfarray._transport.newton_search import (
    IDLE_STEPS,
    Progress,
    line_search,
    progressed,
    replaced,
    trial_point,
)

SAMPLES, BINS = 4, 5


class Start:
    """A point of four random samples at some distance from the solution, and its line search."""

    def __init__(self, array, lam, distance):
        rng = np.random.default_rng(0)
        X, Y = rng.dirichlet(np.ones(BINS), (2, SAMPLES))
        problem = wtf.Wasserstein(wtf.grid_cost(BINS), eps=0.05, lam=lam).bind(array(X))
        self.Y, self.problem = array(Y), problem
        solver = Newton(problem, array(0.0 * Y))
        for _ in itertools.islice(solver.iterates(self.Y), 30):
            pass
        g = solver.g + array(rng.normal(0.0, distance, Y.shape))
        self.constants, self.radius = solver._constants, solver._radius
        self.live = self.Y > 0
        self.point = newton_point(g, self.Y, self.live, problem, self.constants, batch=9)
        logs = array_namespace(self.Y).log(self.Y)
        self.log_ratio = log_ratio_at(self.point, logs, self.live, problem, self.constants, batch=9)
        self.search = line_search(self.log_ratio, self.point, problem, self.radius)

    def trial(self, searching, *, last=False):
        """A trial of the samples that are searching."""
        known = (self.Y, self.live, self.point, self.search, searching)
        return trial_point(*known, self.problem, self.constants, batch=9, last=last)


def flags(array, *values):
    return array(np.asarray(values, float)) > 0


@pytest.mark.parametrize("lam", [1.0, math.inf])
class TestTrial:
    def test_near_the_solution_all_take_the_step(self, array, lam):
        start = Start(array, lam, 1e-3)
        new, taken, counts = start.trial(flags(array, 1, 1, 1, 1))
        assert to_numpy(taken).all()
        assert to_numpy(counts).tolist() == [0.0, 0.0]
        assert np.all(to_numpy(new.value) >= to_numpy(start.point.value) - 1e-14)
        assert np.all(to_numpy(new.size) < 0.5 * to_numpy(start.point.size))

    def test_samples_that_do_not_search_take_nothing(self, array, lam):
        start = Start(array, lam, 1e-3)
        new, taken, counts = start.trial(flags(array, 1, 0, 1, 0))
        assert to_numpy(taken).tolist() == [True, False, True, False]
        assert to_numpy(counts).tolist() == [2.0, 0.0]
        best = replaced(taken, start.point, new)
        for name in ("g", "value", "step"):
            found, old, moved = (to_numpy(getattr(p, name)) for p in (best, start.point, new))
            np.testing.assert_array_equal(found[::2], moved[::2])
            np.testing.assert_array_equal(found[1::2], old[1::2])

    def test_steps_that_lower_the_value_are_not_taken(self, array, lam):
        start = Start(array, lam, 1e-3)
        back = array_namespace(start.Y).ones_like(start.search.t) * -3.0
        start.search = start.search._replace(t=back)  # down the hill
        new, taken, counts = start.trial(flags(array, 1, 1, 1, 0))
        assert np.all(to_numpy(new.value) < to_numpy(start.point.value))
        # Near the solution rounding is relied on, but this is far beyond it.
        assert not to_numpy(taken).any()
        assert to_numpy(counts).tolist() == [4.0, 3.0]

    def test_last_trial_is_taken_and_raises_the_value(self, array, lam):
        start = Start(array, lam, 0.3)
        new, taken, counts = start.trial(flags(array, 1, 1, 1, 0), last=True)
        assert to_numpy(taken).tolist() == [True, True, True, False]
        assert to_numpy(counts).tolist() == [1.0, 0.0]
        assert np.all(to_numpy(new.value) > to_numpy(start.point.value))


class TestProgress:
    def test_samples_settle_without_progress(self, array):
        start = Start(array, 1.0, 0.1)
        progress = Progress.begin(start.point)
        known = (start.point, start.point, start.search.noise)
        progress, unsettled = progressed(start.log_ratio, progress, *known)  # sizes are now known
        for left in range(IDLE_STEPS, 0, -1):
            assert float(unsettled) == SAMPLES, left
            progress, unsettled = progressed(start.log_ratio, progress, *known)
        assert float(unsettled) == 0
        assert to_numpy(progress.settled).all()

    def test_renewed_samples_begin_again(self, array):
        start = Start(array, 1.0, 0.1)
        progress = Progress.begin(start.point)
        for _ in range(IDLE_STEPS + 1):
            known = (progress, start.point, start.point, start.search.noise)
            progress, _ = progressed(start.log_ratio, *known)
        progress = progress.renewed(start.point.value, flags(array, 0, 1, 0, 0))
        assert to_numpy(progress.settled).tolist() == [True, False, True, True]

    def test_larger_values_are_progress(self, array):
        start = Start(array, 1.0, 0.1)
        new, *_ = start.trial(flags(array, 1, 1, 1, 1), last=True)
        progress = Progress.begin(start.point)
        for _ in range(IDLE_STEPS + 1):
            known = (progress, start.point, start.point, start.search.noise)
            progress, _ = progressed(start.log_ratio, *known)
        known = (progress, new, start.point, start.search.noise)
        _, unsettled = progressed(start.log_ratio, *known)
        assert float(unsettled) == SAMPLES
