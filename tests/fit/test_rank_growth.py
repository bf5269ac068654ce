"""From a fit to the start of one with more components."""

import numpy as np
import pytest
from array_api_compat import array_namespace
from helpers import assert_close, numpy_only, random_fit, to_numpy
from mixtures import bumps, images

import wtfarray as wtf
from wtfarray._fit.rank_growth import grow


class TestGrow:
    @pytest.mark.parametrize(
        ("model", "old", "new"),
        [("cp", 2, 4), ("nmf", 1, 2), ("tucker", (2, 2, 1), (3, 2, 2))],
    )
    def test_fitted_components_are_kept(self, array, xp, model, old, new):
        X = array(images())
        fit = random_fit(array, model, (6, 4, 3), old)
        ranks = new if isinstance(new, tuple) else (new,) * len(fit.factors)
        head, factors = grow(fit, X, ranks, np.random.default_rng(0))
        for k, factor in enumerate(factors):
            assert factor.shape == (fit.factors[k].shape[0], ranks[k])
            assert array_namespace(factor) is xp
            assert factor.dtype == xp.float64
            if k:
                assert_close(factor[:, : fit.factors[k].shape[1]], fit.factors[k])
        assert (head is None) == (model != "tucker")
        if model == "tucker":
            assert tuple(head.shape) == new
            assert_close(head[:2, :2, :1], fit.core)
        # The rows of the first factor stay shares.
        whole = to_numpy(factors[0])[:, : fit.factors[0].shape[1]].sum(axis=1)
        assert (whole >= 0.5 - 1e-12).all()
        assert (whole <= 1.0 + 1e-12).all()

    @numpy_only
    def test_new_components_get_the_mean_weight(self):
        fit = wtf.nmf(bumps(), 2, wtf.KullbackLeibler(), constraints=("columns", "columns"), rng=0)
        weights, factors = grow(fit, bumps(), (3, 3), np.random.default_rng(0))
        np.testing.assert_array_equal(weights[:2], fit.weights)
        assert weights[2] == fit.weights.mean()
        again = {"constraints": ("columns", "columns"), "init": (weights, factors)}
        grown = wtf.nmf(bumps(), 3, wtf.KullbackLeibler(), **again)
        assert grown.objective < fit.objective

    @numpy_only
    def test_new_atoms_are_drawn_from_the_residual(self):
        X = bumps(centres=(2, 6))
        odd = np.zeros((1, 12))
        odd[0, 10] = 1.0
        X = np.concatenate([X, odd])
        fit = wtf.nmf(X[:-1], 2, wtf.KullbackLeibler(), rho=1e-4, rng=0)
        blind = np.concatenate([fit.factors[0], [[0.5, 0.5]]])
        object.__setattr__(fit, "factors", [blind, fit.factors[1]])
        object.__setattr__(fit, "shape", X.shape)
        _, (coefficients, atoms) = grow(fit, X, (3, 3), np.random.default_rng(0))
        assert np.argmax(atoms[:, 2]) == 10
        assert np.argmax(coefficients[:, 2]) == 16
