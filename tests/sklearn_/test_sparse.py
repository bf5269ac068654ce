"""Sparse matrices in the estimators: a few samples are made dense at a time."""

import numpy as np
import pytest
from helpers import numpy_only, set_thresholds, sizes_made_dense
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from wtfarray.sklearn import WassersteinNMF
from wtfarray.sklearn._samples import distinct_samples
from wtfarray.sklearn._sparse import distinct_sparse_samples

pytestmark = numpy_only


def example(n, m):
    index = np.arange(4 * n)
    values = np.random.default_rng(0).gamma(1.0, size=4 * n)
    return sparse.csr_array((values, (index // 4, 7 * index % m)), shape=(n, m))


@pytest.mark.parametrize("chunk_batches", [1, 2])
def test_transform_is_that_of_the_dense_matrix(monkeypatch, chunk_batches):
    X = example(12, 10)
    model = WassersteinNMF(2, tol=1e-2, random_state=0).fit(X)
    dense = model.transform(X.toarray())
    assert np.array_equal(model.transform(X), dense)  # small: at once
    set_thresholds(monkeypatch, chunk_entries=50, chunk_batches=chunk_batches)
    np.testing.assert_allclose(model.transform(X), dense, atol=1e-4 * dense.max())


def test_transform_is_never_dense(monkeypatch):
    X = example(40, 10)
    model = WassersteinNMF(2, max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X[:10])
    set_thresholds(monkeypatch, chunk_entries=80, chunk_batches=2)
    sizes = sizes_made_dense(monkeypatch)
    monkeypatch.setattr("wtfarray.sklearn._coefficients.PROJECTION_ITERATIONS", 1)
    with pytest.warns(ConvergenceWarning, match="WassersteinNMF: .*max_iter") as caught:
        found = model.transform(X)
    assert found.shape == (40, 2)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert {rows for rows, _ in sizes} == {4}


class TestFit:
    def test_fit_is_that_of_the_dense_matrix(self, monkeypatch):
        X = example(16, 10)
        X = sparse.vstack([X, X[:2]])  # two samples twice
        weight = np.random.default_rng(1).uniform(0.5, 2.0, 18)
        options = {"cost": "correlation", "grid_shape": (2, 5), "tol": 1e-6, "random_state": 0}
        dense = WassersteinNMF(2, **options).fit(X.toarray(), sample_weight=weight)
        score = dense.score(X, sample_weight=weight)
        set_thresholds(monkeypatch, chunk_entries=60, chunk_batches=2)
        found = WassersteinNMF(2, **options).fit(X, sample_weight=weight)
        np.testing.assert_allclose(found.components_, dense.components_, atol=2e-3)
        assert found.reconstruction_err_ == pytest.approx(dense.reconstruction_err_, rel=1e-4)
        assert found.score(X, sample_weight=weight) == pytest.approx(score, rel=1e-4)

    def test_repeated_and_empty_samples(self):
        X = example(6, 10)
        X = sparse.vstack([X, sparse.csr_array((1, 10)), 2.0 * X[1:3]])
        found, dense = distinct_sparse_samples(X, None), distinct_samples(X.toarray(), None)
        np.testing.assert_allclose(found.data[0:6], dense.data, rtol=1e-14)
        assert np.array_equal(found.weights, dense.weights)
        assert found.total == dense.total == 8.0

    def test_fit_and_score_are_never_dense(self, monkeypatch):
        X = example(40, 10)
        set_thresholds(monkeypatch, chunk_entries=80, chunk_batches=2)
        sizes = sizes_made_dense(monkeypatch)
        model = WassersteinNMF(2, cost="cosine", max_iter=2, random_state=0)
        with pytest.warns(ConvergenceWarning, match="max_iter"):
            model.fit(X)
        model.score(X)
        assert max(rows for rows, columns in sizes if columns == 10) == 10  # the Gram matrix
        assert sum(rows == 8 for rows, _ in sizes) > 0
        assert {rows for rows, _ in sizes} <= {1, 4, 8, 10}

    def test_refuses(self, monkeypatch):
        set_thresholds(monkeypatch, chunk_entries=50)
        X = example(12, 10)
        assert WassersteinNMF(2, init="nnsvd", eps=0.5, tol=1e-2).fit(X).n_iter_ > 0
        with pytest.raises(ValueError, match="loss is debiased for an X that is read in chunks"):
            WassersteinNMF(2, debias=True).fit(X)
        X.data[:2] = np.nan
        with pytest.raises(ValueError, match="X is a sparse matrix with 2 entries of NaN"):
            WassersteinNMF(2).fit(X)
