"""The line search: Wolfe conditions, brackets, and why there is no step."""

import math

import numpy as np
import pytest
from array_api_compat import array_namespace
from helpers import to_numpy
from minimisation import barrier, parabola, rosenbrock, rosenbrock_start

from wtfarray._optimize.line_search import Failure, line_search
from wtfarray._optimize.objective import Objective

# Hager and Zhang's delta and sigma.
DECREASE, CURVATURE = 0.1, 0.9


def search(fun, x0, length=1.0, *, max_evaluations=math.inf):
    """Search along steepest descent, where step one moves by `length` times the gradient."""
    objective = Objective(fun, None, x0, max_evaluations)
    start = objective.start()
    direction = -length * start.gradient
    slope = -length * start.square
    ceiling = start.value + objective.noise(start)
    return objective, start, slope, line_search(objective, start, direction, slope, ceiling)


def step_of(start, found, slope):
    """How far along the direction the point lies; the slope is -|direction| |gradient|."""
    moved = to_numpy(found.x - start.x)
    gradient = to_numpy(start.gradient)
    return float(moved @ gradient) / slope


class TestSteps:
    @pytest.mark.parametrize("length", [1e-6, 1e-3, 1.0, 1e3, 1e6])
    def test_approximate_wolfe_conditions_hold_whatever_the_first_step(self, array, length):
        objective, start, slope, found = search(rosenbrock, array(rosenbrock_start(4)), length)
        step = step_of(start, found, slope)
        assert step > 0
        assert found.slope >= CURVATURE * slope
        # Sufficient decrease in the values or, approximately, in the gradients_at.
        enough = found.value <= start.value + DECREASE * step * slope
        assert enough or found.slope <= (2 * DECREASE - 1) * slope
        assert found.value <= start.value + objective.noise(start)

    def test_step_one_is_accepted_at_once_where_it_is_exact(self, array):
        objective, _, _, found = search(parabola, array(np.zeros(3)))
        assert objective.n_evaluations == 2
        np.testing.assert_allclose(to_numpy(found.x), 1.0)

    @pytest.mark.parametrize("length", [1.0, 1e2, 1e4])
    def test_point_lies_inside_the_domain(self, array, length):
        costs = np.arange(1.0, 4.0)
        _, start, _, found = search(barrier(array(costs)), array(np.full(3, 2.0)), length)
        assert found.finite
        assert found.value < start.value
        assert np.all(to_numpy(found.x) > 0)

    def test_point_holds_value_gradient_and_slope(self, array):
        _, start, slope, found = search(rosenbrock, array(rosenbrock_start(4)), 1e-3)
        value, gradient = rosenbrock(found.x)
        assert found.value == pytest.approx(float(value), rel=1e-12)
        np.testing.assert_allclose(to_numpy(found.gradient), to_numpy(gradient), rtol=1e-12)
        direction = to_numpy(found.x - start.x) / step_of(start, found, slope)
        assert found.slope == pytest.approx(float(to_numpy(gradient) @ direction), rel=1e-9)


class TestFailures:
    def test_exhausted_budget_is_reported(self, array):
        # The start takes the only evaluation.
        *_, found = search(parabola, array(np.zeros(3)), max_evaluations=1)
        assert found is Failure.BUDGET

    def test_best_point_is_returned_when_the_budget_runs_out(self, array):
        # The first step is far too short: it descends, but is not flat enough.
        _, start, _, found = search(parabola, array(np.zeros(3)), 1e-3, max_evaluations=2)
        assert found.value < start.value
        assert found.finite

    def test_function_finite_at_the_start_only_is_a_domain_failure(self, array):
        def cliff(x):
            value, gradient = parabola(x)
            return (value if float(value) == 1.5 else math.nan), gradient

        *_, found = search(cliff, array(np.zeros(3)))
        assert found is Failure.DOMAIN

    def test_wrong_gradient_is_stuck(self, array):
        def wrong(x):
            value, gradient = parabola(x)
            return value, -gradient

        *_, found = search(wrong, array(np.zeros(3)))
        assert found is Failure.STUCK

    def test_linear_function_returns_the_best_of_its_trials(self, array):
        def linear(x):
            xp = array_namespace(x)
            return -xp.sum(x), -xp.ones_like(x)

        objective, start, _, found = search(linear, array(np.zeros(2)))
        assert found.value < start.value
        assert objective.n_evaluations <= 21
