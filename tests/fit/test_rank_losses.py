"""Losses of a rank scan: relative to the smallest of any model, and of left-out samples."""

import numpy as np
import pytest
from helpers import numpy_only, without_escape
from mixtures import bumps

import wtfarray as wtf
from wtfarray._fit import left_out, rank_losses

pytestmark = without_escape

LOSS = wtf.Wasserstein(wtf.grid_cost(12), eps=0.1, lam=2.0)


@numpy_only
class TestLosses:
    @pytest.mark.parametrize("loss", [LOSS, wtf.Frobenius(), wtf.KullbackLeibler()])
    def test_excess_loss_is_zero_at_the_minimum_over_all_models(self, loss):
        X = bumps()
        best = loss.conjugate(X, 0.0 * X)[1]
        excess = [rank_losses._total_excess(loss, X, Y, None) for Y in (best, X[::-1])]
        assert excess[0] / X.shape[0] == pytest.approx(0.0, abs=1e-4)
        assert excess[1] / X.shape[0] > 1e-2

    def test_held_out_loss_is_that_of_projected_samples(self):
        X, loss = bumps(), wtf.KullbackLeibler()
        scan = wtf.rank_scan(X, [2], loss, n_seeds=1, held_out=0.25, rng=5, tol=1e-8)
        left = left_out.left_out_samples(16, 0.25, np.random.default_rng(5), sampled=True)[0]
        assert len(left) == 4
        kept = np.setdiff1d(np.arange(16), left)
        fit = wtf.nmf(X[kept], 2, loss, rng=0, n_init=5, tol=1e-8)
        Y = fit.project(X[left]) @ fit.factors[1].T
        expected = np.sum(X[left] * np.log(X[left] / Y) - X[left] + Y) / 4
        assert scan.records[0].held_out == pytest.approx(expected, rel=1e-2)
