"""Checks of the estimators: parameters that change between batches, bad input."""

import numpy as np
import pytest
from estimators import FAST, bumps, images

import wtfarray as wtf
from wtfarray.sklearn import WassersteinCP, WassersteinNMF

pytestmark = pytest.mark.usefixtures("numpy_estimators")


class TestParameters:
    @pytest.mark.parametrize(
        ("name", "value"),
        [("eps", 0.3), ("rho_atoms", 1e-2), ("n_components", 3), ("cost", "cityblock")],
    )
    def test_changed_parameters_are_refused(self, name, value):
        X = bumps()
        model = WassersteinNMF(**FAST).partial_fit(X[:12])
        model.set_params(**{name: value})
        with pytest.raises(ValueError, match=rf"{name} is {value!r}, but the first batch was"):
            model.partial_fit(X[12:])
        model.fit(X).partial_fit(X[:12])

    def test_equal_costs_are_no_change(self):
        X, cost = bumps(), wtf.grid_cost(16)[0]
        model = WassersteinNMF(**FAST, cost=cost).partial_fit(X[:12])
        model.set_params(cost=cost.copy()).partial_fit(X[12:])
        with pytest.raises(ValueError, match="cost is"):
            model.set_params(cost=2.0 * cost).partial_fit(X[12:])


class TestData:
    def test_another_size_of_a_later_mode_is_refused(self):
        model = WassersteinCP(**FAST).fit(images())
        with pytest.raises(ValueError, match=r"X has shape \(12, 6, 5\): expected \(n, 6, 6\)"):
            model.transform(images()[:, :, :-1])

    def test_data_without_mass_are_refused(self):
        with pytest.raises(ValueError, match="X has no sample of positive mass and weight"):
            WassersteinNMF().fit(np.zeros((4, 5)))
