"""The problem of the estimators is that of `nmf`; mini-batches converge to its solution."""

import numpy as np
import pytest
from estimators import FAST, bumps, images, objective
from sklearn.base import clone

import wtfarray as wtf
from wtfarray.sklearn import WassersteinCP, WassersteinNMF, WassersteinTucker

pytestmark = pytest.mark.usefixtures("numpy_estimators")


class TestLibrary:
    def test_solution_agrees_with_nmf(self):
        X = bumps()
        model = WassersteinNMF(3, eps=0.1, tol=1e-6, random_state=0).fit(X)
        loss = wtf.Wasserstein(wtf.grid_cost(16), eps=0.1, lam=10.0)
        n, r = X.shape[0], 3
        rho = (model.rho_coefs, model.rho_atoms * n / r)
        start = (model.transform(X), model.components_.T)
        fit = wtf.nmf(X, 3, loss, rho=rho, init=start, constraints=("rows", "columns"))
        np.testing.assert_allclose(fit.factors[1].T, model.components_, atol=2e-3)
        assert model.reconstruction_err_ == pytest.approx(-model.score(X), rel=1e-3)
        least = float(loss.conjugate(X, np.zeros_like(X))[0])
        assert (fit.objective + least) / n == pytest.approx(objective(model, X)[0], rel=1e-3)

    def test_atoms_of_shifted_bumps_are_at_their_centres(self):
        X = bumps(n=40, jitter=0.02)
        model = WassersteinNMF(3, random_state=0, n_init=2).fit(X)
        centres = sorted(model.components_ @ ((np.arange(16) + 0.5) / 16))
        np.testing.assert_allclose(centres, [0.2, 0.5, 0.8], atol=0.05)


class TestInvariance:
    def test_objective_does_not_depend_on_the_number_of_samples(self):
        X = bumps(n=12)
        rng = np.random.default_rng(0)
        # Not exact copies: those would be taken for one sample with a weight.
        many = np.concatenate([X * rng.uniform(1 - 1e-9, 1 + 1e-9, X.shape) for _ in range(4)])
        few, more = (
            WassersteinNMF(2, eps=0.1, rho_atoms=0.02, tol=1e-6, random_state=0).fit(Z)
            for Z in (X, many)
        )
        order = [np.argsort(m.components_ @ np.arange(16)) for m in (few, more)]
        atoms = [m.components_[o] for m, o in zip((few, more), order, strict=True)]
        np.testing.assert_allclose(atoms[0], atoms[1], atol=2e-3)
        assert objective(few, X)[0] == pytest.approx(objective(more, many)[0], abs=1e-4)

    def test_atoms_do_not_depend_on_the_number_of_features(self):
        fine = bumps(n=12, size=64)
        coarse = fine.reshape(12, 32, 2).sum(axis=2)
        models = [
            WassersteinNMF(2, eps=0.1, rho_atoms=0.02, tol=1e-6, random_state=0).fit(Z)
            for Z in (coarse, fine)
        ]
        atoms = [models[0].components_, models[1].components_.reshape(2, 32, 2).sum(axis=2)]
        atoms = [a[np.argsort(a @ np.arange(32))] for a in atoms]
        assert np.abs(atoms[0] - atoms[1]).sum(axis=1).max() < 0.05
        assert models[0].score(coarse) == pytest.approx(models[1].score(fine), rel=0.05)

    def test_loss_does_not_depend_on_the_unit_of_the_cost(self):
        X = bumps()
        cost = wtf.grid_cost(16, scale=None)[0]
        losses = [WassersteinNMF(cost=c, **FAST).fit(X).loss_ for c in ("sqeuclidean", 2.0 * cost)]
        np.testing.assert_allclose(losses[0].costs[0], losses[1].costs[0], rtol=1e-12)

    def test_components_do_not_depend_on_the_scale_of_the_data(self):
        X = bumps()
        scales = 2.0 ** np.random.default_rng(1).integers(-8, 8, (X.shape[0], 1))
        plain, scaled = (WassersteinNMF(**FAST).fit(Z) for Z in (X, scales * X))
        np.testing.assert_array_equal(plain.components_, scaled.components_)


class TestPartialFit:
    @pytest.mark.parametrize("seed", range(3))
    def test_mini_batches_converge_to_the_full_fit(self, seed):
        X = bumps(n=32, seed=seed)
        best, loss = objective(WassersteinNMF(3, eps=0.1, random_state=0).fit(X), X)
        model = WassersteinNMF(3, eps=0.1, random_state=0).partial_fit(X[:8])
        # Two per cent of the objective, or of the loss in it if that is less.
        allowed = 0.02 * min(abs(best), loss)
        assert objective(model, X)[0] - best > allowed
        rng = np.random.default_rng(seed)
        for _ in range(3):
            for some in np.split(rng.permutation(32), 4):
                model.partial_fit(X[some])
        assert objective(model, X)[0] - best < allowed
        assert model.n_samples_seen_ == 104

    @pytest.mark.parametrize("cls", [WassersteinCP, WassersteinTucker])
    def test_mini_batches_of_tensors_score_like_the_full_fit(self, cls):
        X = images(n=24)
        full = cls(2, eps=0.2, random_state=0).fit(X)
        model = cls(2, eps=0.2, random_state=0)
        for _ in range(3):
            for i in (0, 8, 16):
                model.partial_fit(X[i : i + 8])
        assert model.score(X) > 1.02 * full.score(X)

    def test_partial_fit_continues_a_fit(self):
        X = bumps()
        model = WassersteinNMF(**FAST).fit(X)
        before = model.components_
        model.partial_fit(X[:4])
        assert model.n_samples_seen_ == 28
        moved = np.abs(model.components_ - before).sum()
        assert 0 < moved < np.abs(clone(model).fit(X[:4]).components_ - before).sum()

    def test_another_shape_or_rank_is_refused(self):
        model = WassersteinNMF(**FAST).partial_fit(bumps())
        with pytest.raises(ValueError, match="15 features"):
            model.partial_fit(bumps()[:, :-1])
        with pytest.raises(ValueError, match="n_components is 3, but the first batch was"):
            model.set_params(n_components=3).partial_fit(bumps())
