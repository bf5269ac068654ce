"""L-BFGS, then prox-linear steps: which problems and which ends they follow."""

import warnings

import numpy as np
import pytest
from helpers import numpy_only, set_thresholds
from joint_problems import DISTANT, TRANSPORT, matrix_problem, samples

import wtfarray as wtf
from wtfarray._solvers import joint
from wtfarray._solvers.envelope import Minimised
from wtfarray._solvers.joint import ROUGH_TOL, solve_jointly
from wtfarray._solvers.objective import JointObjective
from wtfarray._solvers.stop_reason import StopReason

BLOCKED = {StopReason.STUCK, StopReason.UNSOLVED}
# Which ends of L-BFGS prox-linear steps follow, by the loss.
FOLLOWED = {
    "Frobenius": (wtf.Frobenius(), set()),
    "sum": (wtf.LossSum(TRANSPORT, wtf.Frobenius()), set()),
    "transport": (TRANSPORT, BLOCKED),
    "distant bins": (DISTANT, BLOCKED | {StopReason.TOLERANCE}),
}


def start(array, loss):
    problem, blocks = matrix_problem(array, loss)
    objective = JointObjective(problem, blocks)
    return objective, objective.pack(blocks)


def solve(objective, x, levels=(1.0,), report=lambda *_: False, **options):
    options = {"tol": 1e-6, "max_iter": 50} | options
    return solve_jointly(objective, x, levels, report=report, **options)


@numpy_only
class TestProxLinearSteps:
    """Both methods are replaced by functions that only say why they end."""

    @pytest.fixture
    def calls(self, monkeypatch):
        calls = {"ends": StopReason.STUCK, "then": StopReason.STATIONARY, "alternate": 0}

        def minimise(objective, x, levels, *, tol, **_):
            calls["tol"] = tol
            return Minimised(x + 1.0, calls["ends"], 1, 1, None, None)

        def alternate(objective, term, x, *, tol, **_):
            calls["alternate"] += 1
            calls["fine tol"] = tol
            assert term is objective.problem.terms[0]
            return x + 10.0, calls["then"]

        monkeypatch.setattr(joint, "minimise", minimise)
        monkeypatch.setattr(joint, "alternate", alternate)
        set_thresholds(monkeypatch, escape_entries=0, refine_tol=0.0)
        return calls

    @pytest.mark.parametrize("reason", StopReason)
    @pytest.mark.parametrize("name", FOLLOWED)
    def test_follow_only_where_they_may_help(self, calls, name, reason):
        loss, followed = FOLLOWED[name]
        objective, x = start(np.asarray, loss)
        calls["ends"] = reason
        found, why = solve(objective, x)
        assert calls["alternate"] == (reason in followed)
        assert why is (StopReason.STATIONARY if reason in followed else reason)
        assert (found == x + 1.0 + (10.0 if reason in followed else 0.0)).all()

    @pytest.mark.parametrize("name", FOLLOWED)
    @pytest.mark.parametrize("tol", [1e-6, 1e-2])
    def test_tolerance_is_rough_only_before_they_follow(self, calls, name, tol):
        objective, x = start(np.asarray, FOLLOWED[name][0])
        solve(objective, x, tol=tol)
        assert calls["tol"] == (max(tol, ROUGH_TOL) if name == "distant bins" else tol)
        assert calls.get("fine tol", tol) == tol

    @pytest.mark.parametrize("reason", sorted(BLOCKED, key=lambda reason: reason.name))
    def test_unsolved_steps_leave_the_reason_of_the_first_method(self, calls, reason):
        objective, x = start(np.asarray, DISTANT)
        calls |= {"ends": reason, "then": StopReason.UNSOLVED}
        assert solve(objective, x)[1] is reason

    def test_reason_of_the_caller_is_kept(self, calls):
        objective, x = start(np.asarray, DISTANT)
        calls["then"] = StopReason.CALLBACK
        assert solve(objective, x)[1] is StopReason.CALLBACK


def bilinear(noise=1e-3):
    """Samples of two overlapping bumps with a little noise, (12, 16), and their concentrations."""
    rng = np.random.default_rng(0)
    bumps = np.exp(-(((np.arange(16.0)[:, None] - [5.0, 10.0]) / 3.0) ** 2))
    amounts = rng.gamma(2.0, size=(12, 2))
    return amounts @ (bumps / bumps.sum(axis=0)).T * rng.uniform(1 - noise, 1 + noise, (12, 16))


@numpy_only
class TestRefinement:
    """A model close to the data: the objective is nearly the smallest possible loss."""

    LOSS = wtf.Wasserstein(wtf.grid_cost(16), eps=0.1, lam=10.0)

    @staticmethod
    def fit(X, loss, monkeypatch, limit, **options):
        set_thresholds(monkeypatch, refine_tol=limit, escape_entries=0)
        return wtf.nmf(X, 2, loss, rng=0, **options)

    def test_decreases_the_excess_and_stays_converged(self, monkeypatch):
        X = bilinear()
        rough, fine = (self.fit(X, self.LOSS, monkeypatch, limit) for limit in (0.0, 1e-5))
        least = -float(self.LOSS.conjugate(X, np.zeros_like(X))[0].sum())
        assert fine.converged
        assert rough.n_iter < fine.n_iter <= rough.n_iter + 100
        assert fine.objective - least < 0.9 * (rough.objective - least)
        assert [r.objective for r in fine.history[: rough.n_iter]] == [
            r.objective for r in rough.history[: rough.n_iter]
        ]

    @pytest.mark.parametrize("options", [{"tol": 1e-4}, {"tol": 1e-9}, {"max_iter": 3}])
    def test_not_with_another_tolerance_nor_beyond_max_iter(self, monkeypatch, options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            one, two = (
                self.fit(bilinear(), self.LOSS, monkeypatch, limit, **options)
                for limit in (0.0, 1e-5)
            )
        assert one.n_iter == two.n_iter
        assert one.objective == two.objective

    @pytest.mark.parametrize("loss", [wtf.Frobenius(), wtf.KullbackLeibler()])
    def test_other_losses_are_their_own_excess(self, monkeypatch, loss):
        one, two = (self.fit(bilinear(), loss, monkeypatch, limit) for limit in (0.0, 1e-5))
        assert one.n_iter == two.n_iter

    def test_data_far_from_the_model_are_left_as_they_are(self, monkeypatch):
        X = np.random.default_rng(0).gamma(0.2, size=(12, 16))
        loss = wtf.Wasserstein(wtf.grid_cost(16), eps=0.01, lam=1.0)
        one, two = (self.fit(X, loss, monkeypatch, limit) for limit in (0.0, 1e-5))
        assert one.n_iter == two.n_iter

    def test_callback_ends_it(self, monkeypatch):
        plain = self.fit(bilinear(), self.LOSS, monkeypatch, 0.0)
        last = plain.n_iter + 2
        with pytest.warns(UserWarning, match="callback"):
            fit = self.fit(
                *(bilinear(), self.LOSS, monkeypatch, 1e-5), callback=lambda s: s.n_iter == last
            )
        assert fit.n_iter == last
        assert fit.stopped


@numpy_only
def test_the_work_of_a_small_fit_is_limited(monkeypatch):
    set_thresholds(monkeypatch, small_work=500)
    objective, x = start(np.asarray, DISTANT)
    _, reason = solve(objective, x, max_iter=10_000, tol=0.0)
    assert reason is StopReason.WORK
    assert 500 <= objective.problem.work < 5000


@numpy_only
def test_fit_whose_restart_took_too_much_work_has_not_converged(monkeypatch):
    """There may be a lower point, which the restart had no time to find."""

    def exhausted(objective, *_, **__):
        objective.problem.terms[0].count_evaluations(10**6, 1.0)

    objective, x = start(np.asarray, TRANSPORT)
    assert solve(objective, x, max_iter=500)[1].is_optimal
    monkeypatch.setattr(joint.escape, "escaped", exhausted)
    objective, x = start(np.asarray, TRANSPORT)
    assert solve(objective, x, max_iter=500)[1] is StopReason.WORK


class TestSolveJointly:
    def test_steps_are_reported_with_their_level_and_what_resumes_them(self, array):
        objective, x = start(array, wtf.Frobenius())
        seen = []
        _, reason = solve(objective, x, report=lambda *step: bool(seen.append(step)))
        assert reason is StopReason.TOLERANCE
        for current, level, resumable in seen:
            assert level == 1.0
            assert resumable[0].current is current

    @numpy_only
    def test_levels_are_reported_as_multiples_of_eps(self):
        objective, x = start(np.asarray, TRANSPORT)
        levels = []
        solve(objective, x, (3.0, 1.0), report=lambda _, level, __: bool(levels.append(level)))
        assert set(levels) == {3.0, 1.0}
        assert levels == sorted(levels, reverse=True)

    @numpy_only
    def test_prox_linear_steps_are_reported_as_not_resumable_and_gain(self):
        """Rough L-BFGS stops at a kink, from which these steps go on."""
        problem, blocks = matrix_problem(np.asarray, DISTANT, samples((4, 4), 3), rho=1e-2)
        objective = JointObjective(problem, blocks)
        seen = []
        x, reason = solve(
            *(objective, objective.pack(blocks)),
            report=lambda current, level, resumable: bool(
                seen.append((current.point.value, level, resumable is None))
            ),
            max_iter=200,
        )
        assert reason.is_optimal
        plain = [value for value, _, later in seen if not later]
        later = [value for value, _, later in seen if later]
        assert later
        assert {level for _, level, later in seen if later} == {1.0}
        assert [later for *_, later in seen] == sorted(later for *_, later in seen)
        assert min(later) < min(plain)
        assert objective.evaluate(x, 1e-9).point.value == pytest.approx(min(later), rel=1e-6)

    @numpy_only
    def test_report_ends_the_solve_in_either_method(self):
        for ends in (1, None):
            objective, x = start(np.asarray, DISTANT)
            seen = []

            def report(current, level, resumable, ends=ends, seen=seen):
                seen.append(resumable is None)
                return len(seen) == ends if ends else seen[-1]

            _, reason = solve(objective, x, report=report)
            assert reason is StopReason.CALLBACK
            assert seen[-1] is (ends is None)
