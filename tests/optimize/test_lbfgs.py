"""L-BFGS on problems whose answers are known."""

import math

import numpy as np
import pytest
from array_api_compat import array_namespace
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
    scipy_evaluations,
)

from wtfarray._optimize import lbfgs


class TestLbfgs:
    @pytest.mark.parametrize("n", [2, 10, 100])
    def test_minimises_rosenbrock_with_as_few_evaluations_as_scipy(self, array, n):
        x0 = rosenbrock_start(n)
        result = lbfgs(rosenbrock, array(x0), gtol=1e-6, max_iter=1000)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-5)
        assert result.n_evaluations <= 1.5 * scipy_evaluations(rosenbrock, x0, 1e-6) + 5

    @pytest.mark.parametrize("condition", [1e2, 1e4, 1e6])
    def test_minimises_quadratics_with_as_few_evaluations_as_scipy(self, array, condition):
        matrix, target = random_quadratic(10, condition, np.random.default_rng(0))
        fun = quadratic(array(matrix), array(target))
        result = lbfgs(fun, array(np.zeros(10)), gtol=1e-7, max_iter=2000)
        assert result.converged
        # The smallest curvature is 1, so the gradient bounds the error.
        np.testing.assert_allclose(to_numpy(result.x), target, atol=1e-6)
        reference = scipy_evaluations(quadratic(matrix, target), np.zeros(10), 1e-7)
        assert result.n_evaluations <= 1.5 * reference + 5

    def test_minimises_logistic_regression_with_as_few_evaluations_as_scipy(self, array):
        data, labels = logistic_data()
        result = lbfgs(logistic(array(data), array(labels)), array(np.zeros(5)))
        assert result.converged
        _, gradient = logistic(data, labels)(to_numpy(result.x))
        assert np.max(np.abs(gradient)) < 2e-8
        reference = scipy_evaluations(logistic(data, labels), np.zeros(5), 1e-8)
        assert result.n_evaluations <= 1.5 * reference + 5

    @pytest.mark.parametrize("start", [0.01, 3.0, 1e3])
    def test_stays_inside_the_domain_of_a_barrier(self, array, start):
        costs = np.arange(1.0, 7.0)
        result = lbfgs(barrier(array(costs)), array(np.full(6, start)))
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1 / costs, rtol=1e-7)

    def test_converges_with_a_memory_of_one_pair(self, array):
        result = lbfgs(rosenbrock, array(rosenbrock_start(4)), memory=1)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-6)

    def test_more_memory_takes_fewer_evaluations(self, array):
        matrix, target = random_quadratic(10, 1e2, np.random.default_rng(0))
        fun = quadratic(array(matrix), array(target))
        small = lbfgs(fun, array(np.zeros(10)), memory=1)
        large = lbfgs(fun, array(np.zeros(10)), memory=10)
        assert large.n_evaluations < small.n_evaluations

    def test_converges_on_slopes_when_noise_hides_the_decrease(self, xp, array):
        # Near the minimum the value is noise: only gradients_at show the descent.
        matrix, target = random_quadratic(10, 1e2, np.random.default_rng(0))
        fun = quadratic(array(matrix), array(target))

        def noisy(x):
            value, gradient = fun(x)
            return value + 1.0 + 1e-9 * xp.cos(1e9 * xp.sum(x)), gradient

        result = lbfgs(noisy, array(np.zeros(10)))
        assert "`gtol`" in result.message
        np.testing.assert_allclose(to_numpy(result.x), target, atol=1e-6)

    def test_max_evaluations_bounds_the_evaluations(self, array):
        x0 = array(rosenbrock_start(2))
        result = lbfgs(rosenbrock, x0, max_evaluations=7)
        assert not result.converged
        assert result.n_evaluations == 7
        assert "increase `max_evaluations`" in result.message

    def test_wrong_gradient_does_not_converge(self, array):
        def fun(x):
            value, gradient = quartic(x)
            return value, -gradient

        result = lbfgs(fun, array(np.zeros(3)))
        assert not result.converged
        assert "check the gradient" in result.message

    def test_function_finite_at_the_start_only_does_not_converge(self, array):
        # Finite at the start only, so that no step can be taken.
        def fun(x):
            value, gradient = parabola(x)
            return (value if float(value) == 1.5 else math.nan), gradient

        result = lbfgs(fun, array(np.zeros(3)))
        assert not result.converged
        assert result.n_iter == 0
        assert "`safe_fun`" in result.message

    def test_function_unbounded_below_does_not_converge(self, array):
        xp = array_namespace(array([0.0]))
        result = lbfgs(lambda x: (xp.sum(x), xp.ones_like(x)), array(np.zeros(2)), max_iter=3)
        assert not result.converged

    @pytest.mark.parametrize("memory", [0, -1])
    def test_memory_below_one_is_refused(self, array, memory):
        with pytest.raises(ValueError, match=f"memory is {memory}: expected a positive integer"):
            lbfgs(parabola, array([0.0]), memory=memory)

    def test_non_integer_memory_is_refused(self, array):
        with pytest.raises(TypeError, match=r"memory is 2\.5: expected a positive integer"):
            lbfgs(parabola, array([0.0]), memory=2.5)

    def test_max_evaluations_below_one_is_refused(self, array):
        with pytest.raises(ValueError, match="max_evaluations is 0: expected a positive integer"):
            lbfgs(parabola, array([0.0]), max_evaluations=0)


# Outside the classes, whose instances differ from backend to backend.
@given(
    st.sampled_from([1, 2, 10]), st.floats(1.0, 1e4), st.floats(-3, 3), st.integers(0, 2**32 - 1)
)
def test_lbfgs_minimises_random_quadratics_of_any_scale(array, n, condition, log_scale, seed):
    matrix, target = random_quadratic(n, condition, np.random.default_rng(seed))
    scale = 10.0**log_scale
    fun = quadratic(array(scale * matrix), array(target))
    result = lbfgs(fun, array(np.zeros(n)), gtol=1e-8 * scale)
    assert result.converged
    np.testing.assert_allclose(to_numpy(result.x), target, atol=1e-6)
