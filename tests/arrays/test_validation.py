"""Checks of what the caller gives: what passes is unchanged, what does not is named."""

import array_api_compat
import numpy as np
import pytest
from array_api_compat import (
    is_array_api_strict_namespace,
    is_jax_namespace,
    is_numpy_namespace,
    is_torch_namespace,
)
from helpers import assert_close, to_numpy

from wtfarray._arrays.validation import (
    as_computed,
    as_data,
    as_floating,
    as_nonnegative,
    axis_index,
    check_shape,
    common_namespace,
    follow,
    instance_of,
    known_options,
    one_of,
    or_float64,
    positive_integer,
    positive_number,
    refuse_taken_for_zero,
    refuse_where,
    same_dtype,
    sequence_of_arrays,
)


class TestCommonNamespace:
    def test_namespace_of_all_arrays_is_returned(self, xp, array):
        assert common_namespace(X=array([1.0]), Y=array([2.0])).__name__ == xp.__name__

    def test_array_of_another_library_is_named(self, xp, array):
        if is_numpy_namespace(xp):
            pytest.skip("NumPy is the other library")
        with pytest.raises(TypeError, match=r"Y is an array of .*numpy.* and X one of"):
            common_namespace(X=array([1.0]), Y=np.ones(1))

    def test_array_on_another_device_is_named(self, xp, array, device):
        if not is_array_api_strict_namespace(xp):
            pytest.skip("only array-api-strict has two devices everywhere")
        other = xp.Device("device1" if device == xp.Device("CPU_DEVICE") else "CPU_DEVICE")
        with pytest.raises(ValueError, match=r"Z is on device .* and X on .*: expected one device"):
            common_namespace(X=array([1.0]), Y=array([1.0]), Z=xp.ones(1, device=other))

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([1.0], r"X is a list: expected an array, numpy\.asarray\(X\)"),
            (2.5, "X is a Python float: expected an array"),
            (True, "X is a Python bool: expected an array"),
            (np.ma.masked_array([1.0]), "X is a masked array: expected a plain array"),
            (np.array([None]), "X has dtype object: expected float32"),
        ],
    )
    def test_what_is_no_plain_array_is_refused(self, value, message):
        with pytest.raises(TypeError, match=message):
            common_namespace(X=value)


class TestAsFloating:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_floating_arrays_are_returned_as_they_are(self, xp, array, dtype):
        x = array([1.0, 2.0], dtype)
        found = as_floating("X", x, xp)
        assert_close(found, x, rtol=0)
        assert found is x or is_torch_namespace(xp)  # torch tensors are detached

    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
    def test_integers_and_bools_take_the_default_float(self, xp, array, device, dtype):
        info = xp.__array_namespace_info__()
        default = info.default_dtypes(device=device)["real floating"]
        found = as_floating("X", array([0, 1], dtype), xp)
        assert found.dtype == default
        assert_close(xp.astype(found, xp.float64), array([0.0, 1.0]), rtol=0)

    def test_complex_numbers_are_refused(self, xp, array):
        with pytest.raises(TypeError, match=r"X has dtype .*complex128.*: expected float32"):
            as_floating("X", array([1.0], "complex128"), xp)

    def test_autograd_graph_is_left_behind(self, xp, array):
        if not is_torch_namespace(xp):
            pytest.skip("autograd is torch's")
        assert not as_floating("X", array([1.0]).requires_grad_(), xp).requires_grad


class TestAsNonnegative:
    def test_negative_noise_is_described(self, xp, array):
        X = array([[1.0, -0.02, 4.0], [-0.01, 2.0, 0.0]])
        expected = (
            r"X is -0.02 at index \(0, 1\) and at 1 more places: expected non-negative values; "
            r"2 of 6 entries are negative, down to -0.02 \(0.005 of the largest entry\): "
            r"small negative noise is usually set to 0"
        )
        with pytest.raises(ValueError, match=expected):
            as_nonnegative("X", X, xp)

    def test_zeros_and_positive_numbers_pass(self, xp, array):
        x = array([[0.0, 2.0], [0.0, 0.0]])
        assert_close(as_nonnegative("X", x, xp), x, rtol=0)

    @pytest.mark.parametrize("number", [-1.0, np.nan, np.inf])
    def test_first_bad_entry_is_named(self, xp, array, number):
        with pytest.raises(ValueError, match=rf"X is {number} at index \(0, 1\): expected"):
            as_nonnegative("X", array([[1.0, number]]), xp)

    @pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
    def test_scalars_and_empty_arrays_are_refused(self, xp, array, shape):
        with pytest.raises(ValueError, match=r"X has shape .*: expected at least one mode"):
            as_nonnegative("X", array(np.zeros(shape)), xp)


class TestAsData:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_data_pass_unchanged(self, xp, array, dtype):
        x = array([[0.0, 2.0]], dtype)
        assert_close(as_data("X", x, xp), x, rtol=0)

    def test_zero_data_are_refused(self, xp, array):
        with pytest.raises(ValueError, match="X is zero everywhere: expected at least one pos"):
            as_data("X", array([0.0, 0.0]), xp)

    @pytest.mark.parametrize(
        ("dtype", "good", "bad"),
        [("float32", (1e-18, 1e18), (1e-20, 1e20)), ("float64", (1e-153, 1e153), (1e-155, 1e155))],
    )
    def test_range_of_the_sum_depends_on_the_dtype(self, xp, array, dtype, good, bad):
        for total in bad:
            with pytest.raises(ValueError, match=r"X sums to .*: expected .* rescale it"):
                as_data("X", array([0.5 * total, 0.5 * total], dtype), xp)
        for total in good:
            X = array([0.5 * total, 0.5 * total], dtype)
            assert_close(as_data("X", X, xp), X, rtol=0)


class TestRefuseWhere:
    def test_nothing_bad_passes(self, array):
        x = array([1.0, 2.0])
        assert refuse_where(x > 5.0, "X", x, "small values") is None

    def test_first_entry_and_number_of_bad_entries_are_stated(self, array):
        x = array([[1.0, 7.0], [8.0, 9.0]])
        message = r"X is 7\.0 at index \(0, 1\) and at 2 more places: expected small values"
        with pytest.raises(ValueError, match=message):
            refuse_where(x > 5.0, "X", x, "small values")


class TestArrays:
    def test_same_dtype_passes_and_another_is_named(self, array):
        x, y = array([1.0]), array([1.0], "float32")
        assert same_dtype("Y", x, "X", x) is x
        with pytest.raises(TypeError, match=r"Y has dtype .*float32 and X .*float64: expected one"):
            same_dtype("Y", y, "X", x)

    def test_another_shape_is_refused(self, array):
        check_shape("X", array(np.ones((2, 3))), (2, 3))
        with pytest.raises(ValueError, match=r"X has shape \(2, 3\): expected \(3, 2\)"):
            check_shape("X", array(np.ones((2, 3))), (3, 2))

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_numpy_arrays_follow_the_data(self, xp, array, device, dtype):
        like = array([0.0], dtype)
        given = np.asarray([[1.0, 2.0]])
        found = follow("cost", given, xp, like.dtype, device)
        assert_close(found, array(given, dtype), rtol=0)
        assert array_api_compat.device(found) == device
        given.flags.writeable = False
        assert_close(follow("cost", given, xp, like.dtype, device), array(given, dtype), rtol=0)

    def test_arrays_of_the_library_take_the_dtype_of_the_data(self, xp, array, device):
        found = follow("cost", array([1.0, 2.0]), xp, array([0.0], "float32").dtype, device)
        assert_close(found, array([1.0, 2.0], "float32"), rtol=0)

    def test_arrays_of_another_library_do_not_follow(self, xp, array):
        if is_numpy_namespace(xp):
            pytest.skip("NumPy arrays follow every library")
        numpy = array_api_compat.array_namespace(np.ones(1))
        with pytest.raises(TypeError, match=r"cost is an array of .* and the data are of"):
            follow("cost", array([1.0]), numpy, np.float64, "cpu")

    def test_sequences_of_arrays_become_tuples(self, array):
        x = array([1.0])
        assert sequence_of_arrays("factors", [x]) == (x,)
        with pytest.raises(TypeError, match=r"factors is a \w+: expected a list or tuple"):
            sequence_of_arrays("factors", x)
        with pytest.raises(ValueError, match="factors is empty"):
            sequence_of_arrays("factors", [])

    def test_float64_is_advised_for_float32_only(self, array):
        assert or_float64(array([1.0], "float32")) == ", or float64"
        assert or_float64(array([1.0])) == ""


class TestNumbers:
    @pytest.mark.parametrize("value", [1, 0.5, np.float32(2.0), np.int64(3)])
    def test_positive_numbers_become_floats(self, value):
        found = positive_number("eps", value)
        assert type(found) is float
        assert found == value

    @pytest.mark.parametrize(
        ("value", "error"),
        [
            *((value, ValueError) for value in (0, -1.0, np.nan, np.inf)),
            *((value, TypeError) for value in ("1", True, 1j, None)),
        ],
    )
    def test_other_values_are_no_positive_numbers(self, value, error):
        with pytest.raises(error, match=r"eps is .*: expected a positive number$"):
            positive_number("eps", value)

    def test_infinity_passes_where_it_has_a_meaning(self):
        assert positive_number("lam", np.inf, infinite=True) == np.inf
        with pytest.raises(ValueError, match="lam is 0: expected a positive number or inf"):
            positive_number("lam", 0, infinite=True)

    @pytest.mark.parametrize("value", [1, np.int64(7)])
    def test_positive_integers_become_python_integers(self, value):
        found = positive_integer("rank", value)
        assert type(found) is int
        assert found == value

    @pytest.mark.parametrize(
        ("value", "error"), [(0, ValueError), (-2, ValueError), (1.0, TypeError), (True, TypeError)]
    )
    def test_other_values_are_no_positive_integers(self, value, error):
        with pytest.raises(error, match=r"rank is .*: expected a positive integer"):
            positive_integer("rank", value)

    @pytest.mark.parametrize(("axis", "index"), [(0, 0), (2, 2), (-1, 2), (np.int64(-3), 0)])
    def test_negative_modes_count_from_the_end(self, axis, index):
        assert axis_index("mode", axis, 3) == index

    @pytest.mark.parametrize(
        ("axis", "error"), [(3, ValueError), (-4, ValueError), (1.0, TypeError), (True, TypeError)]
    )
    def test_bad_modes_are_refused(self, axis, error):
        with pytest.raises(error, match=r"mode is .*: expected"):
            axis_index("mode", axis, 3)


class TestWords:
    def test_known_words_pass_and_others_are_listed(self):
        one_of("init", "kl", ("kl", None))
        one_of("init", None, ("kl", None))
        for bad in ("svd", ["kl"], np.ones(2)):
            with pytest.raises(ValueError, match=r"(?s)init is .*: expected one of 'kl', None"):
                one_of("init", bad, ("kl", None))

    def test_unknown_option_is_named_with_the_known_ones(self):
        known_options("cp", ["tol"], ["tol", "rng"])
        with pytest.raises(TypeError, match=r"cp\(\) has no option 'toll': .* tol, rng"):
            known_options("cp", ["tol", "toll"], ["tol", "rng"])

    def test_class_is_no_instance_of_itself(self):
        instance_of("x", 1, int, "a number")
        for bad in ("1", int):
            with pytest.raises(TypeError, match=r"x is a .*: expected a number"):
                instance_of("x", bad, int, "a number")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
class TestTakenForZero:
    """Numbers below the smallest normal one, which JAX takes for 0 and other libraries do not."""

    def numbers(self, dtype):
        least = float(np.finfo(dtype).smallest_normal)
        return np.asarray([0.0, 0.25 * least, least, 1.0], dtype=dtype)

    def test_they_are_refused_on_jax_only(self, xp, array, dtype):
        Y = array(self.numbers(dtype), dtype=dtype)
        refuse_taken_for_zero("Y", Y[2:])
        refuse_taken_for_zero("Y", Y[:1])
        if is_jax_namespace(xp):
            match = r"Y is .*e-\d+ at index \(1,\): expected 0 or at least .*; JAX takes smaller"
            with pytest.raises(ValueError, match=match):
                refuse_taken_for_zero("Y", Y)
        else:
            refuse_taken_for_zero("Y", Y)
            assert bool(xp.all(Y[1:] > 0))

    def test_they_are_zero_as_computed(self, xp, array, dtype):
        numbers = self.numbers(dtype)
        found = to_numpy(as_computed(array(numbers, dtype=dtype)))
        expected = numbers * [1, 0, 1, 1] if is_jax_namespace(xp) else numbers
        assert np.array_equal(found, expected)
