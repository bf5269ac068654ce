"""Laws of the solution: scaling, permutation, limits, odd shapes."""

import math

import numpy as np
import pytest
from fitting import (
    LOSSES,
    RANKS,
    SHAPE,
    assert_same_factors,
    data,
    entropy,
    loss_of,
    objective_of,
    planted,
    run,
    start,
    transport,
)
from helpers import numpy_only
from sklearn.decomposition import NMF

import wtfarray as wtf


@numpy_only
class TestLaws:
    def test_diagonal_cost_gives_kl_nmf(self):
        """No mass can move: the loss is lam KL(X|Y) + eps E(X)."""
        X, (A, B) = planted("nmf", (10, 8), noise=0.5)
        X[1, 2] = X[4, 5:] = 0.0
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
    def test_objective_scales_with_cost_eps_lam_and_rho(self, lam):
        s, X = 3.0, data()
        costs = wtf.grid_cost(*SHAPE[1:])
        plain, scaled = (
            wtf.cp(
                X,
                2,
                wtf.Wasserstein([c * t for c in costs], 0.2 * t, lam * t),
                rho=0.02 * t,
                init=start("cp"),
                tol=1e-11,
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
        options = {"rho": 0.02, "tol": 1e-11}
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

    def test_objective_is_invariant_under_permuted_modes(self):
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

    @pytest.mark.parametrize("model", RANKS)
    def test_objective_does_not_depend_on_the_memory_layout(self, model):
        X, options = data(), {"init": start(model), "rho": 0.02, "tol": 1e-11}
        plain = run(model, X, RANKS[model], LOSSES["unbalanced"], **options)
        last = np.moveaxis(np.ascontiguousarray(np.moveaxis(X, 0, -1)), -1, 0)
        for other in (np.asfortranarray(X), last):
            found = run(model, other, RANKS[model], LOSSES["unbalanced"], **options)
            assert found.objective == pytest.approx(plain.objective, rel=1e-9)
            assert_same_factors(found.factors, plain.factors, rtol=1e-3, atol=1e-5)

    def test_nmf_of_images_is_nmf_of_flattened_images(self):
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

    def test_sample_weights_count_as_copies(self):
        X, (A, B) = planted("nmf", (5, 8), noise=0.5)
        # The entropy of the coefficients counts a sample once, which is negligible here.
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

    def test_solvers_agree_on_weighted_samples(self):
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
    def test_batches_give_the_fit_of_the_whole(self, batch, lam):
        options = {"init": start("cp"), "rho": 0.02, "tol": 1e-9}
        loss = transport(lam=lam)
        whole, parts = (wtf.cp(data(), 2, loss, batch=size, **options) for size in (None, batch))
        assert parts.objective == pytest.approx(whole.objective, rel=1e-7)
        assert_same_factors(parts.factors, whole.factors, rtol=1e-3)

    def test_balanced_fit_is_the_limit_of_large_lam(self):
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
    def test_all_modes_may_be_transported(self, model, shape, lam):
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
    def test_last_mode_alone_may_be_transported(self, model, shape):
        X = data(shape)
        rank = (2,) * len(shape) if model == "tucker" else 2
        fit = run(model, X, rank, transport(shape=shape[-1:]), rho=0.02, rng=0)
        assert fit.converged
        assert fit.to_tensor().shape == shape
        assert objective_of(X, fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)

    @pytest.mark.parametrize("model", RANKS)
    @pytest.mark.parametrize("rank", [1, 7])
    def test_rank_may_be_one_or_exceed_every_mode(self, model, rank):
        ranks = (rank,) * 3 if model == "tucker" else rank
        fit = run(model, data(), ranks, LOSSES["unbalanced"], rho=0.02, rng=0)
        assert fit.converged
        assert objective_of(data(), fit) == pytest.approx(fit.objective, abs=fit.gap + 1e-8)

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_empty_sample_gets_no_mass(self, solver):
        """Its loss is lam times the mass of the model, whose minimum has mass exp(-lam/rho)."""
        X = data((5, 8), mass=None)
        X[2] = 0.0
        fit = wtf.nmf(X, 2, transport(shape=(8,)), rho=0.1, rng=0, solver=solver)
        assert fit.factors[0][2].sum() < 1e-6
        others = wtf.nmf(X[[0, 1, 3, 4]], 2, transport(shape=(8,)), rho=0.1, rng=0, solver=solver)
        assert fit.objective == pytest.approx(others.objective, rel=5e-3)
        assert fit.history[-1].objective == pytest.approx(fit.objective, abs=fit.gap + 1e-6)

    def test_core_may_have_different_ranks(self):
        core, factors = wtf.tucker(data(), (3, 1, 4), LOSSES["unbalanced"], rho=0.02, rng=0)
        assert core.shape == (3, 1, 4)
        assert [f.shape for f in factors] == [(6, 3), (5, 1), (4, 4)]

    def test_atoms_of_shifted_gaussians_are_at_their_centres(self):
        """Samples mix three bumps, each shifted a little."""
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
