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
    loss_of,
    planted,
    run,
    spare_jax,
    start,
    transport,
)
from helpers import numpy_only, to_numpy
from joint_problems import (
    RHO,
    TRANSPORT,
    feasible_blocks,
    matrix_problem,
    samples,
    tensor_problem,
)

import wtfarray as wtf
from wtfarray._models.models import CPModel
from wtfarray._solvers.block_descent import descend, in_domain, stacked_block
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason


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

    def test_fit_with_an_unsolved_block_has_not_converged(self):
        rho = 1e-6
        loss = wtf.Wasserstein(wtf.grid_cost(16), 0.02, 10.0)
        with pytest.warns(UserWarning, match="choose solver='envelope'"):
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
        fit = run(model, X, rank, loss, rho=1e-2, rng=0, solver="dual", max_iter=500)
        assert fit.converged
        again = run(model, X, rank, loss, rho=1e-2, init=fit)
        assert again.objective >= fit.objective - 5e-3 * abs(fit.objective)


def descend_from(problem, blocks, loss, X, *, objective=None, tol=1e-8, max_iter=50, report=None):
    """Block coordinate descent from some blocks, whose objective is certified first."""
    (term,) = problem.terms
    if objective is None:
        value = problem.certify(blocks, 1e-2)
        objective = value.value + value.gap
    return descend(
        problem,
        loss.bind(X),
        getattr(term, "weights", None),
        blocks,
        term.potential,
        objective,
        tol=tol,
        max_iter=max_iter,
        report=report or (lambda _: False),
    )


class TestDescend:
    @pytest.mark.parametrize("k", [0, 1])
    @pytest.mark.parametrize("loss", [wtf.KullbackLeibler(), TRANSPORT])
    def test_one_block_attains_its_certificate(self, xp, array, loss, k):
        if loss is TRANSPORT:
            spare_jax(xp)
        problem, blocks = matrix_problem(array, loss, free=(k,))
        X, constraint = array(samples()), problem.constraints[k]
        sweeps = []
        found = descend_from(
            problem, blocks, loss, X, report=lambda sweep: bool(sweeps.append(sweep))
        )
        dual = wtf.cp_dual(X, blocks, k, loss, rho=RHO, constraint=constraint)
        best = dual.certificate(wtf.lbfgs(dual.value_and_gradient, dual.start(), gtol=1e-10).x)
        other = RHO * entropy(blocks[1 - k])
        assert found.reason is StopReason.TOLERANCE
        assert best.gap <= 1e-7
        assert best.lower - 1e-9 <= sweeps[-1].objective - other <= best.upper + 1e-6
        np.testing.assert_allclose(to_numpy(found.blocks[k]), to_numpy(best.factor), atol=1e-3)
        assert found.blocks[1 - k] is blocks[1 - k]

    @numpy_only
    @pytest.mark.parametrize("loss", [wtf.KullbackLeibler(), wtf.Frobenius(), TRANSPORT])
    def test_objective_never_rises_and_bounds_that_of_the_blocks(self, loss):
        X = samples()
        problem, blocks = matrix_problem(np.asarray, loss)
        sweeps = []

        def keep(sweep):
            sweeps.append((sweep.n_iter, sweep.objective, list(sweep.blocks), sweep.evaluations))
            return False

        descend_from(problem, blocks, loss, X, report=keep)
        numbers, objectives, found, evaluations = zip(*sweeps, strict=True)
        assert numbers == tuple(range(1, len(sweeps) + 1))
        assert len(sweeps) > 2
        assert (np.diff(objectives) <= 0).all()
        assert (np.diff(evaluations) > 0).all()
        for bound, factors in zip(objectives, found, strict=True):
            true = loss_of(X, wtf.cp_to_tensor(factors), loss) + RHO * sum(map(entropy, factors))
            assert true <= bound + 1e-9

    @numpy_only
    def test_step_that_would_raise_the_objective_is_refused(self):
        """The objective at the start is said to be lower than it can be."""
        problem, blocks = matrix_problem(np.asarray)
        sweeps = []
        found = descend_from(
            *(problem, blocks, TRANSPORT, samples()),
            objective=-1e3,
            report=lambda sweep: bool(sweeps.append(sweep.objective)),
        )
        assert set(sweeps) == {-1e3}
        assert all(a is b for a, b in zip(found.blocks, blocks, strict=True))

    @numpy_only
    def test_iterations_and_the_caller_end_the_descent(self):
        for max_iter, stop, reason in (
            (2, None, StopReason.ITERATIONS),
            (50, 2, StopReason.CALLBACK),
        ):
            problem, blocks = matrix_problem(np.asarray)
            sweeps = []

            def report(sweep, sweeps=sweeps, stop=stop):
                sweeps.append(sweep)
                return sweep.n_iter == stop

            found = descend_from(
                problem, blocks, TRANSPORT, samples(), max_iter=max_iter, report=report
            )
            assert found.reason is reason
            assert len(sweeps) == 2

    @numpy_only
    def test_sample_weights_count_as_copies(self):
        """The coefficients of a sample stay, whatever its weight; the atoms follow it."""
        X, weights = samples(), np.asarray([1.0, 3.0, 1.0])
        twice = [0, 1, 1, 1, 2]
        problem, blocks = matrix_problem(np.asarray, TRANSPORT, X, free=(1,), weights=weights)
        copies, _ = matrix_problem(np.asarray, TRANSPORT, X[twice], free=(1,))
        found = descend_from(problem, blocks, TRANSPORT, X)
        expected = descend_from(copies, [blocks[0][twice], blocks[1]], TRANSPORT, X[twice])
        np.testing.assert_allclose(found.blocks[1], expected.blocks[1], atol=1e-4)


class TestInDomain:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_numbers_must_be_small_enough_to_be_squared(self, xp, array, dtype):
        one, some = array(1.0, dtype), array([1.0, -2.0], dtype)
        root = math.sqrt(float(xp.finfo(one.dtype).max))
        assert in_domain(one, some)
        assert in_domain(one, some * (0.01 * root))
        for bad in (root, math.inf, math.nan):
            assert not in_domain(one * bad, some)
            assert not in_domain(one, array([1.0, -bad], dtype))


class TestStackedBlock:
    @pytest.mark.parametrize("kind", ["cp", "learned", "tucker"])
    @pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1)])
    def test_adjoint_identity_holds_in_every_order(self, array, kind, order):
        problem, blocks, _ = tensor_problem(array, wtf.Frobenius(), kind)
        rng = np.random.default_rng(0)
        expected = np.transpose(to_numpy(problem.tensor(blocks)), order)
        for k, given in enumerate(blocks):
            block = stacked_block(problem, order, blocks, k)
            assert block.shape == tuple(given.shape)
            assert block.model_shape == expected.shape
            np.testing.assert_allclose(to_numpy(block.forward(given)), expected, rtol=1e-12)
            A, U = rng.normal(size=block.shape), rng.normal(size=block.model_shape)
            forward, adjoint = block.forward(array(A)), block.adjoint(array(U))
            left, right = np.sum(U * to_numpy(forward)), np.sum(A * to_numpy(adjoint))
            assert left == pytest.approx(right, rel=1e-12)

    def test_matrix_model_of_samples_with_several_modes(self, array):
        """The model has one feature mode, the data have two."""
        shape, order = (3, 4, 2), (0, 2, 1)
        blocks = [array(block) for block in feasible_blocks((3, 8), 2)]
        problem = FactorisationProblem(
            CPModel(2, learns_weights=False), [], (RHO,) * 2, ("rows", "columns"), (0, 1), shape
        )
        model = to_numpy(blocks[0]) @ to_numpy(blocks[1]).T
        U = np.random.default_rng(0).normal(size=(3, 2, 4))
        for k in (0, 1):
            block = stacked_block(problem, order, blocks, k)
            assert block.model_shape == U.shape
            expected = model.reshape(shape).transpose(order)
            np.testing.assert_allclose(to_numpy(block.forward(blocks[k])), expected, rtol=1e-12)
            adjoint = to_numpy(block.adjoint(array(U)))
            assert adjoint.shape == block.shape
            assert np.sum(adjoint * to_numpy(blocks[k])) == pytest.approx(np.sum(U * expected))
