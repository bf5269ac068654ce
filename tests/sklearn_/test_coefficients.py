"""Coefficients: their mass, empty samples, samples that do not affect each other."""

import numpy as np
import pytest

from wtfarray.sklearn import WassersteinTucker

pytestmark = pytest.mark.usefixtures("numpy_estimators")


class TestCoefficients:
    def test_coefficients_carry_the_mass_of_the_samples(self, fitted):
        model, X = fitted
        W = model.transform(5.0 * X)
        np.testing.assert_allclose(W.sum(axis=1), 5.0 * X.reshape(len(X), -1).sum(axis=1))
        np.testing.assert_allclose(W, 5.0 * model.transform(X), rtol=1e-4, atol=1e-4)
        if not isinstance(model, WassersteinTucker):
            np.testing.assert_allclose(model.components_.reshape(2, -1).sum(axis=1), 1.0)

    def test_empty_samples_have_no_coefficients(self, fitted):
        model, X = fitted
        some = np.concatenate([np.zeros_like(X[:1]), X[:3], np.zeros_like(X[:1])])
        W = model.transform(some)
        assert not np.any(W[[0, 4]])
        np.testing.assert_allclose(W[1:4], model.transform(X[:3]), rtol=1e-6)
        assert not np.any(model.transform(np.zeros_like(X[:2])))
        assert model.score(some) == pytest.approx(model.score(X[:3]), rel=1e-4)

    def test_samples_are_transformed_independently(self, fitted):
        model, X = fitted
        alone = np.concatenate([model.transform(X[i : i + 1]) for i in range(4)])
        np.testing.assert_allclose(model.transform(X)[:4], alone, atol=1e-4)
