"""Samples with weights are samples repeated."""

import numpy as np
import pytest
from estimators import FAST, bumps, images

from wtfarray.sklearn import WassersteinCP, WassersteinNMF

pytestmark = pytest.mark.usefixtures("numpy_estimators")


class TestSampleWeight:
    def test_weights_count_as_repetitions(self):
        X = images()
        counts = np.arange(12) % 3
        weighted = WassersteinCP(**FAST).fit(X, sample_weight=counts)
        repeated = WassersteinCP(**FAST).fit(np.repeat(X, counts, axis=0)[::-1])
        np.testing.assert_allclose(weighted.components_, repeated.components_, rtol=1e-6)
        assert weighted.n_samples_seen_ == repeated.n_samples_seen_ == counts.sum()
        assert weighted.score(X, sample_weight=counts) == pytest.approx(
            weighted.score(np.repeat(X, counts, axis=0)), rel=1e-6
        )

    def test_entropies_are_weighted_like_the_loss(self):
        # At the solution, the coefficients of fit are those of transform, whatever the weight.
        X = bumps(n=12)
        weights = np.where(np.arange(12) < 6, 20.0, 1.0)
        model = WassersteinNMF(2, eps=0.2, tol=1e-6, random_state=0).fit(X, sample_weight=weights)
        score = model.score(X, sample_weight=weights)
        assert model.reconstruction_err_ == pytest.approx(-score, rel=1e-3)

    def test_score_is_a_weighted_mean(self):
        X = bumps()
        model = WassersteinNMF(**FAST).fit(X)
        parts = model.score(X[:6]), model.score(X[6:])
        weights = np.repeat([3.0, 1.0], [6, 18])
        mean = (parts[0] + parts[1]) / 2
        assert model.score(X, sample_weight=weights) == pytest.approx(mean, rel=1e-4)

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            (np.ones(3), r"sample_weight has shape \(3,\): expected \(24,\)"),
            (-np.ones(24), "sample_weight is -1.0 at index .*: expected non-negative"),
            (np.full(24, np.nan), "sample_weight is nan"),
            (np.zeros(24), "sample_weight is zero everywhere"),
        ],
    )
    def test_bad_weights_are_refused(self, weights, message):
        with pytest.raises(ValueError, match=message):
            WassersteinNMF().fit(bumps(), sample_weight=weights)
