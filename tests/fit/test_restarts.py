"""Several initialisations: the better ones continue, and the best is returned."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from fitting import LOSSES, assert_same_factors, data, objective_of, spare_jax, unfinished
from helpers import numpy_only, set_thresholds, to_numpy

import wtfarray as wtf
from wtfarray._fit import restarts
from wtfarray._fit.driver import solve
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.restarts import Milestone, milestones
from wtfarray._fit.specification import specify
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason

GRID = wtf.Wasserstein(wtf.grid_cost(32, 32), eps=0.05, lam=5.0)
"""A loss whose fits start on a coarser grid."""


def specification(array, X, loss, kind="nmf"):
    return specify(
        *(kind, array(X), 2, loss),
        rho=1e-2,
        constraints=None,
        weights=None,
        fixed=(),
        sample_weight=None,
    )


def options(**changes):
    return SolverOptions(**({"tol": 1e-4, "max_iter": 100} | changes))


def singles(count, seed, *arguments, **keywords):
    """Fits from the same initialisations, each on its own."""
    rng = np.random.default_rng(seed)
    return [wtf.cp(*arguments, rng=rng, **keywords) for _ in range(count)]


def images(samples=6):
    """Smooth images of 32 x 32 pixels."""
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 32)
    rows, columns = (np.exp(-(((x - rng.random((samples, 1))) / 0.2) ** 2)) for _ in range(2))
    X = rows[:, :, None] * columns[:, None, :]
    return X / X.sum(axis=(1, 2), keepdims=True)


class TestMilestones:
    def test_every_level_ends_with_one(self):
        last = Milestone(2, restarts.LAST_MILESTONE)
        assert milestones(3) == [Milestone(1, 1), last]
        assert milestones(1) == [Milestone(0, restarts.LAST_MILESTONE)]


class TestBestOf:
    @numpy_only
    @pytest.mark.parametrize("seed", range(3))
    def test_result_is_that_of_one_start(self, seed):
        keywords = {"rho": 1e-3, "init": "random"}
        single = singles(4, seed, data(), 3, LOSSES["KL"], **keywords)
        best = wtf.cp(data(), 3, LOSSES["KL"], rng=seed, n_init=4, **keywords)
        objectives = [fit.objective for fit in single]
        assert min(objectives) < max(objectives)
        # A loss without inner problems has no history that a pause drops: equal to the last bit.
        assert best.objective in objectives
        same = single[objectives.index(best.objective)]
        assert_same_factors(best.factors, same.factors, rtol=0)
        assert best.n_iter == same.n_iter
        assert [r.objective for r in best.history] == [r.objective for r in same.history]

    @numpy_only
    def test_complete_starts_are_compared(self, monkeypatch):
        monkeypatch.setattr(restarts, "COST", 100)
        single = singles(4, 5, data(), 3, LOSSES["KL"], rho=1e-3, init="random")
        best = wtf.cp(data(), 3, LOSSES["KL"], rng=5, n_init=4, rho=1e-3, init="random")
        assert best.objective == min(fit.objective for fit in single)

    def test_several_starts_are_not_worse_and_certified(self, xp, array):
        spare_jax(xp)
        X = array(data((6, 8)))
        loss = wtf.Wasserstein(wtf.grid_cost(8), eps=0.1, lam=2.0)
        single = wtf.nmf(X, 2, loss, rng=0)
        best = wtf.nmf(X, 2, loss, rng=0, n_init=3)
        assert best.converged
        assert best.objective <= single.objective + 0.01 * abs(single.objective)
        assert objective_of(X, best) == pytest.approx(best.objective, abs=best.gap + 1e-8)
        values = [record.objective for record in best.history]
        assert values == sorted(values, reverse=True)
        again = wtf.nmf(X, 2, loss, rng=0, n_init=3)
        assert again.objective == best.objective
        assert_same_factors(again.factors, best.factors, rtol=0)

    @numpy_only
    def test_steps_of_all_starts_are_limited(self):
        rng = np.random.default_rng(0)
        X = rng.dirichlet(np.full(20, 0.3), 30)
        loss = wtf.Wasserstein(wtf.grid_cost(20), eps=0.02, lam=2.0)
        steps = itertools.count(1)
        fit = wtf.nmf(X, 4, loss, rho=1e-3, rng=0, n_init=8, callback=lambda _: next(steps) < 0)
        assert fit.converged
        first = wtf.nmf(X, 4, loss, rho=1e-3, rng=0)
        longest = max(fit.n_iter, first.n_iter)
        assert next(steps) - 1 <= 3.5 * longest

    @numpy_only
    def test_starts_share_the_data_and_the_kernels(self, monkeypatch):
        problems = []
        build = FactorisationProblem.__init__

        def count(problem, *arguments, **keywords):
            problems.append(problem)
            build(problem, *arguments, **keywords)

        monkeypatch.setattr(FactorisationProblem, "__init__", count)
        wtf.cp(data(), 2, LOSSES["unbalanced"], rng=0, n_init=4)
        assert len(problems) == 1

    @numpy_only
    def test_starts_on_a_coarser_grid(self):
        levels = []
        fit = wtf.cp(images(), 2, GRID, rng=0, n_init=4, callback=lambda s: levels.append(s.level))
        assert fit.converged
        # All starts are solved on the coarser grid, one of them on that of the data.
        coarse = [level == np.inf for level in levels]
        assert coarse == sorted(coarse, reverse=True)
        assert len(fit.history) - 1 == coarse.count(False)

    @numpy_only
    def test_progress_and_callback_see_every_step(self):
        seen = []
        fit = wtf.cp(data(), 2, LOSSES["KL"], rng=0, n_init=3, callback=seen.append)
        assert sum(state.n_iter == 1 for state in seen) == 3
        assert max(state.n_iter for state in seen) >= fit.n_iter
        times = [state.time for state in seen]
        assert times == sorted(times)


@numpy_only
class TestEndedByTheCaller:
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

    @pytest.mark.parametrize("loss", ["KL", "unbalanced"])
    @pytest.mark.parametrize("last", [1, 12, 30])
    def test_callback_ends_all_starts_with_the_best_so_far(self, loss, last):
        states = []

        def stop(state):
            states.append((state.level, state.objective, state.blocks()))
            return len(states) == last

        with unfinished("callback"):
            fit = wtf.cp(data(), 3, LOSSES[loss], rng=0, n_init=8, callback=stop)
        assert len(states) == last
        assert not fit.converged
        assert any(
            all((to_numpy(a) == b).all() for a, b in zip(fit.factors, blocks, strict=False))
            for *_, blocks in states
        )
        assert objective_of(data(), fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)

    def test_interrupt_between_starts_returns_the_earlier_one(self, monkeypatch):
        start, calls, states = restarts.first_start, [], []

        def interrupted(*arguments, **keywords):
            calls.append(None)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return start(*arguments, **keywords)

        monkeypatch.setattr(restarts, "first_start", interrupted)
        with unfinished("interrupted"):
            fit = wtf.cp(data(), 2, LOSSES["KL"], rng=0, n_init=3, callback=states.append)
        assert fit.n_iter == len(states) == restarts.LAST_MILESTONE
        assert_same_factors(fit.factors, states[-1].blocks(), rtol=0)

    def test_interrupt_before_the_first_start_is_raised(self, monkeypatch):
        def interrupted(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(restarts, "first_start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            wtf.cp(data(), 2, LOSSES["KL"], rng=0, n_init=3)

    def test_callback_on_a_coarser_grid(self):
        states = []

        def stop(state):
            states.append(state.level)
            return len(states) == 3

        with unfinished("callback"):
            fit = wtf.cp(images(), 2, GRID, rng=0, n_init=3, callback=stop)
        assert states == [np.inf] * 3
        assert objective_of(images(), fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)


@numpy_only
class TestComplete:
    """Block descent has no milestones; starts that are not solved have objectives of their own."""

    def solutions(self, monkeypatch, objectives, reasons=()):
        spec = specification(np.asarray, data((4, 5)), wtf.KullbackLeibler())
        given = solve(spec, options(solver="dual"), np.random.default_rng(0))
        queue = [
            replace(given, objective=objective, message=f"start {n}")
            for n, objective in enumerate(objectives)
        ]
        for n, reason in reasons:
            queue[n] = replace(queue[n], reason=reason, converged=False)
        left = list(queue)
        monkeypatch.setattr(restarts, "solve", lambda *_, **__: left.pop(0))
        return spec, queue, left

    def test_lowest_objective_is_returned(self, monkeypatch):
        spec, queue, left = self.solutions(monkeypatch, [3.0, -1.0, 2.0])
        assert restarts.best_of(3, spec, options(solver="dual"), None) is queue[1]
        assert left == []

    def test_single_start_is_returned(self, monkeypatch):
        spec, queue, left = self.solutions(monkeypatch, [3.0, -1.0])
        assert restarts.best_of(1, spec, options(solver="dual"), None) is queue[0]
        assert len(left) == 1

    @pytest.mark.parametrize("reason", [StopReason.CALLBACK, StopReason.INTERRUPTED])
    def test_caller_ends_all_starts_and_gets_the_best(self, monkeypatch, reason):
        spec, queue, left = self.solutions(monkeypatch, [1.0, 3.0, 0.0], [(1, reason)])
        found = restarts.best_of(3, spec, options(solver="dual"), None)
        assert len(left) == 1
        assert found.objective == 1.0
        assert found.blocks is queue[0].blocks
        assert not found.converged
        assert found.reason is reason
        assert found.message == "start 1"

    def test_interrupt_before_the_first_result_is_raised(self, monkeypatch):
        spec, *_ = self.solutions(monkeypatch, [1.0])

        def interrupted(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(restarts, "solve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            restarts.best_of(2, spec, options(solver="dual"), None)


@numpy_only
@pytest.mark.parametrize("solver", ["envelope", "dual"])
def test_starts_of_a_small_fit_share_its_work(monkeypatch, solver):
    """Eight starts take about the work that one may take, and do not say that they converged."""
    set_thresholds(monkeypatch, small_work=400)
    found, loss = [], wtf.Wasserstein(wtf.grid_cost(6), eps=1e-3, lam=1.0)
    certified = restarts.certify if solver == "envelope" else restarts.solve

    def counted(*arguments, **keywords):
        found.append(certified(*arguments, **keywords))
        return found[-1]

    monkeypatch.setattr(restarts, "certify" if solver == "envelope" else "solve", counted)
    X, rng = data((5, 6)), np.random.default_rng(0)
    spec = specification(np.asarray, X / X.sum(axis=1, keepdims=True), loss)
    fit = restarts.best_of(8, spec, options(solver=solver, tol=1e-12, max_iter=10_000), rng)
    assert fit.reason is StopReason.WORK
    assert not fit.converged
    if solver == "envelope":
        assert fit.work < 8 * 400
