"""The estimator for several data sets side by side."""

import numpy as np
import pytest
from estimators import bumps
from helpers import set_thresholds, sizes_made_dense
from scipy import sparse
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from wtfarray.sklearn import CoupledWassersteinNMF

pytestmark = pytest.mark.usefixtures("numpy_estimators")
FAST = {"blocks": (16, 6), "eps": 0.2, "tol": 1e-3, "random_state": 0}


@parametrize_with_checks([CoupledWassersteinNMF(eps=0.5, tol=1e-3)])
def test_scikit_learn_estimator_checks_pass(estimator, check):
    check(estimator)


def data(n=20):
    """Spectra and counts of the same mixtures."""
    X, rng = bumps(n), np.random.default_rng(0)
    shares = np.stack([X[:, :8].sum(axis=1), X[:, 8:].sum(axis=1)], axis=1)
    return np.hstack([X, 5.0 * shares @ rng.dirichlet(np.full(6, 0.5), 2)])


class TestCoupledWassersteinNMF:
    def test_shapes_and_masses(self):
        X = data()
        model = CoupledWassersteinNMF(2, **FAST).fit(X)
        W = model.transform(X)
        np.testing.assert_allclose(W.sum(axis=1), 1.0)
        for part in (slice(0, 16), slice(16, 22)):
            np.testing.assert_allclose(model.components_[:, part].sum(axis=1), 1.0)
        assert model.inverse_transform(W).shape == X.shape
        assert -1.0 < model.score(X) <= 0.0
        assert model.get_feature_names_out()[0] == "coupledwassersteinnmf0"

    def test_a_data_set_may_lack_samples_or_entries(self):
        X = data()
        X[3, :16] = np.nan
        X[4, 16:] = 0.0
        X[5, 2:4] = np.nan
        model = CoupledWassersteinNMF(2, **FAST).fit(X)
        W = model.transform(X)
        assert np.isfinite(W).all()
        np.testing.assert_allclose(W[:5].sum(axis=1), 1.0)
        only = model.transform(X[3:4])
        np.testing.assert_allclose(only, W[3:4], atol=1e-3)
        assert not model.transform(np.full((1, 22), np.nan)).any()
        assert np.isfinite(model.score(X))

    def test_bars_are_shown(self, capsys):
        pytest.importorskip("tqdm")
        X = data()
        model = CoupledWassersteinNMF(2, **FAST, verbose=True)
        model.fit(X)
        assert "coupled" in capsys.readouterr().err
        model.transform(X[:3])
        assert "coupled" in capsys.readouterr().err
        model.set_params(verbose=False).transform(X[:3])
        assert capsys.readouterr().err == ""

    def test_grid_search(self):
        search = GridSearchCV(CoupledWassersteinNMF(**FAST), {"n_components": [1, 2]}, cv=2)
        assert search.fit(data()).best_params_ == {"n_components": 2}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"blocks": (16, 5)}, "blocks is .*: expected numbers whose sum is 22"),
            ({"costs": ["cosine"]}, "costs has 1 entries: expected 2"),
            ({"weights": [1.0]}, "weights has 1 entries: expected 2"),
        ],
    )
    def test_bad_parameters_are_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            CoupledWassersteinNMF(2, **{**FAST, **options}).fit(data())


class TestWeightsAndSparseMatrices:
    def test_a_weight_of_two_is_a_copy(self):
        X = data(12)
        X[3, :16] = np.nan
        weight = np.where(np.arange(12) < 4, 2.0, 1.0)
        weight[7] = 0.0
        options = {**FAST, "costs": ["correlation", "cosine"]}
        found = CoupledWassersteinNMF(2, **options).fit(X, sample_weight=weight)
        copies = np.concatenate([X[:7], X[8:], X[:4]])
        twice = CoupledWassersteinNMF(2, **options).fit(copies)
        np.testing.assert_allclose(found.components_, twice.components_, rtol=1e-6, atol=1e-9)
        score = found.score(X, sample_weight=weight)
        assert score == pytest.approx(found.score(copies), rel=1e-4)

    def test_empty_samples_are_ignored(self):
        X = data(12)
        empty = np.vstack([X, np.zeros((1, 22)), np.full((1, 22), np.nan)])
        found, plain = (CoupledWassersteinNMF(2, **FAST).fit(Z) for Z in (empty, X))
        assert np.array_equal(found.components_, plain.components_)
        assert not found.transform(empty)[12:].any()

    @pytest.mark.parametrize("large", [False, True])
    def test_sparse_matrix(self, monkeypatch, large):
        X = np.where(data(12) < 0.03, 0.0, data(12))
        X[2, 16:] = 0.0  # which the second data set lacks
        weight = np.linspace(0.5, 2.0, 12)
        options = {**FAST, "costs": ["cosine", "sqeuclidean"], "tol": 1e-5}
        dense = CoupledWassersteinNMF(2, **options).fit(X, sample_weight=weight)
        coefficients, score = dense.transform(X), dense.score(X, sample_weight=weight)
        Z = sparse.csc_matrix(X)
        if large:
            set_thresholds(monkeypatch, chunk_entries=5 * 22, chunk_batches=1)
            sizes = sizes_made_dense(monkeypatch)
        found = CoupledWassersteinNMF(2, **options).fit(Z, sample_weight=weight)
        assert found.score(Z, sample_weight=weight) == pytest.approx(score, rel=1e-2)
        np.testing.assert_allclose(found.transform(Z).sum(axis=1), coefficients.sum(axis=1))
        if not large:
            assert np.array_equal(found.components_, dense.components_)
            return
        # Chunks of five samples, and the Gram matrix of the first data set.
        assert {shape for shape in sizes if shape[0] > 5} == {(16, 16)}
        objectives = [model.fit_.objective for model in (found, dense)]
        assert objectives[0] == pytest.approx(objectives[1], rel=1e-3)
