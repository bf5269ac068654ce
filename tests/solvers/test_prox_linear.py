"""Prox-linear steps, and minima where the loss is close to non-smooth."""

import math
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from fitting import data, objective_of, spare_jax
from helpers import numpy_only, set_thresholds, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from joint_problems import TRANSPORT, matrix_problem, samples

import wtfarray as wtf
from wtfarray._losses.selection import terms_of
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._models.models import CPModel, TuckerModel
from wtfarray._solvers import prox_linear
from wtfarray._solvers.envelope import Minimised, evaluate_until_solved, minimise
from wtfarray._solvers.objective import JointObjective
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.prox_linear import (
    LinearisedDual,
    ProxLinearResult,
    alternate,
    prox_linear_term,
)
from wtfarray._solvers.stop_reason import StopReason

SHAPE, RANK, RHO = (3, 4, 2), 2, 0.05


CONSTRAINTS = ("rows", "columns", "columns")


def linearised(array, lam, distance, *, free=(0, 1, 2), tucker=False, weights=None):
    """The dual at some blocks of a model of three modes, and these blocks."""
    rng = np.random.default_rng(0)
    blocks = [rng.dirichlet(np.ones(n), RANK).T for n in SHAPE]
    blocks[0] /= blocks[0].sum(axis=1, keepdims=True)
    constraints, model = CONSTRAINTS, CPModel(3, learns_weights=False)
    if tucker:
        blocks.append(rng.uniform(0.1, 1.0, (RANK,) * 3))
        constraints, model = (*CONSTRAINTS, None), TuckerModel(3)
    blocks = [array(block) for block in blocks]
    loss = wtf.Wasserstein(wtf.grid_cost(*SHAPE[1:]), 0.1, lam)
    terms = terms_of([loss], array(data(SHAPE)), None if weights is None else array(weights), None)
    problem = FactorisationProblem(model, terms, (RHO,) * len(blocks), constraints, free, SHAPE)
    return LinearisedDual.of(problem, prox_linear_term(problem), blocks, distance), blocks, loss


class TestLinearisedDual:
    @pytest.mark.parametrize("distance", [0.0, 2.0])
    @pytest.mark.parametrize("lam", [0.7, math.inf])
    @pytest.mark.parametrize("tucker", [False, True])
    def test_gradient_agrees_with_central_differences(self, xp, array, lam, distance, tucker):
        spare_jax(xp)
        dual, *_ = linearised(array, lam, distance, tucker=tucker, weights=[1.0, 2.0, 0.5])
        rng = np.random.default_rng(1)
        g, direction = 0.2 * rng.normal(size=(2, *SHAPE))
        _, gradient = dual.value_and_gradient(array(g))
        h = 1e-5
        above, below = (
            float(dual.value_and_gradient(array(g + t * direction))[0]) for t in (h, -h)
        )
        expected = (above - below) / (2.0 * h)
        assert float(np.sum(to_numpy(gradient) * direction)) == pytest.approx(expected, rel=1e-6)
        value, safe = dual.safe_value_and_gradient(array(g))
        assert float(value) == pytest.approx(float(dual.value_and_gradient(array(g))[0]))
        np.testing.assert_allclose(to_numpy(safe), to_numpy(gradient), rtol=1e-8)

    @pytest.mark.parametrize("lam", [0.7, math.inf])
    def test_one_free_block_gives_the_block_dual(self, xp, array, lam):
        spare_jax(xp)
        dual, factors, loss = linearised(array, lam, 0.0, free=(1,))
        block = wtf.cp_dual(
            array(data(SHAPE)), factors, 1, loss, rho=RHO, constraint=CONSTRAINTS[1]
        )
        g = array(0.2 * np.random.default_rng(1).normal(size=SHAPE))
        found, expected = dual.value_and_gradient(g), block.value_and_gradient(g)
        assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-12)
        np.testing.assert_allclose(to_numpy(found[1]), to_numpy(expected[1]), rtol=1e-9, atol=1e-12)
        (factor,) = dual.factors(g)
        np.testing.assert_allclose(to_numpy(factor), to_numpy(block.factor(g)), rtol=1e-10)

    @pytest.mark.parametrize("tucker", [False, True])
    def test_linear_maps_as_one_matrix_give_the_same(self, xp, array, monkeypatch, tucker):
        spare_jax(xp)
        dual, *_ = linearised(array, 0.7, 2.0, tucker=tucker, free=(0, 2))
        set_thresholds(monkeypatch, linear_map_columns=0)
        plain, *_ = linearised(array, 0.7, 2.0, tucker=tucker, free=(0, 2))
        assert dual.matrix is not None
        assert plain.matrix is None
        g = array(0.2 * np.random.default_rng(1).normal(size=SHAPE))
        found, expected = dual.value_and_gradient(g), plain.value_and_gradient(g)
        assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-12)
        np.testing.assert_allclose(to_numpy(found[1]), to_numpy(expected[1]), rtol=1e-9, atol=1e-13)

    @numpy_only
    def test_dual_is_solved_no_further_than_the_decrease_that_it_predicts(self):
        dual, *_ = linearised(np.asarray, 0.7, 0.0)
        start = np.zeros(SHAPE)
        exact = wtf.lbfgs(dual.value_and_gradient, start, gtol=1e-12)
        # A bound below the smallest decrease of interest: one evaluation, and no iteration.
        hopeless = dual.solve(start, 1e-8, -float(dual.value_and_gradient(start)[0]) - 1.0, 1e-6)
        assert hopeless.n_iter == 0
        rough = dual.solve(start, 1e-8, 1.0 - exact.value, 1e-6)  # predicts a decrease of 1
        fine = dual.solve(start, 1e-8, 1e-4 - exact.value, 1e-9)
        assert rough.n_evaluations < fine.n_evaluations
        assert rough.value - exact.value <= 1e-2
        assert fine.value - exact.value <= 1e-6

    @numpy_only
    @given(
        seed=st.integers(0, 100),
        size=st.floats(0.0, 2.0),
        distance=st.sampled_from([0.0, 0.3, 10.0]),
        lam=st.sampled_from([0.5, 20.0, math.inf]),
    )
    def test_dual_is_a_lower_bound_of_the_objective_at_the_centre(self, seed, size, distance, lam):
        dual, blocks, loss = linearised(np.asarray, lam, distance)
        g = size * np.random.default_rng(seed).normal(size=SHAPE)
        bound = -float(dual.safe_value_and_gradient(g)[0])
        entropies = sum(float(wtf.entropy(block)[0]) for block in blocks)
        result = wtf.wasserstein(data(SHAPE), wtf.cp_to_tensor(blocks), loss, tol=1e-9)
        objective = float(result.value) + result.gap + RHO * entropies
        assert bound <= objective + 1e-9

    @numpy_only
    def test_minimiser_tends_to_the_centre_as_the_proximal_weight_grows(self):
        for distance, allowed in ((1e2, 0.1), (1e4, 1e-3)):
            dual, blocks, _ = linearised(np.asarray, 0.7, distance)
            found = wtf.lbfgs(dual.value_and_gradient, np.zeros(SHAPE))
            factors = dual.factors(found.x)
            assert max(np.abs(f - b).max() for f, b in zip(factors, blocks, strict=True)) < allowed


def histograms(n, m, seed):
    return np.random.default_rng(seed).dirichlet(np.ones(m), n)


FAR_APART = [  # samples, bins, seed, eps, lam, rho
    (4, 3, 0, 1e-2, math.inf, 1e-2),
    (6, 8, 1, 1e-2, math.inf, 1e-3),
    (5, 6, 3, 5e-3, 1e4, 1e-2),
]


@cache
def small_fit():
    """A fit that ends with prox-linear steps."""
    return wtf.nmf(histograms(4, 3, 0), 2, wtf.Wasserstein(wtf.grid_cost(3), 1e-2), rho=1e-2, rng=0)


class TestFits:
    def test_model_that_reproduces_the_data_reaches_the_known_minimum(self, array):
        """The loss is nearly non-smooth at Y = X, where the entropies can still be improved."""
        X, rho = np.asarray([[1 / 3, 2 / 3]]), 0.3
        loss = wtf.Wasserstein(wtf.grid_cost(2), 1e-2)
        fit = wtf.nmf(array(X), 2, loss, rho=rho, rng=0)
        best = [np.asarray([[0.5, 0.5]]), np.repeat(X.T, 2, axis=1)]
        entropies = sum(float(wtf.entropy(block)[0]) for block in best)
        expected = float(wtf.wasserstein(X, X, loss).value) + rho * entropies
        assert fit.converged
        assert fit.objective == pytest.approx(expected, rel=1e-5)

    @numpy_only
    @pytest.mark.parametrize(("n", "m", "seed", "eps", "lam", "rho"), FAR_APART)
    def test_converged_fits_cannot_be_improved(self, n, m, seed, eps, lam, rho):
        X, loss = histograms(n, m, seed), wtf.Wasserstein(wtf.grid_cost(m), eps, lam)
        fit = wtf.nmf(X, 2, loss, rho=rho, rng=0)
        assert fit.converged
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="nmf: stopped after very many")
            warnings.filterwarnings("ignore", message="nmf: stopped after max_iter")
            again = wtf.nmf(X, 2, loss, rho=rho, init=fit, tol=1e-9, max_iter=60)
        scale = max(abs(fit.objective), eps * n)
        assert fit.objective - again.objective <= 2e-4 * scale
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="nmf: a block could not be solved")
            sweeps = wtf.nmf(X, 2, loss, rho=rho, init=fit, solver="dual", tol=1e-6)
        assert fit.objective - sweeps.objective <= 2e-4 * scale
        assert fit.objective == pytest.approx(objective_of(X, fit), abs=1e-4 * scale)

    @numpy_only
    def test_objective_scales_with_cost_eps_and_rho(self):
        plain, C = small_fit(), np.asarray(wtf.grid_cost(3)[0])
        X, loss = histograms(4, 3, 0), wtf.Wasserstein(C * 8.0, 0.08)
        scaled = wtf.nmf(X, 2, loss, rho=0.08, rng=0)
        scale = 0.01 * 4
        assert plain.objective == pytest.approx(scaled.objective / 8.0, abs=2e-4 * scale)

    @numpy_only
    def test_callback_stops_the_prox_linear_steps(self):
        X, loss = histograms(4, 3, 0), wtf.Wasserstein(wtf.grid_cost(3), 1e-2)
        whole = small_fit()
        with pytest.warns(UserWarning, match="stopped by the callback"):
            fit = wtf.nmf(
                *(X, 2, loss), rho=1e-2, rng=0, callback=lambda s: s.n_iter == whole.n_iter - 1
            )
        assert not fit.converged
        assert fit.n_iter == whole.n_iter - 1

    @numpy_only
    def test_interrupt_returns_the_best_so_far(self):
        X, loss = histograms(4, 3, 0), wtf.Wasserstein(wtf.grid_cost(3), 1e-2)
        whole = small_fit()

        def interrupt(state):
            if state.n_iter == whole.n_iter - 1:
                raise KeyboardInterrupt

        with pytest.warns(UserWarning, match="interrupted"):
            fit = wtf.nmf(X, 2, loss, rho=1e-2, rng=0, callback=interrupt)
        assert fit.objective == pytest.approx(whole.objective, rel=0.05)

    @numpy_only
    def test_sample_weights_count_as_copies(self):
        X, loss = histograms(3, 5, 2), wtf.Wasserstein(wtf.grid_cost(5), 5e-3)
        init = [np.full((3, 2), 0.5), histograms(2, 5, 9).T]
        twice = [np.full((4, 2), 0.5), init[1]]
        options = {"rho": (1e-9, 1e-2), "fixed": (1,)}
        fit = wtf.nmf(X, 2, loss, init=init, sample_weight=np.asarray([1.0, 2.0, 1.0]), **options)
        copies = wtf.nmf(X[[0, 1, 1, 2]], 2, loss, init=twice, **options)
        assert fit.objective == pytest.approx(copies.objective, rel=1e-5)


class TestProxLinearTerm:
    @pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0]])
    def test_small_plain_transport_problem_has_one(self, array, weights):
        problem, _ = matrix_problem(array, weights=weights)
        assert prox_linear_term(problem) is problem.terms[0]

    @numpy_only
    def test_other_problems_have_none(self):
        problem, _ = matrix_problem(np.asarray)
        assert prox_linear_term(problem) is not None
        for loss in (wtf.Frobenius(), wtf.LossSum(TRANSPORT, wtf.Frobenius())):
            assert prox_linear_term(matrix_problem(np.asarray, loss)[0]) is None
        per_entry = (np.full((3, 2), RHO), RHO)
        assert prox_linear_term(replace(problem, rho=per_entry)) is None
        references = (np.ones((3, 2)), None)
        assert prox_linear_term(replace(problem, references=references)) is None

    @numpy_only
    def test_sparse_data_have_none(self):
        """They are solved on their support: there is no potential of every bin."""
        X, loss = np.eye(3, 64), wtf.Wasserstein(wtf.grid_cost(64), 0.3, 2.0)
        problem, _ = matrix_problem(np.asarray, loss, X)
        assert not isinstance(problem.terms[0], TransportTerm)
        assert prox_linear_term(problem) is None

    @numpy_only
    def test_size_decides(self, monkeypatch):
        problem, _ = matrix_problem(np.asarray)
        sizes = []

        def never(entries):
            sizes.append(entries)
            return False

        monkeypatch.setattr(prox_linear, "follows_with_prox_linear", never)
        assert prox_linear_term(problem) is None
        assert sizes == [12]


@numpy_only
class TestAlternate:
    """Of where prox-linear steps and L-BFGS after them lead, the better point is returned."""

    def start(self):
        problem, blocks = matrix_problem(np.asarray)
        objective = JointObjective(problem, blocks)
        return objective, problem.terms[0], objective.pack(blocks)

    def run(self, objective, term, x, **options):
        options = {"tol": 1e-6, "max_iter": 100, "report": lambda _: False} | options
        return alternate(objective, term, x, **options)

    def value(self, objective, x):
        found = evaluate_until_solved(objective, x, 1e-10)
        assert found.converged
        return found.point.value

    def blocked(self, monkeypatch, reason=StopReason.STUCK):
        """Prox-linear steps that stay where they are."""

        def steps(objective, term, x, **_):
            return ProxLinearResult(evaluate_until_solved(objective, x, 1e-9), reason, 0)

        monkeypatch.setattr(prox_linear, "prox_linear_steps", steps)

    def test_reaches_the_minimum_of_block_descent(self):
        objective, term, x = self.start()
        seen = []
        found, reason = self.run(
            objective, term, x, report=lambda current: bool(seen.append(current.point.value))
        )
        assert reason.is_optimal
        value = self.value(objective, found)
        assert value <= min(seen) + 1e-8
        dual = wtf.nmf(
            *(samples(), 2, TRANSPORT),
            rho=RHO,
            init=objective.blocks(x),
            solver="dual",
            tol=1e-8,
        )
        assert value <= dual.objective + 1e-4 * abs(dual.objective)

    def test_worse_point_of_lbfgs_is_dropped(self, monkeypatch):
        objective, term, x = self.start()
        self.blocked(monkeypatch)
        before = []

        def worse(objective, x, *_, **__):
            before.append(objective.states())
            away = x * np.linspace(0.5, 1.5, x.size)
            assert self.value(objective, away) > self.value(objective, x)
            return Minimised(away, StopReason.TOLERANCE, 1, 1, None, None)

        monkeypatch.setattr(prox_linear, "minimise", worse)
        found, reason = self.run(objective, term, x)
        assert (found == x).all()
        assert reason is StopReason.STUCK
        assert len(before) == 1
        assert all(a is b for a, b in zip(objective.states(), before[0], strict=True))

    def test_lbfgs_that_ended_for_its_work_has_not_shown_that_there_is_no_lower_point(
        self, monkeypatch
    ):
        objective, term, x = self.start()
        self.blocked(monkeypatch)

        def exhausted(objective, x, *_, **__):
            return Minimised(x, StopReason.WORK, 0, 0, None, None)

        monkeypatch.setattr(prox_linear, "minimise", exhausted)
        found, reason = self.run(objective, term, x)
        assert (found == x).all()
        assert reason is StopReason.WORK

    def test_better_point_of_lbfgs_is_kept(self, monkeypatch):
        objective, term, x = self.start()
        self.blocked(monkeypatch)
        found, reason = self.run(objective, term, x)
        assert reason is StopReason.STUCK
        plain = minimise(*(objective, x, (1.0,)), tol=1e-6, max_iter=100, report=lambda *_: False)
        expected = self.value(objective, plain.x)
        assert self.value(objective, found) <= expected + 1e-6 * abs(expected)
        assert expected < self.value(objective, x) - 1e-3

    @pytest.mark.parametrize("reason", sorted(set(StopReason), key=lambda reason: reason.name))
    def test_lbfgs_follows_only_steps_that_are_stuck(self, monkeypatch, reason):
        objective, term, x = self.start()
        self.blocked(monkeypatch, reason)
        calls = []

        def unchanged(objective, x, *_, **__):
            calls.append(x)
            return Minimised(x, StopReason.TOLERANCE, 0, 0, None, None)

        monkeypatch.setattr(prox_linear, "minimise", unchanged)
        _, why = self.run(objective, term, x)
        assert why is reason
        assert len(calls) == (reason is StopReason.STUCK)

    def test_steps_of_both_share_max_iter(self, monkeypatch):
        objective, term, x = self.start()
        left = []

        def steps(objective, term, x, *, max_iter, **_):
            left.append(max_iter)
            return ProxLinearResult(evaluate_until_solved(objective, x, 1e-9), StopReason.STUCK, 3)

        def lbfgs(objective, x, *_, max_iter, **__):
            left.append(max_iter)
            found = minimise(*(objective, x, (1.0,)), tol=1e-9, max_iter=2, report=lambda *_: False)
            return replace(found, reason=StopReason.TOLERANCE)

        monkeypatch.setattr(prox_linear, "prox_linear_steps", steps)
        monkeypatch.setattr(prox_linear, "minimise", lbfgs)
        self.run(objective, term, x, max_iter=50)
        assert left[:4] == [50, 47, 45, 42]

    def test_unsolved_start_is_said_to_be_unsolved(self, monkeypatch):
        objective, term, x = self.start()

        def unsolved(objective, x, tolerance):
            return replace(objective.evaluate(x, tolerance), converged=False)

        monkeypatch.setattr(prox_linear, "evaluate_until_solved", unsolved)
        found, reason = self.run(objective, term, x)
        assert reason is StopReason.UNSOLVED
        assert (found == x).all()


def test_weight_of_the_proximal_term_grows_faster_after_a_step_that_is_far_off():
    growth, first = prox_linear.SETTINGS.distance_growth, prox_linear.SETTINGS.first_distance
    assert prox_linear._increased(0.0) == first
    assert prox_linear._increased(first) == growth * first
    assert prox_linear._increased(first, far_off=True) == growth**2 * first


@numpy_only
def test_steps_end_when_too_many_evaluations_were_spent(monkeypatch):
    X, loss = histograms(6, 8, 1), wtf.Wasserstein(wtf.grid_cost(8), 1e-3)
    settings = replace(prox_linear.SETTINGS, total_evaluations=200)
    monkeypatch.setattr(prox_linear, "SETTINGS", settings)
    with pytest.warns(UserWarning, match="very many evaluations"):
        fit = wtf.nmf(X, 2, loss, rho=1e-2, rng=0)
    assert not fit.converged
    assert fit.gap <= 1e-3 * max(abs(fit.objective), 6e-3)
