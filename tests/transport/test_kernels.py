"""Gibbs kernels against a plain log-sum-exp over the full cost, in float64."""

import importlib
import sys

import numpy as np
import pytest
from array_api_compat import is_jax_namespace
from helpers import assert_close, set_thresholds, to_numpy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.logarithms import logsumexp

SHAPES = [(5,), (3, 4), (2, 3, 3)]
DTYPES = ["float32", "float64"]
ROUNDINGS = 2
few = settings(
    # JAX compiles every operation anew for every shape.
    max_examples=1 if "jax" in sys.modules else 40,
    suppress_health_check=[HealthCheck.differing_executors],
)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
either_way = pytest.mark.parametrize("adjoint", [False, True])


@pytest.fixture(scope="module", autouse=True, params=["axis by axis", "all pairs"])
def summation(request):
    """Sum small samples over all pairs of bins, and axis by axis as large ones are."""
    if request.param == "all pairs" and "jax" in sys.modules:
        pytest.skip("JAX would compile for too long: the tests of the losses cover it")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "axis by axis":
            set_thresholds(patch, pair_entries=0)
        yield


def random_costs(rng, shape, dtype="float64", forbidden=0.0):
    """Costs that are not symmetric, of mean 1 as a whole; some entries are infinite."""
    costs = [rng.exponential(1.0 / len(shape), size=(n, n)) for n in shape]
    partly_infinite = [np.where(rng.uniform(size=c.shape) < forbidden, np.inf, c) for c in costs]
    return [c.astype(dtype) for c in partly_infinite]


def full_cost(costs):
    """The cost between all pairs of bins in C order, in float64."""
    total = np.zeros((1, 1))
    for cost in costs:
        n, m = len(total), len(cost)
        total = (total[:, None, :, None] + cost[None, :, None, :]).reshape(n * m, n * m)
    return total


def dense_log_apply(logs, costs, eps, *, adjoint=False):
    """``log(K exp(logs))``, and how large the numbers are whose rounding shows in it."""
    cost = full_cost(costs)
    exponents = -(cost.T if adjoint else cost) / eps
    flat = logs.reshape(len(logs), 1, -1).astype("float64")
    terms = flat + exponents
    top = terms.max(axis=2, keepdims=True)
    shift = np.where(top > -np.inf, top, 0.0)
    with np.errstate(divide="ignore"):
        result = np.log(np.exp(terms - shift).sum(axis=2)) + shift[:, :, 0]
    largest = np.argmax(terms, axis=2, keepdims=True)
    sizes = [
        np.take_along_axis(np.abs(np.broadcast_to(x, terms.shape)), largest, 2)[:, :, 0]
        for x in (flat, exponents)
    ]
    size = np.where(result > -np.inf, sizes[0] + sizes[1], 0.0)
    return result.reshape(logs.shape), size.reshape(logs.shape)


def kernel_of(costs, eps, array, dtype="float64"):
    return GibbsKernel.of(tuple(array(c, dtype) for c in costs), eps)


def check_log_apply(array, logs, costs, eps, dtype="float64"):
    """Compare with the dense sum, to within a few roundings of the largest exponents."""
    kernel = kernel_of(costs, eps, array, dtype)
    info = np.finfo(dtype)
    for adjoint in (False, True):
        method = kernel.log_apply_adjoint if adjoint else kernel.log_apply
        result = method(array(logs, dtype))
        assert result.dtype == array(0.0, dtype).dtype
        expected, size = dense_log_apply(logs, costs, eps, adjoint=adjoint)
        got = to_numpy(result).astype("float64")
        nothing = expected == -np.inf
        np.testing.assert_array_equal(got == -np.inf, nothing)
        error = np.abs(np.where(nothing, 0.0, got) - np.where(nothing, 0.0, expected))
        # A plain product is exact to rounding of exponents down to log(tiny).
        bound = ROUNDINGS * info.eps * (size - np.log(float(info.tiny)))
        assert np.all(error <= bound), (error / bound).max()


class TestLogApply:
    @few
    @given(
        shape=st.sampled_from(SHAPES),
        dtype=st.sampled_from(DTYPES),
        eps=st.floats(-4, 1).map(lambda t: 10**t),
        spread=st.floats(-2, 5).map(lambda t: 10**t),
        forbidden=st.sampled_from([0.0, 0.3, 0.8]),
        empty=st.sampled_from([0.0, 0.3, 0.9]),
        seed=st.integers(0, 1000),
    )
    @example((3, 4), "float64", 1e-4, 1e5, 0.3, 0.3, 0)
    @example((3, 4), "float32", 1e-4, 1e5, 0.3, 0.3, 0)
    def test_agrees_with_the_dense_sum(
        self, array, shape, dtype, eps, spread, forbidden, empty, seed
    ):
        rng = np.random.default_rng(seed)
        costs = random_costs(rng, shape, dtype, forbidden)
        logs = rng.uniform(-spread, spread, size=(3, *shape)).astype(dtype)
        logs[rng.uniform(size=logs.shape) < empty] = -np.inf
        check_log_apply(array, logs, costs, eps, dtype)

    @every_dtype
    def test_agrees_with_the_dense_sum_at_the_edge_of_underflow(self, array, dtype):
        """One sample at a time: one that needs the log domain would take the whole stack there."""
        limit = -float(np.log(float(np.finfo(dtype).tiny)))
        rng = np.random.default_rng(0)
        for _ in range(4 if "jax" in sys.modules else 200):
            costs = random_costs(rng, (3, 4), dtype)
            logs = rng.normal(size=(1, 3, 4)) * limit * rng.uniform(0.1, 2.0)
            eps = 1.0 / (limit * rng.uniform(0.1, 2.0))
            check_log_apply(array, logs.astype(dtype), costs, eps, dtype)

    @pytest.mark.parametrize("shape", [(5,), (3, 4)], ids=str)
    @every_dtype
    @pytest.mark.parametrize("eps", [1e-4, 1.0, 10.0])
    def test_agrees_with_the_dense_sum_for_single_bins(self, array, shape, dtype, eps):
        costs = random_costs(np.random.default_rng(0), shape, dtype)
        logs = np.full((3, *shape), -np.inf, dtype)
        for sample, value in enumerate([0.0, 1e5, -1e5]):
            logs[sample].flat[5 * sample % logs[0].size] = value
        check_log_apply(array, logs, costs, eps, dtype)

    @every_dtype
    def test_empty_fibres_and_samples_give_minus_infinity(self, array, dtype):
        rng = np.random.default_rng(0)
        costs = random_costs(rng, (3, 4), dtype, forbidden=0.5)
        logs = rng.normal(size=(4, 3, 4)).astype(dtype)
        logs[0, 1, :] = -np.inf
        logs[1, :, 2] = -np.inf
        logs[2] = -np.inf
        for eps in (1e-3, 1.0):
            check_log_apply(array, logs, costs, eps, dtype)

    @every_dtype
    def test_row_of_infinite_costs_gives_minus_infinity(self, array, dtype):
        cost = np.array([[0.0, 1.0], [np.inf, np.inf]])
        check_log_apply(array, np.array([[1.0, 2.0], [-1e5, 1e5]]), [cost], 0.1, dtype)

    @every_shape
    def test_is_equivariant_under_shifts(self, array, shape):
        rng = np.random.default_rng(1)
        kernel = kernel_of(random_costs(rng, shape), 0.05, array)
        logs = rng.normal(size=(2, *shape))
        plain = kernel.log_apply(array(logs))
        assert_close(kernel.log_apply(array(logs + 1024.0)), plain + 1024.0, rtol=1e-14)

    @either_way
    def test_dense_and_separable_kernels_agree(self, array, adjoint):
        rng = np.random.default_rng(2)
        costs = random_costs(rng, (3, 4), forbidden=0.2)
        logs = rng.normal(size=(5, 3, 4), scale=50.0)
        for eps in (1e-3, 10.0):
            separable = kernel_of(costs, eps, array)
            dense = kernel_of([full_cost(costs)], eps, array)
            name = "log_apply_adjoint" if adjoint else "log_apply"
            a = to_numpy(getattr(separable, name)(array(logs)))
            b = to_numpy(getattr(dense, name)(array(logs.reshape(5, 12))))
            np.testing.assert_allclose(a.reshape(5, 12), b, rtol=1e-13, atol=1e-12)


class TestApply:
    @every_shape
    @every_dtype
    @either_way
    @pytest.mark.parametrize("eps", [0.1, 1.0, 10.0])
    def test_agrees_with_the_dense_product(self, array, shape, dtype, adjoint, eps):
        rng = np.random.default_rng(0)
        costs = random_costs(rng, shape, dtype, forbidden=0.2)
        stack = rng.uniform(size=(3, *shape)).astype(dtype)
        stack[1] = 0.0
        matrix = np.exp(-full_cost(costs) / eps)
        expected = stack.reshape(3, -1).astype("float64") @ (matrix if adjoint else matrix.T)
        kernel = kernel_of(costs, eps, array, dtype)
        result = (kernel.apply_adjoint if adjoint else kernel.apply)(array(stack, dtype))
        rtol = 1e-5 if dtype == "float32" else 1e-14
        assert_close(result, array(expected.reshape(stack.shape), dtype), rtol=rtol)

    @either_way
    @pytest.mark.parametrize("shape", [(3, 4), (2, 5, 3)], ids=str)
    @every_dtype
    def test_result_does_not_depend_on_the_memory_layout(self, array, xp, shape, dtype, adjoint):
        """Samples last, reversed, and cut out of a larger stack."""
        rng = np.random.default_rng(2)
        kernel = kernel_of(random_costs(rng, shape, dtype), 0.5, array, dtype)
        apply = kernel.apply_adjoint if adjoint else kernel.apply
        stack = rng.uniform(size=(7, *shape))
        expected = apply(array(stack, dtype))
        backwards = tuple(range(len(shape), -1, -1))
        views = [
            xp.moveaxis(array(np.moveaxis(stack, 0, -1), dtype), -1, 0),
            xp.permute_dims(array(stack.transpose(), dtype), backwards),
            array(np.repeat(stack, 2, axis=0), dtype)[::2, ...],
        ]
        rtol = 1e-5 if dtype == "float32" else 1e-14
        for view in views:
            assert_close(apply(view), expected, rtol=rtol)

    def test_kernel_may_be_used_first_inside_a_trace(self, xp, array):
        """Cached arrays must not belong to the trace in which the kernel was first used."""
        if not is_jax_namespace(xp):
            pytest.skip("JAX alone traces")
        kernel = kernel_of(random_costs(np.random.default_rng(0), (3, 4)), 0.5, array)
        stack = array(np.ones((2, 3, 4)))
        traced = importlib.import_module("jax").jit(lambda f: kernel.apply_adjoint(kernel.apply(f)))
        assert_close(traced(stack), kernel.apply_adjoint(kernel.apply(stack)), rtol=1e-12)

    @every_shape
    def test_apply_adjoint_is_the_adjoint_of_apply(self, array, shape):
        rng = np.random.default_rng(1)
        kernel = kernel_of(random_costs(rng, shape, forbidden=0.2), 0.5, array)
        a, b = rng.uniform(size=(2, 3, *shape))
        forward, backward = (
            to_numpy(kernel.apply(array(a))),
            to_numpy(kernel.apply_adjoint(array(b))),
        )
        np.testing.assert_allclose(np.sum(b * forward), np.sum(a * backward), rtol=1e-14)

    @either_way
    def test_is_the_exponential_of_log_apply(self, array, xp, adjoint):
        rng = np.random.default_rng(1)
        kernel = kernel_of(random_costs(rng, (3, 4), forbidden=0.2), 0.1, array)
        logs = array(rng.normal(size=(3, 3, 4)))
        if adjoint:
            plain, logged = kernel.apply_adjoint(xp.exp(logs)), kernel.log_apply_adjoint(logs)
        else:
            plain, logged = kernel.apply(xp.exp(logs)), kernel.log_apply(logs)
        assert_close(xp.exp(logged), plain, rtol=1e-14)


class TestProductCost:
    @every_shape
    @every_dtype
    def test_agrees_with_the_explicit_sum(self, array, shape, dtype):
        rng = np.random.default_rng(0)
        costs = random_costs(rng, shape, dtype)
        a, b = rng.uniform(size=(2, 3, *shape)).astype(dtype)
        expected = np.einsum("ni,ij,nj->n", a.reshape(3, -1), full_cost(costs), b.reshape(3, -1))
        result = kernel_of(costs, 0.1, array, dtype).product_cost(array(a, dtype), array(b, dtype))
        rtol = 1e-6 if dtype == "float32" else 1e-14
        assert_close(result, array(expected, dtype), rtol=rtol)


class TestLogsumexp:
    def test_agrees_with_the_plain_formula(self, array, xp):
        logs = np.random.default_rng(0).normal(size=(2, 3, 4))
        expected = np.log(np.exp(logs).sum(axis=(1, 2)))
        assert_close(logsumexp(array(logs), (1, 2), xp), array(expected), rtol=1e-14)

    def test_neither_overflows_nor_underflows(self, array, xp):
        logs = array([[1e5, 1e5], [-1e5, -1e5], [-np.inf, 7.0], [-np.inf, -np.inf]])
        expected = array([1e5 + np.log(2.0), -1e5 + np.log(2.0), 7.0, -np.inf])
        assert_close(logsumexp(logs, 1, xp), expected, rtol=1e-15)


class TestAtAnotherEps:
    def test_what_is_known_of_the_costs_is_not_read_again(self, array, monkeypatch):
        rng = np.random.default_rng(0)
        kernel = GibbsKernel.of([array(c) for c in random_costs(rng, (3, 4))], 0.1)
        known = kernel.potential_range(), kernel.spacing(), kernel.typical_spacing()
        other = kernel.at_eps(0.5)
        with monkeypatch.context() as patch:
            patch.setattr("wtfarray._transport.kernels.geometry_of", None)
            found = other.potential_range(), other.spacing(), other.typical_spacing()
        assert found == known
        assert other.eps == 0.5
