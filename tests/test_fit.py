"""The three factorisations: what comes out, what must hold of it, and what is refused."""

import math
import sys
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
from array_api_compat import (
    array_namespace,
    device,
    is_jax_namespace,
    is_numpy_namespace,
    is_torch_namespace,
)
from helpers import assert_close, to_numpy
from sklearn.decomposition import NMF

import wtfarray as wtf

SHAPE = (6, 5, 4)
RANKS = {"cp": 2, "tucker": (2, 2, 2), "nmf": 2}
WHOLE = {"modes": (0, 1, 2)}


@pytest.fixture
def on_numpy(xp):
    """
    Skip all libraries but NumPy.

    A fit takes seconds on array-api-strict, and JAX compiles every shape it meets. What every
    library has to do is tested on all of them; a law of the solution is tested on one.
    """
    if not is_numpy_namespace(xp):
        pytest.skip("a law of the solution, whatever the library: tested with NumPy")


def spare_jax(xp):
    """Skip JAX: it compiles each operation for each shape and dtype, 20 s for a new layout."""
    if is_jax_namespace(xp):
        pytest.skip("JAX would compile for too long: other shapes and dtypes are tested with it")


numpy_only = pytest.mark.usefixtures("on_numpy")


def data(shape=SHAPE, seed=0, mass=1.0):
    """Positive data; ``mass`` of each sample, or None for samples of different masses."""
    X = np.random.default_rng(seed).gamma(1.0, size=shape) + 0.01
    if mass is not None:
        X *= mass / X.sum(axis=tuple(range(1, X.ndim)), keepdims=True)
    return X


def planted(model, shape=SHAPE, noise=0.05, seed=0):
    """Data of two components well apart, and a start near them: one minimum is in reach."""
    rng = np.random.default_rng(seed)
    factors = []
    for k, n in enumerate(shape):
        x = np.linspace(0.0, 1.0, n)[:, None]
        bumps = np.exp(-(((x - [0.1, 0.9]) / 0.35) ** 2))
        factors.append(rng.dirichlet([0.7, 0.7], n) if k == 0 else bumps / bumps.sum(axis=0))
    X = wtf.cp_to_tensor(factors) * rng.uniform(1.0 - noise, 1.0 + noise, shape)
    X /= X.sum(axis=tuple(range(1, X.ndim)), keepdims=True)
    if model == "nmf":
        atoms = np.einsum("ir,jr->ijr", *factors[1:]) if len(shape) == 3 else factors[1]
        factors = [factors[0], atoms.reshape(-1, 2)]
    factors = [f * rng.uniform(0.5, 1.5, f.shape) + 0.02 for f in factors]
    if model != "tucker":
        return X, factors
    core = np.full((2,) * len(shape), 0.05)
    core[(0,) * len(shape)] = core[(1,) * len(shape)] = 1.0
    return X, (core, factors)


def transport(eps=0.2, lam=5.0, shape=SHAPE[1:], **options):
    return wtf.Wasserstein(wtf.grid_cost(*shape), eps, lam, **options)


def fibres():
    """The sum of transport along two modes."""
    first, second = wtf.grid_cost(*SHAPE[1:])
    return wtf.LossSum(
        wtf.Wasserstein(first, 0.3, 5.0, modes=(1,)), wtf.Wasserstein(second, 0.3, 2.0, modes=(2,))
    )


LOSSES = {
    "unbalanced": transport(),
    "balanced": transport(lam=math.inf),
    "Frobenius": wtf.Frobenius(),
    "KL": wtf.KullbackLeibler(),
    "sum": fibres(),
}
# No constraints of a Tucker model with samples conserve mass: there the whole tensor is moved.
WHOLE_BALANCED = transport(shape=SHAPE, lam=math.inf)
MODELS_AND_LOSSES = [(model, name) for model in RANKS for name in LOSSES]


def problem(model, name):
    """Data, rank and loss."""
    if (model, name) == ("tucker", "balanced"):
        X = data(mass=None)
        return X / X.sum(), RANKS[model], WHOLE_BALANCED
    return data(), RANKS[model], LOSSES[name]


def start(model, shape=SHAPE, rank=2, seed=1):
    """Positive factors to start from, and a core for Tucker."""
    rng = np.random.default_rng(seed)
    sizes = (shape[0], math.prod(shape[1:])) if model == "nmf" else shape
    factors = [rng.uniform(0.1, 1.0, (n, rank)) for n in sizes]
    if model == "tucker":
        return rng.uniform(0.1, 1.0, (rank,) * len(shape)), factors
    return factors


def arrays_of(fit):
    """All arrays of a fit, by name."""
    named = {f"factors[{k}]": factor for k, factor in enumerate(fit.factors)}
    named |= {"core": fit.core, "weights": fit.weights, "dual": fit.dual}
    return {name: value for name, value in named.items() if value is not None}


def entropy(a):
    a = to_numpy(a)
    return float(np.sum(a * np.log(np.where(a > 0, a, 1.0)) - a))


def loss_of(X, Y, loss):
    """The loss, solved again on its own."""
    if isinstance(loss, wtf.LossSum):
        return sum(loss_of(X, Y, part) for part in loss.losses)
    if isinstance(loss, wtf.Wasserstein):
        return float(wtf.wasserstein(X, Y, loss, tol=1e-10, max_iter=20_000).value)
    if isinstance(loss, wtf.Frobenius):
        return 0.5 * float(np.sum((X - Y) ** 2))
    return float(np.sum(X * np.log(X / Y) - X + Y))


def blocks_of(fit):
    """The factors, then the core or what was learned of the weights."""
    if fit.core is not None:
        return [*fit.factors, fit.core]
    if len(fit.rho) > len(fit.factors):
        return [*fit.factors, fit.weights / float(np.sum(fit.weights))]
    return list(fit.factors)


def objective_of(X, fit):
    """The objective, from the definition."""
    entropies = sum(r * entropy(b) for r, b in zip(fit.rho, blocks_of(fit), strict=True))
    return loss_of(X, fit.to_tensor(), fit.loss) + entropies


@contextmanager
def unfinished(match="max_iter"):
    """Expect one warning of a fit that stops early."""
    with pytest.warns(UserWarning, match=match) as caught:
        yield caught
    assert len(caught) == 1


def run(model, X, rank, loss, **options):
    return getattr(wtf, model)(X, rank, loss, **options)


def fit_few(model, X, rank, loss, **options):
    """Few iterations; what they say about it is tested elsewhere."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f"{model}: stopped after max_iter")
        return run(model, X, rank, loss, max_iter=2, tol=1e-14, **options)


def assert_same_factors(found, expected, rtol, atol=0.0):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=rtol, atol=atol)


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
        monkeypatch.setattr("wtfarray._run.FINAL_ITERATIONS", 1)
        monkeypatch.setattr("wtfarray._run.CERTIFIED", -1.0)
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


@numpy_only
class TestSolversAgree:
    @pytest.mark.parametrize(
        ("model", "name"), [pair for pair in MODELS_AND_LOSSES if pair[1] != "sum"]
    )
    def test_from_the_same_start(self, model, name):
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
    def test_from_far_away(self, model, lam):
        """The dual of one block is no good start for the next: the descent must cope."""
        options = {"rho": 0.01, "rng": 0}
        loss = transport(eps=0.1, lam=lam)
        joint, blockwise = (
            run(model, data(), 2, loss, solver=solver, **options) for solver in ("envelope", "dual")
        )
        assert blockwise.n_iter > 1
        assert blockwise.objective == pytest.approx(joint.objective, rel=0.05)

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_one_free_block_is_convex(self, solver):
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
class TestLaws:
    def test_forbidden_transport_is_kl_nmf(self):
        """Nothing may move: lam KL(X|Y) + eps E(X)."""
        X, (A, B) = planted("nmf", (10, 8), noise=0.5)
        cost = np.where(np.eye(8) > 0, 0.0, math.inf)
        fit = wtf.nmf(
            X,
            2,
            wtf.Wasserstein(cost, 0.1, 1.0),
            rho=1e-7,
            constraints=(None, None),
            init=(A, B),
            tol=1e-9,
        )
        reference = NMF(
            2, init="custom", solver="mu", beta_loss="kullback-leibler", tol=1e-9, max_iter=20_000
        )
        W = reference.fit_transform(X, W=A.copy(), H=B.T.copy())
        expected = loss_of(X, W @ reference.components_, wtf.KullbackLeibler())
        found = loss_of(X, fit.to_tensor(), wtf.KullbackLeibler())
        assert found == pytest.approx(expected, rel=1e-4)
        assert fit.objective == pytest.approx(found + 0.1 * entropy(X), rel=1e-5)

    @pytest.mark.parametrize("lam", [5.0, math.inf])
    def test_scaling(self, lam):
        s, X = 3.0, data()
        costs = wtf.grid_cost(*SHAPE[1:])
        plain, scaled = (
            wtf.cp(
                X,
                2,
                wtf.Wasserstein([c * t for c in costs], 0.2 * t, lam * t),
                rho=0.02 * t,
                init=start("cp"),
                tol=1e-9,
            )
            for t in (1.0, s)
        )
        assert scaled.objective == pytest.approx(s * plain.objective, rel=1e-9)
        assert_same_factors(scaled.factors, plain.factors, rtol=1e-4)

    @pytest.mark.parametrize("model", RANKS)
    def test_permuted_samples_permute_rows(self, model):
        X, order = data(), np.random.default_rng(2).permutation(SHAPE[0])
        init = start(model)
        core, factors = init if model == "tucker" else (None, init)
        moved = [factors[0][order], *factors[1:]]
        options = {"rho": 0.02, "tol": 1e-9}
        plain = run(model, X, RANKS[model], LOSSES["unbalanced"], init=init, **options)
        mixed = run(
            model,
            X[order],
            RANKS[model],
            LOSSES["unbalanced"],
            init=moved if core is None else (core, moved),
            **options,
        )
        assert mixed.objective == pytest.approx(plain.objective, rel=1e-8)
        assert_same_factors(
            mixed.factors, [plain.factors[0][order], *plain.factors[1:]], rtol=1e-3, atol=1e-4
        )

    def test_mode_order_does_not_matter(self):
        X, factors = data(), start("cp")
        costs = wtf.grid_cost(SHAPE[0], SHAPE[2])
        constraints = ("columns", "rows", "columns")
        plain = wtf.cp(
            X,
            2,
            wtf.Wasserstein(costs, 0.2, 5.0, modes=(0, 2)),
            constraints=constraints,
            init=factors,
            rho=0.02,
            tol=1e-9,
        )
        turned = wtf.cp(
            X.transpose(1, 0, 2),
            2,
            wtf.Wasserstein(costs, 0.2, 5.0),
            constraints=[constraints[k] for k in (1, 0, 2)],
            init=[factors[k] for k in (1, 0, 2)],
            rho=0.02,
            tol=1e-9,
        )
        assert turned.objective == pytest.approx(plain.objective, rel=1e-9)
        assert_same_factors(turned.factors, [plain.factors[k] for k in (1, 0, 2)], rtol=1e-4)

    def test_matrix_of_images_is_a_matrix_of_pixels(self):
        X, (a, b) = data(), wtf.grid_cost(*SHAPE[1:])
        dense = (a[:, None, :, None] + b[None, :, None, :]).reshape(20, 20)
        options = {"init": start("nmf"), "rho": 0.02, "tol": 1e-9}
        grid = wtf.nmf(X, 2, LOSSES["unbalanced"], **options)
        flat = wtf.nmf(X.reshape(6, 20), 2, wtf.Wasserstein(dense, 0.2, 5.0), **options)
        group = wtf.nmf(X, 2, wtf.Wasserstein(dense, 0.2, 5.0, modes=((1, 2),)), **options)
        assert grid.to_tensor().shape == SHAPE
        for other in (flat, group):
            assert other.objective == pytest.approx(grid.objective, rel=1e-9)
            assert_same_factors(other.factors, grid.factors, rtol=1e-4, atol=1e-7)

    def test_sample_weight_two_is_the_sample_twice(self):
        X, (A, B) = planted("nmf", (5, 8), noise=0.5)
        # The entropy of the coefficients counts a sample once: next to nothing here.
        options = {"rho": (1e-7, 0.02), "tol": 1e-8}
        loss, twice = transport(shape=(8,)), [0, 1, 1, 2, 3, 4]
        weight = np.array([1.0, 2.0, 1.0, 1.0, 1.0])
        weighted = wtf.nmf(X, 2, loss, init=[A, B], sample_weight=weight, **options)
        repeated = wtf.nmf(X[twice], 2, loss, init=[A[twice], B], **options)
        assert weighted.objective == pytest.approx(repeated.objective, rel=1e-6)
        expected = [weighted.factors[0][twice], weighted.factors[1]]
        assert_same_factors(repeated.factors, expected, rtol=1e-2, atol=1e-3)
        plain = wtf.nmf(X, 2, loss, init=[A, B], **options)
        assert abs(plain.objective - weighted.objective) > 0.1

    def test_sample_weights_of_both_solvers(self):
        X, init = planted("cp")
        weight = np.arange(1.0, 7.0)
        joint, blockwise = (
            wtf.cp(X, 2, LOSSES["unbalanced"], rho=0.05, init=init, sample_weight=weight, solver=s)
            for s in ("envelope", "dual")
        )
        assert blockwise.objective == pytest.approx(joint.objective, rel=5e-3)

    @pytest.mark.parametrize("name", ["unbalanced", "balanced", "Frobenius", "KL", "sum"])
    def test_equal_sample_weights_scale_the_loss(self, name):
        X, options = data(), {"init": start("cp"), "tol": 1e-9}
        plain, ones, twos = (
            wtf.cp(X, 2, LOSSES[name], rho=0.02 * w, sample_weight=weight, **options)
            for w, weight in ((1.0, None), (1.0, np.ones(6)), (2.0, np.full(6, 2.0)))
        )
        assert ones.objective == pytest.approx(plain.objective, rel=1e-9)
        assert twos.objective == pytest.approx(2.0 * plain.objective, rel=1e-8)
        for other in (ones, twos):
            assert_same_factors(other.factors, plain.factors, rtol=1e-3)

    @pytest.mark.parametrize("lam", [5.0, math.inf])
    @pytest.mark.parametrize("batch", [1, 4, 6, 100])
    def test_batches(self, batch, lam):
        options = {"init": start("cp"), "rho": 0.02, "tol": 1e-9}
        loss = transport(lam=lam)
        whole, parts = (wtf.cp(data(), 2, loss, batch=size, **options) for size in (None, batch))
        assert parts.objective == pytest.approx(whole.objective, rel=1e-7)
        assert_same_factors(parts.factors, whole.factors, rtol=1e-3)

    def test_balanced_is_the_limit_of_lam(self):
        ends = [
            wtf.cp(data(), 2, transport(lam=lam), init=start("cp"), rho=0.02, tol=1e-8).objective
            for lam in (10.0, 1000.0, 1e5, math.inf)
        ]
        off = np.abs(np.array(ends[:-1]) - ends[-1])
        assert off[0] > 10 * off[1] > 100 * off[2]


@numpy_only
class TestShapes:
    SHAPES = ((6,), (5, 4), (4, 3, 3), (3, 3, 2, 2), (3, 2, 2, 2, 2))

    @pytest.mark.parametrize("lam", [5.0, math.inf])
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("model", ["cp", "tucker"])
    def test_all_modes_transported(self, model, shape, lam):
        X = data(shape, mass=None)
        X /= X.sum()
        rank = (2,) * len(shape) if model == "tucker" else 2
        fit = run(model, X, rank, transport(shape=shape, lam=lam), rho=0.02, rng=0)
        assert fit.converged
        assert fit.to_tensor().shape == shape
        assert fit.to_tensor().sum() == pytest.approx(1.0, rel=1e-9)
        assert objective_of(X, fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)

    @pytest.mark.parametrize("shape", SHAPES[1:])
    @pytest.mark.parametrize("model", RANKS)
    def test_last_mode_transported(self, model, shape):
        X = data(shape)
        rank = (2,) * len(shape) if model == "tucker" else 2
        fit = run(model, X, rank, transport(shape=shape[-1:]), rho=0.02, rng=0)
        assert fit.converged
        assert fit.to_tensor().shape == shape
        assert objective_of(X, fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)

    @pytest.mark.parametrize("model", RANKS)
    @pytest.mark.parametrize("rank", [1, 7])
    def test_rank_one_and_rank_above_every_mode(self, model, rank):
        ranks = (rank,) * 3 if model == "tucker" else rank
        fit = run(model, data(), ranks, LOSSES["unbalanced"], rho=0.02, rng=0)
        assert fit.converged
        assert objective_of(data(), fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_a_sample_of_zeros_gets_no_mass(self, solver):
        """Its loss is lam times the mass of the model: exp(-lam/rho) is left of it."""
        X = data((5, 8), mass=None)
        X[2] = 0.0
        fit = wtf.nmf(X, 2, transport(shape=(8,)), rho=0.1, rng=0, solver=solver)
        assert fit.factors[0][2].sum() < 1e-6
        others = wtf.nmf(X[[0, 1, 3, 4]], 2, transport(shape=(8,)), rho=0.1, rng=0, solver=solver)
        assert fit.objective == pytest.approx(others.objective, rel=5e-3)
        assert fit.history[-1].objective == pytest.approx(fit.objective, abs=fit.gap + 1e-6)

    def test_core_of_different_ranks(self):
        core, factors = wtf.tucker(data(), (3, 1, 4), LOSSES["unbalanced"], rho=0.02, rng=0)
        assert core.shape == (3, 1, 4)
        assert [f.shape for f in factors] == [(6, 3), (5, 1), (4, 4)]

    def test_atoms_of_shifted_gaussians_are_at_their_centres(self):
        """Samples mix three bumps that were each moved a little."""
        rng, x = np.random.default_rng(0), np.linspace(0.0, 1.0, 25)
        centres, width = np.array([0.2, 0.5, 0.8]), 0.04
        mixing = rng.dirichlet(np.full(3, 0.5), 24)
        moved = centres + rng.normal(0.0, 0.03, (24, 3))
        bumps = np.exp(-(((x - moved[..., None]) / width) ** 2) / 2)
        X = np.einsum("ij,ijk->ik", mixing, bumps / bumps.sum(axis=2, keepdims=True))
        fit = wtf.nmf(X, 3, transport(eps=0.02, lam=10.0, shape=(25,)), rho=1e-3, rng=0, tol=1e-5)
        order = np.argsort(x @ fit.factors[1])
        atoms, coefficients = fit.factors[1][:, order], fit.factors[0][:, order]
        np.testing.assert_allclose(x @ atoms, centres, atol=0.02)
        np.testing.assert_allclose(x[atoms.argmax(axis=0)], centres, atol=0.05)
        assert np.corrcoef(coefficients.ravel(), mixing.ravel())[0, 1] > 0.98


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


GOOD = {"rho": 0.02, "rng": 0}
BAD = {
    "unknown constraint": ({"constraints": ("rows", "cols", None)}, r"constraints\[1\] is 'cols'"),
    "too few constraints": ({"constraints": ("rows",)}, "constraints is .*expected 3"),
    "a word for constraints": ({"constraints": "rows"}, "constraints is 'rows'"),
    "rho zero": ({"rho": 0.0}, "rho is 0.0"),
    "rho negative": ({"rho": (0.1, -1.0, 0.1)}, r"rho\[1\] is -1.0"),
    "rho infinite": ({"rho": math.inf}, "rho is inf"),
    "too many rho": ({"rho": (0.1,) * 5}, "rho has 5 entries"),
    "unknown solver": ({"solver": "newton"}, "solver is 'newton'"),
    "unknown init": ({"init": "svd"}, "init is 'svd'"),
    "unknown weights": ({"weights": "free"}, "weights is 'free'"),
    "tol": ({"tol": 0.0}, "tol is 0.0"),
    "max_iter": ({"max_iter": 0}, "max_iter is 0"),
    "n_init": ({"n_init": 0}, "n_init is 0"),
    "batch": ({"batch": 0}, "batch is 0"),
    "fixed without init": ({"fixed": (1,)}, "init is None"),
    "fixed with a name": ({"fixed": (1,), "init": "kl"}, "init is 'kl'"),
    "fixed out of range": ({"fixed": (3,), "init": start("cp")}, "fixed is 3"),
    "all fixed": ({"fixed": (0, 1, 2), "init": start("cp")}, "fixed is"),
    "too few factors": ({"init": start("cp")[:2]}, "init .*expected .*3 factors"),
    "shape of a factor": ({"init": start("cp", rank=3)}, r"factor 0 of init has shape \(6, 3\)"),
    "negative factor": (
        {"init": [-start("cp")[0], *start("cp")[1:]]},
        r"factor 0 of init is -.* expected non-negative",
    ),
    "shape of sample_weight": ({"sample_weight": np.ones(5)}, r"sample_weight has shape \(5,\)"),
    "negative sample_weight": ({"sample_weight": -np.ones(6)}, "sample_weight is -1.0"),
    "checkpoint of many": ({"checkpoint": "some.npz", "n_init": 2}, "checkpoint .*n_init"),
    "checkpoint of dual": ({"checkpoint": "some.npz", "solver": "dual"}, "solver is 'dual'.*check"),
}


class TestRefused:
    @pytest.mark.parametrize("case", BAD)
    def test_arguments(self, array, case):
        options, match = BAD[case]
        with pytest.raises(ValueError, match=match):
            wtf.cp(array(data()), 2, LOSSES["unbalanced"], **(GOOD | options))

    @numpy_only
    @pytest.mark.parametrize("rank", [0, -1, 1.5, True, "2"])
    def test_rank(self, rank):
        for fit in (wtf.cp, wtf.nmf):
            with pytest.raises((TypeError, ValueError), match="rank is"):
                fit(data(), rank, LOSSES["KL"])
        with pytest.raises((TypeError, ValueError), match=r"rank\[2\] is"):
            wtf.tucker(data(), (1, 1, rank), LOSSES["KL"])

    @numpy_only
    @pytest.mark.parametrize("rank", [2, (2, 2), (2,) * 4])
    def test_number_of_tucker_ranks(self, rank):
        with pytest.raises(ValueError, match=r"rank is .*expected 3"):
            wtf.tucker(data(), rank, LOSSES["KL"])

    @numpy_only
    def test_rows_of_a_core(self):
        with pytest.raises(ValueError, match=r"constraints\[3\] is 'rows'"):
            wtf.tucker(data(), (2, 2, 2), LOSSES["KL"], constraints=(None, None, None, "rows"))

    @numpy_only
    @pytest.mark.parametrize("model", RANKS)
    def test_unknown_keyword(self, model):
        with pytest.raises(TypeError, match=rf"{model}\(\).*'iterations'"):
            run(model, data(), RANKS[model], LOSSES["KL"], iterations=3)

    @numpy_only
    @pytest.mark.parametrize("model", ["tucker", "nmf"])
    def test_weights_are_those_of_cp(self, model):
        with pytest.raises(TypeError, match="weights"):
            run(model, data(), RANKS[model], LOSSES["KL"], weights="fixed")

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    @pytest.mark.parametrize(
        "constraints",
        [(None, None), ("columns", "columns"), ("rows", None), ("rows", "rows"), ("all", "all")],
    )
    def test_balanced_without_conservation_of_mass(self, array, constraints, solver):
        with pytest.raises(ValueError, match=r"constraints is .*balanced .*finite lam"):
            wtf.nmf(
                array(data()), 2, LOSSES["balanced"], constraints=constraints, solver=solver, **GOOD
            )

    @numpy_only
    def test_balanced_with_samples_of_other_masses(self):
        with pytest.raises(ValueError, match="weighs"):
            wtf.nmf(data(mass=None), 2, LOSSES["balanced"], constraints=("rows", "columns"), **GOOD)

    @numpy_only
    def test_dual_of_a_sum(self):
        with pytest.raises(ValueError, match=r"solver is 'dual'.*sum of losses"):
            wtf.cp(data(), 2, LOSSES["sum"], solver="dual")

    @numpy_only
    def test_samples_that_are_transported_have_no_weight(self):
        with pytest.raises(ValueError, match="sample_weight"):
            wtf.cp(data(), 2, transport(shape=SHAPE), sample_weight=np.ones(6))

    @numpy_only
    @pytest.mark.parametrize("loss", ["KL", None])
    def test_loss(self, loss):
        with pytest.raises(TypeError, match="loss is"):
            wtf.cp(data(), 2, loss)

    @numpy_only
    def test_core_of_another_shape(self):
        _, factors = start("tucker")
        with pytest.raises(ValueError, match=r"init.* has shape \(3, 2, 2\)"):
            wtf.tucker(data(), (2, 2, 2), LOSSES["KL"], init=(np.ones((3, 2, 2)), factors))

    @numpy_only
    def test_matrix_of_one_mode(self):
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
    def test_data(self, change, match):
        with pytest.raises(ValueError, match=match):
            wtf.cp(change(data()), 2, LOSSES["unbalanced"])

    @numpy_only
    def test_progress_without_tqdm(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        with pytest.raises(ImportError, match="tqdm"):
            wtf.cp(data(), 2, LOSSES["KL"], progress=True)
