"""Block coordinate descent on the duals: as good as the joint solver, or it says that it failed."""

import math

import numpy as np
import pytest
from fitting import (
    LOSSES,
    MODELS_AND_LOSSES,
    RANKS,
    WHOLE_BALANCED,
    data,
    entropy,
    planted,
    run,
    start,
    transport,
)
from helpers import numpy_only

import wtfarray as wtf


@numpy_only
class TestSolversAgree:
    @pytest.mark.parametrize(
        ("model", "name"), [pair for pair in MODELS_AND_LOSSES if pair[1] != "sum"]
    )
    def test_solvers_agree_from_the_same_start(self, model, name):
        X, init = planted(model)
        loss = LOSSES[name]
        if (model, name) == ("tucker", "balanced"):
            X, loss = X / X.sum(), WHOLE_BALANCED
        options = {"rho": 0.05, "init": init}
        joint, blockwise = (
            run(model, X, RANKS[model], loss, solver=solver, tol=tol, **options)
            for solver, tol in (("envelope", 1e-7), ("dual", 1e-5))
        )
        assert joint.converged
        assert blockwise.converged
        assert blockwise.objective == pytest.approx(joint.objective, rel=5e-3)

    @pytest.mark.parametrize("model", ["cp", "nmf"])
    @pytest.mark.parametrize("lam", [5.0, math.inf])
    def test_solvers_agree_from_a_distant_start(self, model, lam):
        """The dual variable of one block is a poor start for the next block."""
        options = {"rho": 0.01, "rng": 0}
        loss = transport(eps=0.1, lam=lam)
        joint, blockwise = (
            run(model, data(), 2, loss, solver=solver, **options) for solver in ("envelope", "dual")
        )
        assert blockwise.n_iter > 1
        assert blockwise.objective == pytest.approx(joint.objective, rel=0.05)

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_both_solvers_find_the_minimum_of_one_convex_block(self, solver):
        """Both must find the same minimum, which the dual certifies."""
        X, factors = data(), [f / f.sum(axis=0) for f in start("cp")]
        loss, rho = LOSSES["unbalanced"], 0.02
        fit = wtf.cp(X, 2, loss, rho=rho, init=factors, fixed=(0, 2), solver=solver, tol=1e-10)
        dual = wtf.cp_dual(X, factors, 1, loss, rho=rho, constraint="columns")
        best = dual.certificate(wtf.lbfgs(dual.value_and_gradient, dual.start(), gtol=1e-9).x)
        others = rho * (entropy(factors[0]) + entropy(factors[2]))
        assert best.gap < 1e-9
        assert fit.objective - others == pytest.approx(best.upper, abs=1e-6 * abs(best.upper))


@numpy_only
class TestConvergence:
    """A fit with an unsolved block has not converged, however small the last steps."""

    def bumps(self):
        centres = np.random.default_rng(0).uniform(2, 13, (8, 1))
        X = np.exp(-(((np.arange(16) - centres) / 1.5) ** 2))
        return X / X.sum(axis=1, keepdims=True)

    @pytest.mark.parametrize("rho", [1e-6, 1e-4])
    def test_fit_with_an_unsolved_block_has_not_converged(self, rho):
        loss = wtf.Wasserstein(wtf.grid_cost(16), 0.02, 10.0)
        with pytest.warns(UserWarning, match="a block could not be solved: choose solver='env"):
            fit = wtf.nmf(self.bumps(), 3, loss, rho=rho, rng=0, solver="dual")
        assert not fit.converged
        again = run("nmf", self.bumps(), 3, loss, rho=rho, init=fit, fixed=(0,))
        assert again.objective < fit.objective - 1e-3 * abs(fit.objective)

    def test_fixed_atoms_with_zeros_do_not_converge(self):
        atoms = np.zeros((10, 2))
        atoms[:5, 0], atoms[6:, 1] = 0.2, 0.25
        X = np.random.default_rng(0).dirichlet(np.ones(10), 4)
        start = {"init": [np.full((4, 2), 0.5), atoms], "fixed": (1,)}
        loss = wtf.Wasserstein(wtf.grid_cost(10), 0.1, 1.0)
        with pytest.warns(UserWarning, match="a block could not be solved: choose solver='env"):
            assert not wtf.nmf(X, 2, loss, solver="dual", **start).converged
        assert run("nmf", X, 2, loss, **start).converged

    @pytest.mark.parametrize("model", ["cp", "tucker", "nmf"])
    def test_sparse_data_converge_to_the_objective_of_the_joint_solver(self, model):
        X = np.zeros((10, 10))
        X[2, 3] = X[5, 5] = X[7, 1] = 1.0
        loss = wtf.Wasserstein(wtf.grid_cost(10, 10), 0.05, 1.0)
        rank = (2, 2) if model == "tucker" else 2
        if model == "nmf":
            X, loss = np.eye(4, 16), wtf.Wasserstein(wtf.grid_cost(16), 0.05, 1.0)
        fit = run(model, X, rank, loss, rng=0, solver="dual", max_iter=500)
        assert fit.converged
        again = run(model, X, rank, loss, init=fit)
        assert again.objective >= fit.objective - 5e-3 * abs(fit.objective)
