"""Stacks of samples: some of them taken out and put back."""

import numpy as np
from helpers import assert_close

from wtfarray._arrays.samples import merge_samples


class TestMergeSamples:
    def test_samples_are_replaced_by_their_numbers(self, array):
        old, new = np.arange(8.0).reshape(4, 2), -np.ones((3, 2))
        merged = merge_samples(array(old), array(new), np.asarray([2, 0]))
        old[[2, 0]] = -1.0
        assert_close(merged, array(old), rtol=0)
