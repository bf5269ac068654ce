"""Functions of torch that are called directly, against those of array_api_compat."""

import math

import numpy as np
import pytest
from array_api_compat import is_torch_namespace
from helpers import to_numpy

from wtfarray._arrays.namespace import array_namespace


@pytest.fixture
def direct(xp, array):
    if not is_torch_namespace(xp):
        pytest.skip("these functions are torch's")
    return array_namespace(array([1.0]))


def arguments(xp, array, first, second):
    """Functions that are called directly, with arguments of two dtypes for each."""
    x, y = array([[1.5, -2.0], [0.3, 4.0]], first), array([[0.1, 5.0], [-0.3, math.nan]], second)
    yield xp.matmul, "matmul", (x, y)
    yield xp.matmul, "matmul", (x[None, ...], y)
    for name in ("maximum", "minimum"):
        yield getattr(xp, name), name, (x, y)
        yield getattr(xp, name), name, (y, 0.1)
        yield getattr(xp, name), name, (y, math.inf)
        yield getattr(xp, name), name, (0.1, y)
        yield getattr(xp, name), name, (xp.astype(x, xp.int64), 1)


@pytest.mark.parametrize("first", ["float32", "float64"])
@pytest.mark.parametrize("second", ["float32", "float64"])
def test_functions_return_what_those_of_array_api_compat_return(xp, array, direct, first, second):
    for usual, name, args in arguments(xp, array, first, second):
        expected, found = usual(*args), getattr(direct, name)(*args)
        assert found.dtype == expected.dtype, name
        np.testing.assert_array_equal(to_numpy(found), to_numpy(expected))


@pytest.mark.parametrize("first", ["float32", "float64"])
@pytest.mark.parametrize("second", ["float32", "float64"])
def test_inner_products(xp, array, direct, first, second):
    x, y = array([[1.5, -2.0], [0.3, 4.0]], first), array([[0.1, 5.0], [-0.3, 2.0]], second)
    expected, found = (space.linalg.vecdot(x, y, axis=-1) for space in (xp, direct))
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()
    with pytest.raises(ValueError, match="same size"):
        direct.linalg.vecdot(x, y[:, :1], axis=-1)


def test_other_functions_are_those_of_array_api_compat(xp, direct):
    assert direct.where is xp.where
    assert direct.linalg.solve is xp.linalg.solve
    assert set(dir(xp)) <= set(dir(direct))
    assert set(dir(xp.linalg)) <= set(dir(direct.linalg))
