"""What the three estimators add to their base: the grid of a matrix, the rank of a core."""

import numpy as np
import pytest
from estimators import FAST, images

from wtfarray.sklearn import WassersteinCP, WassersteinNMF, WassersteinTucker

pytestmark = pytest.mark.usefixtures("numpy_estimators")


def test_grid_shape_gives_the_features_of_a_matrix_their_grid():
    X = images()
    model = WassersteinNMF(2, grid_shape=(6, 6), **FAST).fit(X.reshape(len(X), -1))
    assert [cost.shape for cost in model.loss_.costs] == [(6, 6), (6, 6)]
    assert model.components_.shape == (2, 36)


def test_grid_shape_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"X has 36 features, but the grid .* is \(5, 7\)"):
        WassersteinNMF(2, grid_shape=(5, 7), **FAST).fit(images().reshape(12, -1))


def test_components_of_cp_are_outer_products_of_its_factors():
    model = WassersteinCP(2, **FAST).fit(images())
    expected = np.einsum("ir,jr->rij", *model.factors_)
    np.testing.assert_allclose(model.components_, expected, rtol=1e-12)


def test_components_of_tucker_are_slices_of_the_core_times_the_factors():
    model = WassersteinTucker((2, 3, 3), **FAST).fit(images())
    assert model.core_.shape == (2, 3, 3)
    expected = np.einsum("rab,ia,jb->rij", model.core_, *model.factors_)
    np.testing.assert_allclose(model.components_, expected, rtol=1e-12)


def test_single_number_of_components_is_capped_by_the_modes_of_tucker():
    model = WassersteinTucker(7, **FAST).fit(images())
    assert model.core_.shape == (7, 6, 6)


@pytest.mark.parametrize("options", [{"debias": True}, {"source_lam": 5.0}])
def test_other_losses_score_and_update(options):
    X = images()
    model = WassersteinCP(2, **options, **FAST).fit(X)
    assert all(getattr(model.loss_, name) == value for name, value in options.items())
    assert -model.score(X) == pytest.approx(model.reconstruction_err_, abs=1e-3)
    model.partial_fit(X[:6])
    assert np.all(np.isfinite(model.components_))
