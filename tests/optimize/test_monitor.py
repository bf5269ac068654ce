"""Stopping rules and callbacks of both optimisers."""

import dataclasses

import numpy as np
import pytest
from helpers import to_numpy
from minimisation import (
    SOLVERS,
    logistic,
    logistic_data,
    parabola,
    quartic,
    rosenbrock,
    rosenbrock_start,
)


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
