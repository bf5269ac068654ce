"""Arguments of both optimisers that are refused."""

import math

import numpy as np
import pytest
from minimisation import SOLVERS, parabola


@pytest.mark.parametrize("solver", SOLVERS)
class TestArguments:
    @pytest.mark.parametrize("name", ["gtol", "ftol"])
    @pytest.mark.parametrize("tolerance", [-1e-3, math.nan, math.inf])
    def test_negative_or_infinite_tolerance_is_refused(self, array, solver, name, tolerance):
        message = f"`{name}` must be finite and not negative, got {tolerance}"
        with pytest.raises(ValueError, match=message):
            solver(parabola, array([0.0]), **{name: tolerance})

    def test_tolerance_that_is_no_number_is_refused(self, array, solver):
        with pytest.raises(TypeError, match="`gtol` must be a real number, got 'small'"):
            solver(parabola, array([0.0]), gtol="small")

    def test_negative_or_non_integer_max_iter_is_refused(self, array, solver):
        with pytest.raises(ValueError, match="`max_iter` must be at least 0, got -1"):
            solver(parabola, array([0.0]), max_iter=-1)
        with pytest.raises(TypeError, match="`max_iter` must be an integer, got '5'"):
            solver(parabola, array([0.0]), max_iter="5")

    def test_fun_that_is_not_callable_is_refused(self, array, solver):
        with pytest.raises(TypeError, match=r"`fun` must be callable, got 3"):
            solver(3, array([0.0]))

    @pytest.mark.parametrize("name", ["stop", "safe_fun", "callback"])
    def test_callbacks_that_are_not_callable_are_refused(self, array, solver, name):
        with pytest.raises(TypeError, match=f"`{name}` must be callable or None, got 3"):
            solver(parabola, array([0.0]), **{name: 3})

    @pytest.mark.parametrize("dtype", ["int64", "complex128", "bool"])
    def test_x0_that_is_not_floating_is_refused(self, array, solver, dtype):
        with pytest.raises(ValueError, match=f"`x0` must be of dtype float32 or float64.*{dtype}"):
            solver(parabola, array([1], dtype=dtype))

    def test_float16_is_refused(self, solver):
        with pytest.raises(ValueError, match=r"`x0` must be of dtype.*float16"):
            solver(parabola, np.ones(2, dtype=np.float16))

    def test_x0_that_is_a_list_is_refused(self, solver):
        with pytest.raises(TypeError, match="`x0` must be a floating array, got list"):
            solver(parabola, [0.0, 1.0])

    def test_empty_x0_is_refused(self, array, solver):
        with pytest.raises(ValueError, match=r"`x0` must not be empty, got shape \(0, 2\)"):
            solver(parabola, array(np.zeros((0, 2))))
