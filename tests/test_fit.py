"""The three factorisations: what comes out, and what must hold of it."""

import numpy as np
import pytest
from array_api_compat import (
    array_namespace,
    device,
    is_torch_namespace,
)
from fitting import (
    LOSSES,
    MODELS_AND_LOSSES,
    RANKS,
    SHAPE,
    WHOLE_BALANCED,
    arrays_of,
    assert_same_factors,
    data,
    entropy,
    fit_few,
    loss_of,
    objective_of,
    problem,
    run,
    spare_jax,
    start,
    transport,
    unfinished,
)
from helpers import assert_close, numpy_only, to_numpy

import wtfarray as wtf
from wtfarray._fit import driver


class TestEveryLibrary:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("model", RANKS)
    def test_namespace_dtype_and_device_are_kept(self, xp, array, model, dtype):
        if dtype == "float32" and model != "nmf":
            spare_jax(xp)
        X = array(data(), dtype)
        fit = fit_few(model, X, RANKS[model], LOSSES["unbalanced"], rng=0)
        for name, found in {**arrays_of(fit), "tensor": fit.to_tensor()}.items():
            assert array_namespace(found) is array_namespace(X), name
            assert found.dtype == X.dtype, name
            assert device(found) == device(X), name
        assert tuple(fit.to_tensor().shape) == SHAPE
        assert tuple(fit.dual.shape) == SHAPE

    @pytest.mark.parametrize(("model", "name"), MODELS_AND_LOSSES)
    def test_same_start_gives_the_factors_of_numpy(self, xp, array, model, name):
        if name == "sum" or (model, name) == ("tucker", "balanced"):
            spare_jax(xp)
        X, rank, loss = problem(model, name)
        options = {"init": start(model), "rho": 0.02}
        expected = fit_few(model, X, rank, loss, **options)
        found = fit_few(model, array(X), rank, loss, **options)
        for key, value in arrays_of(expected).items():
            assert_close(arrays_of(found)[key], array(value), rtol=1e-6, atol=1e-7)
        assert found.objective == pytest.approx(expected.objective, rel=1e-10)

    def test_same_start_gives_the_minimum_of_numpy(self, array):
        X, factors = data(), start("cp")
        options = {"init": factors, "rho": 0.02}
        expected = wtf.cp(X, 2, LOSSES["unbalanced"], **options)
        found = wtf.cp(array(X), 2, LOSSES["unbalanced"], **options)
        assert found.objective == pytest.approx(expected.objective, rel=1e-8)
        assert_same_factors(found.factors, expected.factors, rtol=1e-4)

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_same_seed_is_bit_equal(self, array, solver):
        X = array(data())
        first, second = (fit_few("cp", X, 2, LOSSES["KL"], rng=3, solver=solver) for _ in range(2))
        assert first.objective == second.objective
        for a, b in zip(first.factors, second.factors, strict=True):
            assert (to_numpy(a) == to_numpy(b)).all()

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_fixed_factors_are_unchanged(self, array, solver):
        factors = [array(f / f.sum(axis=0)) for f in start("cp")]
        kept = [to_numpy(f) for f in factors]
        fit = fit_few(
            "cp", array(data()), 2, LOSSES["KL"], init=factors, fixed=(1, -1), solver=solver
        )
        for k in (1, 2):
            assert (to_numpy(fit.factors[k]) == kept[k]).all()
        assert (to_numpy(fit.factors[0]) != kept[0]).any()

    def test_given_arrays_are_untouched(self, array):
        X, weight = array(data()), array(np.arange(1.0, 7.0))
        factors = [array(f) for f in start("cp")]
        given = [X, *factors, weight]
        before = [to_numpy(a) for a in given]
        fit_few("cp", X, 2, LOSSES["KL"], init=factors, sample_weight=weight)
        for a, b in zip(given, before, strict=True):
            assert (to_numpy(a) == b).all()

    @numpy_only
    def test_float32_finds_the_minimum_of_float64(self, array):
        for loss in (LOSSES["unbalanced"], LOSSES["KL"]):
            low, high = (
                wtf.cp(array(data(), dtype), 2, loss, rho=0.02, init=start("cp"))
                for dtype in ("float32", "float64")
            )
            assert low.objective == pytest.approx(high.objective, rel=1e-4)


@numpy_only
class TestConstraints:
    @pytest.mark.parametrize(("model", "name"), MODELS_AND_LOSSES)
    def test_defaults_hold(self, array, model, name):
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
    def test_every_constraint_of_every_factor(self, k, constraint, solver):
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
    def test_core(self, constraint):
        constraints = ("rows", "columns", "columns", constraint)
        fit = fit_few(
            "tucker", data(), (2, 2, 2), LOSSES["unbalanced"], constraints=constraints, rng=0
        )
        assert (abs(fit.core.sum() - 1.0) < 1e-12) == (constraint == "all")

    def test_samples_of_other_masses_leave_the_first_factor_free(self):
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
    def test_ones_when_a_factor_carries_the_mass(self):
        fit = fit_few("cp", data(mass=None), 2, LOSSES["unbalanced"], rng=0)
        assert fit.weights.tolist() == [1.0, 1.0]

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_learned_when_every_factor_is_normalised(self, solver):
        X = data(mass=None)
        fit = wtf.cp(X, 3, transport(shape=SHAPE, eps=0.3), rho=0.02, rng=0, solver=solver)
        assert fit.weights.sum() == pytest.approx(X.sum(), rel=1e-12)
        assert np.ptp(fit.weights) > 1e-3
        assert fit.to_tensor().sum() == pytest.approx(X.sum(), rel=1e-12)
        assert objective_of(X, fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-6)

    def test_fixed_are_equal_shares(self):
        X = data(mass=None)
        loss = transport(shape=SHAPE, eps=0.3)
        fit = wtf.cp(X, 3, loss, rho=0.02, rng=0, weights="fixed")
        np.testing.assert_allclose(fit.weights, X.sum() / 3, rtol=1e-14)
        assert len(fit.rho) == 3
        assert wtf.cp(X, 3, loss, rho=0.02, init=fit.factors).objective < fit.objective + 0.01


@numpy_only
class TestObjective:
    @pytest.mark.parametrize(("model", "name"), MODELS_AND_LOSSES)
    def test_is_that_of_the_factors_within_gap(self, model, name):
        X, rank, loss = problem(model, name)
        fit = run(model, X, rank, loss, rho=0.02, rng=0)
        true, slack = objective_of(X, fit), 1e-9 * abs(fit.objective)
        assert fit.objective - slack <= true <= fit.objective + fit.gap + slack

    @pytest.mark.parametrize(
        ("solver", "model", "name"),
        [("envelope", *pair) for pair in MODELS_AND_LOSSES]
        + [("dual", model, name) for model in RANKS for name in ("unbalanced", "Frobenius")],
    )
    def test_true_objective_never_rises(self, solver, model, name):
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

    def test_more_smoothing_levels_change_the_way_not_the_end(self):
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
    def test_too_few_iterations_warn_once_and_say_what_to_change(self, array, solver):
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
    def test_an_uncertified_objective_does_not_converge(self, monkeypatch):
        monkeypatch.setattr("wtfarray._fit.driver.FINAL_ITERATIONS", 1)
        monkeypatch.setattr("wtfarray._fit.driver.CERTIFIED", -1.0)
        with unfinished("choose a larger eps"):
            assert not wtf.cp(data(), 2, LOSSES["unbalanced"], rng=0).converged

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_callback_sees_every_step_and_can_stop(self, array, solver):
        X, states = array(data()), []

        def stop(state):
            states.append(state)
            return state.n_iter == 3

        with unfinished("stopped by the callback"):
            fit = wtf.cp(X, 2, LOSSES["KL"], rng=0, solver=solver, callback=stop)
        assert [state.n_iter for state in states] == [1, 2, 3]
        assert fit.n_iter == 3
        assert not fit.converged
        times = [state.time for state in states]
        assert times == sorted(times)
        assert times[0] > 0
        assert all(isinstance(state, wtf.FitState) for state in states)
        assert [r.objective for r in fit.history[:3]] == [s.objective for s in states]
        assert [r.evaluations for r in fit.history[:3]] == [s.evaluations for s in states]
        for a, b in zip(states[-1].blocks(), fit.factors, strict=True):
            assert (to_numpy(a) == to_numpy(b)).all()

    @numpy_only
    def test_callback_may_return_a_bool_of_numpy(self):
        stop = np.asarray([True])
        with unfinished("stopped by the callback"):
            fit = wtf.cp(data(), 2, LOSSES["KL"], rng=0, callback=lambda _: stop[0])
        assert fit.stopped

    @numpy_only
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_states_keep_their_blocks(self, solver):
        states = []

        def keep(state):
            states.append((state, [np.array(block) for block in state.blocks()]))

        run("cp", data(), 2, LOSSES["unbalanced"], solver=solver, rng=0, callback=keep, tol=1e-3)
        assert len(states) >= 2
        for state, blocks in states:
            assert_same_factors(state.blocks(), blocks, rtol=0)

    @numpy_only
    def test_callback_that_returns_something_else_goes_on(self):
        assert wtf.cp(data(), 2, LOSSES["KL"], rng=0, callback=lambda _: None).converged

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
    def test_interrupt_of_the_certificate(self, monkeypatch):
        certify = driver._certify

        def interrupted(problem, blocks, *rest):
            if len(rest) == 1:
                raise KeyboardInterrupt
            return certify(problem, blocks, *rest)

        monkeypatch.setattr(driver, "_certify", interrupted)
        with unfinished("interrupted"):
            fit = wtf.cp(data(), 2, LOSSES["unbalanced"], rng=0)
        assert fit.stopped
        assert objective_of(data(), fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)

    @numpy_only
    def test_interrupt_before_a_later_start_has_begun(self, monkeypatch):
        start, calls = driver._start, []

        def interrupted(*arguments):
            calls.append(None)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return start(*arguments)

        monkeypatch.setattr(driver, "_start", interrupted)
        with unfinished("interrupted"):
            fit = wtf.cp(data(), 2, LOSSES["KL"], rng=0, n_init=3)
        monkeypatch.undo()
        assert fit.objective == wtf.cp(data(), 2, LOSSES["KL"], rng=0).objective

    @numpy_only
    def test_other_errors_of_a_callback_are_not_swallowed(self):
        def fail(state):
            raise RuntimeError(state.n_iter)

        with pytest.raises(RuntimeError, match="1"):
            wtf.cp(data(), 2, LOSSES["KL"], rng=0, callback=fail)

    @numpy_only
    def test_progress_shows_a_bar(self, capsys):
        pytest.importorskip("tqdm")
        wtf.cp(data(), 2, LOSSES["KL"], rng=0, progress=True)
        shown = capsys.readouterr()
        assert "cp" in shown.err
        assert "objective" in shown.err
        assert "gap" in shown.err
        assert shown.out == ""

    @numpy_only
    def test_quiet_by_default(self, capsys):
        wtf.cp(data(), 2, LOSSES["KL"], rng=0)
        assert capsys.readouterr() == ("", "")


class TestInit:
    @numpy_only
    @pytest.mark.parametrize("init", ["kl", "random", "nnsvd"])
    @pytest.mark.parametrize("model", RANKS)
    def test_names(self, model, init):
        fit = run(model, data(), RANKS[model], LOSSES["unbalanced"], rho=0.02, rng=0, init=init)
        best = run(model, data(), RANKS[model], LOSSES["unbalanced"], rho=0.02, rng=0, n_init=3)
        assert fit.converged
        assert fit.objective == pytest.approx(best.objective, rel=0.01)

    @numpy_only
    def test_n_init_returns_the_best(self):
        options = {"rho": 1e-3, "init": "random"}
        rng = np.random.default_rng(5)
        single = [wtf.cp(data(), 3, LOSSES["KL"], rng=rng, **options) for _ in range(4)]
        objectives = [fit.objective for fit in single]
        best = wtf.cp(data(), 3, LOSSES["KL"], rng=5, n_init=4, **options)
        assert min(objectives) < max(objectives)
        assert best.objective == min(objectives)

    @numpy_only
    @pytest.mark.parametrize("model", RANKS)
    def test_a_fit_is_a_start(self, model):
        options = {"rho": 0.02}
        first = run(model, data(), RANKS[model], LOSSES["KL"], rng=0, **options)
        for init in (first, tuple(first)):
            again = run(model, data(), RANKS[model], LOSSES["KL"], init=init, **options)
            assert again.n_iter <= 10
            assert again.objective <= first.objective + 1e-9

    @numpy_only
    def test_learned_weights_are_a_start(self):
        X, loss = data(mass=None), transport(shape=SHAPE, eps=0.3)
        first = wtf.cp(X, 3, loss, rho=0.02, rng=0)
        kept = wtf.cp(X, 3, loss, rho=0.02, init=(first.weights, first.factors))
        assert kept.n_iter <= 10
        assert kept.objective == pytest.approx(first.objective, rel=1e-5)
        alone = wtf.cp(X, 3, loss, rho=0.02, init=first.factors)
        assert alone.objective == pytest.approx(first.objective, rel=1e-3)

    @numpy_only
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_zeros_can_grow(self, solver):
        A, B = start("nmf", (5, 8))
        A[0, 0] = B[3, 1] = 0.0
        kept = A.copy(), B.copy()
        options = {"rho": 0.02, "solver": solver}
        loss = transport(shape=(8,))
        fit = wtf.nmf(data((5, 8)), 2, loss, init=[A, B], **options)
        assert fit.factors[0][0, 0] > 1e-3
        assert fit.factors[1][3, 1] > 1e-3
        assert (kept[0] == A).all()
        assert (kept[1] == B).all()

    @numpy_only
    def test_integer_data_and_read_only_arrays(self):
        X = np.random.default_rng(0).integers(0, 9, SHAPE)
        X.flags.writeable = False
        fit = wtf.cp(X, 2, LOSSES["unbalanced"], rho=0.02, rng=0)
        assert fit.factors[0].dtype == np.float64
        same = wtf.cp(X.astype(float), 2, LOSSES["unbalanced"], rho=0.02, rng=0)
        assert fit.objective == same.objective

    def test_gradients_are_not_recorded(self, xp, array):
        if not is_torch_namespace(xp):
            pytest.skip("autograd is torch's")
        fit = fit_few("cp", array(data()).requires_grad_(), 2, LOSSES["KL"], rng=0)
        assert not any(found.requires_grad for found in arrays_of(fit).values())
