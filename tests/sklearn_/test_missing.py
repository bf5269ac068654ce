"""Estimators take NaN as missing."""

import numpy as np
import pytest
from estimators import ESTIMATORS, FAST, bumps, data_of
from scipy import sparse

from wtfarray.sklearn import CoupledWassersteinNMF, WassersteinNMF
from wtfarray.sklearn._samples import distinct_samples

pytestmark = pytest.mark.usefixtures("numpy_estimators")


def gaps(X, seed=0, share=0.15):
    """The data with NaN in some samples."""
    hidden = np.random.default_rng(seed).random(X.shape) < share
    hidden[::3] = False
    hidden[(slice(None),) + (X.shape[-1] // 2,) * (X.ndim - 1)] = False
    return np.where(hidden, np.nan, X)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_nan_is_missing(cls):
    X = data_of(cls)
    spoilt = gaps(X)
    model = cls(2, **FAST).fit(spoilt)
    W = model.transform(spoilt)
    assert np.isfinite(W).all()
    assert np.isfinite(model.components_).all()
    # Complete samples are transformed as ever, whatever stands next to them.
    np.testing.assert_allclose(W[::3], model.transform(X[::3]), rtol=1e-3, atol=1e-6)
    # Of the others the model has the mass that was observed, and more where nothing was.
    seen, axes = ~np.isnan(spoilt), tuple(range(1, X.ndim))
    mass = np.sum(X, axis=axes, where=seen)
    model_mass = np.sum(model.inverse_transform(W), axis=axes, where=seen)
    np.testing.assert_allclose(model_mass, mass, rtol=1e-2)
    np.testing.assert_allclose(model.components_.sum(axis=axes), 1.0, rtol=1e-6)
    assert (W.sum(axis=1) >= 0.99 * mass).all()
    assert model.score(spoilt) <= 0.0


def test_components_are_close_to_those_of_complete_data():
    X = bumps(40, jitter=0.01)
    options = {"eps": 0.01, "lam": 1.0, "tol": 1e-4, "random_state": 0}
    whole, part = (WassersteinNMF(3, **options).fit(data) for data in (X, gaps(X)))
    found, expected = (
        model.components_[np.argsort(model.components_ @ np.arange(16))] for model in (part, whole)
    )
    assert np.abs(found - expected).sum(axis=1).max() < 0.3


def test_batches_may_have_gaps():
    X = gaps(bumps(30))
    model = WassersteinNMF(2, **FAST)
    for batch in np.array_split(X, 3):
        model.partial_fit(batch)
    assert np.isfinite(model.components_).all()


def test_copies_are_counted_with_their_gaps():
    X = np.array([[1.0, 0.0, 1.0], [1.0, np.nan, 1.0], [1.0, 0.0, 1.0], [1.0, np.nan, 1.0]])
    samples = distinct_samples(X, None)
    assert samples.data.shape == (2, 3)
    assert sorted(samples.mask.sum(axis=1)) == [2, 3]
    assert samples.weights is None


def test_other_values_are_refused():
    X = bumps()
    X[0, 0], X[1, 1] = np.nan, -1.0
    message = "Negative values in data passed to X in {}: 1 of .* down to -1 .*usually set to 0"
    for estimator in (WassersteinNMF(2), CoupledWassersteinNMF(2)):
        with pytest.raises(ValueError, match=message.format(type(estimator).__name__)):
            estimator.fit(X)
    gapless = np.where(np.isnan(X), 0.0, X)
    with pytest.raises(ValueError, match=message.format("WassersteinNMF")):
        WassersteinNMF(2).fit(sparse.csr_array(gapless))
    X[1, 1] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        WassersteinNMF(2).fit(X)
    X[1, 1] = 0.0
    with pytest.raises(ValueError, match=r"mask hides some bins of sample .* finite lam"):
        WassersteinNMF(2, lam=np.inf).fit(X)


def test_costs_from_features_ignore_gaps():
    model = WassersteinNMF(2, cost="cosine", **FAST).fit(gaps(bumps()))
    assert np.isfinite(np.asarray(model.loss_.costs[0])).all()
