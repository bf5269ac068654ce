"""One start of a fit: certified objective, smoothing levels, early ends; the best of several."""

import numpy as np
import pytest
from fitting import (
    LOSSES,
    MODELS_AND_LOSSES,
    assert_same_factors,
    data,
    objective_of,
    problem,
    run,
    transport,
    unfinished,
)
from helpers import numpy_only

import wtfarray as wtf
from wtfarray._fit import driver
from wtfarray._solvers.objective import FactorisationProblem


@numpy_only
class TestObjective:
    @pytest.mark.parametrize(("model", "name"), MODELS_AND_LOSSES)
    def test_objective_and_gap_enclose_that_of_the_factors(self, model, name):
        X, rank, loss = problem(model, name)
        fit = run(model, X, rank, loss, rho=0.02, rng=0)
        true, slack = objective_of(X, fit), 1e-9 * abs(fit.objective)
        assert fit.objective - slack <= true <= fit.objective + fit.gap + slack

    def test_smoothing_levels_descend_to_the_requested_eps(self):
        X = data((6, 12), seed=3)
        loss = transport(eps=0.005, shape=(12,))
        levels = []
        fit = wtf.nmf(X, 2, loss, init="random", rng=0, callback=lambda s: levels.append(s.level))
        assert set(levels) == {9.0, 3.0, 1.0}
        assert levels == sorted(levels, reverse=True)
        assert len(fit.history) == levels.count(1.0) + 1
        assert objective_of(X, fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)


class TestEnds:
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_too_few_iterations_give_one_warning_with_advice(self, array, solver):
        with unfinished() as caught:
            fit = wtf.cp(
                array(data()), 2, LOSSES["KL"], rng=0, solver=solver, max_iter=1, tol=1e-14
            )
        assert caught[0].filename == __file__
        assert not fit.converged
        assert fit.n_iter == 1
        assert "increase it or loosen `tol`" in fit.message
        assert str(caught[0].message) == f"cp: {fit.message}"

    @numpy_only
    def test_uncertified_objective_has_not_converged(self, monkeypatch):
        monkeypatch.setattr(driver, "CERTIFIED_GAP", -1.0)
        with unfinished("choose a larger eps"):
            assert not wtf.cp(data(), 2, LOSSES["unbalanced"], rng=0).converged

    @numpy_only
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_interrupt_returns_the_best_so_far(self, solver):
        states = []

        def interrupt(state):
            states.append(state)
            if state.n_iter == 2:
                raise KeyboardInterrupt

        with unfinished("interrupted"):
            fit = wtf.cp(data(), 2, LOSSES["unbalanced"], rng=0, solver=solver, callback=interrupt)
        assert not fit.converged
        assert_same_factors(fit.factors, states[-1].blocks(), rtol=0)
        assert objective_of(data(), fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)

    @numpy_only
    def test_interrupt_ends_all_starts(self):
        steps = []

        def interrupt(state):
            steps.append(state.n_iter)
            if steps.count(1) == 2:
                raise KeyboardInterrupt

        with unfinished("interrupted"):
            fit = wtf.cp(data(), 2, LOSSES["KL"], rng=0, n_init=4, callback=interrupt)
        assert steps.count(1) == 2
        assert not fit.converged

    @numpy_only
    def test_interrupted_certificate_is_computed_again(self, monkeypatch):
        certify = FactorisationProblem.certify

        def interrupted(problem, blocks, *rest):
            if len(rest) == 1:
                raise KeyboardInterrupt
            return certify(problem, blocks, *rest)

        monkeypatch.setattr(FactorisationProblem, "certify", interrupted)
        with unfinished("interrupted"):
            fit = wtf.cp(data(), 2, LOSSES["unbalanced"], rng=0)
        assert fit.stopped
        assert objective_of(data(), fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)

    @numpy_only
    def test_interrupt_between_starts_returns_the_finished_one(self, monkeypatch):
        start, calls = driver.first_start, []

        def interrupted(*arguments):
            calls.append(None)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return start(*arguments)

        monkeypatch.setattr(driver, "first_start", interrupted)
        with unfinished("interrupted"):
            fit = wtf.cp(data(), 2, LOSSES["KL"], rng=0, n_init=3)
        monkeypatch.undo()
        assert fit.objective == wtf.cp(data(), 2, LOSSES["KL"], rng=0).objective


class TestRestarts:
    @numpy_only
    def test_n_init_returns_the_best(self):
        options = {"rho": 1e-3, "init": "random"}
        rng = np.random.default_rng(5)
        single = [wtf.cp(data(), 3, LOSSES["KL"], rng=rng, **options) for _ in range(4)]
        objectives = [fit.objective for fit in single]
        best = wtf.cp(data(), 3, LOSSES["KL"], rng=5, n_init=4, **options)
        assert min(objectives) < max(objectives)
        assert best.objective == min(objectives)
