"""Projection and storage of coupled fits."""

import numpy as np
import pytest
from coupled_data import OPTIONS, RANK, data, losses
from helpers import numpy_only
from own_losses import LeastSquares

import wtfarray as wtf

pytestmark = numpy_only


@pytest.fixture(scope="module")
def fitted():
    (X, Z), _ = data()
    return wtf.coupled([X, Z], RANK, losses(), weights=[1.0, 2.0], **OPTIONS), X, Z


class TestProject:
    def test_fitted_samples_have_their_coefficients(self, fitted):
        fit, X, Z = fitted
        np.testing.assert_allclose(fit.project([X, Z]), fit.coefficients, atol=1e-2)

    @pytest.mark.parametrize("known", [0, 1])
    def test_one_data_set_is_enough(self, fitted, known):
        fit, X, Z = fitted
        new = [X[:3] if known == 0 else None, Z[:3] if known == 1 else None]
        found = fit.project(new)
        assert found.shape == (3, RANK)
        np.testing.assert_allclose(found.sum(axis=1), 1.0)
        np.testing.assert_allclose(found, fit.coefficients[:3], atol=0.15)

    def test_one_data_set_is_projected_as_its_own_fit_does(self, fitted):
        fit, X, _ = fitted
        expected = fit.fits[0].project(X[:4])
        np.testing.assert_allclose(fit.project([X[:4], None]), expected, atol=1e-4)

    def test_masks(self, fitted):
        fit, X, Z = fitted
        mask = np.arange(X.shape[1]) != 4
        found = fit.project([np.where(mask, X, np.nan)[:3], Z[:3]], mask=[mask, None])
        np.testing.assert_allclose(found, fit.coefficients[:3], atol=0.1)

    @pytest.mark.parametrize(
        ("X", "message"),
        [
            ([None, None], "None for every data set"),
            ([np.ones((2, 10))], "expected a list of 2 arrays"),
            ([np.ones((2, 9)), None], r"X\[0\] has shape \(2, 9\): expected \(n, 10\)"),
        ],
    )
    def test_bad_samples_are_refused(self, fitted, X, message):
        with pytest.raises(ValueError, match=message):
            fitted[0].project(X)

    @pytest.mark.parametrize(
        ("mask", "message"),
        [
            (
                [None],
                "mask has 1 entries: expected a list of 2, for each data set an array of bool",
            ),
            (np.ones((3, 2), dtype=bool), "mask is a ndarray: expected a list of 2"),
        ],
    )
    def test_bad_masks_are_refused(self, fitted, mask, message):
        fit, X, _ = fitted
        with pytest.raises(ValueError, match=message):
            fit.project([X, None], mask=mask)


class TestStorage:
    def test_files_of_other_fits(self, fitted, tmp_path):
        fit, X, _ = fitted
        fit.save(tmp_path / "coupled.npz")
        with pytest.raises(ValueError, match=r"coupled fit, which `CoupledFactorisation.load`"):
            wtf.load(tmp_path / "coupled.npz")
        with pytest.raises(ValueError, match="losses has 1 entries: expected a list of 2"):
            wtf.CoupledFactorisation.load(tmp_path / "coupled.npz", losses=[None])
        wtf.nmf(X, 1, wtf.KullbackLeibler(), rng=0, tol=1e-2).save(tmp_path / "nmf.npz")
        with pytest.raises(ValueError, match="it holds a nmf fit, which `load` reads"):
            wtf.CoupledFactorisation.load(tmp_path / "nmf.npz")

    def test_a_saved_fit_is_the_same(self, fitted, tmp_path):
        fit, X, Z = fitted
        fit.save(tmp_path / "fit")
        again = wtf.CoupledFactorisation.load(tmp_path / "fit.npz")
        assert (again.objective, again.gap, again.weights) == (fit.objective, fit.gap, (1.0, 2.0))
        assert again.fits[0].factors[0] is again.fits[1].factors[0]
        assert repr(again) == repr(fit)
        np.testing.assert_array_equal(again.coefficients, fit.coefficients)
        np.testing.assert_array_equal(again.project([X, Z]), fit.project([X, Z]))
        with pytest.raises(ValueError, match="expected a file written by `save` of a fit"):
            wtf.load(tmp_path / "fit.npz")
        fit.fits[0].save(tmp_path / "other.npz")
        with pytest.raises(ValueError, match="it holds a nmf fit, which `load` reads"):
            wtf.CoupledFactorisation.load(tmp_path / "other.npz")

    def test_own_losses_are_given_again(self, tmp_path):
        (X, Z), _ = data()
        fit = wtf.coupled([X, Z], RANK, [LeastSquares(), wtf.KullbackLeibler()], **OPTIONS)
        fit.save(tmp_path / "fit.npz")
        again = wtf.CoupledFactorisation.load(tmp_path / "fit.npz", losses=[LeastSquares(), None])
        assert isinstance(again.fits[0].loss, LeastSquares)

    def test_damage_is_refused(self, fitted, tmp_path):
        path = tmp_path / "fit.npz"
        fitted[0].save(path)
        path.write_bytes(path.read_bytes()[:-400])
        with pytest.raises(ValueError, match=r"fit.npz'?: expected a file written by `save`"):
            wtf.CoupledFactorisation.load(path)
