"""The parametrisation of blocks by points of spheres."""

import numpy as np
import pytest
from helpers import assert_close

from wtfarray._solvers.sphere import from_sphere, pull_back, push_forward


@pytest.mark.parametrize("constraint", [None, "rows", "columns", "all"])
def test_push_forward_is_the_inverse_of_pull_back(array, constraint):
    rng = np.random.default_rng(0)
    p, gradient = array(rng.normal(size=(3, 4))), array(rng.normal(size=(3, 4)))
    block = from_sphere(p, constraint)
    pulled = pull_back(p, block, gradient, constraint)
    found, recovered = push_forward(p, pulled, constraint)
    assert_close(found, block)
    assert_close(pull_back(p, block, recovered, constraint), pulled)


def test_push_forward_of_zeros_is_zero(array):
    zeros = array(np.zeros((2, 2)))
    assert_close(push_forward(zeros, zeros, None)[1], zeros)
