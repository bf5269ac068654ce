"""Transfers from any device to NumPy."""

import numpy as np
import pytest
from array_api_compat import is_torch_namespace
from helpers import to_numpy

from wtfarray._arrays.host import to_host


class TestToHost:
    def test_values_and_shape_are_kept(self, array):
        x = np.asarray([[1.5, -2.0, 0.0], [3.0, 4.0, 1e-9]])
        host = to_host(array(x))
        assert isinstance(host, np.ndarray)
        np.testing.assert_array_equal(host, x)

    def test_scalars_become_zero_dimensional_arrays(self, array):
        assert to_host(array(2.5)).shape == ()
        assert float(to_host(array(2.5))) == 2.5

    def test_float32_becomes_float64_exactly(self, array):
        host = to_host(array([0.1], dtype="float32"))
        assert host.dtype == np.float64
        assert host[0] == np.float32(0.1)

    def test_host_array_is_a_copy(self, array):
        x = array([1.0, 2.0])
        host = to_host(x)
        host[0] = 9.0
        np.testing.assert_array_equal(to_numpy(x), [1.0, 2.0])

    def test_autograd_graph_is_left_behind(self, xp, array):
        if not is_torch_namespace(xp):
            pytest.skip("autograd is torch's")
        x = array([1.0, 2.0]).requires_grad_()
        np.testing.assert_array_equal(to_host(2.0 * x), [2.0, 4.0])

    def test_non_finite_values_are_kept(self, array):
        x = [np.inf, -np.inf, np.nan]
        np.testing.assert_array_equal(to_host(array(x)), x)
