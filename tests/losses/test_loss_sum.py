"""Sums of losses."""

import numpy as np
import pytest
from fitting import LOSSES, data, spare_jax, start
from helpers import numpy_only

import wtfarray as wtf


class TestLossSum:
    def test_losses_keep_their_order(self):
        losses = wtf.Frobenius(), wtf.KullbackLeibler(), wtf.Frobenius()
        assert wtf.LossSum(*losses).losses == losses

    def test_empty_sum_is_refused(self):
        with pytest.raises(ValueError, match="losses is empty: expected at least one loss"):
            wtf.LossSum()

    @pytest.mark.parametrize("bad", ["KL", None, wtf.Frobenius])
    def test_what_is_no_loss_is_refused_with_its_place(self, bad):
        with pytest.raises(TypeError, match=r"losses\[1\] is a .*: expected"):
            wtf.LossSum(wtf.Frobenius(), bad)


class TestFits:
    def test_sum_of_one_loss_is_the_loss(self, xp, array):
        spare_jax(xp)
        X, options = array(data()), {"rho": 0.02, "init": start("cp")}
        alone = wtf.cp(X, 2, LOSSES["KL"], **options)
        summed = wtf.cp(X, 2, wtf.LossSum(LOSSES["KL"]), **options)
        assert summed.objective == pytest.approx(alone.objective, rel=1e-10)

    @numpy_only
    @pytest.mark.parametrize("name", ["unbalanced", "Frobenius", "KL"])
    def test_sum_of_equal_losses_is_the_loss_at_half_the_rho(self, name):
        X, options = data(), {"init": start("cp"), "tol": 1e-9}
        alone = wtf.cp(X, 2, LOSSES[name], rho=0.02, **options)
        twice = wtf.cp(X, 2, wtf.LossSum(LOSSES[name], LOSSES[name]), rho=0.04, **options)
        assert twice.objective == pytest.approx(2.0 * alone.objective, rel=1e-7)
        for found, expected in zip(twice.factors, alone.factors, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-3)
