"""Samples of which nothing was observed."""

import numpy as np
import pytest
from helpers import numpy_only, to_numpy

import wtfarray as wtf
from wtfarray._fit.absent_samples import mean_coefficients, present_samples

MASK = np.array([[True, False], [False, False], [True, True]])
LOSS = wtf.KullbackLeibler()


def test_rows_are_taken_and_put_back(array):
    X = array(np.arange(6.0).reshape(3, 2))
    present = present_samples(array(MASK, "bool"), X, LOSS)
    assert present.rows.tolist() == [0, 2]
    rows = present.take(X)
    assert to_numpy(rows).tolist() == [[0.0, 1.0], [4.0, 5.0]]
    back = present.spread(rows, mean_coefficients(rows, None))
    assert to_numpy(back).tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert not to_numpy(mean_coefficients(rows, "columns")).any()


@numpy_only
class TestPresentSamples:
    @pytest.mark.parametrize(
        ("mask", "loss"),
        [
            (None, LOSS),
            (MASK | True, LOSS),
            (MASK & False, LOSS),
            (MASK[:1], LOSS),
            (MASK[0], LOSS),
            (MASK.astype(float), LOSS),
            ("mask", LOSS),
            (MASK, "loss"),
            (MASK, wtf.KullbackLeibler),
            (MASK, wtf.Wasserstein(wtf.grid_cost(3, 2), 0.1, 1.0, modes=(0, 1))),
        ],
    )
    def test_nothing_to_leave_out(self, mask, loss):
        assert present_samples(mask, np.ones((3, 2)), loss) is None

    def test_one_process_of_several_may_have_none(self):
        found = present_samples(MASK & False, np.ones((3, 2)), LOSS, shared=True)
        assert found.rows.size == 0

    def test_initial_factors(self):
        present = present_samples(MASK, np.ones((3, 2)), LOSS)
        A, B = np.arange(3.0)[:, None], np.ones((2, 1))
        for init in ([A, B], (None, [A, B])):
            found = present.of_init(init)
            first = found[0] if isinstance(found, list) else found[1][0]
            assert first.tolist() == [[0.0], [2.0]]
        fit = wtf.nmf(np.ones((3, 2)), 1, LOSS, rng=0)
        assert present.of_init(fit)[1][0].shape == (2, 1)
        for other in (None, "random", 3, []):
            assert present.of_init(other) is other


@pytest.mark.parametrize("solver", ["envelope", "dual"])
def test_every_library(array, solver):
    X = np.random.default_rng(0).gamma(1.0, size=(4, 3))
    kept = np.array([True, False, True, True])
    loss = wtf.Wasserstein(wtf.grid_cost(3), 0.5, 1.0)
    options = {"rng": 0, "max_iter": 1, "solver": solver}
    with pytest.warns(UserWarning, match="max_iter"):
        found = wtf.nmf(array(X), 1, loss, mask=kept[:, None], **options)
    with pytest.warns(UserWarning, match="max_iter"):
        alone = wtf.nmf(array(X[kept]), 1, loss, **options)
    assert np.array_equal(to_numpy(found.factors[1]), to_numpy(alone.factors[1]))
    assert np.array_equal(to_numpy(found.factors[0])[kept], to_numpy(alone.factors[0]))
