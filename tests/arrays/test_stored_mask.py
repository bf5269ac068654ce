"""Masks that are read a few samples at a time."""

import numpy as np
import pytest
from helpers import to_numpy
from stored_data import Sliceable

from wtfarray._arrays.stored_mask import StoredMask

SHAPE = (5, 3, 2)


@pytest.mark.parametrize("shape", [(5, 3, 2), (5, 1, 1), (1, 3, 2), (3, 1), (2,), ()])
def test_samples_of_a_mask_that_broadcasts(array, xp, shape):
    values = np.random.default_rng(0).uniform(size=shape) > 0.5
    found = StoredMask(np.asarray(values), SHAPE).read(slice(1, 4), array(np.zeros(1)))
    assert found.dtype == xp.bool
    expected = np.broadcast_to(values, SHAPE)[1:4]
    np.testing.assert_array_equal(to_numpy(xp.astype(found, xp.float64)) > 0, expected)


def test_only_the_samples_that_are_asked_for_are_read(array):
    source = Sliceable(np.ones(SHAPE, dtype=bool))
    StoredMask(source, SHAPE).read(slice(1, 3), array(np.zeros(1)))
    assert source.read == [(1, 3)]


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (True, TypeError, "mask is a bool: expected an array of bool"),
        (np.ones(SHAPE), TypeError, "mask has dtype float64: expected bool"),
        (np.ones((4, 3, 2), dtype=bool), ValueError, "mask has shape .4, 3, 2.: expected"),
    ],
)
def test_bad_masks_are_refused(mask, error, message):
    with pytest.raises(error, match=message):
        StoredMask(mask, SHAPE)
