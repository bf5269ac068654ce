"""Stacks of samples: sums, inner products and choices, sample by sample."""

import numpy as np
import pytest
from helpers import assert_close

from wtfarray._arrays.samples import (
    filled_up,
    inner,
    largest,
    merge_samples,
    per_sample,
    slices_of,
    spread,
    take_samples,
)

every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
every_shape = pytest.mark.parametrize("shape", [(4,), (4, 3), (1, 5), (4, 3, 2)], ids=str)


def normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


class TestSums:
    @every_shape
    @every_dtype
    def test_per_sample_sums_over_all_other_modes(self, array, shape, dtype):
        stack = normal(shape).astype(dtype)
        expected = stack.reshape(shape[0], -1).sum(axis=1)
        assert_close(per_sample(array(stack, dtype)), array(expected, dtype), rtol=1e-5)

    @every_shape
    @every_dtype
    def test_inner_is_the_inner_product_of_each_sample(self, array, shape, dtype):
        a, b = normal(shape, 1).astype(dtype), normal(shape, 2).astype(dtype)
        expected = (a * b).reshape(shape[0], -1).sum(axis=1)
        found = inner(array(a, dtype), array(b, dtype))
        assert_close(found, array(expected, dtype), rtol=1e-4, atol=1e-6)

    @every_shape
    @pytest.mark.parametrize("sign", [-1.0, 1.0])
    def test_largest_is_the_maximum_norm_of_each_sample(self, array, shape, sign):
        stack = sign * np.abs(normal(shape))
        expected = np.abs(stack).reshape(shape[0], -1).max(axis=1)
        assert_close(largest(array(stack)), array(expected), rtol=0)

    @every_shape
    def test_spread_broadcasts_one_number_per_sample(self, array, shape):
        stack, values = normal(shape), normal(shape[0], 1)
        expected = np.stack([x * v for x, v in zip(stack, values, strict=True)])
        like = array(stack)
        assert_close(like * spread(array(values), like), array(expected), rtol=1e-15)


class TestSlices:
    @pytest.mark.parametrize(("samples", "size"), [(1, 1), (7, 3), (6, 3), (5, 100), (0, 2)])
    def test_slices_cover_every_sample_once(self, samples, size):
        slices = slices_of(samples, size)
        numbers = [i for part in slices for i in range(samples)[part]]
        assert numbers == list(range(samples))
        assert all(0 < part.stop - part.start <= size for part in slices)
        assert len(slices) == -(-samples // size)

    @pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16)])
    def test_filled_up_is_the_next_power_of_two(self, count, size):
        assert filled_up(count) == size


class TestTakeSamples:
    @every_shape
    def test_samples_may_be_repeated_in_any_order(self, array, shape):
        stack, some = normal(shape), np.asarray([shape[0] - 1, 0, 0])
        assert_close(take_samples(array(stack), some), array(stack[some]), rtol=0)


class TestMergeSamples:
    def test_samples_are_replaced_by_their_numbers(self, array):
        old, new = np.arange(8.0).reshape(4, 2), -np.ones((3, 2))
        merged = merge_samples(array(old), array(new), np.asarray([2, 0]))
        old[[2, 0]] = -1.0
        assert_close(merged, array(old), rtol=0)

    @every_shape
    def test_merging_taken_samples_changes_nothing(self, array, shape):
        stack, some = array(normal(shape)), np.arange(shape[0])[::2]
        assert_close(merge_samples(stack, take_samples(stack, some), some), stack, rtol=0)
