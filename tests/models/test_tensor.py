"""n-mode algebra against TensorLy."""

import math

import numpy as np
import pytest
import tensorly as tl
from helpers import assert_close
from tensorly.tenalg import mode_dot, multi_mode_dot
from tensors import SHAPES, TIGHT, every_shape, normal, uniform_factors

import wtfarray as wtf

SHAPES_AND_MODES = [(shape, mode) for shape in SHAPES for mode in range(len(shape))]


every_mode = pytest.mark.parametrize(("shape", "mode"), SHAPES_AND_MODES, ids=str)


class TestUnfold:
    @every_mode
    def test_agrees_with_tensorly(self, array, shape, mode):
        tensor = normal(shape)
        assert_close(wtf.unfold(array(tensor), mode), array(tl.unfold(tensor, mode)), rtol=0)

    def test_negative_modes_count_from_the_end(self, array):
        tensor = array(normal((2, 3, 4)))
        assert_close(wtf.unfold(tensor, -1), wtf.unfold(tensor, 2), rtol=0)

    def test_dtype_is_kept(self, array):
        tensor = array(np.arange(6).reshape(2, 3), dtype="int64")
        assert_close(wtf.unfold(tensor, 1), array([[0, 3], [1, 4], [2, 5]], dtype="int64"))

    @pytest.mark.parametrize("mode", [2, -3])
    def test_mode_out_of_range_is_refused(self, array, mode):
        with pytest.raises(ValueError, match=f"mode is {mode}"):
            wtf.unfold(array(normal((2, 3))), mode)

    def test_non_integer_mode_is_refused(self, array):
        with pytest.raises(TypeError, match=r"mode is 1\.0"):
            wtf.unfold(array(normal((2, 3))), 1.0)


class TestFold:
    @every_mode
    def test_agrees_with_tensorly(self, array, shape, mode):
        matrix = normal((shape[mode], math.prod(shape) // shape[mode]))
        expected = tl.fold(matrix, mode, shape)
        assert_close(wtf.fold(array(matrix), mode, shape), array(expected), rtol=0)

    @every_mode
    def test_is_the_inverse_of_unfold(self, array, shape, mode):
        tensor = array(normal(shape))
        assert_close(wtf.fold(wtf.unfold(tensor, mode), mode, shape), tensor, rtol=0)
        assert_close(wtf.fold(wtf.unfold(tensor, mode), mode - len(shape), shape), tensor, rtol=0)

    def test_matrix_of_another_shape_is_refused(self, array):
        with pytest.raises(ValueError, match=r"matrix has shape \(3, 8\): expected \(2, 12\)"):
            wtf.fold(array(normal((3, 8))), 0, (2, 3, 4))


class TestModeProduct:
    @every_mode
    def test_agrees_with_tensorly(self, array, shape, mode):
        tensor, matrix = normal(shape), normal(((1, 6)[mode % 2], shape[mode]), seed=1)
        result = wtf.mode_product(array(tensor), array(matrix), mode)
        assert_close(result, array(mode_dot(tensor, matrix, mode)), rtol=TIGHT, atol=TIGHT)

    def test_negative_modes_count_from_the_end(self, array):
        tensor, matrix = array(normal((2, 3, 4))), array(normal((5, 3)))
        expected = wtf.mode_product(tensor, matrix, 1)
        assert_close(wtf.mode_product(tensor, matrix, -2), expected, rtol=0)

    def test_float32_is_kept(self, array):
        tensor, matrix = normal((2, 3, 4)), normal((5, 3))
        result = wtf.mode_product(array(tensor, "float32"), array(matrix, "float32"), 1)
        expected = array(mode_dot(tensor, matrix, 1), "float32")
        assert_close(result, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("shape", [(3, 5), (3,), (5, 2)])
    def test_matrix_of_another_size_is_refused(self, array, shape):
        with pytest.raises(ValueError, match=r"matrix has shape .*: expected \(m, 3\) for mode 1"):
            wtf.mode_product(array(normal((2, 3, 4))), array(normal(shape)), 1)

    def test_arrays_of_two_libraries_are_refused(self, array, xp):
        other = pytest.importorskip("array_api_strict").ones((5, 3))
        if "strict" in xp.__name__:
            other = np.ones((5, 3))
        with pytest.raises(TypeError, match=r"matrix is an array of .* and tensor one of"):
            wtf.mode_product(array(normal((2, 3, 4))), other, 1)


class TestModeProducts:
    @every_shape
    def test_agrees_with_tensorly(self, array, shape):
        tensor = normal(shape)
        matrices = [normal((k + 2, n), seed=k) for k, n in enumerate(shape)]
        result = wtf.mode_products(array(tensor), [array(m) for m in matrices], range(len(shape)))
        expected = array(multi_mode_dot(tensor, matrices))
        assert_close(result, expected, rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize("modes", [(2,), (0, 3), (3, 1, 0), (-1, 1)])
    def test_modes_may_be_a_subset_in_any_order(self, array, modes):
        tensor = normal((2, 3, 4, 5))
        matrices = [normal((3, tensor.shape[k]), seed=k % 4) for k in modes]
        result = wtf.mode_products(array(tensor), [array(m) for m in matrices], modes)
        expected = multi_mode_dot(tensor, matrices, modes=[k % 4 for k in modes])
        assert_close(result, array(expected), rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize("modes", [(0,), (1, 1), (1, -2)])
    def test_repeated_or_missing_modes_are_refused(self, array, modes):
        matrices = [array(normal((2, 3))), array(normal((2, 3)))]
        with pytest.raises(ValueError, match="expected one mode per matrix, all different"):
            wtf.mode_products(array(normal((3, 3, 3))), matrices, modes)

    def test_single_array_is_refused(self, array):
        with pytest.raises(TypeError, match=r"matrices is .*: expected a list or tuple"):
            wtf.mode_products(array(normal((3, 3))), array(normal((2, 3))), (0,))


class TestCpToTensor:
    @every_shape
    @pytest.mark.parametrize("rank", [1, 7])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_agrees_with_tensorly(self, array, shape, rank, weighted):
        factors = [normal((n, rank), seed=k) for k, n in enumerate(shape)]
        weights = normal(rank, seed=9) if weighted else np.ones(rank)
        expected = tl.cp_to_tensor((weights, factors))
        arguments = ([array(f) for f in factors], *([array(weights)] if weighted else []))
        result = wtf.cp_to_tensor(*arguments)
        assert_close(result, array(expected), rtol=1e-13, atol=1e-13)

    def test_factors_of_different_ranks_are_refused(self, array):
        with pytest.raises(ValueError, match=r"factors\[1\] has shape \(3, 4\): expected \(n_1, 5"):
            wtf.cp_to_tensor([array(normal((2, 5))), array(normal((3, 4)))])

    def test_weights_of_another_rank_are_refused(self, array):
        with pytest.raises(ValueError, match=r"weights has shape \(3,\): expected \(2,\)"):
            wtf.cp_to_tensor([array(normal((4, 2)))], array(normal(3)))

    def test_empty_list_of_factors_is_refused(self):
        with pytest.raises(ValueError, match="factors is empty"):
            wtf.cp_to_tensor([])


class TestTuckerToTensor:
    @every_shape
    @pytest.mark.parametrize("offset", [-2, 2])
    def test_agrees_with_tensorly(self, array, shape, offset):
        ranks = [max(1, n + offset) for n in shape]
        core = normal(ranks)
        factors = [normal(pair, seed=k) for k, pair in enumerate(zip(shape, ranks, strict=True))]
        result = wtf.tucker_to_tensor(array(core), [array(f) for f in factors])
        expected = array(tl.tucker_to_tensor((core, factors)))
        assert_close(result, expected, rtol=1e-12, atol=1e-12)

    @every_shape
    def test_superdiagonal_core_gives_the_cp_tensor(self, array, shape):
        factors = [array(f) for f in uniform_factors(shape, [3] * len(shape))]
        weights = np.array([0.5, 2.0, 3.0])
        core = np.zeros((3,) * len(shape))
        core[(np.arange(3),) * len(shape)] = weights
        result = wtf.tucker_to_tensor(array(core), factors)
        assert_close(result, wtf.cp_to_tensor(factors, array(weights)), rtol=TIGHT)

    def test_another_number_of_factors_is_refused(self, array):
        with pytest.raises(ValueError, match="core has 3 modes for 2 factors"):
            wtf.tucker_to_tensor(array(normal((1, 2, 3))), [array(normal((4, 1)))] * 2)

    def test_factor_of_another_rank_is_refused(self, array):
        with pytest.raises(ValueError, match=r"factors\[1\] has shape \(4, 3\): expected \(n_1, 2"):
            wtf.tucker_to_tensor(
                array(normal((1, 2))), [array(normal((4, 1))), array(normal((4, 3)))]
            )
