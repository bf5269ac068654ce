"""Transfers from any device to NumPy."""

import numpy as np

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
