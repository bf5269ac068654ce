"""Evaluation of the user's function: array types, fallback, host transfers, checks."""

import math

import numpy as np
import pytest
from array_api_compat import size
from helpers import assert_close, to_numpy
from minimisation import (
    SOLVERS,
    barrier,
    logistic,
    logistic_data,
    parabola,
    quartic,
    rosenbrock,
    rosenbrock_start,
    torch_or_skip,
)

import wtfarray._arrays.host
from wtfarray._arrays.host import to_host
from wtfarray._optimize import lbfgs


@pytest.mark.parametrize("solver", SOLVERS)
class TestArrays:
    @pytest.mark.parametrize("shape", [(), (4,), (2, 1, 2)])
    def test_x0_may_have_any_shape(self, array, solver, shape):
        x0 = array(np.zeros(shape))
        result = solver(parabola, x0)
        assert result.converged
        assert_close(result.x, array(np.ones(shape)), atol=1e-7)
        assert_close(result.gradient, array(np.zeros(shape)), atol=1e-7)

    def test_float32_converges_to_the_minimum_of_float64(self, array, solver):
        data, labels = logistic_data()
        fun = logistic(array(data, dtype="float32"), array(labels, dtype="float32"))
        result = solver(fun, array(np.zeros(5), dtype="float32"))
        exact = lbfgs(logistic(data, labels), np.zeros(5))
        assert result.converged
        assert result.n_iter < 400
        expected = array(exact.x, dtype="float32")
        assert_close(result.x, expected, atol=2e-5, rtol=1e-5)
        assert result.value == pytest.approx(exact.value, rel=1e-5)

    def test_float32_converges_to_a_minimum_of_value_zero(self, array, solver):
        # The value itself goes to zero, so that its own rounding says nothing.
        result = solver(rosenbrock, array(rosenbrock_start(2), dtype="float32"))
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-3)

    def test_value_may_be_float64_for_float32_x(self, xp, array, solver):
        def fun(x):
            value, gradient = parabola(x)
            return xp.astype(value, xp.float64), gradient

        result = solver(fun, array(np.zeros(3), dtype="float32"))
        assert_close(result.x, array(np.ones(3), dtype="float32"), atol=1e-6)

    def test_value_may_be_a_python_float(self, array, solver):
        def fun(x):
            value, gradient = parabola(x)
            return float(value), gradient

        assert solver(fun, array(np.zeros(3))).value == pytest.approx(0, abs=1e-14)

    def test_x0_is_not_modified(self, array, solver):
        x0 = array(rosenbrock_start(4))
        result = solver(rosenbrock, x0, max_iter=5)
        assert result.n_iter == 5
        assert_close(x0, array(rosenbrock_start(4)))

    def test_x0_may_be_read_only(self, solver):
        x0 = rosenbrock_start(4)
        x0.flags.writeable = False
        assert solver(rosenbrock, x0, max_iter=0).x is not x0
        assert solver(rosenbrock, x0, max_iter=5).n_iter == 5

    def test_fun_may_reuse_the_memory_of_its_gradient(self, solver):
        memory = np.empty(4)

        def fun(x):
            value, memory[:] = rosenbrock(x)
            return value, memory

        reused = solver(fun, rosenbrock_start(4), max_iter=20)
        fresh = solver(rosenbrock, rosenbrock_start(4), max_iter=20)
        np.testing.assert_array_equal(reused.x, fresh.x)
        assert not np.shares_memory(reused.gradient, memory)

    def test_two_runs_are_bit_equal(self, array, solver):
        first, second = (
            solver(rosenbrock, array(rosenbrock_start(4)), max_iter=40) for _ in range(2)
        )
        np.testing.assert_array_equal(to_numpy(first.x), to_numpy(second.x))
        assert [h.value for h in first.history] == [h.value for h in second.history]

    def test_iterates_agree_with_numpy(self, array, solver):
        result = solver(rosenbrock, array(rosenbrock_start(4)), max_iter=8)
        reference = solver(rosenbrock, rosenbrock_start(4), max_iter=8)
        np.testing.assert_allclose(to_numpy(result.x), reference.x, rtol=1e-8)
        assert result.n_evaluations == reference.n_evaluations


@pytest.mark.parametrize("solver", SOLVERS)
class TestTorch:
    def test_results_carry_no_autograd_graph(self, xp, array, solver):
        torch = torch_or_skip(xp)
        weight = array(np.ones(3)).requires_grad_()

        def fun(x):
            x.requires_grad_()
            value = torch.sum((weight * x - 1.0) ** 4)
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            return value, gradient

        result = solver(fun, array(np.zeros(3)).requires_grad_(), max_iter=20)
        assert result.n_iter > 5
        assert not result.x.requires_grad
        assert not result.gradient.requires_grad

    def test_one_host_transfer_per_evaluation_and_direction(self, xp, array, solver, monkeypatch):
        torch_or_skip(xp)
        from _torch_counts import TorchCounts

        transfers = []

        def count(x):
            transfers.append(size(x))
            return to_host(x)

        monkeypatch.setattr(wtfarray._arrays.host, "to_host", count)
        with TorchCounts() as mode:
            result = solver(rosenbrock, array(rosenbrock_start(10)), max_iter=30)
            assert mode.scalars == 0
            float(result.x[0])
            assert mode.scalars == 1
        assert result.n_iter == 30
        directions = 30 if solver is lbfgs else 0
        assert result.n_evaluations <= len(transfers) <= result.n_evaluations + directions


@pytest.mark.parametrize("solver", SOLVERS)
class TestSafeFun:
    def test_safe_fun_is_called_only_where_fun_is_not_finite(self, array, solver):
        calls = []

        def fragile(x):
            value, gradient = quartic(x)
            return (value if float(value) < 0.5 else math.nan), gradient

        def safe(x):
            calls.append(float(quartic(x)[0]))
            return quartic(x)

        result = solver(fragile, array(np.zeros(3)), safe_fun=safe, gtol=1e-6)
        plain = solver(quartic, array(np.zeros(3)), gtol=1e-6)
        # The same path, with one evaluation more wherever the fast formula failed, and there only.
        np.testing.assert_array_equal(to_numpy(result.x), to_numpy(plain.x))
        assert calls
        assert min(calls) >= 0.5
        assert result.n_evaluations == plain.n_evaluations + len(calls)

    def test_safe_fun_replaces_a_gradient_that_is_not_finite(self, array, solver):
        def fragile(x):
            value, gradient = parabola(x)
            return value, gradient * math.nan

        result = solver(fragile, array(np.zeros(3)), safe_fun=parabola)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-7)

    def test_steps_where_safe_fun_fails_too_are_shortened(self, array, solver):
        costs = np.arange(1.0, 4.0)
        fun = barrier(array(costs))
        result = solver(fun, array(np.full(3, 3.0)), safe_fun=fun)
        alone = solver(fun, array(np.full(3, 3.0)))
        assert result.converged
        np.testing.assert_array_equal(to_numpy(result.x), to_numpy(alone.x))
        assert result.n_evaluations > alone.n_evaluations


@pytest.mark.parametrize("solver", SOLVERS)
class TestReturnValues:
    def test_gradient_of_another_shape_is_refused(self, array, solver):
        with pytest.raises(ValueError, match=r"fun .* shape \(1, 2\): expected shape \(2,\)"):
            solver(lambda _: (0.0, array([[1.0, 2.0]])), array([0.0, 0.0]))

    def test_gradient_that_is_a_list_is_refused(self, array, solver):
        with pytest.raises(ValueError, match="fun returned a gradient of list: expected shape"):
            solver(lambda _: (0.0, [1.0, 2.0]), array([0.0, 0.0]))

    def test_gradient_of_another_dtype_is_refused(self, array, solver):
        with pytest.raises(ValueError, match=r"fun .* dtype .*float32: expected .*float64"):
            solver(lambda _: (0.0, array([1.0], dtype="float32")), array([0.0]))

    def test_value_with_a_mode_is_refused(self, array, solver):
        with pytest.raises(ValueError, match=r"fun .* value of shape \(1,\): expected a float"):
            solver(lambda x: (array([1.0]), x), array([0.0]))

    def test_start_outside_the_domain_is_refused(self, array, solver):
        with pytest.raises(ValueError, match=r"fun has the value nan .* at x0: expected finite"):
            solver(barrier(array([1.0])), array([-1.0]))

    def test_start_outside_the_domain_of_safe_fun_is_refused(self, array, solver):
        fun = barrier(array([1.0]))
        with pytest.raises(ValueError, match=r"safe_fun has the value .* at x0: expected finite"):
            solver(fun, array([-1.0]), safe_fun=fun)

    def test_start_with_infinite_gradient_is_refused(self, array, solver):
        with pytest.raises(ValueError, match="gradient norm inf"):
            solver(lambda _: (0.0, array([math.inf])), array([1.0]))
