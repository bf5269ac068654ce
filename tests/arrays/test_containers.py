"""DataFrames and DataArrays: their numbers and their labels."""

import subprocess
import sys

import numpy as np
import pytest
from helpers import numpy_only

import wtfarray as wtf
from wtfarray._arrays.axes import check_order
from wtfarray._arrays.containers import without_labels

pytestmark = numpy_only
VALUES = np.arange(6.0).reshape(2, 3)


class TestPandas:
    def test_frame(self):
        pandas = pytest.importorskip("pandas")
        columns = pandas.Index(["400", "410", "420"], name="wavelength")
        frame = pandas.DataFrame(VALUES, index=["a", "b"], columns=columns)
        values, (rows, features) = without_labels("X", frame)
        assert np.array_equal(values, VALUES)
        assert values.flags.c_contiguous  # sums then round as for the plain array
        assert rows == wtf.Axis(values=["a", "b"])
        assert features == wtf.Axis("wavelength", ["400", "410", "420"])

    def test_counting_from_zero_is_no_label(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(VALUES)
        assert without_labels("X", frame)[1] == (wtf.Axis(), wtf.Axis())
        assert without_labels("X", frame.iloc[1:])[1][0] == wtf.Axis(values=[1])

    def test_derived_classes_and_series(self):
        pandas = pytest.importorskip("pandas")

        class Table(pandas.DataFrame):
            pass

        assert np.array_equal(without_labels("X", Table(VALUES))[0], VALUES)
        values, axes = without_labels("w", pandas.Series([1, 2], index=["a", "b"], name="w"))
        assert values.tolist() == [1, 2]
        assert axes == (wtf.Axis(values=["a", "b"]),)

    def test_missing_entries_become_nan(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"a": pandas.array([1, None], dtype="Int64")})
        values, _ = without_labels("X", frame)
        assert np.isnan(values[1, 0])
        with pytest.raises(ValueError, match="X is nan at index"):
            wtf.cp(frame, 1, wtf.Frobenius())

    def test_columns_of_text_are_named(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"id": ["a", "b"], "x": [1.0, 2.0]})
        with pytest.raises(TypeError, match="X has columns that are not numbers, 'id': expected"):
            wtf.nmf(frame, 1, wtf.Frobenius())


def frame(X, rows=None):
    return pytest.importorskip("pandas").DataFrame(X, index=rows, columns=["a", "b", "c"])


class TestLabelsAreCompared:
    """Of masks and weights with those of the data, which would be used in a wrong order."""

    loss = wtf.KullbackLeibler()
    rows = ("u", "v", "w", "x")

    def data(self):
        X = np.random.default_rng(0).gamma(1.0, size=(4, 3))
        return frame(X, self.rows), frame(X.max() > X, self.rows)

    def calls(self, X, mask):
        """Every function that takes a mask."""
        fit = wtf.nmf(X, 1, self.loss, rng=0, tol=1e-2)
        both = wtf.coupled([X, X], 1, [self.loss] * 2, rng=0, tol=1e-2)
        atoms = fit.factors[1].T
        move = wtf.Wasserstein(wtf.grid_cost(3), 0.5, 1.0)
        yield lambda: wtf.nmf(X, 1, self.loss, mask=mask, rng=0, tol=1e-2)
        yield lambda: fit.project(X, mask=mask)
        yield lambda: wtf.rank_scan(X, [1], self.loss, mask=mask, n_seeds=1, held_out=None)
        yield lambda: wtf.coupled([X, X], 1, [self.loss] * 2, mask=[mask, None], rng=0, tol=1e-2)
        yield lambda: both.project([X, None], mask=[mask, None])
        yield lambda: wtf.unmix(X, atoms, move, mask=mask)
        yield lambda: wtf.wasserstein(X, X, move, mask=mask)

    def test_same_labels_are_accepted(self):
        for call in self.calls(*self.data()):
            call()

    def test_masks_in_another_order_are_refused(self):
        X, mask = self.data()
        message = r"mask(\[0\])? has the label 'c' at index 0 of mode 1, where X(\[0\])? has 'a'"
        for call in self.calls(X, mask[["c", "b", "a"]]):
            with pytest.raises(ValueError, match=message):
                call()

    def test_weights_in_another_order_are_refused(self):
        X, _ = self.data()
        weight = pytest.importorskip("pandas").Series(np.ones(4), index=self.rows[::-1])
        message = "sample_weight has the label 'x' at index 0 of mode 0, where X"
        with pytest.raises(ValueError, match=message):
            wtf.nmf(X, 1, self.loss, sample_weight=weight)
        with pytest.raises(ValueError, match=message):
            wtf.coupled([X, X], 1, [self.loss] * 2, sample_weight=weight)

    def test_labels_given_for_a_plain_array_count_too(self):
        X, mask = self.data()
        axes = [None, wtf.Axis("letter", ["a", "c", "b"])]
        with pytest.raises(ValueError, match="mask has the label 'b' at index 1 of mode 1"):
            wtf.nmf(X.to_numpy(), 1, self.loss, mask=mask, axes=axes)

    def test_masks_that_broadcast(self):
        X, _ = self.data()
        for seen in (frame(np.array([[True, True, False]]), ["any"]), None):
            wtf.nmf(X, 1, self.loss, mask=seen, rng=0, tol=1e-2)
        seen = frame(np.array([[True, True, False]]))[["b", "a", "c"]]
        with pytest.raises(ValueError, match="mask has the label 'b' at index 0 of mode 1"):
            wtf.nmf(X, 1, self.loss, mask=seen)

    def test_modes_in_another_order(self):
        sample, letter = wtf.Axis("sample"), wtf.Axis("letter")
        check_order("X", [letter, wtf.Axis("number")], [letter, sample], "the fit")
        check_order("X", [wtf.Axis(), letter], [sample, letter], "the fit")
        message = "X has the mode 'letter' in place 0, where the fit has 'sample': expected"
        with pytest.raises(ValueError, match=message):
            check_order("X", [letter, sample], [sample, letter], "the fit")


class TestXarray:
    def test_modes_in_another_order_are_refused(self):
        xarray = pytest.importorskip("xarray")
        X = np.random.default_rng(0).gamma(1.0, size=(4, 3, 3))
        array = xarray.DataArray(X, dims=("sample", "emission", "excitation"))
        fit = wtf.cp(array, 1, wtf.KullbackLeibler(), rng=0, tol=1e-2)
        fit.project(array)
        turned = array.transpose("sample", "excitation", "emission")
        message = "has the mode 'excitation' in place 1, where"
        with pytest.raises(ValueError, match=f"X {message} the fit has 'emission'"):
            fit.project(turned)
        with pytest.raises(ValueError, match=f"mask {message} X has 'emission'"):
            wtf.cp(array, 1, wtf.KullbackLeibler(), mask=turned > 0.1)

    def test_data_array(self):
        xarray = pytest.importorskip("xarray")
        coordinate = ("wavelength", [400, 410, 420], {"units": "nm"})
        array = xarray.DataArray(
            VALUES, dims=("dim_0", "wavelength"), coords={"wavelength": coordinate}
        )
        values, axes = without_labels("X", array)
        assert values is array.data
        assert axes == (wtf.Axis(), wtf.Axis("wavelength", [400, 410, 420], "nm"))


def test_plain_arrays_pass_through():
    assert without_labels("X", VALUES) == (VALUES, ())


def test_neither_package_is_imported():
    code = (
        "import sys, numpy as np, wtfarray as wtf\n"
        "wtf.nmf(np.ones((3, 2)), 1, wtf.Frobenius(), rng=0)\n"
        "print('pandas' in sys.modules, 'xarray' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
