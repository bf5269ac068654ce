"""When late samples are iterated on their own: each field of the policy, with a scripted solver."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import set_thresholds

from wtfarray._transport.stragglers import StragglerPolicy, Stragglers


class ScriptedSolver:
    """
    Stands in for a solver: the errors of some samples on their own are scripted.

    ``ratio`` is by what their errors fall in every iteration.
    """

    def __init__(self, errors, ratio=0.5, weights=None, xp_array=np.asarray):
        self.errors, self.ratio, self.sample_weights = errors, ratio, weights
        self.array = xp_array
        self.spent = 0
        self.parts, self.merged, self.asked = [], [], []

    def iterates(self, Y, tolerance=0.0, max_iter=None, until=None):  # noqa: ARG002
        self.asked.append((Y.shape[0], tolerance, max_iter))
        errors = self.errors
        while True:
            yield SimpleNamespace(decrement=self.array(errors), iterations=1)
            self.spent += 1
            errors = errors * self.ratio

    def split(self, samples):
        part = ScriptedSolver(self.errors[samples], self.ratio, None, self.array)
        self.parts.append((samples.tolist(), part))
        return part

    def merge(self, other, samples):
        self.merged.append((other, samples.tolist()))


class TestPolicy:
    """What each field of the policy decides, on 40 samples of which some are late."""

    MODEL = np.ones((40, 6))

    def errors(self, late=3, error=1.0):
        """The first samples make up all of the error."""
        return np.where(np.arange(40) < late, error, 0.0)

    def advance(self, solver, tolerance=0.0, **fields):
        stragglers = Stragglers(StragglerPolicy(**fields))
        return stragglers.advance(solver, self.MODEL, solver.errors, tolerance, None)

    def test_late_samples_are_split_off_and_merged(self, array, monkeypatch):
        set_thresholds(monkeypatch, straggler_least=0)
        solver = ScriptedSolver(self.errors(), xp_array=array)
        stragglers = Stragglers()
        done = stragglers.advance(solver, array(self.MODEL), array(self.errors()), 0.0, None)
        ((some, part),) = solver.parts
        assert done
        assert some == [0, 1, 2, 0]  # filled up to a power of two
        assert solver.merged == [(part, [0, 1, 2])]
        assert part.asked == [(4, pytest.approx(0.09), 100)]
        assert part.spent == 6  # 3 / 2^6 is below 0.09

    @pytest.mark.parametrize(("share", "steps"), [(0.3, 2), (0.03, 6), (0.003, 9)])
    def test_error_share_is_where_they_go_down_to(self, share, steps):
        solver = ScriptedSolver(self.errors())
        self.advance(solver, error_share=share)
        assert solver.parts[0][1].spent == steps

    def test_error_share_decides_who_is_late(self):
        errors = self.errors() + np.where(np.arange(40) == 9, 0.01, 0.0)
        for share, late in ((0.03, [0, 1, 2, 9]), (0.3, [0, 1, 2])):
            solver = ScriptedSolver(errors)
            self.advance(solver, error_share=share)
            assert solver.merged[0][1] == late

    def test_tolerance_is_the_least_that_is_aimed_at(self):
        solver = ScriptedSolver(self.errors())
        self.advance(solver, tolerance=2.0)
        assert solver.parts[0][1].asked[0][1] == pytest.approx(0.6)

    @pytest.mark.parametrize(("share", "splits"), [(0.2, False), (0.21, True)])
    def test_max_share_keeps_many_late_samples_with_the_others(self, share, splits):
        solver = ScriptedSolver(self.errors(late=8))
        done = self.advance(solver, max_share=share - 0.005)
        assert done
        assert bool(solver.parts) == splits

    @pytest.mark.parametrize(("share", "splits"), [(0.39, False), (0.4, True)])
    def test_max_padded_share_counts_what_fills_up(self, share, splits):
        solver = ScriptedSolver(self.errors(late=9))  # 16 of 40
        done = self.advance(solver, max_padded_share=share)
        assert done
        assert bool(solver.parts) == splits

    @pytest.mark.parametrize(
        ("max_iter", "ratio", "asked", "spent"),
        [(20, 4, None, 20), (20, 4, 3, 12), (20, 2, 3, 6), (20, 4, 99, 20)],
    )
    def test_iterations_are_limited(self, max_iter, ratio, asked, spent):
        solver = ScriptedSolver(self.errors(), ratio=1.0)
        stragglers = Stragglers(StragglerPolicy(max_iter=max_iter, max_iter_ratio=ratio))
        assert not stragglers.advance(solver, self.MODEL, solver.errors, 0.0, asked)
        assert solver.parts[0][1].spent == spent - 1
        assert solver.merged  # what was learned is kept

    def test_errors_that_are_not_finite_split_nothing(self):
        solver = ScriptedSolver(self.errors(error=math.inf))
        with np.errstate(invalid="ignore"):
            done = self.advance(solver)
        assert done
        assert not solver.parts

    def test_nobody_late_splits_nothing(self):
        solver = ScriptedSolver(self.errors(late=0))
        assert self.advance(solver)
        assert not solver.parts

    def test_weights_decide_who_is_late(self):
        weights = np.where(np.arange(40) < 2, 0.0, 1.0)
        solver = ScriptedSolver(self.errors(), weights=weights)
        self.advance(solver)
        assert solver.merged[0][1] == [2]

    def test_check_every_is_the_time_between_two_looks(self):
        due = Stragglers(StragglerPolicy(check_every=3)).is_due
        assert [n for n in range(1, 10) if due(n)] == [3, 6, 9]

    def test_pause_doubles_with_every_failure_and_ends_with_a_success(self, monkeypatch):
        set_thresholds(monkeypatch, straggler_least=0)
        stragglers = Stragglers(StragglerPolicy(max_iter=4))

        def pause_after(ratio):
            """How many solves pass without a look, after an attempt that begins a solve."""
            assert stragglers.begin(self.MODEL)
            solver = ScriptedSolver(self.errors(), ratio)
            stragglers.advance(solver, self.MODEL, solver.errors, 0.0, None)
            for pause in range(20):
                if stragglers._pause == 0:
                    return pause
                assert not stragglers.begin(self.MODEL)
            raise AssertionError

        assert [pause_after(1.0) for _ in range(3)] == [1, 3, 7]
        assert pause_after(1e-3) == 0
        assert pause_after(1.0) == 1

    @pytest.mark.parametrize(
        ("shape", "looks"),
        [((8, 256), True), ((7, 512), False), ((8, 16, 17), True), ((9, 4), False)],
    )
    def test_few_or_small_samples_are_never_looked_at(self, shape, looks):
        assert Stragglers().begin(np.ones(shape)) == looks

    def test_many_samples_of_many_bins_are_never_looked_at(self):
        assert not Stragglers().begin(np.ones((256, 16, 17)))
