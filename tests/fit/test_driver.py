"""One start of a fit: certified objective, smoothing levels, early ends; the best of several."""

import warnings

import numpy as np
import pytest
from fitting import (
    LOSSES,
    MODELS_AND_LOSSES,
    assert_same_factors,
    data,
    entropy,
    loss_of,
    objective_of,
    problem,
    run,
    transport,
    unfinished,
)
from helpers import numpy_only, to_numpy

import wtfarray as wtf
from wtfarray._fit import driver
from wtfarray._fit.driver import BRIEF_ITERATIONS
from wtfarray._fit.journal import Journal
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.specification import specify
from wtfarray._solvers.problem import CERTIFICATE_ITERATIONS, FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason


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
    @pytest.mark.parametrize(("tol", "converged"), [(1e-2, True), (1e-4, False)])
    def test_errors_of_recorded_values_count_next_to_the_tolerance(
        self, monkeypatch, tol, converged
    ):
        """The last steps were recorded half a per cent below the certified objective."""
        certify = Journal.certify

        def lower(journal, value, *rest):
            certify(journal, value, *rest)
            return 5e-3 * abs(value.value)

        monkeypatch.setattr(Journal, "certify", lower)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            fit = wtf.cp(data(), 2, LOSSES["unbalanced"], rng=0, tol=tol)
        assert fit.gap < 1e-3 * abs(fit.objective)
        assert fit.converged is converged
        assert ("could not be solved" in fit.message) is not converged

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
    def test_interrupted_certificate_is_computed_again(self, monkeypatch):
        certify = FactorisationProblem.certify

        def interrupted(problem, blocks, *rest):
            if rest[-1] > 1:  # the second time it is one iteration
                raise KeyboardInterrupt
            return certify(problem, blocks, *rest)

        monkeypatch.setattr(FactorisationProblem, "certify", interrupted)
        with unfinished("interrupted"):
            fit = wtf.cp(data(), 2, LOSSES["unbalanced"], rng=0)
        assert fit.stopped
        assert objective_of(data(), fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)

    @pytest.mark.parametrize("ends", ["interrupted", "very many evaluations"])
    def test_certificate_of_a_fit_that_has_not_ended_itself_is_short(self, monkeypatch, ends):
        certify, iterations = FactorisationProblem.certify, []

        def counted(problem, blocks, share, most):
            iterations.append(most)
            return certify(problem, blocks, share, most)

        def interrupt(state):
            if ends == "interrupted" and state.n_iter == 2:
                raise KeyboardInterrupt

        monkeypatch.setattr(FactorisationProblem, "certify", counted)
        wtf.cp(data(), 2, LOSSES["unbalanced"], rng=0)
        if ends != "interrupted":
            monkeypatch.setattr("wtfarray._solvers.objective.most_work", lambda _: 20.0)
        with unfinished(ends):
            fit = wtf.cp(data(), 2, LOSSES["unbalanced"], rng=0, callback=interrupt)
        assert iterations == [CERTIFICATE_ITERATIONS, BRIEF_ITERATIONS]
        assert objective_of(data(), fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)


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


class TestSolution:
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_fields_belong_to_one_point(self, array, solver):
        X = data((4, 5))
        spec = specification(array, X, wtf.KullbackLeibler())
        found = driver.solve(spec, options(solver=solver, tol=1e-3), np.random.default_rng(0))
        assert found.spec is spec
        assert found.converged
        assert found.reason.is_optimal
        assert found.reason.message(solver, 1e-3, 100) in found.message
        assert [tuple(block.shape) for block in found.blocks] == [(4, 2), (5, 2)]
        assert tuple(found.dual.shape) == X.shape
        assert found.gap == 0.0
        assert found.n_iter == len(found.history) - 1 > 0
        assert found.history[-1].objective == pytest.approx(found.objective, rel=1e-12)
        A, B = map(to_numpy, found.blocks)
        expected = loss_of(X, A @ B.T, wtf.KullbackLeibler()) + 1e-2 * (entropy(A) + entropy(B))
        assert found.objective == pytest.approx(expected, rel=1e-9)
        np.testing.assert_allclose(A.sum(axis=1), 1.0, rtol=1e-9)
        np.testing.assert_allclose(B.sum(axis=0), 1.0, rtol=1e-9)
        # The dual variable is the gradient of the loss in the model.
        np.testing.assert_allclose(to_numpy(found.dual), 1.0 - X / (A @ B.T), rtol=1e-6, atol=1e-9)

    @numpy_only
    def test_callback_stop_is_no_convergence(self):
        spec = specification(np.asarray, data((4, 5)), wtf.KullbackLeibler())
        found = driver.solve(
            spec, options(callback=lambda s: s.n_iter == 2), np.random.default_rng(0)
        )
        assert found.reason is StopReason.CALLBACK
        assert not found.converged
        assert found.n_iter == 2
        assert found.message.startswith("stopped by the callback")


ADVICE = "consider dividing each sample by its sum"


@numpy_only
class TestAdviceOnMass:
    LOSS = wtf.Wasserstein(wtf.grid_cost(8), 0.05, 10.0)

    def counts(self, mass=400.0):
        """Cells of which one was sequenced a hundred times as deeply as the others."""
        depth = np.asarray([1.0, 100.0, 1.0, 1.0, 1.0])[:, None]
        return np.floor(data((5, 8), mass=mass) * depth) + 1.0

    def message(self, X, loss, **changes):
        spec = specification(np.asarray, X, loss)
        settings = {"tol": 1e-14, "max_iter": 1} | changes
        found = driver.solve(spec, options(**settings), np.random.default_rng(0))
        assert not found.converged
        return found.message

    def test_fit_of_counts_that_does_not_converge_is_advised(self):
        X = self.counts()
        mass = X.sum(axis=1)
        message = self.message(X, self.LOSS)
        assert (
            f"samples of X have masses from {mass.min():.3g} to {mass.max():.3g}: {ADVICE}"
            in message
        )

    def test_advice_is_in_the_warning(self):
        with unfinished(ADVICE):
            fit = wtf.nmf(self.counts(), 2, self.LOSS, max_iter=1, tol=1e-14, rng=0)
        assert ADVICE in fit.message

    def test_empty_samples_do_not_count(self):
        X = data((5, 8))
        X[2] = 0.0
        assert ADVICE not in self.message(X, self.LOSS)

    @pytest.mark.parametrize("mass", [1e-3, 1.0, 400.0])
    def test_samples_of_similar_mass_are_not(self, mass):
        """Whatever their unit."""
        assert ADVICE not in self.message(data((5, 8), mass=mass), self.LOSS)

    def test_samples_that_the_constraints_do_not_allow_are(self):
        X = data((5, 8), mass=400.0)
        with unfinished(ADVICE):
            wtf.nmf(X, 2, self.LOSS, max_iter=1, rng=0, constraints=("rows", "columns"))

    def test_other_losses_are_not(self):
        assert ADVICE not in self.message(self.counts(), wtf.KullbackLeibler())

    def test_loss_of_the_whole_tensor_is_not(self):
        loss = wtf.Wasserstein(wtf.grid_cost(5, 8), 0.05, 10.0)
        assert ADVICE not in self.message(self.counts(), loss)

    def test_fit_that_the_caller_stops_is_not(self):
        message = self.message(self.counts(), self.LOSS, max_iter=9, callback=lambda _: True)
        assert ADVICE not in message

    def test_fit_that_converges_is_not(self):
        fit = wtf.nmf(self.counts(40.0), 2, wtf.Wasserstein(wtf.grid_cost(8), 1.0, 10.0), rng=0)
        assert fit.converged
        assert ADVICE not in fit.message


class TestFixedZeros:
    def test_divergence_that_is_always_infinite_is_refused(self, array):
        """The atom is 0 in a bin in which the second sample has mass."""
        X = array([[1.0, 0.0, 2.0], [1.0, 3.0, 2.0]])
        init = [array([[1.0], [1.0]]), array([[0.5], [0.0], [0.5]])]
        options = {"init": init, "fixed": (1,), "rho": 1e-3}
        with pytest.raises(ValueError, match=r"entry \(1, 1\) of every model 0, where X is 3.0"):
            wtf.nmf(X, 1, wtf.KullbackLeibler(), **options)
        weight = array([1.0, 0.0])
        fit = wtf.nmf(X, 1, wtf.KullbackLeibler(), sample_weight=weight, **options)
        assert fit.converged
        assert np.isfinite(fit.objective)
        assert float(fit.factors[0][0, 0]) == pytest.approx(3.0, rel=1e-2)


@numpy_only
@pytest.mark.parametrize("seed", [1, 4])
def test_decreases_that_float32_does_not_see(seed):
    """Where lam is large, a fit that cannot go on in float32 may be far from the minimum."""
    rng = np.random.default_rng(seed)
    atoms = np.exp(-0.5 * ((np.arange(14.0)[:, None] - np.asarray([5.0, 6.5])) / 2.5) ** 2)
    atoms /= atoms.sum(axis=0)
    X = (rng.dirichlet(np.ones(2), 8) @ atoms.T) * np.exp(0.3 * rng.normal(size=(8, 14)))
    X /= X.sum(axis=1, keepdims=True)
    loss = wtf.Wasserstein(wtf.grid_cost(14), eps=1.5e-3, lam=1e4)

    def fit(dtype):
        init = [np.full((8, 2), 0.5, dtype), atoms.astype(dtype)]
        options = {"fixed": (1,), "rho": 5e-5, "constraints": (None, None)}
        return wtf.nmf(X.astype(dtype), 2, loss, init=init, max_iter=1000, **options)

    # Which of the two comes first depends on how the processor rounds.
    with unfinished("(rounding errors.*use|could not be solved.*or) float64"):
        single = fit("float32")
    double = fit("float64")
    assert double.converged
    assert single.objective > 1.5 * double.objective > 0


@numpy_only
def test_what_restarts_look_for_is_not_seen_in_float32():
    """Rounding of lam times the mass is more than the decrease for which a restart is accepted."""
    X = np.random.default_rng(0).dirichlet(np.full(12, 0.7), (1, 7))
    loss = wtf.Wasserstein(wtf.grid_cost(12), eps=0.26, lam=4500.0)
    options = {"rho": 2.6e-3, "constraints": ("all", None), "tol": 6e-5, "rng": 276}
    with unfinished("rounding errors.*use float64"):
        single = wtf.nmf(X.astype("float32"), 4, loss, max_iter=300, **options)
    double = wtf.nmf(X, 4, loss, max_iter=300, **options)
    assert double.converged
    assert double.objective == pytest.approx(single.objective, rel=1e-3)


def test_fixed_factors_to_which_some_mass_cannot_go_are_refused(array):
    """The second bin of the last mode is forbidden to mass of the first, where no model has any."""
    X = np.random.default_rng(0).uniform(0.1, 1.0, (3, 4, 2))
    X[1, :, 0] = 0.0
    costs = [*wtf.grid_cost(4), np.where(np.eye(2) > 0, 0.0, np.inf)]
    loss = wtf.Wasserstein(costs, eps=0.1, lam=1.0)
    init = [array(A) for A in (np.ones((3, 1)), np.ones((4, 1)), np.asarray([[0.0], [1.0]]))]
    expected = r"mass .* of sample [02] of X can reach no bin of any model at a finite cost"
    with pytest.raises(ValueError, match=f"init has fixed factors with zeros, and {expected}"):
        wtf.cp(array(X), 1, loss, init=init, fixed=(2,))
    X[:, :, 0] = 0.0
    assert wtf.cp(array(X), 1, loss, init=init, fixed=(2,)).converged
