"""Sparse matrices and tensors as data."""

import tracemalloc

import numpy as np
import pytest
from array_api_compat import is_torch_namespace
from helpers import numpy_only, without_escape

import wtfarray as wtf
from wtfarray._arrays.sparse import SparseSamples, gram_of_columns, is_sparse, to_dense

pytestmark = without_escape

X = np.random.default_rng(0).gamma(1.0, size=(8, 6)) * (np.arange(48).reshape(8, 6) % 3 > 0)
KINDS = ["csr_array", "csc_array", "coo_array", "csr_matrix", "lil_array", "dok_matrix"]
FAST = {"rng": 0, "tol": 1e-3}


def scipy_sparse(kind, dense=X):
    sparse = pytest.importorskip("scipy.sparse")
    return getattr(sparse, kind)(dense)


@numpy_only
class TestScipy:
    @pytest.mark.parametrize("kind", KINDS)
    def test_fit_is_that_of_the_dense_matrix(self, kind):
        loss = wtf.Wasserstein(wtf.grid_cost(6), 0.1, 5.0)
        dense, found = (wtf.nmf(data, 2, loss, **FAST) for data in (X, scipy_sparse(kind)))
        assert np.array_equal(found.factors[1], dense.factors[1])
        assert np.array_equal(found.project(scipy_sparse(kind)), dense.project(X))

    def test_every_function_takes_it(self):
        loss = wtf.Wasserstein(wtf.grid_cost(6), 0.1, 5.0)
        Z = scipy_sparse("csr_array")
        assert wtf.wasserstein(Z, X + 0.1, loss).value == wtf.wasserstein(X, X + 0.1, loss).value
        scan = wtf.rank_scan(Z, [1, 2], wtf.KullbackLeibler(), n_seeds=1, tol=1e-2)
        assert len(scan.records) == 2
        fits = wtf.coupled([Z, X], 2, [loss, wtf.KullbackLeibler()], **FAST)
        assert fits.coefficients.shape == (8, 2)

    def test_fit_in_chunks_is_never_dense(self):
        index = np.arange(10_000)
        values = np.random.default_rng(0).gamma(1.0, size=10_000)
        sparse = pytest.importorskip("scipy.sparse")
        wide = sparse.csr_array((values, (index // 20, 7 * index % 4000)), shape=(500, 4000))
        options = {"rng": 0, "max_iter": 2, "tol": 1e-3, "init": "random", "chunk": 50}
        tracemalloc.start()
        with pytest.warns(UserWarning, match="max_iter"):
            fit = wtf.nmf(wide, 2, wtf.KullbackLeibler(), **options)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 500 * 4000 * 8
        with pytest.warns(UserWarning, match="max_iter"):
            dense = wtf.nmf(wide.toarray(), 2, wtf.KullbackLeibler(), **options)
        assert np.array_equal(fit.factors[1], dense.factors[1])

    def test_tensor_in_coordinates(self):
        """SciPy's coordinates may have more than two modes, its other formats not."""
        sparse = pytest.importorskip("scipy.sparse")
        T = X.reshape(8, 3, 2)
        found, dense = (wtf.cp(Z, 2, wtf.Frobenius(), **FAST) for Z in (sparse.coo_array(T), T))
        assert np.array_equal(found.factors[1], dense.factors[1])

    def test_samples_are_read_as_they_are_asked_for(self):
        samples = SparseSamples(scipy_sparse("coo_array"))
        assert samples.shape == (8, 6)
        assert np.array_equal(samples[2:5], X[2:5])

    @pytest.mark.parametrize("metric", ["cosine", "correlation", "euclidean"])
    @pytest.mark.parametrize("kind", ["csr_array", "coo_matrix"])
    def test_feature_cost(self, kind, metric):
        found = wtf.feature_cost(scipy_sparse(kind), metric)
        np.testing.assert_allclose(found, wtf.feature_cost(X, metric), atol=1e-7)

    def test_feature_cost_does_not_make_it_dense(self):
        """A dense array of this shape would take 800 MB."""
        sparse = pytest.importorskip("scipy.sparse")
        index = np.arange(10**5)
        tall = sparse.csr_array((np.ones(10**5), (index, index % 1000)), shape=(10**5, 1000))
        tracemalloc.start()
        cost = wtf.feature_cost(tall)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert cost.shape == (1000, 1000)
        assert peak < 100e6

    def test_bad_entries_are_refused(self):
        for bad in (-1.0, np.nan, np.inf):
            Z = X.copy()
            Z[1, 1] = bad
            with pytest.raises(ValueError, match=f"X is {bad} at index"):
                wtf.nmf(scipy_sparse("csr_array", Z), 2, wtf.Frobenius())
            with pytest.raises(ValueError, match=f"X has the entry {bad}: expected finite"):
                wtf.feature_cost(scipy_sparse("csr_array", Z))

    def test_derived_classes_are_recognised(self):
        """Such as the views of AnnData."""
        sparse = pytest.importorskip("scipy.sparse")
        view = type("View", (sparse.csr_matrix,), {"__module__": "anndata.views"})
        assert is_sparse(view(X))
        assert not is_sparse(view)

    def test_helpers(self):
        Z = scipy_sparse("csc_array")
        assert is_sparse(Z)
        assert not is_sparse(X)
        assert np.array_equal(to_dense(Z), X)
        assert to_dense(Z).flags.c_contiguous
        gram, sums = gram_of_columns(Z)
        np.testing.assert_allclose(gram, X.T @ X)
        np.testing.assert_allclose(sums, X.sum(axis=0))


@numpy_only
class TestPydata:
    """In environments that have the package."""

    def test_tensor(self):
        sparse = pytest.importorskip("sparse")
        T = X.reshape(8, 3, 2)
        loss = wtf.KullbackLeibler()
        dense = wtf.cp(T, 2, loss, **FAST)
        for kind in (sparse.COO, sparse.GCXS, sparse.DOK):
            found = wtf.cp(kind.from_numpy(T), 2, loss, **FAST)
            assert np.array_equal(found.factors[1], dense.factors[1])
        options = {"rng": 0, "tol": 1e-3, "chunk": 3}
        found, dense = (wtf.cp(data, 2, loss, **options) for data in (sparse.COO.from_numpy(T), T))
        assert np.array_equal(found.factors[1], dense.factors[1])
        cost = wtf.feature_cost(sparse.COO.from_numpy(X))
        np.testing.assert_allclose(cost, wtf.feature_cost(X), atol=1e-7)

    def test_other_fill_value(self):
        sparse = pytest.importorskip("sparse")
        Z = sparse.COO.from_numpy(X) + 1.0
        assert Z.fill_value == 1.0
        np.testing.assert_allclose(wtf.feature_cost(Z), wtf.feature_cost(X + 1.0), atol=1e-12)
        found, dense = (wtf.nmf(data, 2, wtf.Frobenius(), **FAST) for data in (Z, X + 1.0))
        assert np.array_equal(found.factors[1], dense.factors[1])


class TestTorch:
    def test_sparse_tensor_is_refused_by_name(self, xp, array):
        if not is_torch_namespace(xp):
            pytest.skip("sparse tensors are torch's")
        with pytest.raises(TypeError, match=r"X is a sparse tensor of torch .* X.to_dense\(\)"):
            wtf.nmf(array(X).to_sparse(), 2, wtf.Frobenius())
