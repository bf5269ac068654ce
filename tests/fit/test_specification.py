"""Constraints and weights of a fit: defaults, and what is refused."""

import numpy as np
import pytest
from fitting import (
    LOSSES,
    MODELS_AND_LOSSES,
    SHAPE,
    WHOLE_BALANCED,
    data,
    fit_few,
    objective_of,
    problem,
    run,
    transport,
)
from helpers import numpy_only, to_numpy, without_escape

import wtfarray as wtf

pytestmark = without_escape


@numpy_only
class TestConstraints:
    @pytest.mark.parametrize(("model", "name"), MODELS_AND_LOSSES)
    def test_default_constraints_hold(self, array, model, name):
        X, rank, loss = problem(model, name)
        fit = run(model, array(X), rank, loss, rho=0.02, rng=0)
        assert fit.converged
        assert fit.gap <= 1e-3 * max(abs(fit.objective), _scale(loss, X))
        first = "columns" if loss is WHOLE_BALANCED else "rows"
        assert fit.constraints[: len(fit.factors)] == (first,) + ("columns",) * (
            len(fit.factors) - 1
        )
        for factor, constraint in zip(fit.factors, fit.constraints, strict=False):
            _assert_sums(to_numpy(factor), constraint)
        assert (fit.to_tensor() > 0).all()

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    @pytest.mark.parametrize("constraint", [None, "rows", "columns", "all"])
    @pytest.mark.parametrize("k", [0, 1, 2])
    def test_every_constraint_holds_for_every_factor(self, k, constraint, solver):
        constraints = [None, None, None]
        constraints[k] = constraint
        fit = fit_few(
            "cp", data(), 2, LOSSES["unbalanced"], constraints=constraints, rng=0, solver=solver
        )
        for factor, wanted in zip(fit.factors, constraints, strict=True):
            _assert_sums(factor, wanted)
            if wanted is None:
                assert np.abs(factor.sum(axis=0) - 1.0).max() > 1e-6

    @pytest.mark.parametrize("constraint", [None, "all"])
    def test_core_sums_to_one_if_constrained(self, constraint):
        constraints = ("rows", "columns", "columns", constraint)
        fit = fit_few(
            "tucker", data(), (2, 2, 2), LOSSES["unbalanced"], constraints=constraints, rng=0
        )
        assert (abs(fit.core.sum() - 1.0) < 1e-12) == (constraint == "all")

    def test_unequal_masses_leave_the_coefficients_unconstrained(self):
        X = data(mass=None)
        fit = wtf.nmf(X, 2, LOSSES["unbalanced"], rho=0.02, rng=0)
        assert fit.constraints == (None, "columns")
        np.testing.assert_allclose(fit.factors[0].sum(axis=1), X.sum(axis=(1, 2)), rtol=0.1)


def _scale(loss, X):
    if isinstance(loss, wtf.LossSum):
        return sum(_scale(part, X) for part in loss.losses)
    return loss.eps * X.sum() if isinstance(loss, wtf.Wasserstein) else 0.0


def _assert_sums(factor, constraint):
    if constraint is not None:
        axis = {"rows": 1, "columns": 0, "all": None}[constraint]
        np.testing.assert_allclose(factor.sum(axis=axis), 1.0, rtol=1e-12)
    assert (factor >= 0).all()


@numpy_only
class TestWeights:
    def test_weights_are_ones_when_a_factor_carries_the_mass(self):
        fit = fit_few("cp", data(mass=None), 2, LOSSES["unbalanced"], rng=0)
        assert fit.weights.tolist() == [1.0, 1.0]

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_weights_are_learned_when_every_factor_is_normalised(self, solver):
        X = data(mass=None)
        fit = wtf.cp(X, 3, transport(shape=SHAPE, eps=0.3), rho=0.02, rng=0, solver=solver)
        assert fit.weights.sum() == pytest.approx(X.sum(), rel=1e-12)
        assert np.ptp(fit.weights) > 1e-3
        assert fit.to_tensor().sum() == pytest.approx(X.sum(), rel=1e-12)
        assert objective_of(X, fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-6)

    def test_fixed_weights_are_equal_shares(self):
        X = data(mass=None)
        loss = transport(shape=SHAPE, eps=0.3)
        fit = wtf.cp(X, 3, loss, rho=0.02, rng=0, weights="fixed")
        np.testing.assert_allclose(fit.weights, X.sum() / 3, rtol=1e-14)
        assert len(fit.rho) == 3
        assert wtf.cp(X, 3, loss, rho=0.02, init=fit.factors).objective < fit.objective + 0.01


GOOD = {"rho": 0.02, "rng": 0}


class TestRefused:
    @numpy_only
    @pytest.mark.parametrize("rank", [0, -1, 1.5, True, "2"])
    def test_bad_rank_is_refused(self, rank):
        for fit in (wtf.cp, wtf.nmf):
            with pytest.raises((TypeError, ValueError), match="rank is"):
                fit(data(), rank, LOSSES["KL"])
        with pytest.raises((TypeError, ValueError), match=r"rank\[2\] is"):
            wtf.tucker(data(), (1, 1, rank), LOSSES["KL"])

    @numpy_only
    @pytest.mark.parametrize("rank", [2, (2, 2), (2,) * 4])
    def test_another_number_of_tucker_ranks_is_refused(self, rank):
        with pytest.raises(ValueError, match=r"rank is .*expected 3"):
            wtf.tucker(data(), rank, LOSSES["KL"])

    @numpy_only
    def test_rows_constraint_of_a_core_is_refused(self):
        with pytest.raises(ValueError, match=r"constraints\[3\] is 'rows'"):
            wtf.tucker(data(), (2, 2, 2), LOSSES["KL"], constraints=(None, None, None, "rows"))

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    @pytest.mark.parametrize(
        "constraints",
        [(None, None), ("columns", "columns"), ("rows", None), ("rows", "rows"), ("all", "all")],
    )
    def test_balanced_loss_needs_constraints_that_conserve_mass(self, array, constraints, solver):
        with pytest.raises(ValueError, match=r"constraints is .*balanced .*finite lam"):
            wtf.nmf(
                array(data()), 2, LOSSES["balanced"], constraints=constraints, solver=solver, **GOOD
            )

    @numpy_only
    def test_balanced_loss_needs_samples_of_the_mass_of_the_model(self):
        with pytest.raises(ValueError, match="has mass"):
            wtf.nmf(data(mass=None), 2, LOSSES["balanced"], constraints=("rows", "columns"), **GOOD)

    @numpy_only
    def test_dual_solver_refuses_a_sum_of_losses(self):
        with pytest.raises(ValueError, match=r"solver is 'dual'.*sum of losses"):
            wtf.cp(data(), 2, LOSSES["sum"], solver="dual")

    @numpy_only
    def test_sample_weight_of_a_transported_mode_is_refused(self):
        with pytest.raises(ValueError, match="sample_weight"):
            wtf.cp(data(), 2, transport(shape=SHAPE), sample_weight=np.ones(6))

    @numpy_only
    @pytest.mark.parametrize("loss", ["KL", None])
    def test_loss_that_is_no_loss_is_refused(self, loss):
        with pytest.raises(TypeError, match="loss is"):
            wtf.cp(data(), 2, loss)

    @numpy_only
    def test_data_of_one_mode_are_refused(self):
        with pytest.raises(ValueError, match="X has shape"):
            wtf.nmf(data()[0, 0], 2, LOSSES["KL"])

    @numpy_only
    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda X: np.where(X[1, 2, 3] == X, -1.0, X), r"X is -1.0 at index \(1, 2, 3\)"),
            (lambda X: np.where(X[1, 2, 3] == X, np.nan, X), r"X is nan at index \(1, 2, 3\)"),
            (lambda X: X * 0.0, "X is zero everywhere"),
        ],
    )
    def test_negative_nan_or_zero_data_are_refused(self, change, match):
        with pytest.raises(ValueError, match=match):
            wtf.cp(change(data()), 2, LOSSES["unbalanced"])
