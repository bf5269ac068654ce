"""Costs between features from the data, against distances of SciPy."""

import numpy as np
import pytest
from helpers import numpy_only, to_numpy, without_escape

import wtfarray as wtf

pytestmark = without_escape

METRICS = ["cosine", "correlation", "euclidean"]
X = np.random.default_rng(0).gamma(0.5, size=(7, 5))


class TestFeatureCost:
    @pytest.mark.parametrize("metric", METRICS)
    def test_distances_of_columns(self, array, metric):
        distance = pytest.importorskip("scipy.spatial.distance")
        found = wtf.feature_cost(array(X), metric, scale=None)
        expected = distance.squareform(distance.pdist(X.T, metric))
        np.testing.assert_allclose(to_numpy(found), expected, atol=1e-12)

    @numpy_only
    @pytest.mark.parametrize("metric", METRICS)
    def test_cost_can_be_used(self, metric):
        cost = wtf.feature_cost(X, metric)
        assert cost.mean() == pytest.approx(1.0)
        assert (np.diag(cost) == 0).all()
        fit = wtf.nmf(X, 2, wtf.Wasserstein(cost, 0.1, 5.0), rng=0, tol=1e-3)
        assert fit.converged

    @numpy_only
    @pytest.mark.parametrize(("metric", "column"), [("cosine", 0.0), ("correlation", 0.3)])
    def test_column_without_direction_is_at_distance_one(self, metric, column):
        Z = X.copy()
        Z[:, 2] = column
        cost = wtf.feature_cost(Z, metric, scale=None)
        assert cost[2].tolist() == [1.0, 1.0, 0.0, 1.0, 1.0]

    @pytest.mark.parametrize("metric", ["cosine", "correlation"])
    def test_columns_are_judged_by_their_own_scale(self, array, metric):
        """Neither metric depends on the scales of the features, not even in float32."""
        scales = np.asarray([1.0, 1e-12, 1e12, 1e-18, 1e18])
        expected = wtf.feature_cost(X, metric, scale=None)
        found = wtf.feature_cost(array(X * scales, "float32"), metric, scale=None)
        np.testing.assert_allclose(to_numpy(found), expected, atol=1e-5)

    def test_constant_columns_in_single_precision(self, array):
        Z = np.random.default_rng(0).gamma(0.5, size=(3000, 4)) + 10.0
        Z[:, 2] = 123.4567  # the sum of which has rounding errors
        cost = wtf.feature_cost(array(Z, "float32"), "correlation", scale=None)
        assert to_numpy(cost)[2].tolist() == [1.0, 1.0, 0.0, 1.0]

    @numpy_only
    @pytest.mark.parametrize("kind", ["lil_array", "dok_array", "dia_array", "bsr_array"])
    def test_every_sparse_format(self, kind):
        sparse = pytest.importorskip("scipy.sparse")
        found = wtf.feature_cost(getattr(sparse, kind)(X))
        np.testing.assert_allclose(found, wtf.feature_cost(X), atol=1e-12)

    @numpy_only
    def test_several_modes_are_flattened(self):
        Z = X.reshape(7, 5, 1)
        np.testing.assert_array_equal(wtf.feature_cost(Z), wtf.feature_cost(X))

    @numpy_only
    def test_frame_gives_a_frame(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(X, columns=list("abcde"))
        cost = wtf.feature_cost(frame)
        assert list(cost.index) == list(cost.columns) == list("abcde")
        np.testing.assert_array_equal(cost.to_numpy(), wtf.feature_cost(X))
        assert wtf.Wasserstein(cost, 0.1).labels == (wtf.Axis(values=list("abcde")),)

    @numpy_only
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((X, "other"), "metric is 'other': expected one of 'cosine'"),
            ((X[0],), r"X has shape \(5,\): expected samples x features"),
            ((-X,), "expected non-negative values"),
        ],
    )
    def test_refuses(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            wtf.feature_cost(*arguments)
