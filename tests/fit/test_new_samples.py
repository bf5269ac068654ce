"""New samples of a fit: what is refused, and how they are described."""

import math

import numpy as np
import pytest
from helpers import numpy_only, without_escape
from saved_fits import SHAPE, data, short_fit

import wtfarray as wtf

pytestmark = without_escape


@numpy_only
class TestRefused:
    def test_another_shape_is_refused(self):
        with pytest.raises(ValueError, match=r"X has shape \(3, 4, 5\): expected \(n, 5, 4\)"):
            short_fit("cp", data()).project(data()[:3].transpose(0, 2, 1))

    def test_bad_data_are_refused(self):
        with pytest.raises(ValueError, match="X is -1"):
            short_fit("cp", data()).project(-np.ones(SHAPE))

    def test_fit_that_transports_the_first_mode_is_refused(self):
        X = data()
        loss = wtf.Wasserstein(wtf.grid_cost(*SHAPE), 0.2, 5.0)
        fit = wtf.cp(X / X.sum(), 2, loss, rng=0)
        with pytest.raises(ValueError, match="transports the first mode"):
            fit.project(X)

    def test_balanced_fit_refuses_samples_of_another_mass(self):
        fit = short_fit("cp", data(), "balanced")
        with pytest.raises(ValueError, match="sample 1 of X has mass 2"):
            fit.project(data()[:3] * np.array([1.0, 2.0, 1.0])[:, None, None])

    def test_unknown_keyword_is_refused(self):
        with pytest.raises(TypeError, match="iterations"):
            short_fit("cp", data()).project(data(), iterations=3)

    @pytest.mark.parametrize("option", [{"tol": 0.0}, {"max_iter": 0}, {"tol": -math.inf}])
    def test_bad_options_are_refused(self, option):
        with pytest.raises(ValueError, match=f"{next(iter(option))} is"):
            short_fit("cp", data()).project(data(), **option)

    def test_too_few_iterations_give_one_warning(self):
        fit = short_fit("cp", data(), "unbalanced")
        with pytest.warns(UserWarning, match="project: .*max_iter") as caught:
            fit.project(data(1)[:3], max_iter=1)
        assert len(caught) == 1
        assert caught[0].filename == __file__
