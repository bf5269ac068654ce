"""The estimators: scikit-learn's own checks, shapes, masses, input, pipelines."""

import pickle

import numpy as np
import pytest
from estimators import ESTIMATORS, FAST, bumps, images
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from wtfarray.sklearn import WassersteinCP, WassersteinNMF, WassersteinTucker

pytestmark = pytest.mark.usefixtures("numpy_estimators")


# The data of the checks have two or three features: a smoothing to match makes them fast.
@parametrize_with_checks([cls(eps=0.5, tol=1e-3) for cls in ESTIMATORS])
def test_scikit_learn_estimator_checks_pass(estimator, check):
    check(estimator)


class TestSparse:
    def test_sparse_and_dense_agree(self):
        sparse = pytest.importorskip("scipy.sparse")
        X = np.where(bumps() > 0.05, bumps(), 0.0)
        dense = WassersteinNMF(**FAST).fit(X)
        for kind in (sparse.csr_matrix, sparse.csc_array, sparse.coo_array):
            model = WassersteinNMF(**FAST).fit(kind(X))
            np.testing.assert_array_equal(model.components_, dense.components_)
        np.testing.assert_array_equal(model.transform(kind(X)), dense.transform(X))


class TestVerbose:
    def test_bars_are_shown(self, capsys):
        pytest.importorskip("tqdm")
        X = bumps()
        model = WassersteinNMF(**FAST, verbose=True)
        model.partial_fit(X[:12])
        assert "objective" in capsys.readouterr().err
        model.partial_fit(X[12:])
        assert "batch" in capsys.readouterr().err
        model.transform(X)
        assert "objective" in capsys.readouterr().err
        model.set_params(verbose=False).partial_fit(X[:12]).transform(X)
        assert capsys.readouterr().err == ""


class TestBatches:
    def test_batch_that_does_not_converge_warns(self):
        X = bumps()
        model = WassersteinNMF(**FAST).partial_fit(X[:12])
        model.set_params(max_iter=1, tol=1e-12)
        with pytest.warns(ConvergenceWarning, match="WassersteinNMF: stopped after max_iter = 1"):
            model.partial_fit(X[12:])


class TestFitted:
    def test_shapes_follow_data_and_components(self, fitted):
        model, X = fitted
        W = model.transform(X)
        assert W.shape == (X.shape[0], 2)
        assert model.components_.shape == (2, *X.shape[1:])
        assert model.inverse_transform(W).shape == X.shape
        assert model.n_features_in_ == X.shape[1]
        assert model.n_iter_ > 1
        assert list(model.get_feature_names_out()) == [
            f"{type(model).__name__.lower()}{k}" for k in range(2)
        ]

    def test_two_components_score_higher_than_one(self, fitted):
        model, X = fitted
        one = clone(model).set_params(n_components=1).fit(X)
        assert model.score(X) > 0.9 * one.score(X)

    def test_pickled_model_gives_equal_coefficients(self, fitted):
        model, X = fitted
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.transform(X[:3]), model.transform(X[:3]))

    def test_components_are_the_product_of_the_factors(self, fitted):
        model, _ = fitted
        if isinstance(model, WassersteinCP):
            made = np.einsum("ir,jr->rij", *model.factors_)
        elif isinstance(model, WassersteinTucker):
            made = np.einsum("rab,ia,jb->rij", model.core_, *model.factors_)
        else:
            pytest.skip("a matrix model has no factors beside its components")
        np.testing.assert_allclose(model.components_, made)


class TestInput:
    def test_another_shape_is_refused(self, fitted):
        model, X = fitted
        with pytest.raises(ValueError, match=r"features|expected"):
            model.transform(X[:, :-1])
        with pytest.raises(ValueError, match=r"X has shape \(3, 5\): expected \(n, 2\)"):
            model.inverse_transform(np.ones((3, 5)))

    def test_unfinished_fit_gives_a_convergence_warning(self):
        with pytest.warns(ConvergenceWarning, match="max_iter = 1: increase it"):
            WassersteinNMF(3, max_iter=1, random_state=0).fit(bumps())


class TestScikitLearn:
    def test_pandas_output_has_named_columns(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(bumps(), columns=[f"bin{k}" for k in range(16)])
        model = WassersteinNMF(**FAST).set_output(transform="pandas").fit(frame)
        assert list(model.transform(frame).columns) == ["wassersteinnmf0", "wassersteinnmf1"]
        assert list(model.feature_names_in_) == list(frame.columns)

    def test_pipelines_and_grid_searches_work(self):
        X = bumps(n=40, jitter=0.02)
        labels = X[:, :6].sum(axis=1) > 0.3
        pipeline = make_pipeline(WassersteinNMF(3, **FAST), LogisticRegression(C=100.0))
        assert pipeline.fit(X, labels).score(X, labels) > 0.9
        search = GridSearchCV(WassersteinNMF(**FAST), {"n_components": [1, 3]}, cv=2).fit(X)
        assert search.best_params_ == {"n_components": 3}
        assert search.best_score_ < 0

    def test_grid_search_takes_tensors(self):
        search = GridSearchCV(WassersteinCP(**FAST), {"rho_atoms": [1e-3, 10.0]}, cv=2)
        search.fit(images())
        assert search.best_params_ == {"rho_atoms": 1e-3}
