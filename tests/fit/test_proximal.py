"""The problem of a batch: the proximal term that stands for the samples seen before."""

import numpy as np
import pytest
from fitting import RANKS, data, start, transport
from helpers import to_numpy

from wtfarray._fit.given_factors import given_blocks
from wtfarray._fit.proximal import proximal_problem, running_share
from wtfarray._fit.specification import specify


def specified(X):
    options = {"rho": 0.05, "constraints": None, "weights": None, "fixed": ()}
    return specify("nmf", X, RANKS["nmf"], transport(), sample_weight=None, **options)


def test_proximal_term_is_the_divergence_up_to_a_constant(array):
    spec = specified(array(data()))
    blocks, previous = (given_blocks(spec, start("nmf", seed=seed)) for seed in (1, 2))
    problem, plain, proximal = proximal_problem(spec, previous[1:], 0.3), spec.problem(), 0.3

    def divergence(a, b):
        a, b = to_numpy(a), to_numpy(b)
        return float(np.sum(a * np.log(a / b) - a + b)) / a.shape[1]

    added = [
        problem.block_entropy(some, 1) - plain.block_entropy(some, 1) for some in (blocks, previous)
    ]
    expected = [proximal * divergence(some[1], previous[1]) for some in (blocks, previous)]
    assert added[0] - added[1] == pytest.approx(expected[0] - expected[1], rel=1e-10)
    assert problem.block_entropy(blocks, 0) == plain.block_entropy(blocks, 0)


@pytest.mark.usefixtures("on_numpy")
def test_mean_of_the_first_batch_is_that_batch():
    assert running_share(0.0) == 1.0
    assert running_share(4.0) == 0.5
