"""The mean mass of the samples, to which the entropy of one block is relative."""

import warnings

import numpy as np
import pytest
from helpers import numpy_only

import wtfarray as wtf


def mixtures(samples=8):
    """Samples of different mass, mean 1; (samples, 5, 4)."""
    X = np.random.default_rng(3).gamma(0.5, size=(samples, 5, 4))
    return X * samples / X.sum()


@numpy_only
class TestSampleMass:
    @staticmethod
    def reference(X, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return wtf.nmf(X, 1, wtf.KullbackLeibler(), max_iter=1, rng=0, **options).references

    def test_normalised_data_have_none(self):
        X = mixtures()
        X /= X.sum(axis=(1, 2), keepdims=True)
        assert self.reference(X) == (1.0, 1.0)
        assert self.reference(X, constraints=(None, "columns")) == (1.0, 1.0)

    def test_empty_and_masked_samples_do_not_count(self):
        X = 3.0 * mixtures()
        more = np.concatenate([X, np.zeros((2, 5, 4))])
        assert self.reference(more) == pytest.approx((3.0, 1.0))
        mask = np.ones((8, 1, 1), dtype=bool)
        mask[2:4] = False
        expected = np.delete(X, (2, 3), axis=0).sum() / 6
        assert self.reference(X, mask=mask) == pytest.approx((expected, 1.0))

    def test_weights_count_as_repetitions(self):
        X, weight = 3.0 * mixtures(3), np.asarray([1.0, 0.0, 2.0])
        repeated = self.reference(X[[0, 2, 2]])
        assert self.reference(X, sample_weight=weight) == pytest.approx(repeated)

    def test_first_free_block_without_constraint(self):
        X = 3.0 * mixtures()
        assert self.reference(X, constraints=("rows", None)) == pytest.approx((1.0, 3.0))
        init = (np.ones((8, 1)), np.full((20, 1), 0.05))
        fixed = {"constraints": (None, "columns"), "init": init, "fixed": (0,)}
        assert self.reference(X, **fixed) == (1.0, 1.0)

    def test_whole_tensor_is_one_sample(self):
        X = mixtures()
        loss = wtf.Wasserstein(wtf.grid_cost(8, 5, 4), eps=0.2, lam=2.0, modes=(0, 1, 2))
        fit = wtf.tucker(X, (2, 2, 2), loss, rng=0, tol=1e-3)
        assert fit.references == pytest.approx((1.0, 1.0, 1.0, X.sum()))
