"""Options of the commands: the loss, ranks and weights that they name."""

import numpy as np
from command_line import GRID, QUICK, refuse, run
from helpers import numpy_only

import wtfarray as wtf
from wtfarray.cli._group import NOT_CONVERGED


@numpy_only
class TestLoss:
    def test_loss_may_be_debiased(self):
        assert run("fit", "X.npy", *QUICK, "--debias").exit_code == 0
        assert wtf.load("fit.npz").loss.debias
        assert "--debias was given with --loss kl" in refuse(
            "fit", "X.npy", "--rank", 2, "--debias", "--loss", "kl"
        )

    def test_reach_and_price_of_mass_that_stays_behind(self):
        words = ("--model", "nmf", "--reach", "2,inf", "--source-lam", 5)
        assert run("fit", "X.npy", *QUICK, *words).exit_code == 0
        loss = wtf.load("fit.npz").loss
        assert loss.source_lam == 5.0
        assert isinstance(loss.costs[0], wtf.BandedCost)
        assert loss.costs[0].reach == 2
        assert loss.costs[1].shape == (GRID[1], GRID[1])
        words = ("--rank", 2, "--reach", 2)
        assert "--reach was given with --cost" in refuse("fit", "X.npy", *words, "--cost", "X.npy")
        assert "--reach was given with --loss" in refuse("fit", "X.npy", *words, "--loss", "kl")
        assert "reach has 3 entries" in refuse("fit", "X.npy", "--rank", 2, "--reach", "2,2,2")

    def test_table_without_a_grid_has_a_line_cost(self):
        assert run("fit", "table.npy", *QUICK, "--model", "nmf").exit_code == 0
        assert [cost.shape for cost in wtf.load("fit.npz").loss.costs] == [(20, 20)]

    def test_grid_of_all_modes_transports_all(self):
        result = run("fit", "X.npy", *QUICK, "--grid", "8x5x4", "--lam", "inf", "--normalise")
        assert result.exit_code in {0, NOT_CONVERGED}
        assert wtf.load("fit.npz").loss.transported((8, 5, 4)) == (0, 1, 2)

    def test_dense_cost_is_read_from_a_file(self):
        cost = wtf.point_cost(np.arange(20.0))
        np.save("C.npy", cost)
        assert run("fit", "X.npy", *QUICK, "--cost", "C.npy").exit_code == 0
        loss = wtf.load("fit.npz").loss
        assert loss.modes == ((1, 2),)
        np.testing.assert_array_equal(loss.costs[0], cost)

    def test_tucker_takes_one_rank_and_rho_per_block(self):
        words = ("--model", "tucker", "--rank", "2,3,2", "--loss", "kl", "--rho", "0.1,0.2,0.3,0.4")
        assert run("fit", "X.npy", *words, "--tol", "1e-3").exit_code == 0
        fit = wtf.load("fit.npz")
        assert fit.core.shape == (2, 3, 2)
        assert isinstance(fit.loss, wtf.KullbackLeibler)
        assert fit.rho == (0.1, 0.2, 0.3, 0.4)
