"""The cost of an estimator: its name, grid and unit."""

import numpy as np
import pytest
from estimators import FAST, bumps, images

import wtfarray as wtf
from wtfarray.sklearn import (
    CoupledWassersteinNMF,
    WassersteinCP,
    WassersteinNMF,
    WassersteinTucker,
)

pytestmark = pytest.mark.usefixtures("numpy_estimators")


class TestCost:
    @pytest.mark.parametrize("metric", ["cosine", "correlation", "euclidean"])
    def test_distances_of_features_in_the_samples(self, metric):
        X = bumps() / bumps().sum(axis=1, keepdims=True)
        expected = wtf.feature_cost(X, metric)
        model = WassersteinNMF(cost=metric, **FAST).fit(3.0 * bumps())
        np.testing.assert_allclose(model.loss_.costs[0], expected, atol=1e-7)

    def test_weight_of_two_repeats_a_sample_in_the_cost(self):
        X, weights = bumps(), np.ones(len(bumps()))
        weights[:3] = 2.0
        twice = WassersteinNMF(cost="correlation", **FAST).fit(np.concatenate([X, X[:3]]))
        once = WassersteinNMF(cost="correlation", **FAST).fit(X, sample_weight=weights)
        np.testing.assert_allclose(once.loss_.costs[0], twice.loss_.costs[0], atol=1e-12)

    def test_grid_shape_costs_and_dense_cost_agree(self):
        X = images()
        points = np.stack(np.meshgrid(np.arange(6), np.arange(6), indexing="ij"), axis=-1)
        dense = wtf.point_cost(points.reshape(36, 2).astype(float))
        options = [
            {"grid_shape": (6, 6)},
            {"cost": list(wtf.grid_cost(6, 6))},
            {"cost": dense},
        ]
        models = [WassersteinNMF(**FAST, **o).fit(X.reshape(12, 36)) for o in options]
        models.append(WassersteinCP(**FAST, cost=dense).fit(X))
        assert [len(model.loss_.costs) for model in models] == [2, 2, 1, 1]
        for model in models:
            grid = X.reshape(12, 36) if model is models[2] else X
            least, blurred = model.loss_.conjugate(grid, np.zeros_like(grid))
            if model is models[0]:
                expected = least, blurred
            assert least == pytest.approx(expected[0], rel=1e-9)
            np.testing.assert_allclose(blurred.reshape(X.shape), expected[1], rtol=1e-9)

    def test_named_costs_are_powers_of_distances(self):
        losses = [
            WassersteinNMF(cost=c, **FAST).fit(bumps()).loss_ for c in ("sqeuclidean", "cityblock")
        ]
        assert losses[0].costs[0][0, 2] == pytest.approx(4 * losses[0].costs[0][0, 1])
        assert losses[1].costs[0][0, 2] == pytest.approx(2 * losses[1].costs[0][0, 1])

    def test_cost_of_limited_reach_is_scaled_and_fitted(self):
        from sklearn.base import clone

        (cost,) = wtf.grid_cost(16, reach=5.0)
        banded, dense = (
            clone(WassersteinNMF(cost=c, **FAST)).fit(bumps()) for c in ([cost], cost.to_dense())
        )
        assert banded.loss_.mean_cost() == pytest.approx(1.0)
        (least, blurred), (expected, dense_blurred) = (
            model.loss_.conjugate(bumps(), np.zeros_like(bumps())) for model in (banded, dense)
        )
        assert least == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(blurred, dense_blurred, rtol=1e-12)

    def test_grid_shape_may_be_a_numpy_integer(self):
        a, b = (WassersteinNMF(grid_shape=n, **FAST).fit(bumps()) for n in (np.int64(16), None))
        np.testing.assert_array_equal(a.components_, b.components_)

    def test_balanced_coefficients_sum_to_one(self):
        model = WassersteinNMF(lam=np.inf, **FAST).fit(3.0 * bumps())
        np.testing.assert_allclose(model.transform(bumps()[:4]).sum(axis=1), 1.0)

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"cost": "other"}, "cost is 'other': expected one of 'sqeuclidean', 'cityblock'"),
            ({"cost": np.ones((3, 3))}, r"costs\[0\] has shape \(3, 3\): expected \(16, 16\)"),
            ({"grid_shape": (5, 5)}, r"X has 16 features, .* \(5, 5\)"),
            ({"cost": [np.eye(4), np.eye(5)]}, r"X has 16 features, .* \(4, 5\)"),
            ({"cost": [np.eye(16)], "grid_shape": (4, 4)}, "cost has 1 matrices: expected 2"),
            ({"eps": 0.0}, "eps is 0.0: expected a positive number"),
            ({"lam": -1.0}, "lam is -1.0: expected a positive number or inf"),
            ({"rho_coefs": 0.0}, "rho_coefs is 0.0: expected a positive number"),
            ({"rho_atoms": np.inf}, "rho_atoms is inf: expected a positive number"),
            ({"tol": 0.0}, "tol is 0.0"),
            ({"max_iter": 0}, "max_iter is 0: expected a positive integer"),
            ({"n_init": 0}, "n_init is 0"),
            ({"n_components": 0}, "n_components is 0"),
            ({"init": "best"}, "init is 'best': expected one of"),
            ({"init": np.ones((16, 2))}, r"(?s)init is array.*: expected one of"),
            ({"cost": np.eye(16).tolist()}, r"cost\[0\] is a list: expected one array per axis"),
        ],
    )
    def test_bad_parameters_are_refused(self, parameters, message):
        with pytest.raises((TypeError, ValueError), match=message):
            WassersteinNMF(**parameters).fit(bumps())

    def test_bad_parameters_of_tucker_are_refused(self):
        with pytest.raises(ValueError, match=r"n_components is \(2, 2\): expected .* 3 of them"):
            WassersteinTucker((2, 2)).fit(images())
        with pytest.raises(ValueError, match="lam is inf: expected a finite number"):
            WassersteinTucker(lam=np.inf).fit(images())


def test_labels_of_a_cost_are_those_of_the_features():
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.random.default_rng(0).gamma(1.0, size=(6, 4)), columns=list("abcd"))
    cost = wtf.feature_cost(X)
    WassersteinNMF(2, cost=cost, tol=1e-2, random_state=0).fit(X)
    WassersteinNMF(2, cost=cost, tol=1e-2, random_state=0).fit(X.to_numpy())
    message = "cost has the label 'a' at index 0 of mode 0, where X has 'd': expected the same"
    turned = X[list("dcba")]
    with pytest.raises(ValueError, match=message):
        WassersteinNMF(2, cost=cost).fit(turned)
    both = pandas.concat([X.rename(columns=str.upper), turned], axis=1)
    with pytest.raises(ValueError, match=message):
        CoupledWassersteinNMF(2, blocks=(4, 4), costs=["cosine", cost]).fit(both)
