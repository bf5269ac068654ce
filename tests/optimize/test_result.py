"""What both optimisers return."""

import dataclasses
import itertools

import pytest
from helpers import assert_close
from minimisation import SOLVERS, rosenbrock, rosenbrock_start

from wtfarray._optimize import OptimizeRecord, OptimizeResult


@pytest.mark.parametrize("solver", SOLVERS)
class TestResult:
    def test_fields_describe_the_last_iterate(self, array, solver):
        calls = []

        def fun(x):
            calls.append(x)
            return rosenbrock(x)

        result = solver(fun, array(rosenbrock_start(4)), max_iter=12)
        assert isinstance(result, OptimizeResult)
        assert type(result.value) is float
        value, gradient = rosenbrock(result.x)
        assert result.value == pytest.approx(float(value))
        assert_close(result.gradient, gradient)
        assert result.n_evaluations == len(calls)
        with pytest.raises(dataclasses.FrozenInstanceError):
            result.value = 0.0

    def test_history_has_one_record_per_iterate(self, array, solver):
        result = solver(rosenbrock, array(rosenbrock_start(4)), max_iter=12)
        history = result.history
        assert all(isinstance(h, OptimizeRecord) for h in history)
        assert len(history) == result.n_iter + 1
        assert history[0].evaluations == 1
        assert history[-1].evaluations == result.n_evaluations
        assert history[-1].value == result.value < history[0].value
        assert all(a.evaluations < b.evaluations for a, b in itertools.pairwise(history))
        assert history[0].time >= 0
        assert all(a.time <= b.time for a, b in itertools.pairwise(history))
        with pytest.raises(dataclasses.FrozenInstanceError):
            history[0].value = 0.0
