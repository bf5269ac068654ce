"""Transfers from any device to NumPy."""

import numpy as np
import pytest
from array_api_compat import (
    is_array_api_strict_namespace,
    is_jax_namespace,
    is_torch_namespace,
)
from helpers import assert_close, to_numpy

from wtfarray._arrays.host import (
    from_host,
    is_on_host,
    is_queued,
    to_host,
    to_host_together,
)


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


class TestFromHost:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_library_dtype_and_device_are_those_of_the_other(self, array, dtype):
        values = [[1.5, -2.0], [0.1, np.inf]]
        found = from_host(np.asarray(values), array([7.0], dtype))
        assert_close(found, array(values, dtype))

    def test_memory_may_be_that_of_the_processor(self, xp, array):
        expected = not is_array_api_strict_namespace(xp)
        assert is_on_host(array([1.0])) == expected

    def test_traced_arrays_are_nowhere(self, xp, array):
        if not is_jax_namespace(xp):
            pytest.skip("only JAX traces arrays")
        import jax

        seen = []
        jax.make_jaxpr(lambda x: seen.append(is_on_host(x)) or x)(array([1.0]))
        assert seen == [False]


class TestToHostTogether:
    def test_arrays_keep_their_shapes_and_numbers_are_floats(self, array):
        matrix = np.asarray([[1.0, 2.0], [3.0, 4.0]])
        found = to_host_together([array(matrix), 0.1, array(5.0), array([6.0])])
        np.testing.assert_array_equal(found[0], matrix)
        assert found[1:3] == [0.1, 5.0]
        assert [type(number) for number in found[1:3]] == [float, float]
        np.testing.assert_array_equal(found[3], [6.0])

    def test_numbers_on_the_host_keep_their_digits(self, array):
        assert to_host_together([array([1.0], dtype="float32"), 0.1])[1] == 0.1
        assert to_host_together([0.1, np.float64(0.2)]) == [0.1, 0.2]

    def test_is_one_transfer(self, xp, array):
        if not is_torch_namespace(xp):
            pytest.skip("transfers are counted on torch")
        from _torch_counts import TorchCounts

        items = [array([1.0, 2.0]), array(3.0), 4.0]
        with TorchCounts() as counts:
            to_host_together(items)
        assert counts.synchronisations == 1


def test_only_libraries_with_devices_queue_operations(xp, array):
    assert is_queued(array([1.0])) == (is_torch_namespace(xp) or is_jax_namespace(xp))
