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
        message = f"{name} is {tolerance}: expected a finite number of at least 0"
        with pytest.raises(ValueError, match=message):
            solver(parabola, array([0.0]), **{name: tolerance})

    def test_tolerance_that_is_no_number_is_refused(self, array, solver):
        with pytest.raises(TypeError, match="gtol is 'small': expected a finite number"):
            solver(parabola, array([0.0]), gtol="small")

    def test_negative_or_non_integer_max_iter_is_refused(self, array, solver):
        with pytest.raises(ValueError, match="max_iter is -1: expected an integer of at least 0"):
            solver(parabola, array([0.0]), max_iter=-1)
        with pytest.raises(TypeError, match="max_iter is '5': expected an integer"):
            solver(parabola, array([0.0]), max_iter="5")

    def test_fun_that_is_not_callable_is_refused(self, array, solver):
        with pytest.raises(TypeError, match="fun is 3: expected a function"):
            solver(3, array([0.0]))

    @pytest.mark.parametrize("name", ["stop", "safe_fun", "callback"])
    def test_callbacks_that_are_not_callable_are_refused(self, array, solver, name):
        with pytest.raises(TypeError, match=f"{name} is 3: expected a function or None"):
            solver(parabola, array([0.0]), **{name: 3})

    @pytest.mark.parametrize("dtype", ["int64", "complex128", "bool"])
    def test_x0_that_is_not_floating_is_refused(self, array, solver, dtype):
        with pytest.raises(ValueError, match=f"x0 has dtype .*{dtype}: expected float32"):
            solver(parabola, array([1], dtype=dtype))

    def test_float16_is_refused(self, solver):
        with pytest.raises(ValueError, match="x0 has dtype float16: expected float32"):
            solver(parabola, np.ones(2, dtype=np.float16))

    def test_x0_that_is_a_list_is_refused(self, solver):
        with pytest.raises(TypeError, match=r"x0 is a list: expected an array, numpy"):
            solver(parabola, [0.0, 1.0])

    def test_empty_x0_is_refused(self, array, solver):
        with pytest.raises(ValueError, match=r"x0 has shape \(0, 2\): expected at least one entry"):
            solver(parabola, array(np.zeros((0, 2))))
