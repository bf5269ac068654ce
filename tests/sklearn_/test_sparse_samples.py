"""Sparse matrices in the estimators: `transform` makes a few samples dense at a time."""

import tracemalloc

import numpy as np
import pytest
from helpers import numpy_only, set_thresholds
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from wtfarray.sklearn import WassersteinNMF

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
    X = example(4_000, 100)
    model = WassersteinNMF(2, max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X[:10])
    set_thresholds(monkeypatch, chunk_entries=4_000, chunk_batches=1)
    monkeypatch.setattr("wtfarray.sklearn._base.PROJECTION_ITERATIONS", 1)
    tracemalloc.start()
    with pytest.warns(ConvergenceWarning, match="WassersteinNMF: .*max_iter") as caught:
        found = model.transform(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.shape == (4_000, 2)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert peak < 4_000 * 100 * 8
