"""L-BFGS and accelerated gradient descent on problems whose answers are known."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.optimize
from array_api_compat import array_namespace, device, is_torch_namespace, size
from helpers import assert_close, to_numpy
from hypothesis import given
from hypothesis import strategies as st

import wtfarray._arrays.host
from wtfarray._arrays.host import to_host
from wtfarray._optimize import OptimizeRecord, OptimizeResult, gradient_descent, lbfgs

SOLVERS = [lbfgs, gradient_descent]


def rosenbrock(x):
    xp = array_namespace(x)
    bend, gap = x[1:] - x[:-1] ** 2, 1.0 - x[:-1]
    zero = xp.zeros((1,), dtype=x.dtype, device=device(x))
    left = xp.concat([-400.0 * bend * x[:-1] - 2.0 * gap, zero])
    right = xp.concat([zero, 200.0 * bend])
    return xp.sum(100.0 * bend**2 + gap**2), left + right


def rosenbrock_start(n):
    return np.where(np.arange(n) % 2 == 0, -1.2, 1.0)


def quadratic(matrix, target):
    """Return the parabola of a symmetric matrix with its minimum, zero, at `target`."""

    def fun(x):
        xp = array_namespace(x)
        gradient = xp.matmul(matrix, x - target)
        return 0.5 * xp.vecdot(x - target, gradient), gradient

    return fun


def random_quadratic(n, condition, rng):
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    spectrum = np.logspace(0, math.log10(condition), n)
    matrix = (basis * spectrum) @ basis.T
    return 0.5 * (matrix + matrix.T), rng.normal(size=n)


def logistic(data, labels):
    """Return ridge-penalised logistic regression."""

    def fun(w):
        xp = array_namespace(w)
        z = -labels * xp.matmul(data, w)
        value = xp.sum(xp.logaddexp(z, 0.0 * z)) + 0.05 * xp.vecdot(w, w)
        return value, 0.1 * w - xp.matmul(data.mT, labels / (1.0 + xp.exp(-z)))

    return fun


def logistic_data():
    rng = np.random.default_rng(1)
    data = rng.normal(size=(60, 5))
    return data, np.sign(data @ np.arange(1, 6) + rng.normal(size=60))


def barrier(costs):
    """Return ``<c, x> - sum(log(x))``, NaN outside the positive orthant; minimum at ``1 / c``."""

    def fun(x):
        xp = array_namespace(x)
        inside = xp.where(x > 0, x, xp.asarray(math.nan, dtype=x.dtype, device=device(x)))
        return xp.vecdot(costs, x) - xp.sum(xp.log(inside)), costs - 1.0 / inside

    return fun


def quartic(x):
    xp = array_namespace(x)
    return xp.sum((x - 1.0) ** 4), 4.0 * (x - 1.0) ** 3


def parabola(x):
    xp = array_namespace(x)
    return 0.5 * xp.sum((x - 1.0) ** 2), x - 1.0


def scipy_evaluations(fun, x0, gtol):
    options = {"maxcor": 10, "gtol": gtol, "ftol": 0.0, "maxiter": 5000, "maxfun": 9999}
    result = scipy.optimize.minimize(fun, x0, jac=True, method="L-BFGS-B", options=options)
    assert result.success
    return result.nfev


class TestToHost:
    def test_values(self, array):
        x = np.asarray([[1.5, -2.0, 0.0], [3.0, 4.0, 1e-9]])
        host = to_host(array(x))
        assert isinstance(host, np.ndarray)
        np.testing.assert_array_equal(host, x)

    def test_scalar(self, array):
        assert to_host(array(2.5)).shape == ()
        assert float(to_host(array(2.5))) == 2.5

    def test_float32(self, array):
        host = to_host(array([0.1], dtype="float32"))
        assert host.dtype == np.float64
        assert host[0] == np.float32(0.1)


class TestLbfgs:
    @pytest.mark.parametrize("n", [2, 10, 100])
    def test_rosenbrock(self, array, n):
        x0 = rosenbrock_start(n)
        result = lbfgs(rosenbrock, array(x0), gtol=1e-6, max_iter=1000)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-5)
        assert result.n_evaluations <= 1.5 * scipy_evaluations(rosenbrock, x0, 1e-6) + 5

    @pytest.mark.parametrize("condition", [1e2, 1e4, 1e6])
    def test_quadratic(self, array, condition):
        matrix, target = random_quadratic(10, condition, np.random.default_rng(0))
        fun = quadratic(array(matrix), array(target))
        result = lbfgs(fun, array(np.zeros(10)), gtol=1e-7, max_iter=2000)
        assert result.converged
        # The smallest curvature is 1, so the gradient bounds the error.
        np.testing.assert_allclose(to_numpy(result.x), target, atol=1e-6)
        reference = scipy_evaluations(quadratic(matrix, target), np.zeros(10), 1e-7)
        assert result.n_evaluations <= 1.5 * reference + 5

    def test_logistic(self, array):
        data, labels = logistic_data()
        result = lbfgs(logistic(array(data), array(labels)), array(np.zeros(5)))
        assert result.converged
        _, gradient = logistic(data, labels)(to_numpy(result.x))
        assert np.max(np.abs(gradient)) < 2e-8
        reference = scipy_evaluations(logistic(data, labels), np.zeros(5), 1e-8)
        assert result.n_evaluations <= 1.5 * reference + 5

    @pytest.mark.parametrize("start", [0.01, 3.0, 1e3])
    def test_domain(self, array, start):
        costs = np.arange(1.0, 7.0)
        result = lbfgs(barrier(array(costs)), array(np.full(6, start)))
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1 / costs, rtol=1e-7)

    def test_memory_one(self, array):
        result = lbfgs(rosenbrock, array(rosenbrock_start(4)), memory=1)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-6)

    def test_memory_helps(self, array):
        matrix, target = random_quadratic(10, 1e2, np.random.default_rng(0))
        fun = quadratic(array(matrix), array(target))
        small = lbfgs(fun, array(np.zeros(10)), memory=1)
        large = lbfgs(fun, array(np.zeros(10)), memory=10)
        assert large.n_evaluations < small.n_evaluations

    def test_noise_hides_the_decrease(self, xp, array):
        # Near the minimum the value is noise: only the slopes lead on.
        matrix, target = random_quadratic(10, 1e2, np.random.default_rng(0))
        fun = quadratic(array(matrix), array(target))

        def noisy(x):
            value, gradient = fun(x)
            return value + 1.0 + 1e-9 * xp.cos(1e9 * xp.sum(x)), gradient

        result = lbfgs(noisy, array(np.zeros(10)))
        assert "`gtol`" in result.message
        np.testing.assert_allclose(to_numpy(result.x), target, atol=1e-6)

    def test_max_evaluations(self, array):
        x0 = array(rosenbrock_start(2))
        result = lbfgs(rosenbrock, x0, max_evaluations=7)
        assert not result.converged
        assert result.n_evaluations == 7
        assert "increase `max_evaluations`" in result.message

    def test_wrong_gradient_is_no_convergence(self, array):
        def fun(x):
            value, gradient = quartic(x)
            return value, -gradient

        result = lbfgs(fun, array(np.zeros(3)))
        assert not result.converged
        assert "check the gradient" in result.message

    def test_cliff_is_no_convergence(self, array):
        # Finite at the start only, so that no step can be taken.
        def fun(x):
            value, gradient = parabola(x)
            return (value if float(value) == 1.5 else math.nan), gradient

        result = lbfgs(fun, array(np.zeros(3)))
        assert not result.converged
        assert result.n_iter == 0
        assert "`safe_fun`" in result.message

    def test_unbounded_below(self, array):
        xp = array_namespace(array([0.0]))
        result = lbfgs(lambda x: (xp.sum(x), xp.ones_like(x)), array(np.zeros(2)), max_iter=3)
        assert not result.converged

    @pytest.mark.parametrize("memory", [0, -1])
    def test_bad_memory(self, array, memory):
        with pytest.raises(ValueError, match=f"`memory` must be at least 1, got {memory}"):
            lbfgs(parabola, array([0.0]), memory=memory)

    def test_bad_memory_type(self, array):
        with pytest.raises(TypeError, match=r"`memory` must be an integer, got 2\.5"):
            lbfgs(parabola, array([0.0]), memory=2.5)

    def test_bad_max_evaluations(self, array):
        with pytest.raises(ValueError, match="`max_evaluations` must be at least 1, got 0"):
            lbfgs(parabola, array([0.0]), max_evaluations=0)


class TestGradientDescent:
    def test_rosenbrock(self, array):
        result = gradient_descent(rosenbrock, array(rosenbrock_start(2)), gtol=1e-4)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-3)

    @pytest.mark.parametrize("condition", [1e1, 3e2])
    def test_quadratic(self, array, condition):
        matrix, target = random_quadratic(10, condition, np.random.default_rng(0))
        fun = quadratic(array(matrix), array(target))
        result = gradient_descent(fun, array(np.zeros(10)), gtol=1e-7)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), target, atol=1e-6)
        # Plain gradient descent would need about `condition * log(1e7)` iterations.
        assert result.n_iter < 30 * math.sqrt(condition)

    def test_logistic(self, array):
        data, labels = logistic_data()
        fun = logistic(array(data), array(labels))
        result = gradient_descent(fun, array(np.zeros(5)), gtol=1e-6)
        assert result.converged
        reference = lbfgs(fun, array(np.zeros(5)))
        np.testing.assert_allclose(to_numpy(result.x), to_numpy(reference.x), atol=1e-5)

    @pytest.mark.parametrize("start", [0.1, 3.0])
    def test_domain(self, array, start):
        costs = np.arange(1.0, 7.0)
        result = gradient_descent(barrier(array(costs)), array(np.full(6, start)), gtol=1e-7)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1 / costs, rtol=1e-6)

    def test_given_step(self, array):
        # One over the curvature is the exact step.
        result = gradient_descent(parabola, array(np.zeros(4)), step=1.0)
        assert result.n_evaluations == 2
        np.testing.assert_allclose(to_numpy(result.x), 1.0)

    @pytest.mark.parametrize("step", [1e-6, 1e6])
    def test_bad_step_is_mended(self, array, step):
        result = gradient_descent(parabola, array(np.zeros(4)), step=step)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-7)

    def test_wrong_gradient_is_no_convergence(self, array):
        def fun(x):
            value, gradient = quartic(x)
            return value, -gradient

        result = gradient_descent(fun, array(np.zeros(3)))
        assert not result.converged
        assert "check the gradient" in result.message

    @pytest.mark.parametrize("step", [0.0, -1.0, math.inf, math.nan])
    def test_bad_step(self, array, step):
        with pytest.raises(ValueError, match="`step` must be finite and positive, got"):
            gradient_descent(parabola, array([0.0]), step=step)


# Outside the classes, whose instances differ from backend to backend.
@given(
    st.sampled_from([1, 2, 10]), st.floats(1.0, 1e4), st.floats(-3, 3), st.integers(0, 2**32 - 1)
)
def test_lbfgs_random_quadratics(array, n, condition, log_scale, seed):
    matrix, target = random_quadratic(n, condition, np.random.default_rng(seed))
    scale = 10.0**log_scale
    fun = quadratic(array(scale * matrix), array(target))
    result = lbfgs(fun, array(np.zeros(n)), gtol=1e-8 * scale)
    assert result.converged
    np.testing.assert_allclose(to_numpy(result.x), target, atol=1e-6)


@given(st.sampled_from([1, 2, 10]), st.floats(1.0, 30.0), st.integers(0, 2**32 - 1))
def test_gradient_descent_random_quadratics(array, n, condition, seed):
    matrix, target = random_quadratic(n, condition, np.random.default_rng(seed))
    result = gradient_descent(quadratic(array(matrix), array(target)), array(np.zeros(n)))
    assert result.converged
    np.testing.assert_allclose(to_numpy(result.x), target, atol=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
class TestArrays:
    @pytest.mark.parametrize("shape", [(), (4,), (2, 1, 2)])
    def test_any_shape(self, array, solver, shape):
        x0 = array(np.zeros(shape))
        result = solver(parabola, x0)
        assert result.converged
        assert_close(result.x, array(np.ones(shape)), atol=1e-7)
        assert_close(result.gradient, array(np.zeros(shape)), atol=1e-7)

    def test_float32(self, array, solver):
        data, labels = logistic_data()
        fun = logistic(array(data, dtype="float32"), array(labels, dtype="float32"))
        result = solver(fun, array(np.zeros(5), dtype="float32"))
        exact = lbfgs(logistic(data, labels), np.zeros(5))
        assert result.converged
        assert result.n_iter < 400
        expected = array(exact.x, dtype="float32")
        assert_close(result.x, expected, atol=2e-5, rtol=1e-5)
        assert result.value == pytest.approx(exact.value, rel=1e-5)

    def test_float32_with_minimum_zero(self, array, solver):
        # The value itself goes to zero, so that its own rounding says nothing.
        result = solver(rosenbrock, array(rosenbrock_start(2), dtype="float32"))
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-3)

    def test_float64_value_of_float32_x(self, xp, array, solver):
        def fun(x):
            value, gradient = parabola(x)
            return xp.astype(value, xp.float64), gradient

        result = solver(fun, array(np.zeros(3), dtype="float32"))
        assert_close(result.x, array(np.ones(3), dtype="float32"), atol=1e-6)

    def test_python_float_value(self, array, solver):
        def fun(x):
            value, gradient = parabola(x)
            return float(value), gradient

        assert solver(fun, array(np.zeros(3))).value == pytest.approx(0, abs=1e-14)

    def test_x0_is_not_modified(self, array, solver):
        x0 = array(rosenbrock_start(4))
        result = solver(rosenbrock, x0, max_iter=5)
        assert result.n_iter == 5
        assert_close(x0, array(rosenbrock_start(4)))

    def test_read_only_numpy(self, solver):
        x0 = rosenbrock_start(4)
        x0.flags.writeable = False
        assert solver(rosenbrock, x0, max_iter=0).x is not x0
        assert solver(rosenbrock, x0, max_iter=5).n_iter == 5

    def test_gradient_memory_may_be_reused(self, solver):
        memory = np.empty(4)

        def fun(x):
            value, memory[:] = rosenbrock(x)
            return value, memory

        reused = solver(fun, rosenbrock_start(4), max_iter=20)
        fresh = solver(rosenbrock, rosenbrock_start(4), max_iter=20)
        np.testing.assert_array_equal(reused.x, fresh.x)
        assert not np.shares_memory(reused.gradient, memory)

    def test_deterministic(self, array, solver):
        first, second = (
            solver(rosenbrock, array(rosenbrock_start(4)), max_iter=40) for _ in range(2)
        )
        np.testing.assert_array_equal(to_numpy(first.x), to_numpy(second.x))
        assert [h.value for h in first.history] == [h.value for h in second.history]

    def test_agrees_with_numpy(self, array, solver):
        result = solver(rosenbrock, array(rosenbrock_start(4)), max_iter=8)
        reference = solver(rosenbrock, rosenbrock_start(4), max_iter=8)
        np.testing.assert_allclose(to_numpy(result.x), reference.x, rtol=1e-8)
        assert result.n_evaluations == reference.n_evaluations


@pytest.mark.parametrize("solver", SOLVERS)
class TestTorch:
    def test_no_graph(self, xp, array, solver):
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

    def test_synchronisations(self, xp, array, solver, monkeypatch):
        torch_or_skip(xp)
        from torch.utils._python_dispatch import TorchDispatchMode

        class Count(TorchDispatchMode):
            scalars = 0

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                self.scalars += "_local_scalar_dense" in str(func)
                return func(*args, **(kwargs or {}))

        transfers = []

        def count(x):
            transfers.append(size(x))
            return to_host(x)

        monkeypatch.setattr(wtfarray._arrays.host, "to_host", count)
        with Count() as mode:
            result = solver(rosenbrock, array(rosenbrock_start(10)), max_iter=30)
            assert mode.scalars == 0
            float(result.x[0])
            assert mode.scalars == 1
        assert result.n_iter == 30
        directions = 30 if solver is lbfgs else 0
        assert result.n_evaluations <= len(transfers) <= result.n_evaluations + directions


def torch_or_skip(xp):
    if not is_torch_namespace(xp):
        pytest.skip("autograd and the dispatch mode are torch's")
    import torch

    return torch


@pytest.mark.parametrize("solver", SOLVERS)
class TestStopping:
    def test_gtol_at_the_start(self, array, solver):
        result = solver(parabola, array(np.ones(3)))
        assert result.converged
        assert result.n_iter == 0
        assert result.n_evaluations == 1
        assert "`gtol`" in result.message

    def test_gtol_is_on_the_largest_entry(self, array, solver):
        result = solver(rosenbrock, array(rosenbrock_start(4)), gtol=1e-3)
        assert result.converged
        norms = [h.gradient_norm for h in result.history]
        assert norms[-1] <= 1e-3 < min(norms[:-1])
        assert norms[-1] == pytest.approx(np.max(np.abs(to_numpy(result.gradient))))

    def test_ftol(self, array, solver):
        def shifted(x):
            value, gradient = quartic(x)
            return value + 1.0, gradient

        loose = solver(shifted, array(np.zeros(3)), gtol=0.0, ftol=1e-4)
        tight = solver(shifted, array(np.zeros(3)), gtol=0.0, ftol=1e-10)
        assert loose.converged
        assert "`ftol`" in loose.message
        assert loose.n_iter < tight.n_iter
        assert loose.value - 1 < 1e-4

    def test_precision(self, array, solver):
        data, labels = logistic_data()
        fun = logistic(array(data), array(labels))
        result = solver(fun, array(np.zeros(5)), gtol=0.0, max_iter=2000)
        assert result.converged
        assert "precision" in result.message
        assert "float64" in result.message
        assert result.history[-1].gradient_norm < 1e-10

    def test_max_iter(self, array, solver):
        result = solver(rosenbrock, array(rosenbrock_start(4)), max_iter=3)
        assert not result.converged
        assert result.n_iter == 3
        assert "stopped after 3 iterations" in result.message
        assert "increase `max_iter` or loosen `gtol`" in result.message

    def test_stop(self, array, solver):
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

    def test_stop_at_the_start(self, array, solver):
        result = solver(rosenbrock, array(rosenbrock_start(2)), stop=lambda _: True)
        assert result.converged
        assert (result.n_iter, result.n_evaluations) == (0, 1)

    def test_callback(self, array, solver):
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

    def test_safe_fun_rescues(self, array, solver):
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

    def test_safe_fun_sees_a_gradient_that_is_not_finite(self, array, solver):
        def fragile(x):
            value, gradient = parabola(x)
            return value, gradient * math.nan

        result = solver(fragile, array(np.zeros(3)), safe_fun=parabola)
        assert result.converged
        np.testing.assert_allclose(to_numpy(result.x), 1.0, atol=1e-7)

    def test_safe_fun_fails_too(self, array, solver):
        costs = np.arange(1.0, 4.0)
        fun = barrier(array(costs))
        result = solver(fun, array(np.full(3, 3.0)), safe_fun=fun)
        alone = solver(fun, array(np.full(3, 3.0)))
        assert result.converged
        np.testing.assert_array_equal(to_numpy(result.x), to_numpy(alone.x))
        assert result.n_evaluations > alone.n_evaluations


@pytest.mark.parametrize("solver", SOLVERS)
class TestResult:
    def test_fields(self, array, solver):
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

    def test_history(self, array, solver):
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


@pytest.mark.parametrize("solver", SOLVERS)
class TestArguments:
    @pytest.mark.parametrize("name", ["gtol", "ftol"])
    @pytest.mark.parametrize("tolerance", [-1e-3, math.nan, math.inf])
    def test_tolerance(self, array, solver, name, tolerance):
        message = f"`{name}` must be finite and not negative, got {tolerance}"
        with pytest.raises(ValueError, match=message):
            solver(parabola, array([0.0]), **{name: tolerance})

    def test_tolerance_type(self, array, solver):
        with pytest.raises(TypeError, match="`gtol` must be a real number, got 'small'"):
            solver(parabola, array([0.0]), gtol="small")

    def test_max_iter(self, array, solver):
        with pytest.raises(ValueError, match="`max_iter` must be at least 0, got -1"):
            solver(parabola, array([0.0]), max_iter=-1)
        with pytest.raises(TypeError, match="`max_iter` must be an integer, got '5'"):
            solver(parabola, array([0.0]), max_iter="5")

    def test_fun(self, array, solver):
        with pytest.raises(TypeError, match=r"`fun` must be callable, got 3"):
            solver(3, array([0.0]))

    @pytest.mark.parametrize("name", ["stop", "safe_fun", "callback"])
    def test_callables(self, array, solver, name):
        with pytest.raises(TypeError, match=f"`{name}` must be callable or None, got 3"):
            solver(parabola, array([0.0]), **{name: 3})

    @pytest.mark.parametrize("dtype", ["int64", "complex128", "bool"])
    def test_dtype(self, array, solver, dtype):
        with pytest.raises(ValueError, match=f"`x0` must be of dtype float32 or float64.*{dtype}"):
            solver(parabola, array([1], dtype=dtype))

    def test_float16(self, solver):
        with pytest.raises(ValueError, match=r"`x0` must be of dtype.*float16"):
            solver(parabola, np.ones(2, dtype=np.float16))

    def test_no_array(self, solver):
        with pytest.raises(TypeError, match="`x0` must be a floating array, got list"):
            solver(parabola, [0.0, 1.0])

    def test_empty(self, array, solver):
        with pytest.raises(ValueError, match=r"`x0` must not be empty, got shape \(0, 2\)"):
            solver(parabola, array(np.zeros((0, 2))))

    def test_gradient_shape(self, array, solver):
        with pytest.raises(ValueError, match=r"`fun` .* shape \(2,\) of `x0`, got shape \(1, 2\)"):
            solver(lambda _: (0.0, array([[1.0, 2.0]])), array([0.0, 0.0]))

    def test_gradient_is_no_array(self, array, solver):
        with pytest.raises(ValueError, match=r"`fun` .* gradient of the shape .* got list"):
            solver(lambda _: (0.0, [1.0, 2.0]), array([0.0, 0.0]))

    def test_gradient_dtype(self, array, solver):
        with pytest.raises(ValueError, match=r"`fun` .* gradient of the dtype .*float64.*float32"):
            solver(lambda _: (0.0, array([1.0], dtype="float32")), array([0.0]))

    def test_value_shape(self, array, solver):
        with pytest.raises(ValueError, match=r"`fun` .* 0-d array as its value, got shape \(1,\)"):
            solver(lambda x: (array([1.0]), x), array([0.0]))

    def test_start_outside_the_domain(self, array, solver):
        with pytest.raises(ValueError, match="`fun` must be finite at `x0`, got value nan"):
            solver(barrier(array([1.0])), array([-1.0]))

    def test_start_that_safe_fun_cannot_save(self, array, solver):
        fun = barrier(array([1.0]))
        with pytest.raises(ValueError, match="`safe_fun` must be finite at `x0`"):
            solver(fun, array([-1.0]), safe_fun=fun)

    def test_start_with_infinite_gradient(self, array, solver):
        with pytest.raises(ValueError, match="gradient norm inf"):
            solver(lambda _: (0.0, array([math.inf])), array([1.0]))
