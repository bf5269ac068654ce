"""Terms of dense and of sparse data on the same problem."""

import numpy as np
import pytest
from fitting import spare_jax
from helpers import to_numpy
from infinite_costs import LAMS, band, loss_with

import wtfarray as wtf
from wtfarray._losses.sparse_tensor import SparseTensorTerm
from wtfarray._losses.transport_term import TransportTerm


class TestTerms:
    @pytest.mark.parametrize("lam", LAMS)
    def test_terms_for_dense_and_sparse_data_agree_with_wasserstein(self, array, xp, lam):
        spare_jax(xp)
        rng = np.random.default_rng(0)
        X, Y = np.zeros((1, 9, 8)), rng.uniform(0.1, 1.0, (1, 9, 8))
        X[0, 2, 3], X[0, 4, 4], X[0, 3, 1] = 0.3, 1.0, 0.2
        Y[0, 3, 2] = 0.0
        whole = loss_with((band(2, 9), band(3, 8)), lam)
        expected = wtf.wasserstein(X, Y, whole, tol=1e-12)
        assert np.sum(expected.gradient == lam) > 10
        for kind in (SparseTensorTerm, TransportTerm):
            term = kind(whole.bind(array(X)), X.shape)
            term.set_level(3.0)
            term.evaluate(array(Y), 1e-6, 100)
            term.set_level(1.0)
            for found in (term.evaluate(array(Y), 1e-9, 500), term.certify(array(Y), 1e-9, 500)):
                assert found.converged
                assert found.value == pytest.approx(float(expected.value), rel=1e-8)
                gradient = np.where(Y > 0, to_numpy(found.gradient), 0.0)
                np.testing.assert_allclose(
                    gradient, np.where(Y > 0, expected.gradient, 0.0), atol=1e-4
                )
