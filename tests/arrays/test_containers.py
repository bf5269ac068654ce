"""DataFrames and DataArrays: their numbers and their labels."""

import subprocess
import sys

import numpy as np
import pytest
from helpers import numpy_only

import wtfarray as wtf
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


class TestXarray:
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
