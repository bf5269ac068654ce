"""Functions of NumPy that are called directly, against those of array_api_compat."""

import array_api_compat.numpy as usual
import numpy as np
import pytest
from helpers import numpy_only

from wtfarray._arrays.numpy_namespace import NUMPY

pytestmark = numpy_only


def arguments(dtype):
    """Functions that are called directly, with arguments for each."""
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(dtype)
    axes = [{}, {"axis": 1}, {"axis": (0, 2)}, {"axis": -1, "keepdims": True}]
    for some in axes:
        for name in ("sum", "max", "min"):
            yield name, (x,), some
            yield name, (x[0, 0, 0],), {}
        for name in ("all", "any"):
            yield name, (x > -1.0,), some
            yield name, (x[:, :, 0] > 0,), {}
    yield "sum", (x > 0,), {"axis": 0}
    yield "sum", (x > 0,), {"axis": 0, "dtype": np.float64}
    yield "reshape", (x, (-1, 5)), {}
    yield "reshape", (x[0, 0, 0], (1,)), {}
    yield "reshape", (x.T, (12, 5)), {"copy": True}
    yield "stack", ([x, 2 * x],), {}
    yield "stack", ([x, 2 * x],), {"axis": 1}
    yield "stack", ([x, 2 * x],), {"axis": -1}
    yield "astype", (x, np.float32), {}
    yield "astype", (x, np.float64), {"copy": False, "device": "cpu"}
    yield "stack", ([x[0, 0, 0], x[0, 0, 1]],), {}
    yield "squeeze", (x[:, :1, :1],), {"axis": 1}
    yield "squeeze", (x[:, :1, :1],), {"axis": (1, 2)}
    yield "permute_dims", (x, (2, 0, 1)), {}
    yield "matmul", (x, x.transpose(0, 2, 1)), {}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_numpy_return_what_those_of_array_api_compat_return(dtype):
    for name, args, options in arguments(dtype):
        expected = getattr(usual, name)(*args, **options)
        found = getattr(NUMPY, name)(*args, **options)
        assert type(found) is type(expected), name
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    assert NUMPY.finfo(dtype).eps == usual.finfo(dtype).eps


def test_stack_refuses_other_shapes():
    with pytest.raises(ValueError, match="dimensions"):
        NUMPY.stack([np.ones(2), np.ones(3)])


def test_other_functions_are_those_of_array_api_compat():
    assert NUMPY.where is usual.where
    assert NUMPY.linalg.solve is usual.linalg.solve
    assert set(dir(usual)) <= set(dir(NUMPY))
    assert set(dir(usual.linalg)) <= set(dir(NUMPY.linalg))


def test_inner_products_are_those_of_array_api_compat():
    x = np.random.default_rng(0).standard_normal((2, 3, 5))
    found = NUMPY.linalg.vecdot(x[0], x[1], axis=-1)
    np.testing.assert_array_equal(found, usual.linalg.vecdot(x[0], x[1], axis=-1))


def test_astype_copies_unless_told_otherwise():
    x = np.ones(3)
    assert NUMPY.astype(x, np.float64) is not x
    assert NUMPY.astype(x, np.float64, copy=False) is x
