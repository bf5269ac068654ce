"""Labels of modes: what they accept, how they compare and describe themselves."""

import datetime as dt

import numpy as np
import pytest
from helpers import numpy_only

import wtfarray as wtf
from wtfarray._arrays.axes import check_labels, checked_axes

pytestmark = numpy_only


class TestAxis:
    def test_values_are_numbers_or_text(self):
        assert wtf.Axis(values=np.array([1.5, 2.0])).values == (1.5, 2.0)
        assert wtf.Axis(values=[1, 2]).values == (1, 2)
        assert wtf.Axis(values=[1, "b"]).values == ("1", "b")
        assert wtf.Axis(values=[("a", 1), ("a", 2)]).values == ("a / 1", "a / 2")
        assert wtf.Axis(values=[1.0, np.nan]).values == ("1.0", "nan")

    def test_dates_become_text(self):
        days = np.array(["2024-02-28", "2024-02-29"], dtype="datetime64[ns]")
        assert wtf.Axis(values=days).values == ("2024-02-28", "2024-02-29")
        assert wtf.Axis(values=[dt.date(2024, 2, 29)]).values == ("2024-02-29",)

    def test_title(self):
        assert wtf.Axis("wavelength", unit="nm").title == "wavelength [nm]"
        assert wtf.Axis("gene").title == "gene"
        assert wtf.Axis().title is None

    def test_positions_are_ordered_numbers(self):
        assert wtf.Axis(values=["400", "410.5"]).positions.tolist() == [400.0, 410.5]
        assert wtf.Axis(values=[3, 2, 1]).positions.tolist() == [3, 2, 1]
        assert wtf.Axis(values=[1, 3, 2]).positions is None
        assert wtf.Axis(values=["a", "b"]).positions is None
        assert wtf.Axis("gene").positions is None

    def test_describe(self):
        assert wtf.Axis("x", [1, 2, 4], "m").describe() == "x, 1 to 4 m"
        assert wtf.Axis("gene", ["b", "a"]).describe() == "gene, 'b' to 'a'"
        assert wtf.Axis("gene").describe() == "gene"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"name": 3}, "the name of an axis is a int"),
            ({"unit": 3}, "the unit of an axis is a int"),
            ({"values": "abc"}, "expected one label per bin"),
            ({"values": np.ones((2, 2))}, r"shape \(2, 2\)"),
        ],
    )
    def test_refuses(self, arguments, message):
        with pytest.raises((TypeError, ValueError), match=message):
            wtf.Axis(**arguments)


class TestCheckedAxes:
    def test_given_labels_replace_those_found(self):
        found = (wtf.Axis("a", [1, 2], "m"), wtf.Axis("b"))
        assert checked_axes(["time", None], found, (2, 3)) == (
            wtf.Axis("time", [1, 2], "m"),
            wtf.Axis("b"),
        )

    def test_no_labels_are_empty(self):
        assert checked_axes(None, (), (2, 3)) == ()
        assert checked_axes([None, wtf.Axis()], (), (2, 3)) == ()

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (["a"], "expected 2 entries, one for each mode"),
            ("ab", "expected 2 entries, one for each mode"),
            ([wtf.Axis(values=[1]), None], r"axes\[0\] has 1 values: expected 2"),
            ([3, None], r"axes\[0\] is a int: expected an Axis"),
        ],
    )
    def test_refuses(self, given, message):
        with pytest.raises((TypeError, ValueError), match=message):
            checked_axes(given, (), (2, 3))


class TestCheckLabels:
    def test_equal_labels_pass(self):
        check_labels("X", wtf.Axis(values=[0.1 + 0.2]), 0, wtf.Axis(values=[0.3]), "the fit")
        check_labels("X", wtf.Axis(values=["400"]), 0, wtf.Axis(values=[400]), "the fit")
        check_labels("X", wtf.Axis(), 0, wtf.Axis(values=["a"]), "the fit")

    def test_first_difference_is_named(self):
        with pytest.raises(ValueError, match="X has the label 'c' at index 1 of mode 2, where the"):
            check_labels(
                "X", wtf.Axis(values=["a", "c"]), 2, wtf.Axis(values=["a", "b"]), "the fit"
            )
