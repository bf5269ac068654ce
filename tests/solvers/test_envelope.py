"""L-BFGS on the value function: the objective decreases, and convergence is not claimed early."""

import math
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from fitting import MODELS_AND_LOSSES, RANKS, SHAPE, entropy, loss_of, problem, run, spare_jax
from helpers import numpy_only, to_numpy
from joint_problems import RHO, TRANSPORT, SlowTerm, WatchedObjective, matrix_problem

import wtfarray as wtf
from wtfarray._losses.selection import terms_of
from wtfarray._models.models import CPModel
from wtfarray._solvers.envelope import evaluate_until_solved, minimise, new_pairs
from wtfarray._solvers.objective import JointObjective
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason


@numpy_only
class TestConvergence:
    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("bins", [2, 3, 5])
    @pytest.mark.parametrize("lam", [1e3, math.inf])
    def test_converged_fits_cannot_be_improved_by_block_descent(self, seed, bins, lam):
        X = np.random.default_rng(seed).dirichlet(np.ones(bins), 4)
        loss = wtf.Wasserstein(wtf.grid_cost(bins), 0.05, lam)
        fit = wtf.nmf(X, 2, loss, rho=1e-2, rng=0)
        assert fit.converged
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            again = wtf.nmf(X, 2, loss, rho=1e-2, init=fit, solver="dual", max_iter=10)
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


def solve(objective, x, levels=(1.0,), *, tol=1e-6, max_iter=100, report=None, **options):
    return minimise(
        objective,
        x,
        levels,
        tol=tol,
        max_iter=max_iter,
        report=report or (lambda *_: False),
        **options,
    )


def fresh(array, loss=TRANSPORT, watched=False, **options):
    """An objective and the point to start from."""
    problem, blocks = matrix_problem(array, loss)
    objective = (WatchedObjective if watched else JointObjective)(problem, blocks, **options)
    return objective, objective.pack(blocks)


class TestMinimise:
    @pytest.mark.parametrize("loss", [wtf.Frobenius(), TRANSPORT])
    def test_accepted_values_never_rise(self, xp, array, loss):
        if loss is TRANSPORT:
            spare_jax(xp)
        objective, x = fresh(array, loss)
        first = objective.evaluate(x, 1e-12).point.value
        steps = []
        found = solve(objective, x, report=lambda progress, _: bool(steps.append(progress)))
        values = [first, *(progress.current.point.value for progress in steps)]
        assert found.reason is StopReason.TOLERANCE
        assert len(steps) == found.accepted > 3
        assert max(np.diff(values)) <= 1e-11 * abs(first)
        assert values[-1] < first - 1e-3 * abs(first)
        assert all(progress.current.converged for progress in steps)
        assert (to_numpy(found.x) == to_numpy(steps[-1].current.point.x)).all()

    @numpy_only
    def test_steps_of_every_level_count_as_accepted(self):
        objective, x = fresh(np.asarray)
        steps = []
        found = solve(
            *(objective, x, (9.0, 3.0, 1.0)), report=lambda p, _: bool(steps.append(p)), tol=1e-9
        )
        levels = [progress.level for progress in steps]
        assert set(levels) == {0, 1, 2}
        assert levels == sorted(levels)
        assert found.accepted == len(steps)
        assert found.n_iter == steps[-1].n_iter >= levels.count(2)
        for level in range(3):
            values = [p.current.point.value for p in steps if p.level == level]
            assert max(np.diff(values), default=0.0) <= 1e-11 * abs(values[0])

    @numpy_only
    def test_smoothing_ends_at_the_last_level(self):
        """Whatever came before, the point is a minimum of the last level."""
        (direct, x), (coarse, _) = fresh(np.asarray), fresh(np.asarray)
        found = [solve(direct, x, tol=1e-9), solve(coarse, x, (3.0, 1.0), tol=1e-9)]
        values = [
            evaluate_until_solved(objective, result.x, 1e-12).point.value
            for objective, result in zip((direct, coarse), found, strict=True)
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-5)

    @numpy_only
    def test_max_iter_ends_the_solve(self):
        objective, x = fresh(np.asarray)
        steps = []
        found = solve(objective, x, max_iter=2, report=lambda p, _: bool(steps.append(p)))
        assert found.reason is StopReason.ITERATIONS
        assert found.accepted == len(steps) == found.n_iter == 2
        assert (found.x == steps[-1].current.point.x).all()

    @numpy_only
    @pytest.mark.parametrize("levels", [(1.0,), (3.0, 1.0)])
    def test_report_ends_the_solve(self, levels):
        objective, x = fresh(np.asarray)
        steps = []

        def stop(progress, pairs):
            steps.append(progress)
            return len(steps) == 3

        found = solve(objective, x, levels, report=stop)
        assert found.reason is StopReason.CALLBACK
        assert found.accepted == len(steps) == 3
        assert found.x is steps[-1].current.point.x

    def test_stationary_start_is_stuck(self, array):
        """All entries are powers of two: the gradient is exactly zero."""
        X = np.full((4, 4), 0.25)
        problem = FactorisationProblem(
            CPModel(2, learns_weights=False),
            terms_of([wtf.Frobenius()], array(X), None, None),
            (RHO, RHO),
            ("rows", "columns"),
            (0, 1),
            X.shape,
        )
        blocks = [array(np.ones((4, 1))), array(np.full((4, 1), 0.25))]
        objective = JointObjective(problem, blocks)
        found = solve(objective, objective.pack(blocks))
        assert found.reason is StopReason.STUCK
        assert found.accepted == found.n_iter == 0
        assert (to_numpy(objective.blocks(found.x)[1]) == 0.25).all()

    @numpy_only
    def test_rejected_trials_restore_the_states(self):
        """Evaluation 0 is the start; 1 and 2 are trials that are made bad."""
        objective, x = fresh(np.asarray, watched=True, reject=lambda number, _: number in {1, 2})
        solve(objective, x, max_iter=1)
        _, _, _, after_start = objective.seen[0]
        trials = objective.seen[1:4]
        assert len({trial[0].tobytes() for trial in trials}) == 3
        for _, before, _, after in trials:
            assert all(a is b for a, b in zip(before, after_start, strict=True))
            assert not any(a is b for a, b in zip(after, after_start, strict=True))

    @numpy_only
    def test_search_without_success_ends_where_it_began(self):
        objective, x = fresh(np.asarray, watched=True)
        objective.reject = lambda _, trial: (trial != x).any()
        objective.raised = lambda point: (point.x, 0.0)
        found = solve(objective, x)
        assert found.accepted == found.n_iter == 0
        assert found.reason is StopReason.STUCK
        assert (found.x == x).all()
        # Where the base was evaluated last, its states are those of the terms.
        at_base = [after for point, _, _, after in objective.seen if (point == x).all()]
        assert any(
            all(a is b for a, b in zip(states, objective.states(), strict=True))
            for states in at_base
        )

    def test_nothing_is_accepted_on_unsolved_inner_problems(self, array):
        problem, blocks = matrix_problem(array, wtf.Frobenius())
        exact = problem.terms[0]
        problem.terms[0] = SlowTerm(exact.state, exact._value_and_gradient, patience=10**6)
        objective = JointObjective(problem, blocks)
        x = objective.pack(blocks)
        found = solve(objective, x)
        assert found.reason is StopReason.UNSOLVED
        assert found.accepted == 0
        assert (to_numpy(found.x) == to_numpy(x)).all()

    @numpy_only
    @pytest.mark.parametrize("evaluation", [6, 10])
    def test_value_that_was_too_low_does_not_end_the_solve(self, evaluation):
        class TooLowOnce(JointObjective):
            """One value is too low, with an estimated error of 0."""

            def evaluate(self, *arguments):
                found = super().evaluate(*arguments)
                if self.evaluations == evaluation:
                    value = found.point.value - 0.01 * abs(found.point.value)
                    found = replace(found, point=replace(found.point, value=value))
                return found

        single = partial(np.asarray, dtype="float32")
        problem, blocks = matrix_problem(single, wtf.Frobenius())
        expected = solve(*fresh(single, wtf.Frobenius()))
        objective = TooLowOnce(problem, blocks)
        found = solve(objective, objective.pack(blocks))
        assert objective.evaluations > evaluation
        assert found.reason is StopReason.TOLERANCE
        values = (m.progress.current.point.value for m in (found, expected))
        assert next(values) == pytest.approx(next(values), rel=1e-4)

    @numpy_only
    def test_unsolved_base_value_is_never_compared_with(self):
        """It is too low by 1: every step would seem to lead up."""
        problem, blocks = matrix_problem(np.asarray, wtf.Frobenius())
        exact = problem.terms[0]
        slow = problem.terms[0] = SlowTerm(exact.state, exact._value_and_gradient, patience=5)
        objective = WatchedObjective(problem, blocks)
        x, steps = objective.pack(blocks), []
        found = solve(objective, x, max_iter=3, report=lambda p, _: bool(steps.append(p)))
        assert slow.unsolved >= 4
        assert [seen[2].converged for seen in objective.seen[:5]] == [False] * 4 + [True]
        assert all((seen[0] == x).all() for seen in objective.seen[:5])
        # Trials are evaluated once: none of them is solved, and none is accepted.
        assert found.accepted == 0
        assert not steps
        slow.patience = 1
        assert solve(objective, x, max_iter=3).accepted == 3

    @pytest.mark.parametrize("loss", [wtf.Frobenius(), TRANSPORT])
    def test_resumed_solve_is_bit_equal(self, xp, array, loss):
        if loss is TRANSPORT:
            spare_jax(xp)
        stop, levels = 4, (3.0, 1.0) if loss is TRANSPORT else (1.0,)

        def run(objective, x, ends, **options):
            seen = []

            def report(progress, pairs):
                seen.append(progress)
                if len(seen) == stop and not options:
                    for term in objective.problem.terms:  # as at a checkpoint
                        term.drop_history()
                    return ends
                return False

            found = solve(objective, x, levels, report=report, **options)
            return found, seen

        objective, x = fresh(array, loss)
        whole, all_steps = run(objective, x, ends=False)
        objective, x = fresh(array, loss)
        part, steps = run(objective, x, ends=True)
        assert part.reason is StopReason.CALLBACK
        states = objective.states()
        exported = {name: np.array(value) for name, value in part.pairs.export().items()}
        progress = steps[-1]
        pairs = new_pairs(progress.current.point)
        pairs.restore(exported)
        again, _ = fresh(array, loss)
        again.problem.set_level(levels[progress.level])
        again.restore(states)
        rest, later = run(again, progress.current.point.x, ends=False, resume=(progress, pairs))
        assert whole.accepted > stop
        assert part.accepted + rest.accepted == whole.accepted
        assert rest.n_iter == whole.n_iter
        assert rest.reason is whole.reason
        assert (to_numpy(rest.x) == to_numpy(whole.x)).all()
        values = [p.current.point.value for p in later]
        assert values == [p.current.point.value for p in all_steps[stop:]]

    @numpy_only
    @pytest.mark.parametrize(("scale", "kept"), [(1.0, True), (100.0, False)])
    def test_curvature_of_a_similar_problem_is_dropped_if_its_step_is_too_long(self, scale, kept):
        """A hundred times smaller gradient differences make the first step as much too long."""
        objective, x = fresh(np.asarray, wtf.Frobenius())
        found = solve(objective, x, max_iter=6)
        exported = {name: np.array(value) for name, value in found.pairs.export().items()}
        exported["rows"][1::2] /= scale
        exported["diagonal"] *= scale
        again, _ = fresh(np.asarray, wtf.Frobenius())
        pairs = solve(again, found.x, max_iter=1, curvature=exported).pairs
        used = len(exported["used"])
        assert used > 2
        assert len(pairs.export()["used"]) == (used + 1 if kept else 1)

    @numpy_only
    def test_curvature_of_a_similar_problem_is_used(self):
        objective, x = fresh(np.asarray, wtf.Frobenius())
        first = solve(objective, x)
        exported = {name: np.array(value) for name, value in first.pairs.export().items()}
        assert exported["used"].size > 0
        again, _ = fresh(np.asarray, wtf.Frobenius())
        start = solve(again, x, max_iter=0, curvature=exported)
        assert start.accepted == 0
        found = start.pairs.export()
        for name in ("rows", "diagonal", "gram", "used", "scale"):
            np.testing.assert_array_equal(found[name], exported[name])
        # The gradient is that of the new start; steps are measured in units of the diagonal.
        root = np.sqrt(found["diagonal"])
        gradient = again.evaluate(x, 1e-6).point.gradient
        for first, scaled in ((0, gradient), (1, root**2 * gradient)):
            np.testing.assert_allclose(
                found["gradient_products"][first::2],
                found["rows"][first::2] @ scaled,
                rtol=1e-9,
                atol=1e-12,
            )


class TestEvaluateUntilSolved:
    def slow(self, patience):
        problem, blocks = matrix_problem(np.asarray, wtf.Frobenius())
        exact = problem.terms[0]
        problem.terms[0] = SlowTerm(exact.state, exact._value_and_gradient, patience)
        objective = JointObjective(problem, blocks)
        return objective, objective.pack(blocks)

    @numpy_only
    @pytest.mark.parametrize("patience", [1, 2, 20])
    def test_evaluates_until_solved_and_no_further(self, patience):
        objective, x = self.slow(patience)
        exact, _ = fresh(np.asarray, wtf.Frobenius())
        found = evaluate_until_solved(objective, x, 1e-6)
        assert found.converged
        assert objective.evaluations == patience
        assert found.point.value == pytest.approx(exact.evaluate(x, 1e-6).point.value, rel=1e-14)

    @numpy_only
    def test_gives_up_and_says_so(self):
        objective, x = self.slow(10**6)
        assert not evaluate_until_solved(objective, x, 1e-6).converged
        assert objective.evaluations == 20

    def test_calls_go_on_from_each_other(self, xp, array):
        """With two iterations a call, many calls solve what one cannot."""
        spare_jax(xp)
        problem, blocks = matrix_problem(array, wtf.Wasserstein(wtf.grid_cost(4), 0.05, 2.0))
        objective = JointObjective(problem, blocks, max_inner=4)
        x, tolerance = objective.pack(blocks), 1e-9
        assert not objective.evaluate(x, tolerance).converged
        found = evaluate_until_solved(objective, x, tolerance)
        assert found.converged
        assert found.error <= tolerance
