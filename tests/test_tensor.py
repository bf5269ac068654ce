"""n-mode algebra against TensorLy, and every block of a model against its adjoint."""

import math
import sys

import numpy as np
import pytest
import tensorly as tl
from helpers import assert_close, to_numpy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tensorly.tenalg import mode_dot, multi_mode_dot

import wtfarray as wtf
from wtfarray._models.models import core_block, cp_block, cp_weights_block, tucker_block

SHAPES = [(4,), (3, 5), (4, 1, 3), (2, 3, 4, 2), (2, 3, 1, 2, 3)]
SHAPES_AND_MODES = [(shape, mode) for shape in SHAPES for mode in range(len(shape))]
TIGHT = 1e-14

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_mode = pytest.mark.parametrize(("shape", "mode"), SHAPES_AND_MODES, ids=str)


def normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def uniform_factors(shape, ranks, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.1, 1.0, size=pair) for pair in zip(shape, ranks, strict=True)]


class TestUnfold:
    @every_mode
    def test_is_tensorly_s(self, array, shape, mode):
        tensor = normal(shape)
        assert_close(wtf.unfold(array(tensor), mode), array(tl.unfold(tensor, mode)), rtol=0)

    def test_counts_negative_modes_from_the_end(self, array):
        tensor = array(normal((2, 3, 4)))
        assert_close(wtf.unfold(tensor, -1), wtf.unfold(tensor, 2), rtol=0)

    def test_keeps_the_dtype(self, array):
        tensor = array(np.arange(6).reshape(2, 3), dtype="int64")
        assert_close(wtf.unfold(tensor, 1), array([[0, 3], [1, 4], [2, 5]], dtype="int64"))

    @pytest.mark.parametrize("mode", [2, -3])
    def test_refuses_a_mode_that_is_not_there(self, array, mode):
        with pytest.raises(ValueError, match=f"mode is {mode}"):
            wtf.unfold(array(normal((2, 3))), mode)

    def test_refuses_a_mode_that_is_no_integer(self, array):
        with pytest.raises(TypeError, match=r"mode is 1\.0"):
            wtf.unfold(array(normal((2, 3))), 1.0)


class TestFold:
    @every_mode
    def test_is_tensorly_s(self, array, shape, mode):
        matrix = normal((shape[mode], math.prod(shape) // shape[mode]))
        expected = tl.fold(matrix, mode, shape)
        assert_close(wtf.fold(array(matrix), mode, shape), array(expected), rtol=0)

    @every_mode
    def test_undoes_unfold(self, array, shape, mode):
        tensor = array(normal(shape))
        assert_close(wtf.fold(wtf.unfold(tensor, mode), mode, shape), tensor, rtol=0)
        assert_close(wtf.fold(wtf.unfold(tensor, mode), mode - len(shape), shape), tensor, rtol=0)

    def test_refuses_another_shape(self, array):
        with pytest.raises(ValueError, match=r"matrix has shape \(3, 8\): expected \(2, 12\)"):
            wtf.fold(array(normal((3, 8))), 0, (2, 3, 4))


class TestModeProduct:
    @every_mode
    def test_is_tensorly_s(self, array, shape, mode):
        tensor, matrix = normal(shape), normal(((1, 6)[mode % 2], shape[mode]), seed=1)
        result = wtf.mode_product(array(tensor), array(matrix), mode)
        assert_close(result, array(mode_dot(tensor, matrix, mode)), rtol=TIGHT, atol=TIGHT)

    def test_counts_negative_modes_from_the_end(self, array):
        tensor, matrix = array(normal((2, 3, 4))), array(normal((5, 3)))
        expected = wtf.mode_product(tensor, matrix, 1)
        assert_close(wtf.mode_product(tensor, matrix, -2), expected, rtol=0)

    def test_keeps_float32(self, array):
        tensor, matrix = normal((2, 3, 4)), normal((5, 3))
        result = wtf.mode_product(array(tensor, "float32"), array(matrix, "float32"), 1)
        expected = array(mode_dot(tensor, matrix, 1), "float32")
        assert_close(result, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("shape", [(3, 5), (3,), (5, 2)])
    def test_refuses_a_matrix_of_another_size(self, array, shape):
        with pytest.raises(ValueError, match=r"matrix has shape .*: expected \(m, 3\) for mode 1"):
            wtf.mode_product(array(normal((2, 3, 4))), array(normal(shape)), 1)

    def test_refuses_two_libraries(self, array, xp):
        other = pytest.importorskip("array_api_strict").ones((5, 3))
        if "strict" in xp.__name__:
            other = np.ones((5, 3))
        with pytest.raises(TypeError, match=r"matrix is an array of .* and tensor one of"):
            wtf.mode_product(array(normal((2, 3, 4))), other, 1)


class TestModeProducts:
    @every_shape
    def test_is_tensorly_s(self, array, shape):
        tensor = normal(shape)
        matrices = [normal((k + 2, n), seed=k) for k, n in enumerate(shape)]
        result = wtf.mode_products(array(tensor), [array(m) for m in matrices], range(len(shape)))
        expected = array(multi_mode_dot(tensor, matrices))
        assert_close(result, expected, rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize("modes", [(2,), (0, 3), (3, 1, 0), (-1, 1)])
    def test_takes_some_modes_in_any_order(self, array, modes):
        tensor = normal((2, 3, 4, 5))
        matrices = [normal((3, tensor.shape[k]), seed=k % 4) for k in modes]
        result = wtf.mode_products(array(tensor), [array(m) for m in matrices], modes)
        expected = multi_mode_dot(tensor, matrices, modes=[k % 4 for k in modes])
        assert_close(result, array(expected), rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize("modes", [(0,), (1, 1), (1, -2)])
    def test_refuses_modes_that_do_not_match(self, array, modes):
        matrices = [array(normal((2, 3))), array(normal((2, 3)))]
        with pytest.raises(ValueError, match="expected one different mode for each"):
            wtf.mode_products(array(normal((3, 3, 3))), matrices, modes)

    def test_refuses_a_single_array(self, array):
        with pytest.raises(TypeError, match=r"matrices is .*: expected a list or tuple"):
            wtf.mode_products(array(normal((3, 3))), array(normal((2, 3))), (0,))


class TestCpToTensor:
    @every_shape
    @pytest.mark.parametrize("rank", [1, 7])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_is_tensorly_s(self, array, shape, rank, weighted):
        factors = [normal((n, rank), seed=k) for k, n in enumerate(shape)]
        weights = normal(rank, seed=9) if weighted else np.ones(rank)
        expected = tl.cp_to_tensor((weights, factors))
        arguments = ([array(f) for f in factors], *([array(weights)] if weighted else []))
        result = wtf.cp_to_tensor(*arguments)
        assert_close(result, array(expected), rtol=1e-13, atol=1e-13)

    def test_refuses_factors_of_two_ranks(self, array):
        with pytest.raises(ValueError, match=r"factors\[1\] has shape \(3, 4\): expected \(n_1, 5"):
            wtf.cp_to_tensor([array(normal((2, 5))), array(normal((3, 4)))])

    def test_refuses_weights_of_another_rank(self, array):
        with pytest.raises(ValueError, match=r"weights has shape \(3,\): expected \(2,\)"):
            wtf.cp_to_tensor([array(normal((4, 2)))], array(normal(3)))

    def test_refuses_no_factors(self):
        with pytest.raises(ValueError, match="factors is empty"):
            wtf.cp_to_tensor([])


class TestTuckerToTensor:
    @every_shape
    @pytest.mark.parametrize("offset", [-2, 2])
    def test_is_tensorly_s(self, array, shape, offset):
        ranks = [max(1, n + offset) for n in shape]
        core = normal(ranks)
        factors = [normal(pair, seed=k) for k, pair in enumerate(zip(shape, ranks, strict=True))]
        result = wtf.tucker_to_tensor(array(core), [array(f) for f in factors])
        expected = array(tl.tucker_to_tensor((core, factors)))
        assert_close(result, expected, rtol=1e-12, atol=1e-12)

    @every_shape
    def test_superdiagonal_core_is_cp(self, array, shape):
        factors = [array(f) for f in uniform_factors(shape, [3] * len(shape))]
        weights = np.array([0.5, 2.0, 3.0])
        core = np.zeros((3,) * len(shape))
        core[(np.arange(3),) * len(shape)] = weights
        result = wtf.tucker_to_tensor(array(core), factors)
        assert_close(result, wtf.cp_to_tensor(factors, array(weights)), rtol=TIGHT)

    def test_refuses_another_number_of_factors(self, array):
        with pytest.raises(ValueError, match="core has 3 modes and there are 2 factors"):
            wtf.tucker_to_tensor(array(normal((1, 2, 3))), [array(normal((4, 1)))] * 2)

    def test_refuses_a_factor_of_another_rank(self, array):
        with pytest.raises(ValueError, match=r"factors\[1\] has shape \(4, 3\): expected \(n_1, 2"):
            wtf.tucker_to_tensor(
                array(normal((1, 2))), [array(normal((4, 1))), array(normal((4, 3)))]
            )


def assert_adjoint(block, array, seed):
    """Check ``<U, forward(A)> = <adjoint(U), A>`` for non-negative fixed blocks."""
    A, U = normal(block.shape, seed), normal(block.model_shape, seed + 1)
    image, dual = to_numpy(block.forward(array(A))), to_numpy(block.adjoint(array(U)))
    assert image.shape == U.shape
    assert dual.shape == A.shape
    size = np.sum(np.abs(U) * to_numpy(block.forward(array(np.abs(A)))))
    assert abs(np.sum(U * image) - np.sum(dual * A)) <= TIGHT * size


sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)
seeds = st.integers(0, 1000)
few = settings(
    # JAX compiles every operation anew for every shape.
    max_examples=2 if "jax" in sys.modules else 20,
    suppress_health_check=[HealthCheck.differing_executors],
)


class TestCpBlock:
    @few
    @given(shape=sizes, rank=st.integers(1, 6), weighted=st.booleans(), seed=seeds)
    @example(shape=[2, 1, 3], rank=4, weighted=True, seed=0)
    def test_xi_is_the_adjoint(self, array, shape, rank, weighted, seed):
        factors = [array(f) for f in uniform_factors(shape, [rank] * len(shape), seed)]
        weights = array(np.arange(1.0, rank + 1)) if weighted else None
        model = wtf.cp_to_tensor(factors, weights)
        for mode, factor in enumerate(factors):
            block = cp_block(factors, mode, weights)
            assert_adjoint(block, array, seed)
            assert_close(block.forward(factor), model, rtol=TIGHT)

    def test_does_not_depend_on_its_own_factor(self, array):
        factors = [array(f) for f in uniform_factors((3, 4, 5), [2, 2, 2])]
        other = [factors[0], array(normal((4, 2))), factors[2]]
        U = array(normal((3, 4, 5)))
        assert_close(cp_block(other, 1).adjoint(U), cp_block(factors, 1).adjoint(U), rtol=0)


class TestCpWeightsBlock:
    @few
    @given(shape=sizes, rank=st.integers(1, 6), scale=st.sampled_from([1.0, 2.5]), seed=seeds)
    def test_is_adjoint(self, array, shape, rank, scale, seed):
        factors = [array(f) for f in uniform_factors(shape, [rank] * len(shape), seed)]
        block = cp_weights_block(factors, scale)
        assert_adjoint(block, array, seed)
        weights = array(normal(rank, seed))
        model = wtf.cp_to_tensor(factors, weights * scale)
        assert_close(block.forward(weights), model, rtol=TIGHT, atol=TIGHT)


class TestTuckerBlock:
    @few
    @given(pairs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=5))
    @example(pairs=[(2, 4), (1, 1), (3, 1)])
    def test_xi_is_the_adjoint(self, array, pairs):
        shape, ranks = zip(*pairs, strict=True)
        factors = [array(f) for f in uniform_factors(shape, ranks)]
        core = array(np.random.default_rng(1).uniform(size=ranks))
        model = wtf.tucker_to_tensor(core, factors)
        for mode, factor in enumerate(factors):
            block = tucker_block(core, factors, mode)
            assert_adjoint(block, array, mode)
            assert_close(block.forward(factor), model, rtol=TIGHT)

    @pytest.mark.parametrize("shape", [(4,), (3, 5), (4, 1, 3)], ids=str)
    def test_superdiagonal_core_is_cp(self, array, shape):
        factors = [array(f) for f in uniform_factors(shape, [3] * len(shape))]
        weights = np.array([0.5, 2.0, 3.0])
        core = np.zeros((3,) * len(shape))
        core[(np.arange(3),) * len(shape)] = weights
        U = array(np.abs(normal(shape)))
        for mode in range(len(shape)):
            cp = cp_block(factors, mode, array(weights))
            assert_close(
                tucker_block(array(core), factors, mode).adjoint(U), cp.adjoint(U), rtol=TIGHT
            )


class TestCoreBlock:
    @few
    @given(pairs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=5))
    @example(pairs=[(2, 4), (1, 1), (3, 1)])
    def test_omega_is_the_adjoint(self, array, pairs):
        shape, ranks = zip(*pairs, strict=True)
        factors = [array(f) for f in uniform_factors(shape, ranks)]
        block = core_block(factors, range(len(factors)))
        assert_adjoint(block, array, 0)
        core = array(np.random.default_rng(1).uniform(size=ranks))
        assert_close(block.forward(core), wtf.tucker_to_tensor(core, factors), rtol=TIGHT)

    def test_core_in_another_order_of_the_modes(self, array):
        factors = [array(f) for f in uniform_factors((3, 4, 5), (2, 3, 4))]
        core, order = normal((4, 2, 3)), (1, 2, 0)
        block = core_block(factors, order)
        assert block.shape == core.shape
        assert_adjoint(block, array, 0)
        model = wtf.tucker_to_tensor(array(core.transpose(order)), factors)
        assert_close(block.forward(array(core)), model, rtol=1e-13, atol=1e-13)

    @every_shape
    def test_diagonal_is_the_weights_block(self, array, shape):
        factors = [array(f) for f in uniform_factors(shape, [3] * len(shape))]
        U = array(np.abs(normal(shape)))
        omega = to_numpy(core_block(factors, range(len(shape))).adjoint(U))
        diagonal = array(omega[(np.arange(3),) * len(shape)])
        assert_close(cp_weights_block(factors).adjoint(U), diagonal, rtol=TIGHT)
