"""Stopping rules and callbacks of both optimisers."""

import dataclasses

import numpy as np
import pytest
from helpers import assert_close, to_numpy
from minimisation import (
    SOLVERS,
    logistic,
    logistic_data,
    parabola,
    quartic,
    rosenbrock,
    rosenbrock_start,
)

from wtfarray._optimize.line_search import Failure
from wtfarray._optimize.monitor import Monitor
from wtfarray._optimize.objective import Objective, Point


@pytest.mark.parametrize("solver", SOLVERS)
class TestStopping:
    def test_stationary_start_takes_no_iteration(self, array, solver):
        result = solver(parabola, array(np.ones(3)))
        assert result.converged
        assert result.n_iter == 0
        assert result.n_evaluations == 1
        assert "`gtol`" in result.message

    def test_gtol_bounds_the_largest_entry_of_the_gradient(self, array, solver):
        result = solver(rosenbrock, array(rosenbrock_start(4)), gtol=1e-3)
        assert result.converged
        norms = [h.gradient_norm for h in result.history]
        assert norms[-1] <= 1e-3 < min(norms[:-1])
        assert norms[-1] == pytest.approx(np.max(np.abs(to_numpy(result.gradient))))

    def test_ftol_bounds_the_relative_decrease(self, array, solver):
        def shifted(x):
            value, gradient = quartic(x)
            return value + 1.0, gradient

        loose = solver(shifted, array(np.zeros(3)), gtol=0.0, ftol=1e-4)
        tight = solver(shifted, array(np.zeros(3)), gtol=0.0, ftol=1e-10)
        assert loose.converged
        assert "`ftol`" in loose.message
        assert loose.n_iter < tight.n_iter
        assert loose.value - 1 < 1e-4

    def test_run_ends_at_the_precision_of_the_dtype(self, array, solver):
        data, labels = logistic_data()
        fun = logistic(array(data), array(labels))
        result = solver(fun, array(np.zeros(5)), gtol=0.0, max_iter=2000)
        assert result.converged
        assert "precision" in result.message
        assert "float64" in result.message
        assert result.history[-1].gradient_norm < 1e-10

    def test_max_iter_bounds_the_iterations(self, array, solver):
        result = solver(rosenbrock, array(rosenbrock_start(4)), max_iter=3)
        assert not result.converged
        assert result.n_iter == 3
        assert "stopped after 3 iterations" in result.message
        assert "increase `max_iter` or loosen `gtol`" in result.message

    def test_stop_is_asked_at_every_iterate_and_ends_the_run(self, array, solver):
        states = []

        def stop(state):
            states.append(state)
            return state.n_iter == 4

        result = solver(rosenbrock, array(rosenbrock_start(4)), stop=stop)
        assert result.converged
        assert "`stop`" in result.message
        assert [s.n_iter for s in states] == [0, 1, 2, 3, 4]
        assert result.n_iter == 4
        assert states[-1].n_evaluations == result.n_evaluations
        np.testing.assert_array_equal(to_numpy(states[0].x), rosenbrock_start(4))
        np.testing.assert_array_equal(to_numpy(states[-1].x), to_numpy(result.x))
        with pytest.raises(dataclasses.FrozenInstanceError):
            states[0].value = 0.0

    def test_stop_may_end_the_run_at_the_start(self, array, solver):
        result = solver(rosenbrock, array(rosenbrock_start(2)), stop=lambda _: True)
        assert result.converged
        assert (result.n_iter, result.n_evaluations) == (0, 1)

    def test_callback_sees_every_iterate_and_cannot_stop(self, array, solver):
        states = []

        def callback(state):
            states.append(state)
            return True

        result = solver(rosenbrock, array(rosenbrock_start(4)), max_iter=5, callback=callback)
        assert [s.n_iter for s in states] == [1, 2, 3, 4, 5]
        value, gradient = rosenbrock(states[2].x)
        assert states[2].value == pytest.approx(float(value))
        np.testing.assert_allclose(to_numpy(states[2].gradient), to_numpy(gradient))
        assert states[2].gradient_norm == pytest.approx(np.max(np.abs(to_numpy(gradient))))
        assert [s.value for s in states] == [h.value for h in result.history[1:]]


class TestMonitor:
    """The rules themselves, on points that no optimiser made."""

    @staticmethod
    def monitor(array, **options):
        objective = Objective(parabola, None, array(np.zeros((2, 2))))
        defaults = {"max_iter": 100, "gtol": 1e-8, "ftol": 0.0, "stop": None, "callback": None}
        return objective, Monitor(objective, patience=3, **(defaults | options))

    @staticmethod
    def point(array, value, norm):
        x = array(np.arange(4.0))
        return Point(x, norm * x / 3.0, value, norm, norm**2, 0.0)

    def test_start_is_no_iteration(self, array):
        _, monitor = self.monitor(array)
        assert monitor.accept(self.point(array, 1.0, 1.0)) is None
        assert monitor.n_iter == 0
        assert monitor.accept(self.point(array, 0.5, 1.0)) is None
        assert monitor.n_iter == 1
        assert monitor.best_value == 0.5

    def test_result_has_the_shape_of_x0_and_all_records(self, array):
        objective, monitor = self.monitor(array)
        objective.start()
        monitor.accept(self.point(array, 1.0, 1.0))
        result = monitor.accept(self.point(array, 0.5, 1e-9))
        assert result.converged
        assert_close(result.x, array([[0.0, 1.0], [2.0, 3.0]]), rtol=0)
        assert tuple(result.gradient.shape) == (2, 2)
        assert [record.value for record in result.history] == [1.0, 0.5]
        assert [record.gradient_norm for record in result.history] == [1.0, 1e-9]
        assert [record.evaluations for record in result.history] == [1, 1]
        assert result.n_evaluations == 1

    def test_lack_of_progress_ends_the_run_after_its_patience(self, array):
        _, monitor = self.monitor(array)
        ends = [monitor.accept(self.point(array, 1.0, 1.0)) for _ in range(4)]
        assert ends[:3] == [None] * 3
        assert ends[3].converged
        assert "precision" in ends[3].message

    @pytest.mark.parametrize("progress", ["value", "norm"])
    def test_progress_in_value_or_gradient_renews_the_patience(self, array, progress):
        _, monitor = self.monitor(array)
        for k in range(12):
            better = 0.9**k if k % 3 == 2 else 1.0
            value, norm = (better, 1.0) if progress == "value" else (1.0, better)
            assert monitor.accept(self.point(array, value, norm)) is None

    def test_ftol_compares_with_the_value_before_its_patience(self, array):
        _, monitor = self.monitor(array, ftol=0.1)
        values = [10.0, 9.0, 8.0, 7.0, 6.95, 6.9, 6.85]
        ends = [monitor.accept(self.point(array, value, value)) for value in values]
        assert ends[:-1] == [None] * 6
        assert ends[-1].converged
        assert "`ftol`" in ends[-1].message

    def test_failure_within_rounding_counts_as_converged(self, array):
        objective, monitor = self.monitor(array)
        last = self.point(array, 1.0, 1.0)
        monitor.accept(last)
        assert objective.lost_in_rounding(last, 1e-16)
        assert monitor.give_up(last, Failure.STUCK, 1e-16).converged
        for failure, decrease in ((Failure.STUCK, 0.1), (Failure.DOMAIN, 1e-16)):
            result = monitor.give_up(last, failure, decrease)
            assert not result.converged
            assert failure.value in result.message
