"""The namespace of arrays: that of array_api_compat, whatever the arrays."""

import array_api_compat
import numpy as np
import pytest
from helpers import numpy_only

from wtfarray._arrays.namespace import array_namespace


def test_namespace_is_that_of_array_api_compat(xp, array):
    one = array([1.0, 2.0])
    if not (array_api_compat.is_numpy_namespace(xp) or array_api_compat.is_torch_namespace(xp)):
        assert array_namespace(one) is array_api_compat.array_namespace(one) is xp
    assert array_namespace(one) is array_namespace(one, one)
    assert array_namespace(one).__name__ == xp.__name__


@numpy_only
def test_numpy_numbers_and_subclasses_are_arrays_of_numpy():
    for one in (np.ones(2), np.float32(1.0), np.ones((2, 2)).view(np.recarray)):
        assert array_namespace(one) is array_namespace(np.ones(1))
        assert array_namespace(one, np.ones(1)) is array_namespace(np.ones(1))


def test_mixed_libraries_are_refused(xp, array):
    if array_api_compat.is_numpy_namespace(xp):
        pytest.skip("needs a library beside NumPy")
    with pytest.raises(TypeError, match=r"[Mm]ultiple namespaces"):
        array_namespace(array([1.0]), np.ones(1))


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="not a supported array type"):
        array_namespace("text")
