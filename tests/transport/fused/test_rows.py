"""Rows of arrays without a reference to them."""

import sys

import numpy as np
import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

from numba import njit

from wtfarray._transport.fused.rows import row


@njit
def add_to_row(array, index, number):
    part = row(array, index)
    for j in range(part.shape[0]):
        part[j] += number


@njit
def sum_of_row(array, index):
    return row(array, index).sum()


def test_row_shares_the_memory():
    array = np.arange(12.0).reshape(4, 3)
    add_to_row(array, 2, 10.0)
    np.testing.assert_array_equal(array[2], [16.0, 17.0, 18.0])
    np.testing.assert_array_equal(array[[0, 1, 3]].ravel(), [0, 1, 2, 3, 4, 5, 9, 10, 11])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_rows_of_other_types_and_of_more_dimensions(dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    assert sum_of_row(array, np.uint64(1)) == array[1].sum()


def test_no_reference_is_left():
    array = np.ones((2, 3))
    before = sys.getrefcount(array)
    sum_of_row(array, 1)
    assert sys.getrefcount(array) == before
