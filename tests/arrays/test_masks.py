"""Masks of observed entries: shapes, dtypes, and what replaces missing entries."""

import numpy as np
import pytest
from helpers import assert_close, numpy_only, to_numpy

import wtfarray as wtf
from wtfarray._arrays.masks import as_mask, filled_with_means, observed

X = np.arange(12.0).reshape(3, 4)


def bools(xp, device, values):
    return xp.asarray(np.array(values, dtype=bool), device=device)


class TestAsMask:
    def test_broadcasts_to_the_shape_of_the_data(self, xp, device, array):
        mask = as_mask("mask", bools(xp, device, [True, False, True, True]), array(X))
        assert mask.shape == (3, 4)
        np.testing.assert_array_equal(to_numpy(mask), [[True, False, True, True]] * 3)

    def test_numpy_masks_follow_the_data(self, array):
        mask = as_mask("mask", np.array([[True], [False], [True]]), array(X))
        assert not to_numpy(mask)[1].any()
        assert to_numpy(mask)[[0, 2]].all()

    def test_complete_data_need_no_mask(self, xp, device, array):
        assert as_mask("mask", None, array(X)) is None
        assert as_mask("mask", xp.ones((3, 4), dtype=xp.bool, device=device), array(X)) is None

    @pytest.mark.parametrize(
        ("mask", "error", "message"),
        [
            (np.ones((3, 4)), TypeError, "mask has dtype float64: expected bool, True where X"),
            (True, TypeError, "mask is True: expected an array of bool"),
            ([[True] * 4] * 3, TypeError, "mask is a list"),
            (np.zeros((3, 4), bool), ValueError, "mask is False everywhere"),
            (
                np.ones((4, 3), bool),
                ValueError,
                r"mask has shape \(4, 3\): expected one",
            ),
            (np.ones((1, 3, 4), bool), ValueError, r"mask has shape \(1, 3, 4\)"),
        ],
    )
    def test_other_masks_are_refused(self, array, mask, error, message):
        with pytest.raises(error, match=message):
            as_mask("mask", mask, array(X))


@numpy_only
def test_one_entry_per_sample_and_nan_are_refused_with_what_to_pass():
    Z = np.ones((3, 2, 2))
    with pytest.raises(ValueError, match=r"broadcasts to .*; mask\[:, None, None\] hides whole"):
        as_mask("mask", np.array([True, False, True]), Z)
    Z[1] = np.nan
    with pytest.raises(ValueError, match=r"X is nan at .*: expected finite values, or mask=~isnan"):
        wtf.cp(Z, 2, wtf.KullbackLeibler())


def test_observed_ignores_what_is_missing(xp, device, array):
    data = np.array([[1.0, np.nan], [np.inf, -2.0]])
    found = observed(array(data), bools(xp, device, [[True, False], [False, False]]))
    assert_close(found, array([[1.0, 0.0], [0.0, 0.0]]), rtol=0)


def test_means_of_other_samples_fill_gaps(xp, device, array):
    data = array([[1.0, 9.0, 5.0], [3.0, 4.0, 7.0]])
    mask = bools(xp, device, [[True, False, False], [False, True, False]])
    # No sample has the last entry: the mean of 1 and 4.
    assert_close(filled_with_means(data, mask), array([[1.0, 4.0, 2.5], [1.0, 4.0, 2.5]]))
