"""Bad input: the error names the argument, what was found and where, and what was expected."""

import math
import re
from contextlib import contextmanager

import array_api_compat
import numpy as np
import pytest
from array_api_compat import is_array_api_strict_namespace, is_numpy_namespace
from helpers import to_numpy

import wtfarray as wtf

SHAPE = (3, 2, 4)


def valid():
    """Good NumPy values of every array argument, by name."""
    rng = np.random.default_rng(0)
    values = {f"factors[{k}]": rng.gamma(1.0, size=(n, 2)) for k, n in enumerate(SHAPE)}
    values |= {"X": rng.gamma(1.0, size=SHAPE), "Y": rng.gamma(1.0, size=SHAPE)}
    values |= {"weights": rng.gamma(1.0, size=2), "core": rng.gamma(1.0, size=(2, 2, 2))}
    values |= {"U": rng.normal(size=SHAPE) - 9.0, "potential": rng.normal(size=SHAPE)}
    values |= {"a": rng.gamma(1.0, size=SHAPE), "u": rng.normal(size=(3, 4))}
    return values | {"points": rng.normal(size=(3, 2))}


def transport(lam=2.0):
    return wtf.Wasserstein(wtf.grid_cost(2, 4), 0.1, lam)


def factors(v):
    return [v[f"factors[{k}]"] for k in range(len(SHAPE))]


# Every public function of data, as a function of the named arrays.
FUNCTIONS = {
    "wasserstein": lambda v: wtf.wasserstein(v["X"], v["Y"], transport(), potential=v["potential"]),
    "cp_dual": lambda v: wtf.cp_dual(
        v["X"], factors(v), 0, transport(), rho=0.1, weights=v["weights"]
    ),
    "tucker_dual": lambda v: wtf.tucker_dual(
        v["X"], v["core"], factors(v), 0, transport(), rho=0.1
    ),
    "Wasserstein.conjugate": lambda v: transport().conjugate(v["X"], v["U"]),
    "Frobenius.conjugate": lambda v: wtf.Frobenius().conjugate(v["X"], v["U"]),
    "KullbackLeibler.conjugate": lambda v: wtf.KullbackLeibler().conjugate(v["X"], v["U"]),
    "entropy": lambda v: wtf.entropy(v["a"]),
    "entropy_conjugate": lambda v: wtf.entropy_conjugate(v["u"], "rows"),
    "point_cost": lambda v: wtf.point_cost(v["points"]),
}
DATA = [
    ("wasserstein", "X"),
    ("cp_dual", "X"),
    ("tucker_dual", "X"),
    ("Wasserstein.conjugate", "X"),
    ("Frobenius.conjugate", "X"),
    ("KullbackLeibler.conjugate", "X"),
    ("cp_dual", "factors[1]"),
    ("tucker_dual", "factors[2]"),
]
NONNEGATIVE = [
    *DATA,
    ("wasserstein", "Y"),
    ("cp_dual", "weights"),
    ("tucker_dual", "core"),
    ("entropy", "a"),
]
REAL = [
    ("wasserstein", "potential"),
    ("Wasserstein.conjugate", "U"),
    ("Frobenius.conjugate", "U"),
    ("KullbackLeibler.conjugate", "U"),
    ("entropy_conjugate", "u"),
    ("point_cost", "points"),
]


@contextmanager
def refused(array, error, message, *, dtype="float64"):
    """Give good arrays; expect the error; see that no array was changed."""
    before = valid()
    arrays = {name: array(values, dtype) for name, values in before.items()}
    given_arrays = dict(arrays)
    with pytest.raises(error, match=message):
        yield arrays
    for name, found in given_arrays.items():
        np.testing.assert_array_equal(to_numpy(found), before[name].astype(dtype))


def spoilt(name, number):
    """Put a number at a place; return the values and the place as a pattern."""
    values = valid()[name].copy()
    where = tuple(n - 1 for n in values.shape)
    values[where] = number
    return values, re.escape(str(where))


class TestValues:
    @pytest.mark.parametrize(("function", "name"), NONNEGATIVE + REAL)
    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_non_finite_values_are_refused(self, array, function, name, number):
        values, where = spoilt(name, number)
        expected = rf"{re.escape(name)} is {number} at index {where}: expected finite"
        with refused(array, ValueError, expected) as arrays:
            arrays[name] = array(values)
            FUNCTIONS[function](arrays)

    @pytest.mark.parametrize(("function", "name"), NONNEGATIVE)
    def test_negative_values_are_refused(self, array, function, name):
        values, where = spoilt(name, -0.5)
        expected = rf"{re.escape(name)} is -0.5 at index {where}: expected non-negative"
        with refused(array, ValueError, expected) as arrays:
            arrays[name] = array(values)
            FUNCTIONS[function](arrays)

    @pytest.mark.parametrize(("function", "name"), DATA)
    @pytest.mark.parametrize("scale", [1e-300, 1e300])
    def test_sums_outside_the_range_of_products_are_refused(self, array, function, name, scale):
        expected = rf"{re.escape(name)} sums to .*: expected 1e-154 to 1e\+154"
        with refused(array, ValueError, expected) as arrays:
            arrays[name] = arrays[name] * scale
            FUNCTIONS[function](arrays)

    @pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
    def test_numpy_matrix_is_refused(self):
        with pytest.raises(TypeError, match=r"X is a numpy\.matrix"):
            wtf.nmf(np.asmatrix(np.ones((3, 4))), 2, wtf.KullbackLeibler())

    def test_number_of_bad_entries_is_stated(self, array):
        X = valid()["X"]
        X[0, 1, 2] = X[2, 0, 0] = X[2, 1, 3] = -1.0
        with pytest.raises(
            ValueError, match=r"X is -1.0 at index \(0, 1, 2\) and at 2 more places"
        ):
            wtf.Frobenius().bind(array(X))

    @pytest.mark.parametrize(("function", "name"), DATA)
    def test_zero_arrays_are_refused(self, array, function, name):
        expected = rf"{re.escape(name)} is zero everywhere: expected at least one positive"
        with refused(array, ValueError, expected) as arrays:
            arrays[name] = array(0.0 * valid()[name])
            FUNCTIONS[function](arrays)

    @pytest.mark.parametrize("lam", [0.5, 2.0])
    def test_dual_variable_outside_the_domain_is_refused(self, array, lam):
        U, where = spoilt("U", lam)
        expected = rf"U is {lam} at index {where}: expected values below lam = {lam}"
        with refused(array, ValueError, expected) as arrays:
            transport(lam).conjugate(arrays["X"], array(U))
        U, where = spoilt("U", 1.0)
        with refused(array, ValueError, rf"U is 1.0 at index {where}: .*below 1") as arrays:
            wtf.KullbackLeibler().conjugate(arrays["X"], array(U))


class TestKinds:
    @pytest.mark.parametrize(("function", "name"), NONNEGATIVE + REAL)
    def test_complex_dtype_is_refused(self, array, function, name):
        expected = rf"{re.escape(name)} has dtype .*complex128.*: expected"
        with refused(array, TypeError, expected) as arrays:
            arrays[name] = array(valid()[name], "complex128")
            FUNCTIONS[function](arrays)

    @pytest.mark.parametrize(("function", "name"), NONNEGATIVE + REAL)
    def test_float16_is_refused(self, xp, array, function, name):
        if is_array_api_strict_namespace(xp):
            pytest.skip("array-api-strict has no float16")
        expected = rf"{re.escape(name)} has dtype .*float16.*: expected"
        with refused(array, TypeError, expected) as arrays:
            arrays[name] = array(valid()[name], "float16")
            FUNCTIONS[function](arrays)

    @pytest.mark.parametrize(("function", "name"), NONNEGATIVE + REAL)
    def test_object_dtype_is_refused(self, array, function, name):
        with refused(array, TypeError, rf"{re.escape(name)} has dtype object") as arrays:
            arrays[name] = valid()[name].astype(object)
            FUNCTIONS[function](arrays)

    @pytest.mark.parametrize(("function", "name"), NONNEGATIVE + REAL)
    def test_masked_arrays_are_refused(self, array, function, name):
        expected = rf"{re.escape(name)} is a masked array: expected a plain array"
        with refused(array, TypeError, expected) as arrays:
            arrays[name] = np.ma.masked_array(valid()[name])
            FUNCTIONS[function](arrays)

    @pytest.mark.parametrize(("function", "name"), NONNEGATIVE + REAL)
    @pytest.mark.parametrize("bad", [[1.0, 2.0], "abc", 3.0])
    def test_lists_strings_and_scalars_are_refused(self, array, function, name, bad):
        expected = rf"{re.escape(name)} is a .*{type(bad).__name__}: expected an array"
        with refused(array, TypeError, expected) as arrays:
            arrays[name] = bad
            FUNCTIONS[function](arrays)

    @pytest.mark.parametrize(("function", "name"), [*DATA[:6], ("entropy", "a")])
    def test_empty_arrays_are_refused(self, array, function, name):
        expected = rf"{re.escape(name)} has shape \(0, 2, 4\): expected at least one mode"
        with refused(array, ValueError, expected) as arrays:
            arrays[name] = array(np.zeros((0, 2, 4)))
            FUNCTIONS[function](arrays)

    @pytest.mark.parametrize(
        ("function", "name", "shape"),
        [
            ("wasserstein", "Y", (3, 2, 5)),
            ("wasserstein", "Y", (2, 4)),
            ("wasserstein", "potential", (3, 8)),
            ("Wasserstein.conjugate", "U", (1, 2, 4)),
            ("Frobenius.conjugate", "U", (4,)),
            ("KullbackLeibler.conjugate", "U", (3, 2)),
            ("cp_dual", "factors[1]", (4, 2)),
            ("cp_dual", "factors[1]", (2, 3)),
            ("cp_dual", "factors[2]", (4,)),
            ("cp_dual", "weights", (3,)),
            ("cp_dual", "weights", (2, 2)),
            ("tucker_dual", "factors[0]", (4, 2)),
            ("tucker_dual", "factors[0]", (3, 5)),
            ("tucker_dual", "factors[2]", (4, 2, 1)),
            ("point_cost", "points", (2, 2, 2)),
        ],
    )
    def test_another_shape_is_refused(self, array, function, name, shape):
        expected = rf"{re.escape(f'{name} has shape {shape}')}: expected"
        with refused(array, ValueError, expected) as arrays:
            arrays[name] = array(np.ones(shape))
            FUNCTIONS[function](arrays)

    @pytest.mark.parametrize(
        ("function", "name"),
        [
            ("wasserstein", "Y"),
            ("wasserstein", "potential"),
            ("cp_dual", "factors[0]"),
            ("cp_dual", "factors[1]"),
            ("cp_dual", "weights"),
            ("tucker_dual", "core"),
            ("tucker_dual", "factors[2]"),
            ("Wasserstein.conjugate", "U"),
            ("Frobenius.conjugate", "U"),
            ("KullbackLeibler.conjugate", "U"),
        ],
    )
    def test_mixed_dtypes_are_refused(self, array, function, name):
        expected = rf"{re.escape(name)} has dtype .*float32 and X .*float64: expected one dtype"
        with refused(array, TypeError, expected) as arrays:
            arrays[name] = array(valid()[name], "float32")
            FUNCTIONS[function](arrays)


OTHERS = [
    ("wasserstein", "Y"),
    ("wasserstein", "potential"),
    ("cp_dual", "factors[1]"),
    ("cp_dual", "weights"),
    ("tucker_dual", "core"),
    ("tucker_dual", "factors[0]"),
    ("Wasserstein.conjugate", "U"),
]


class TestMixedArrays:
    @pytest.mark.parametrize(("function", "name"), OTHERS)
    def test_mixed_libraries_are_refused(self, xp, array, function, name):
        if is_numpy_namespace(xp):
            pytest.skip("NumPy is the other library")
        with refused(array, TypeError, r"is an array of .*numpy.*expected") as arrays:
            arrays[name] = valid()[name]
            FUNCTIONS[function](arrays)

    @pytest.mark.parametrize(("function", "name"), OTHERS)
    def test_mixed_devices_are_refused(self, xp, array, device, function, name):
        with refused(array, ValueError, r"is on device .*expected") as arrays:
            arrays[name] = xp.asarray(valid()[name], device=other_device(xp, device))
            FUNCTIONS[function](arrays)

    def test_cost_on_another_device_is_refused(self, xp, array, device):
        cost = xp.asarray(wtf.grid_cost(4)[0], device=other_device(xp, device))
        with refused(array, ValueError, r"costs\[0\] is on device .*where the data are") as arrays:
            wtf.Wasserstein(cost, 0.1, 1.0).bind(arrays["X"])

    def test_cost_of_another_library_is_refused(self, xp, array):
        if is_numpy_namespace(xp):
            pytest.skip("NumPy costs follow the data")
        cost = array(wtf.grid_cost(4)[0])
        with pytest.raises(TypeError, match=r"costs\[0\] is an array of .* and the data are"):
            wtf.Wasserstein(cost, 0.1, 1.0).bind(valid()["X"])

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_numpy_costs_follow_the_data(self, array, device, dtype):
        X = array(valid()["X"], dtype)
        (cost, _) = transport().bind(X).kernel.costs
        assert array_api_compat.array_namespace(cost) is array_api_compat.array_namespace(X)
        assert cost.dtype == X.dtype
        assert array_api_compat.device(cost) == device


def other_device(xp, device):
    if not is_array_api_strict_namespace(xp):
        pytest.skip("only array-api-strict has two devices everywhere")
    return xp.Device("device1" if device == xp.Device("CPU_DEVICE") else "CPU_DEVICE")


class TestCosts:
    @pytest.mark.parametrize("shape", [(3, 4), (3,), (3, 3, 1), (0, 0)])
    def test_non_square_cost_is_refused(self, array, shape):
        expected = rf"costs\[1\] has shape {re.escape(str(shape))}: expected a square matrix"
        with pytest.raises(ValueError, match=expected):
            wtf.Wasserstein([array(np.ones((2, 2))), array(np.ones(shape))], 0.1)

    @pytest.mark.parametrize("number", [math.nan, -1.0, -math.inf])
    def test_negative_or_nan_cost_is_refused(self, array, number):
        cost = wtf.grid_cost(4)[0]
        cost[1, 2] = number
        before = cost.copy()
        with pytest.raises(
            ValueError, match=rf"costs\[0\] is {number} at index \(1, 2\): expected"
        ):
            wtf.Wasserstein(array(cost), 0.1)
        np.testing.assert_array_equal(cost, before)

    def test_row_of_infinite_costs_is_refused(self, array):
        cost = wtf.grid_cost(4)[0]
        cost[2, :] = math.inf
        with pytest.raises(
            ValueError, match=r"costs\[0\] is inf along the whole of row 2: expected"
        ):
            wtf.Wasserstein(array(cost), 0.1)

    def test_cost_must_have_the_size_of_its_mode(self, array):
        loss = wtf.Wasserstein(wtf.grid_cost(2, 5), 0.1, 1.0)
        expected = r"costs\[1\] has shape \(5, 5\): expected \(4, 4\), the size of mode 2 of X"
        with refused(array, ValueError, expected) as arrays:
            wtf.wasserstein(arrays["X"], arrays["Y"], loss)

    def test_cost_must_have_the_size_of_its_group_of_modes(self, array):
        loss = wtf.Wasserstein(wtf.grid_cost(5), 0.1, 1.0, modes=((1, 2),))
        expected = r"costs\[0\] has shape \(5, 5\): expected \(8, 8\), the size of modes 1, 2 of X"
        with refused(array, ValueError, expected) as arrays:
            loss.bind(arrays["X"])

    @pytest.mark.parametrize(
        ("costs", "expected"),
        [
            ([], "costs is empty"),
            ([[0.0, 1.0], [1.0, 0.0]], r"costs\[0\] is a list: expected an array"),
            ("cost", r"costs\[0\] is a str: expected an array"),
            (np.ma.masked_array(np.ones((2, 2))), r"costs\[0\] is a masked array"),
            (np.ones((2, 2), dtype=object), r"costs\[0\] has dtype object"),
            (np.ones((2, 2), dtype=complex), r"costs\[0\] has dtype complex128"),
            (np.ones((2, 2), dtype=np.float16), r"costs\[0\] has dtype float16"),
        ],
    )
    def test_costs_that_are_no_real_arrays_are_refused(self, costs, expected):
        with pytest.raises((TypeError, ValueError), match=expected):
            wtf.Wasserstein(costs, 0.1)

    @pytest.mark.parametrize(
        ("modes", "error", "expected"),
        [
            ((3, 0), ValueError, r"modes is 3: expected a mode of an array with 3 modes"),
            ((-4, 0), ValueError, r"modes is -4: expected a mode"),
            ((1, 1), ValueError, r"modes is .*1.*1.*: expected different modes"),
            ((1, -2), ValueError, r"modes is .*: expected different modes"),
            ((1.0, 2), TypeError, r"modes is 1.0: expected an integer"),
            ((True, 2), TypeError, r"modes is True: expected an integer"),
            ((1,), ValueError, r"modes is \(1,\): expected .*one per cost"),
            ((1, ()), ValueError, r"modes is \(1, \(\)\): expected .*one per cost"),
        ],
    )
    def test_bad_modes_are_refused(self, array, modes, error, expected):
        with refused(array, error, expected) as arrays:
            wtf.Wasserstein(wtf.grid_cost(2, 2), 0.1, modes=modes).bind(arrays["X"])

    def test_modes_that_are_no_sequence_are_refused(self):
        with pytest.raises((TypeError, ValueError), match="modes is 1: expected"):
            wtf.Wasserstein(wtf.grid_cost(2), 0.1, modes=1)

    def test_more_costs_than_modes_are_refused(self, array):
        with pytest.raises(ValueError, match="X has 1 modes: expected at least 2"):
            transport().bind(array(np.ones(4)))

    @pytest.mark.parametrize(
        ("call", "expected"),
        [
            (wtf.grid_cost, "shape is empty"),
            (lambda: wtf.grid_cost(3, 0), r"shape\[1\] is 0: expected a positive"),
            (lambda: wtf.grid_cost(2.5), r"shape\[0\] is 2.5: expected a positive"),
            (lambda: wtf.grid_cost(True), r"shape\[0\] is True: expected a positive"),
            (lambda: wtf.grid_cost(3, p=-1), "p is -1: expected a positive number"),
            (lambda: wtf.grid_cost(3, scale="sum"), r"scale is 'sum': expected .*'mean'"),
            (lambda: wtf.grid_cost(3, spacing=0.0), "spacing is 0.0: expected a positive number"),
            (lambda: wtf.grid_cost(3, spacing=(1.0, 1.0)), "spacing has 2 entries: expected"),
        ],
    )
    def test_bad_arguments_of_grid_cost_are_refused(self, call, expected):
        with pytest.raises((TypeError, ValueError), match=expected):
            call()

    def test_bad_arguments_of_point_cost_are_refused(self, array):
        with pytest.raises(ValueError, match=r"scale is 'sum': expected .*'mean'"):
            wtf.point_cost(array([1.0, 2.0]), scale="sum")
        with pytest.raises(ValueError, match="p is 0: expected a positive number"):
            wtf.point_cost(array([1.0, 2.0]), p=0)
        with pytest.raises(ValueError, match=r"points has shape \(0, 2\): expected"):
            wtf.point_cost(array(np.ones((0, 2))))


WRONG = [
    (0, ValueError),
    (0.0, ValueError),
    (-1.0, ValueError),
    (math.nan, ValueError),
    ("1", TypeError),
    (True, TypeError),
    (1j, TypeError),
    ([1.0], TypeError),
]


class TestNumbers:
    @pytest.mark.parametrize(("number", "error"), [*WRONG, (math.inf, ValueError)])
    def test_bad_eps_is_refused(self, number, error):
        expected = rf"eps is {re.escape(repr(number))}: expected a positive number$"
        with pytest.raises(error, match=expected):
            wtf.Wasserstein(wtf.grid_cost(3), number)

    @pytest.mark.parametrize(("number", "error"), WRONG)
    def test_bad_lam_is_refused(self, number, error):
        expected = rf"lam is {re.escape(repr(number))}: expected a positive number or inf"
        with pytest.raises(error, match=expected):
            wtf.Wasserstein(wtf.grid_cost(3), 0.1, number)

    @pytest.mark.parametrize(("number", "error"), [*WRONG, (math.inf, ValueError)])
    def test_bad_rho_is_refused(self, array, number, error):
        expected = rf"rho is {re.escape(repr(number))}: expected a positive number$"
        with refused(array, error, expected) as v:
            wtf.cp_dual(v["X"], factors(v), 0, transport(), rho=number)
        with refused(array, error, expected) as v:
            wtf.tucker_dual(v["X"], v["core"], factors(v), "core", transport(), rho=number)

    @pytest.mark.parametrize(("number", "error"), [*WRONG, (math.inf, ValueError)])
    def test_bad_tol_is_refused(self, array, number, error):
        expected = rf"tol is {re.escape(repr(number))}: expected a positive number$"
        with refused(array, error, expected) as v:
            wtf.wasserstein(v["X"], v["Y"], transport(), tol=number)

    @pytest.mark.parametrize(
        ("number", "error"), [(0, ValueError), (-3, ValueError), (2.5, TypeError), ("1", TypeError)]
    )
    def test_bad_max_iter_is_refused(self, array, number, error):
        with refused(array, error, "max_iter.*expected|max_iter.*must be") as v:
            wtf.wasserstein(v["X"], v["Y"], transport(), max_iter=number)


class TestArguments:
    @pytest.mark.parametrize("constraint", ["row", "Rows", 1, ["rows"], ""])
    def test_unknown_constraint_is_refused(self, array, constraint):
        shown = re.escape(repr(constraint))
        expected = rf"constraint is {shown}: expected .*None.*rows.*columns.*all"
        with refused(array, ValueError, expected) as v:
            wtf.entropy_conjugate(v["u"], constraint)
        with refused(array, ValueError, expected) as v:
            wtf.cp_dual(v["X"], factors(v), 0, transport(), rho=0.1, constraint=constraint)
        with refused(array, ValueError, expected) as v:
            wtf.tucker_dual(
                v["X"], v["core"], factors(v), "core", transport(), rho=0.1, constraint=constraint
            )

    @pytest.mark.parametrize("constraint", ["rows", "columns"])
    def test_rows_and_columns_need_a_matrix(self, array, constraint):
        expected = (
            rf"constraint is '{constraint}' for an array with 3 modes: expected None or 'all'"
        )
        with refused(array, ValueError, expected) as v:
            wtf.entropy_conjugate(v["a"], constraint)
        with refused(array, ValueError, expected) as v:
            wtf.tucker_dual(
                v["X"], v["core"], factors(v), "core", transport(), rho=0.1, constraint=constraint
            )
        with refused(array, ValueError, expected.replace("3", "1")) as v:
            wtf.cp_dual(v["X"], factors(v), "weights", transport(), rho=0.1, constraint=constraint)

    @pytest.mark.parametrize(
        ("block", "error"),
        [(3, ValueError), (-4, ValueError), (1.0, TypeError), (True, TypeError), (None, TypeError)],
    )
    def test_bad_block_is_refused(self, array, block, error):
        with refused(array, error, rf"block is {block}: expected") as v:
            wtf.cp_dual(v["X"], factors(v), block, transport(), rho=0.1)
        with refused(array, error, rf"block is {block}: expected") as v:
            wtf.tucker_dual(v["X"], v["core"], factors(v), block, transport(), rho=0.1)

    def test_block_of_the_other_model_is_refused(self, array):
        with refused(array, (TypeError, ValueError), "block is 'core': expected .*'weights'") as v:
            wtf.cp_dual(v["X"], factors(v), "core", transport(), rho=0.1)
        with refused(array, (TypeError, ValueError), "block is 'weights': expected .*'core'") as v:
            wtf.tucker_dual(v["X"], v["core"], factors(v), "weights", transport(), rho=0.1)

    def test_another_number_of_factors_is_refused(self, array):
        with refused(
            array, ValueError, "factors has 2 entries: expected 3, one for each mode"
        ) as v:
            wtf.cp_dual(v["X"], factors(v)[:2], 0, wtf.Frobenius(), rho=0.1)
        with refused(array, ValueError, "core has 3 modes for 2 factors") as v:
            wtf.tucker_dual(v["X"], v["core"], factors(v)[:2], 0, wtf.Frobenius(), rho=0.1)
        with refused(array, ValueError, "factors is empty: expected at least one") as v:
            wtf.cp_dual(v["X"], [], 0, wtf.Frobenius(), rho=0.1)

    def test_factors_that_are_one_array_are_refused(self, array):
        expected = r"factors is a \w+: expected a list or tuple of arrays"
        with refused(array, TypeError, expected) as v:
            wtf.cp_dual(v["X"], v["factors[0]"], 0, wtf.Frobenius(), rho=0.1)
        with refused(array, TypeError, expected) as v:
            wtf.tucker_to_tensor(v["core"], v["factors[0]"])

    @pytest.mark.parametrize("loss", [wtf.Frobenius(), wtf.KullbackLeibler(), "W2", None])
    def test_wasserstein_refuses_another_loss(self, array, loss):
        expected = rf"loss is a {type(loss).__name__}: expected Wasserstein"
        with refused(array, TypeError, expected) as v:
            wtf.wasserstein(v["X"], v["Y"], loss)

    @pytest.mark.parametrize("loss", ["W2", None, wtf.Wasserstein])
    def test_dual_refuses_what_is_no_loss(self, array, loss):
        with refused(array, TypeError, r"loss is .*: expected .*Wasserstein") as v:
            wtf.cp_dual(v["X"], factors(v), 0, loss, rho=0.1)


class TestAlgebra:
    @pytest.mark.parametrize(
        ("call", "expected"),
        [
            (lambda v: wtf.unfold(v["X"], 3), "mode is 3: expected a mode of an array with 3"),
            (lambda v: wtf.unfold(v["X"], 1.0), "mode is 1.0: expected an integer"),
            (lambda _: wtf.unfold([[1.0]], 0), "tensor is a list: expected an array"),
            (lambda v: wtf.fold(v["u"], -4, SHAPE), "mode is -4: expected a mode"),
            (lambda v: wtf.fold(v["u"], 0, SHAPE), r"matrix has shape \(3, 4\): expected \(3, 8\)"),
            (lambda v: wtf.mode_product(v["X"], v["u"], 5), "mode is 5: expected a mode"),
            (
                lambda v: wtf.mode_product(v["X"], v["u"], 0),
                r"matrix has shape \(3, 4\): expected \(m, 3\) for mode 0",
            ),
            (
                lambda v: wtf.mode_product(v["X"], v["weights"], 0),
                r"matrix has shape \(2,\): expected \(m, 3\)",
            ),
            (
                lambda v: wtf.mode_products(v["X"], [v["u"], v["u"]], (2, 2)),
                r"modes is \(2, 2\) .*expected one mode per matrix, all different",
            ),
            (
                lambda v: wtf.mode_products(v["X"], [v["u"]], (1, 2)),
                r"modes is \(1, 2\) for 1 matrices",
            ),
            (lambda v: wtf.mode_products(v["X"], v["u"], (2,)), "matrices is a .*expected a list"),
            (lambda _: wtf.cp_to_tensor([]), "factors is empty"),
            (
                lambda v: wtf.cp_to_tensor([v["factors[0]"], v["u"]]),
                r"factors\[1\] has shape \(3, 4\): expected \(n_1, 2\)",
            ),
            (
                lambda v: wtf.cp_to_tensor(factors(v), v["u"]),
                r"weights has shape \(3, 4\): expected \(2,\)",
            ),
            (
                lambda v: wtf.tucker_to_tensor(v["core"], factors(v)[:2]),
                "core has 3 modes for 2 factors",
            ),
            (
                lambda v: wtf.tucker_to_tensor(v["core"], [*factors(v)[:2], v["u"]]),
                r"factors\[2\] has shape \(3, 4\): expected \(n_2, 2\)",
            ),
        ],
    )
    def test_bad_arguments_of_the_algebra_are_refused(self, array, call, expected):
        with refused(array, (TypeError, ValueError), expected) as arrays:
            call(arrays)


class TestOptimisers:
    @pytest.mark.parametrize("solver", [wtf.lbfgs, wtf.gradient_descent])
    def test_bad_start_is_refused(self, array, solver):
        def fun(x):
            return 0.0 * x[0], 0.0 * x

        with pytest.raises(TypeError, match="x0 is a list: expected an array"):
            solver(fun, [1.0, 2.0])
        for bad in (array([1], "int64"), array([1.0], "complex128")):
            with pytest.raises(ValueError, match=r"x0 has dtype .*: expected float32 or float64"):
                solver(fun, bad)
        with pytest.raises(ValueError, match=r"x0 has shape \(0,\): expected at least one entry"):
            solver(fun, array([]))
        with pytest.raises(ValueError, match=r"fun has the value .* at x0: expected finite"):
            solver(fun, array([math.nan]))
        with pytest.raises(TypeError, match="fun is 3: expected a function"):
            solver(3, array([1.0]))
