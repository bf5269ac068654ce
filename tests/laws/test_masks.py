"""Laws of fits to data with missing entries: a bin that was not observed does not exist."""

import math

import numpy as np
import pytest
from fitting import LOSSES, SHAPE, arrays_of, data, entropies_of, fit_few, planted, transport
from helpers import numpy_only, set_thresholds, to_numpy, without_escape
from hypothesis import given, settings
from hypothesis import strategies as st
from own_losses import LeastSquares, PseudoHuber

import wtfarray as wtf

pytestmark = without_escape

FINITE = [name for name in LOSSES if name != "balanced"]
SEEDS = st.integers(0, 2**32 - 1)


class MaskedLeastSquares(LeastSquares):
    def masked_value_and_gradient(self, X, Y, mask):
        values, gradient = self.value_and_gradient(X * mask, Y * mask)
        return values, np.where(mask, gradient, np.nan)  # ignored where nothing was observed


def some(shape, seed=0, share=0.7):
    """A mask with an observed entry in every sample."""
    mask = np.random.default_rng(seed).random(shape) < share
    mask[(slice(None),) + (0,) * (len(shape) - 1)] = True
    return mask


def spoilt(X, mask):
    """The data with NaN where nothing was observed."""
    return np.where(mask, X, np.nan)


def tight(X, Y, loss, **options):
    return wtf.wasserstein(X, Y, loss, tol=1e-11, max_iter=20_000, **options)


@numpy_only
class TestLoss:
    @pytest.mark.parametrize("debias", [False, True])
    @given(seed=SEEDS, lam=st.sampled_from([0.3, 5.0, 50.0]))
    @settings(max_examples=10)
    def test_a_missing_bin_does_not_exist(self, seed, lam, debias):
        """Sample by sample, the loss is that on the observed bins and their costs alone."""
        X, Y, mask = data((3, 6), seed), data((3, 6), seed + 1, 1.4), some((3, 6), seed)
        (cost,) = wtf.grid_cost(6)
        loss = wtf.Wasserstein(cost, 0.1, lam, debias=debias)
        found = tight(spoilt(X, mask), spoilt(Y, mask), loss, mask=mask)
        assert found.converged
        total, gradient = 0.0, np.zeros_like(Y)
        for i, kept in enumerate(mask):
            alone = wtf.Wasserstein(cost[np.ix_(kept, kept)], 0.1, lam, debias=debias)
            part = tight(X[i, kept], Y[i, kept], alone)
            total += float(part.value)
            gradient[i, kept] = part.gradient
        assert float(found.value) == pytest.approx(total, rel=1e-8, abs=1e-9)
        np.testing.assert_allclose(found.gradient, gradient, rtol=1e-4, atol=1e-5 * lam)

    @given(seed=SEEDS)
    @settings(max_examples=10)
    def test_the_gradient_is_that_of_differences(self, seed):
        X, Y, mask = data((2, 5), seed), data((2, 5), seed + 1), some((2, 5), seed)
        loss, step = transport(shape=(5,)), 1e-4
        direction = np.random.default_rng(seed).uniform(-1.0, 1.0, Y.shape) * Y
        up, down = (
            float(tight(X, Y + t * direction, loss, mask=mask).value) for t in (step, -step)
        )
        gradient = tight(X, Y, loss, mask=mask).gradient
        expected = float(np.sum(gradient * direction))
        assert (up - down) / (2 * step) == pytest.approx(expected, rel=1e-4, abs=1e-5)

    @given(seed=SEEDS)
    @settings(max_examples=10)
    def test_masked_samples_are_left_out(self, seed):
        X, Y = data((4, 5), seed), data((4, 5), seed + 1)
        kept = np.array([True, False, True, False])
        for loss in (transport(shape=(5,)), transport(shape=(5,), lam=math.inf)):
            found = wtf.wasserstein(X, Y, loss, mask=kept[:, None])
            alone = wtf.wasserstein(X[kept], Y[kept], loss)
            assert float(found.value) == pytest.approx(float(alone.value), abs=1e-6)
            assert not found.gradient[~kept].any()
            np.testing.assert_allclose(found.gradient[kept], alone.gradient, atol=1e-2)

    @pytest.mark.parametrize("name", ["unbalanced", "balanced"])
    def test_a_mask_of_true_changes_nothing(self, name):
        X, Y = data(), data(seed=1)
        plain = wtf.wasserstein(X, Y, LOSSES[name])
        found = wtf.wasserstein(X, Y, LOSSES[name], mask=np.ones(SHAPE[1:], dtype=bool))
        assert float(found.value) == float(plain.value)
        np.testing.assert_array_equal(found.gradient, plain.gradient)
        np.testing.assert_array_equal(found.potential, plain.potential)

    def test_a_potential_is_a_warm_start(self):
        X, Y, mask = data(), data(seed=1), some(SHAPE)
        first = wtf.wasserstein(X, Y, LOSSES["unbalanced"], mask=mask)
        again = wtf.wasserstein(X, Y, LOSSES["unbalanced"], mask=mask, potential=first.potential)
        assert again.n_iter < first.n_iter
        assert np.isfinite(first.potential).all()


@numpy_only
class TestFits:
    @pytest.mark.parametrize("name", LOSSES)
    @pytest.mark.parametrize("model", ["cp", "nmf"])
    def test_a_mask_of_true_changes_nothing(self, model, name):
        X = data()
        options = {"rho": 0.02, "rng": 0}
        plain = fit_few(model, X, 2, LOSSES[name], **options)
        found = fit_few(model, X, 2, LOSSES[name], mask=np.ones(SHAPE, dtype=bool), **options)
        assert found.objective == plain.objective
        for a, b in zip(arrays_of(found).values(), arrays_of(plain).values(), strict=True):
            np.testing.assert_array_equal(a, b)

    @pytest.mark.parametrize("name", FINITE)
    @pytest.mark.parametrize(("model", "rank"), [("cp", 2), ("tucker", (2, 2, 2)), ("nmf", 2)])
    def test_values_under_the_mask_are_ignored(self, model, rank, name):
        X, mask = data(), some(SHAPE)
        options = {"rho": 0.02, "rng": 0, "mask": mask}
        plain = fit_few(model, np.where(mask, X, 0.0), rank, LOSSES[name], **options)
        found = fit_few(model, spoilt(X, mask), rank, LOSSES[name], **options)
        assert found.objective == plain.objective
        assert not found.dual[~mask].any()
        np.testing.assert_array_equal(found.to_tensor(), plain.to_tensor())

    @pytest.mark.parametrize("name", ["unbalanced", "Frobenius", "KL"])
    def test_both_solvers_certify_the_same_minimum(self, name):
        """From the definition: the loss of what was observed, and the entropies."""
        X, factors = planted("nmf")
        loss, mask = LOSSES[name], some(SHAPE)
        options = {"rho": 0.2, "init": factors, "tol": 1e-6, "mask": mask}
        objectives = []
        for solver in ("envelope", "dual"):
            fit = wtf.nmf(spoilt(X, mask), 2, loss, solver=solver, **options)
            assert fit.converged
            Y, seen = fit.to_tensor(), np.where(mask, X, 0.0)
            if name == "unbalanced":
                value = float(tight(X, Y, loss, mask=mask).value)
            elif name == "Frobenius":
                value = 0.5 * float(np.sum((seen - Y)[mask] ** 2))
            else:
                value = float(np.sum((X * np.log(X / Y) - X + Y)[mask]))
            value += entropies_of(fit)
            assert fit.objective - 1e-9 <= value <= fit.objective + fit.gap + 1e-9
            objectives.append(value)
        assert objectives[0] == pytest.approx(objectives[1], rel=1e-3)

    @pytest.mark.parametrize("name", ["unbalanced", "balanced", "Frobenius", "KL"])
    def test_masked_samples_are_left_out(self, name):
        """Everything else is as without them; their coefficients are the means of the others."""
        X, factors = planted("nmf")
        kept = np.array([True, True, False, True, False, True])
        weight = np.random.default_rng(0).uniform(0.5, 2.0, 6)
        options = {"tol": 1e-3, "rng": 0}
        for init, own in ((None, None), (factors, [factors[0][kept], factors[1]])):
            found = wtf.nmf(
                X,
                2,
                LOSSES[name],
                init=init,
                mask=kept[:, None, None],
                sample_weight=weight,
                axes=[wtf.Axis("sample", list("abcdef")), None, None],
                **options,
            )
            alone = wtf.nmf(
                X[kept], 2, LOSSES[name], init=own, sample_weight=weight[kept], **options
            )
            assert found.constraints == alone.constraints == ("rows", "columns")
            assert found.objective == alone.objective
            assert found.rho == alone.rho
            assert np.array_equal(found.factors[0][kept], alone.factors[0])
            assert np.array_equal(found.factors[1], alone.factors[1])
            assert np.array_equal(found.dual[kept], alone.dual)
            assert not found.dual[~kept].any()
            mean = alone.factors[0].mean(axis=0, keepdims=True)
            np.testing.assert_allclose(found.factors[0][~kept], mean.repeat(2, 0), rtol=1e-12)
            assert found.to_tensor().shape == X.shape
            assert found.axis(0).values == tuple("abcdef")

    def test_projected_samples_of_which_nothing_was_observed(self):
        X, factors = planted("nmf")
        fit = wtf.nmf(X, 2, LOSSES["KL"], init=factors, constraints=(None, "columns"), tol=1e-3)
        mask = np.ones(X.shape, dtype=bool)
        mask[1], mask[3, 0] = False, False
        found, kept = fit.projection(3 * X, mask=mask), np.arange(6) != 1
        alone = fit.projection(3 * X[kept], mask=mask[kept])
        assert np.array_equal(found.factors[0][kept], alone.factors[0])
        assert found.objective == alone.objective
        np.testing.assert_allclose(found.factors[0][1], fit.factors[0].mean(axis=0), rtol=1e-12)
        assert found.shape == X.shape

    @pytest.mark.parametrize("name", ["unbalanced", "Frobenius", "KL"])
    def test_bins_masked_everywhere_are_left_out(self, name):
        """The atoms there are those that the entropy prefers; the others are as without them."""
        X, (A, B) = planted("nmf", (6, 8))
        kept = np.arange(8) != 3
        (cost,) = wtf.grid_cost(8)
        whole, part = LOSSES[name], LOSSES[name]
        if name == "unbalanced":
            whole = wtf.Wasserstein(cost, 0.2, 5.0)
            part = wtf.Wasserstein(cost[np.ix_(kept, kept)], 0.2, 5.0)
        options = {"rho": 0.05, "tol": 1e-10, "constraints": (None, None)}
        found = wtf.nmf(X, 2, whole, mask=kept, init=(A, B), **options)
        alone = wtf.nmf(X[:, kept], 2, part, init=(A, B[kept]), **options)
        np.testing.assert_allclose(found.factors[1][3], 1.0, atol=1e-4)
        assert found.objective == pytest.approx(alone.objective - 2 * 0.05, rel=1e-6)
        np.testing.assert_allclose(found.factors[0], alone.factors[0], rtol=2e-3, atol=1e-6)

    @pytest.mark.parametrize(
        ("name", "init"), [("KL", None), ("KL", "random"), ("KL", "nnsvd"), ("unbalanced", None)]
    )
    def test_the_model_fills_what_is_missing(self, name, init):
        rng = np.random.default_rng(0)
        atoms = np.exp(-(((np.arange(12.0)[:, None] - [2.0, 9.0]) / 2.0) ** 2))
        X = rng.gamma(2.0, size=(10, 2)) @ atoms.T
        mask = some(X.shape, share=0.8)
        loss = wtf.KullbackLeibler()
        if name == "unbalanced":
            loss = wtf.Wasserstein(wtf.grid_cost(12), 1e-2, 2.0)
        options = {"rho": 1e-4, "init": init, "rng": 0, "tol": 1e-5}
        fit = wtf.nmf(spoilt(X, mask), 2, loss, mask=mask, **options)
        assert fit.converged
        assert fit.constraints == (None, "columns")
        error = np.abs(fit.to_tensor() - X)[~mask].sum() / X[~mask].sum()
        assert error < 0.05

    def test_distant_bins_are_solved_by_prox_linear_steps(self):
        """Few bins many eps apart: Newton's method, and a dual of the linearised model."""
        X, factors = planted("nmf", (6, 5), noise=0.3)
        loss = wtf.Wasserstein(wtf.grid_cost(5), 2e-3, 5.0)
        fit = wtf.nmf(X, 2, loss, mask=some((6, 5)), rho=1e-3, init=factors)
        assert fit.converged

    def test_coarse_grids(self, monkeypatch):
        """A fit that starts on a coarser grid ends no higher than one that does not."""
        rng = np.random.default_rng(0)
        x = np.linspace(0.0, 1.0, 32)
        bumps = [np.exp(-(((x[:, None] - c) / 0.1) ** 2)) for c in ([0.2, 0.7], [0.3, 0.8])]
        X = wtf.cp_to_tensor([rng.gamma(2.0, size=(4, 2)), *bumps])
        mask = np.broadcast_to(np.abs(np.subtract.outer(np.arange(32), np.arange(32))) > 1, X.shape)
        loss = wtf.Wasserstein(wtf.grid_cost(32, 32), 0.05, 5.0)
        states = []
        options = {"mask": mask, "rng": 0, "tol": 1e-4}
        coarse = wtf.cp(X, 2, loss, callback=lambda s: states.append(s.level), **options)
        assert math.inf in states
        set_thresholds(monkeypatch, coarsest_mode=64)
        plain = wtf.cp(X, 2, loss, **options)
        assert coarse.converged
        assert coarse.objective <= plain.objective + 1e-3 * abs(plain.objective)

    def test_a_grid_with_scattered_gaps_is_not_made_coarser(self):
        X, levels = data((3, 32), mass=None), []
        loss = wtf.Wasserstein(wtf.grid_cost(32), 0.05, 5.0)
        options = {"rng": 0, "callback": lambda s: levels.append(s.level)}
        fit_few("cp", X, 2, loss, mask=some((3, 32), share=0.5), **options)
        assert math.inf not in levels

    def test_weights_batches_and_sparse_data(self):
        X = data() * (data(seed=3) > 0.05)
        X[:, 0, 0] += 0.1
        mask, weight = some(SHAPE), np.arange(6.0)
        options = {"rho": 0.02, "rng": 0, "tol": 1e-6, "mask": mask, "sample_weight": weight}
        whole = wtf.nmf(X, 2, LOSSES["unbalanced"], **options)
        batches = wtf.nmf(X, 2, LOSSES["unbalanced"], batch=2, **options)
        assert batches.objective == pytest.approx(whole.objective, rel=1e-4)
        sparse = np.zeros((8, 8))
        sparse[2, 3], sparse[6, 5] = 1.0, 2.0
        loss = wtf.Wasserstein(wtf.grid_cost(8, 8), 0.1, 5.0)
        fit = wtf.cp(sparse, 2, loss, mask=some((8, 8)), rng=0, rho=0.02)
        assert fit.converged

    def test_own_losses(self):
        X, mask = data(mass=None), some(SHAPE)
        options = {"mask": mask, "rho": 0.02, "rng": 0}
        own = wtf.nmf(spoilt(X, mask), 2, MaskedLeastSquares(), **options)
        expected = wtf.nmf(spoilt(X, mask), 2, wtf.Frobenius(), **options)
        assert own.objective == pytest.approx(expected.objective, rel=1e-9)
        with pytest.raises(TypeError, match="PseudoHuber has no method masked_value_and_gradient"):
            wtf.nmf(X, 2, PseudoHuber(), **options)

    def test_storage_and_checkpoints(self, tmp_path):
        X, mask = data(), some(SHAPE)
        loss = LOSSES["unbalanced"]
        path, options = tmp_path / "fit.npz", {"rho": 0.02, "rng": 0, "init": "random"}
        fit = wtf.nmf(X, 2, loss, mask=mask, **options)
        fit.save(path)
        again = wtf.load(path)
        np.testing.assert_array_equal(again.to_tensor(), fit.to_tensor())
        check = tmp_path / "checkpoint.npz"

        def stop(state):
            return state.n_iter == 12

        with pytest.warns(UserWarning, match="callback"):
            wtf.nmf(
                X, 2, LOSSES["unbalanced"], mask=mask, checkpoint=check, callback=stop, **options
            )
        with pytest.raises(ValueError, match=r"checkpoint .* different data"):
            wtf.nmf(X, 2, LOSSES["unbalanced"], mask=some(SHAPE, 5), checkpoint=check, **options)
        rest = wtf.nmf(X, 2, LOSSES["unbalanced"], mask=mask, checkpoint=check, **options)
        assert rest.objective == pytest.approx(fit.objective, rel=1e-4)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"loss": LOSSES["balanced"]}, r"mask hides some bins of sample 0, .* finite lam"),
            ({"weights": "fixed"}, r"weights is 'fixed', .* mask hides entries"),
            ({"constraints": ("columns",) * 3}, r"weights is None, .* mask hides entries"),
            ({"mask": np.ones(SHAPE)}, "mask has dtype float64"),
        ],
    )
    def test_what_cannot_be_is_refused(self, options, message):
        arguments = {"loss": LOSSES["unbalanced"], "mask": ~np.eye(5, 4, dtype=bool)}
        arguments |= options
        with pytest.raises((TypeError, ValueError), match=message):
            wtf.cp(data(), 2, arguments.pop("loss"), **arguments)


@numpy_only
class TestProjection:
    def test_coefficients_from_what_was_observed(self):
        rng = np.random.default_rng(0)
        atoms = np.exp(-(((np.arange(16.0)[:, None] - [3.0, 12.0]) / 2.0) ** 2))
        truth = rng.gamma(2.0, size=(12, 2))
        X = truth @ atoms.T
        fit = wtf.nmf(X, 2, wtf.KullbackLeibler(), rho=1e-3, rng=0)
        mask = some(X.shape, share=0.7)
        mask[3] = False
        plain = fit.project(X)
        found = fit.projection(spoilt(X, mask), mask=mask)
        assert found.converged
        others = np.arange(12) != 3
        np.testing.assert_allclose(found.factors[0][others], plain[others], rtol=0.05, atol=0.05)
        np.testing.assert_allclose(found.factors[0][3], fit.factors[0].mean(axis=0), rtol=1e-12)
        same = fit.project(X, mask=np.ones(X.shape, dtype=bool))
        np.testing.assert_array_equal(same, plain)

    def test_nothing_observed_but_zeros(self):
        X, _ = planted("nmf")
        fit = wtf.nmf(X, 2, LOSSES["unbalanced"], rho=0.02, rng=0, constraints=(None, "columns"))
        mask = some((2, *SHAPE[1:]))
        found = fit.projection(np.zeros((2, *SHAPE[1:])), mask=mask)
        assert found.converged
        assert np.isfinite(found.factors[0]).all()


@numpy_only
def test_rank_scan_uses_the_mask():
    rng = np.random.default_rng(1)
    atoms = np.exp(-(((np.arange(12.0)[:, None] - [2.0, 9.0]) / 1.5) ** 2))
    X = rng.gamma(2.0, size=(10, 2)) @ atoms.T
    mask = some(X.shape, share=0.85)
    loss = wtf.Wasserstein(wtf.grid_cost(12), 0.02, 2.0)
    scan = wtf.rank_scan(spoilt(X, mask), [1, 2], loss, mask=mask, n_seeds=1)
    one, two = scan.records
    assert two.loss < 0.1 * one.loss
    assert two.held_out < 0.1 * one.held_out
    assert two.loss > -1e-6


@pytest.mark.parametrize(("model", "name"), [("cp", "KL"), ("nmf", "unbalanced")])
def test_every_library_takes_masks(xp, device, array, model, name):
    X, mask = data(), some(SHAPE)
    given_mask = xp.asarray(mask, device=device)
    options = {"rng": 1, "rho": 0.02}
    fit = fit_few(model, array(spoilt(X, mask)), 2, LOSSES[name], mask=given_mask, **options)
    reference = fit_few(model, X, 2, LOSSES[name], mask=mask, **options)
    assert fit.objective == pytest.approx(reference.objective, rel=1e-7)
    np.testing.assert_allclose(to_numpy(fit.to_tensor()), reference.to_tensor(), rtol=1e-4)
