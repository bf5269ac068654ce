"""The model of several data sets side by side: linear in each block, with the right adjoints."""

import numpy as np
import pytest
from helpers import to_numpy

from wtfarray._models.coupled import CoupledModel


def blocks():
    rng = np.random.default_rng(0)
    return [rng.uniform(size=(n, 2)) for n in (5, 4, 3)]


def test_models_stand_side_by_side(array):
    A, B, C = blocks()
    model = CoupledModel((1.0, 7.0))
    given = [array(block) for block in (A, B, C)]
    expected = np.concatenate([A @ B.T, 7.0 * A @ C.T], axis=1)
    np.testing.assert_allclose(to_numpy(model.tensor(given)), expected)
    assert model.shape(given) == (5, 7)
    assert model.modes == 3


@pytest.mark.parametrize("k", [0, 1, 2])
def test_adjoints_belong_to_the_linear_maps(array, xp, k):
    """``<adjoint(U), A> = <U, forward(A)>``, and the model is their forward map."""
    model, given = CoupledModel((0.5, 2.0)), [array(block) for block in blocks()]
    dual = array(np.random.default_rng(1).normal(size=(5, 7)))
    block = model.block(given, k)
    assert block.shape == tuple(given[k].shape)
    left = float(xp.sum(block.adjoint(dual) * given[k]))
    right = float(xp.sum(dual * block.forward(given[k])))
    assert left == pytest.approx(right)
    if k == 0:
        np.testing.assert_allclose(
            to_numpy(block.forward(given[0])), to_numpy(model.tensor(given)), rtol=1e-12
        )
    np.testing.assert_allclose(
        to_numpy(block.adjoint(dual)), to_numpy(model.adjoints(dual, given)[k]), rtol=1e-12
    )
