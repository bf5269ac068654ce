"""The term of one data set sees its columns and samples of a common model."""

import numpy as np
import pytest
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._losses.selection import terms_of
from wtfarray._losses.source_term import SourceTerm

SHAPE = (3, 2, 2)


def term_of(X, loss, columns, samples, weight):
    (term,) = terms_of([loss], X, None, None)
    return SourceTerm(term, columns, samples, tuple(X.shape), weight)


@pytest.mark.parametrize("loss", [wtf.Frobenius(), wtf.Wasserstein(wtf.grid_cost(2, 2), 0.5, 2.0)])
def test_values_and_gradients_are_those_of_its_part(array, loss):
    rng = np.random.default_rng(0)
    X, model = rng.uniform(0.1, 1.0, SHAPE), rng.uniform(0.1, 1.0, (4, 7))
    samples, columns = np.array([0, 2, 3]), slice(1, 5)
    term = term_of(array(X), loss, columns, samples, 3.0)
    value = term.certify(array(model), 1e-9, 500)
    part = array(model[samples, 1:5].reshape(SHAPE))
    (alone,) = terms_of([loss], array(X), None, None)
    expected = alone.certify(part, 1e-10, 500)
    assert value.value == pytest.approx(3.0 * expected.value, rel=1e-6)
    gradient = to_numpy(value.gradient)
    assert gradient.shape == (4, 7)
    assert not gradient[1].any()
    assert not gradient[:, [0, 5, 6]].any()
    found = gradient[samples, 1:5].reshape(SHAPE)
    np.testing.assert_allclose(found, 3.0 * to_numpy(expected.gradient), rtol=1e-4, atol=1e-5)


def test_its_state_is_that_of_the_loss(array):
    X = array(np.ones(SHAPE))
    term = term_of(X, wtf.Wasserstein(wtf.grid_cost(2, 2), 0.5, 2.0), slice(0, 4), None, 2.0)
    term.evaluate(array(np.full((3, 4), 0.7)), 1e-6, 100)
    state = term.state
    term.set_level(3.0)
    term.evaluate(array(np.full((3, 4), 0.2)), 1e-6, 100)
    term.state = state
    assert term.state is state
    assert term.potential is state
    assert term.evaluations > 0
    assert term.work >= 0
    assert term.scale == pytest.approx(2.0 * 0.5 * 12.0)
