"""L-BFGS on the value function: the objective decreases, and convergence is not claimed early."""

import math
import warnings

import numpy as np
import pytest
from fitting import MODELS_AND_LOSSES, RANKS, SHAPE, entropy, loss_of, problem, run
from helpers import numpy_only

import wtfarray as wtf


@numpy_only
class TestConvergence:
    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("bins", [2, 3, 5])
    @pytest.mark.parametrize("lam", [1e3, math.inf])
    def test_converged_fits_cannot_be_improved_by_block_descent(self, seed, bins, lam):
        X = np.random.default_rng(seed).dirichlet(np.ones(bins), 4)
        loss = wtf.Wasserstein(wtf.grid_cost(bins), 0.05, lam)
        fit = wtf.nmf(X, 2, loss, rng=0)
        assert fit.converged
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            again = wtf.nmf(X, 2, loss, init=fit, solver="dual", max_iter=10)
        gain = fit.objective - again.objective - again.gap
        assert gain <= 5e-3 * max(abs(fit.objective), 4 * 0.05)
        objectives = [record.objective for record in fit.history]
        assert objectives[-1] == pytest.approx(fit.objective, rel=1e-11)
        assert objectives == sorted(objectives, reverse=True)


@numpy_only
class TestObjective:
    @pytest.mark.parametrize(
        ("solver", "model", "name"),
        [("envelope", *pair) for pair in MODELS_AND_LOSSES]
        + [("dual", model, name) for model in RANKS for name in ("unbalanced", "Frobenius")],
    )
    def test_objective_never_rises(self, solver, model, name):
        X, rank, loss = problem(model, name)
        true, rho = [], 0.02

        def note(state):
            blocks = state.blocks()
            factors = blocks[:2] if model == "nmf" else blocks[:3]
            Y = wtf.cp_to_tensor(factors)
            if model == "tucker":
                Y = wtf.tucker_to_tensor(blocks[3], factors)
            true.append(loss_of(X, Y.reshape(SHAPE), loss) + rho * sum(map(entropy, blocks)))

        fit = run(model, X, rank, loss, rho=rho, rng=0, solver=solver, callback=note)
        assert len(true) == fit.n_iter > 3
        rises = np.diff(true) / np.abs(true).max()
        assert rises.max() < 1e-6
        recorded = [record.objective for record in fit.history]
        assert (np.diff(recorded) <= 0).all()
        np.testing.assert_allclose(recorded[:-1], true, atol=5e-3 * np.abs(true).max())
