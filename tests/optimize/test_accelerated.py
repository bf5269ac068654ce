"""Accelerated gradient descent on problems whose answers are known."""

import math

import numpy as np
import pytest
from helpers import to_numpy
from hypothesis import given
from hypothesis import strategies as st
from minimisation import (
    barrier,
    logistic,
    logistic_data,
    parabola,
    quadratic,
    quartic,
    random_quadratic,
    rosenbrock,
    rosenbrock_start,
)

from wtfarray._optimize import gradient_descent, lbfgs


class TestGradientDescent:
    def test_minimises_rosenbrock(self, array):
        result = gradient_descent(rosenbrock, array(rosenbrock_start(2)), gtol=1e-4)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-3)

    @pytest.mark.parametrize("condition", [1e1, 3e2])
    def test_iterations_grow_with_the_root_of_the_condition_number(self, array, condition):
        matrix, target = random_quadratic(10, condition, np.random.default_rng(0))
        fun = quadratic(array(matrix), array(target))
        result = gradient_descent(fun, array(np.zeros(10)), gtol=1e-7)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), target, atol=1e-6)
        # Plain gradient descent would need about `condition * log(1e7)` iterations.
        assert result.n_iter < 30 * math.sqrt(condition)

    def test_minimises_logistic_regression(self, array):
        data, labels = logistic_data()
        fun = logistic(array(data), array(labels))
        result = gradient_descent(fun, array(np.zeros(5)), gtol=1e-6)
        assert result.converged
        reference = lbfgs(fun, array(np.zeros(5)))
        np.testing.assert_allclose(to_numpy(result.x), to_numpy(reference.x), atol=1e-5)

    @pytest.mark.parametrize("start", [0.1, 3.0])
    def test_stays_inside_the_domain_of_a_barrier(self, array, start):
        costs = np.arange(1.0, 7.0)
        result = gradient_descent(barrier(array(costs)), array(np.full(6, start)), gtol=1e-7)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1 / costs, rtol=1e-6)

    def test_exact_step_solves_a_parabola_at_once(self, array):
        # One over the curvature is the exact step.
        result = gradient_descent(parabola, array(np.zeros(4)), step=1.0)
        assert result.n_evaluations == 2
        np.testing.assert_allclose(to_numpy(result.x), 1.0)

    @pytest.mark.parametrize("step", [1e-6, 1e6])
    def test_step_of_any_size_is_adapted(self, array, step):
        result = gradient_descent(parabola, array(np.zeros(4)), step=step)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-7)

    def test_wrong_gradient_does_not_converge(self, array):
        def fun(x):
            value, gradient = quartic(x)
            return value, -gradient

        result = gradient_descent(fun, array(np.zeros(3)))
        assert not result.converged
        assert "check the gradient" in result.message

    @pytest.mark.parametrize("step", [0.0, -1.0, math.inf, math.nan])
    def test_non_positive_or_infinite_step_is_refused(self, array, step):
        with pytest.raises(ValueError, match=r"step is .*: expected a positive number"):
            gradient_descent(parabola, array([0.0]), step=step)


@given(st.sampled_from([1, 2, 10]), st.floats(1.0, 30.0), st.integers(0, 2**32 - 1))
def test_gradient_descent_minimises_random_quadratics(array, n, condition, seed):
    matrix, target = random_quadratic(n, condition, np.random.default_rng(seed))
    result = gradient_descent(quadratic(array(matrix), array(target)), array(np.zeros(n)))
    assert result.converged
    np.testing.assert_allclose(to_numpy(result.x), target, atol=1e-6)
