"""Stacks of samples from tensors and back."""

import numpy as np
from helpers import assert_close

import wtfarray as wtf
from wtfarray._arrays.samples import stack, unstack


class TestStack:
    def test_unstack_is_the_inverse_of_stack(self, array):
        X = np.random.default_rng(2).exponential(size=(3, 4, 5))
        loss = wtf.Wasserstein([np.ones((5, 5)), np.ones((3, 3))], 0.1, modes=(2, 0))
        bound = loss.bind(array(X))
        assert_close(stack(bound, array(X)), array(np.transpose(X, (1, 2, 0))), rtol=0)
        assert_close(unstack(bound, stack(bound, array(X)), X.shape), array(X), rtol=0)
