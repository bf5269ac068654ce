"""Costs with a limited reach against dense costs that are infinite beyond it."""

import sys

import numpy as np
import pytest
from helpers import assert_close, numpy_only, set_thresholds, to_numpy

import wtfarray as wtf
from wtfarray._transport.banded import BandedCost, geometry_of
from wtfarray._transport.kernels import GibbsKernel

# JAX compiles every operation anew for every shape: a few of the cases suffice there.
less_on_jax = pytest.mark.skipif("jax" in sys.modules, reason="compiles for too long")


def limited(n, reach, p=2.0, spacing=1.0):
    """A dense cost, inf beyond the reach in bins."""
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return np.where(distance <= reach, (spacing * distance) ** p, np.inf)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks on small grids, and no sums over all pairs of bins."""
    set_thresholds(monkeypatch, band_rows=3, pair_entries=0)


def kernels(array, n, reach, eps, dtype="float64"):
    """The banded and the dense kernel of one axis."""
    (banded,) = wtf.grid_cost(n, scale=None, reach=float(reach))
    banded = BandedCost(array(banded.steps, dtype), n)
    return tuple(GibbsKernel.of((cost,), eps) for cost in (banded, banded.to_dense()))


class TestGridCost:
    @pytest.mark.parametrize("p", [1, 2])
    def test_is_infinite_beyond_the_reach(self, p):
        (cost,) = wtf.grid_cost(9, p=p, spacing=0.1, reach=0.3, scale=None)
        assert (cost.reach, cost.shape) == (3, (9, 9))
        np.testing.assert_allclose(cost.to_dense(), limited(9, 3, p, 0.1), rtol=1e-15)

    @pytest.mark.parametrize("scale", ["mean", "max", "median"])
    def test_scale_is_that_of_the_cost_without_limit(self, scale):
        (cost,) = wtf.grid_cost(9, reach=4.0, scale=scale)
        (full,) = wtf.grid_cost(9, scale=scale)
        found = cost.to_dense()
        np.testing.assert_array_equal(found, np.where(np.isfinite(found), full, np.inf))

    def test_each_axis_has_its_own_limit(self):
        first, second = wtf.grid_cost(7, 5, reach=(2.0, None))
        np.testing.assert_array_equal(second, wtf.grid_cost(7, 5)[1])
        assert first.reach == 2

    def test_reach_of_the_whole_axis_is_dense(self):
        np.testing.assert_array_equal(wtf.grid_cost(5, reach=4.0)[0], wtf.grid_cost(5)[0])

    def test_follows_xp_and_device(self, xp, device, array):
        (cost,) = wtf.grid_cost(6, reach=2.0, xp=xp, device=device)
        assert_close(cost.steps, array(wtf.grid_cost(6, reach=2.0)[0].steps), rtol=0)

    @pytest.mark.parametrize("reach", [0, -1.0, np.nan, (1.0, "far")])
    def test_other_reaches_are_refused(self, reach):
        with pytest.raises((TypeError, ValueError), match=r"reach is .*: expected a positive"):
            wtf.grid_cost(5, 6, reach=reach)

    def test_another_number_of_reaches_is_refused(self):
        with pytest.raises(ValueError, match="reach has 3 entries: expected one number, or 2"):
            wtf.grid_cost(5, 6, reach=(1.0, 2.0, None))

    @pytest.mark.parametrize(
        ("steps", "match"),
        [([0.0, -1.0], "index"), ([0.0, np.inf], "index"), ([], "shape"), (np.zeros(4), "shape")],
    )
    def test_loss_refuses_other_steps(self, steps, match):
        with pytest.raises(ValueError, match=rf"steps of costs\[0\] .*{match}.*: expected"):
            wtf.Wasserstein(BandedCost(np.asarray(steps), 4), eps=0.1)


class TestKernel:
    @pytest.mark.parametrize(
        ("n", "reach"),
        [
            (11, 4),
            pytest.param(11, 1, marks=less_on_jax),
            pytest.param(12, 4, marks=less_on_jax),
            pytest.param(11, 8, marks=less_on_jax),
        ],
    )
    def test_products_are_those_of_the_matrix(self, array, n, reach):
        banded, dense = kernels(array, n, reach, 2.0)
        stack = array(np.random.default_rng(0).uniform(size=(2, n)))
        for name in ("apply", "apply_adjoint"):
            assert_close(getattr(banded, name)(stack), getattr(dense, name)(stack), rtol=1e-14)

    @pytest.mark.parametrize("dtype", [pytest.param("float32", marks=less_on_jax), "float64"])
    @pytest.mark.parametrize("spread", [1.0, 1e2, 1e4])
    def test_logarithms_are_those_of_the_matrix(self, array, spread, dtype):
        """With a large spread almost every plain product underflows."""
        banded, dense = kernels(array, 11, 3, 0.1, dtype)
        rng = np.random.default_rng(0)
        logs = rng.normal(scale=spread, size=(3, 11))
        logs[0, 1:9], logs[1, :] = -np.inf, -np.inf
        found, expected = (to_numpy(k.log_apply(array(logs, dtype))) for k in (banded, dense))
        rounding = 8 * np.finfo(dtype).eps  # of a product, and of its logarithm
        np.testing.assert_allclose(found, expected, rtol=rounding, atol=rounding)

    def test_reaches_the_bins_of_the_matrix(self, array, xp):
        banded, dense = kernels(array, 11, 3, 1.0)
        mask = array(np.random.default_rng(1).uniform(size=(4, 11))) < 0.15
        assert bool(xp.all(banded.can_reach(mask) == dense.can_reach(mask)))

    @less_on_jax
    def test_one_axis_of_a_grid(self, array, xp):
        rng = np.random.default_rng(0)
        for reach in ((2.0, None), (None, 2.0)):
            costs = wtf.grid_cost(7, 5, scale=None, reach=reach)
            matrices = [array(geometry_of(cost).to_dense()) for cost in costs]
            dense = GibbsKernel.of(matrices, 0.2)
            X = array(rng.uniform(size=(2, 7, 5)))
            banded = wtf.Wasserstein(costs, 0.2, 1.0).bind(X).kernel
            assert_close(banded.apply(X), dense.apply(X), rtol=1e-14)
            logs = X * 500.0
            assert_close(banded.log_apply(logs), dense.log_apply(logs), rtol=1e-14)
            mask = X < 0.05
            assert bool(xp.all(banded.can_reach(mask) == dense.can_reach(mask)))


def spectra(rng, n, count=2):
    """Spectra of a few lines on a small background."""
    centres, at = rng.uniform(0, n, (count, 4, 1)), np.arange(n)
    lines = 1.0 / (1.0 + ((at - centres) / (0.02 * n)) ** 2)
    X = lines.sum(axis=1) + 1e-3
    return X / X.sum(axis=1, keepdims=True)


class TestLoss:
    @pytest.mark.parametrize("lam", [0.5, pytest.param(np.inf, marks=less_on_jax)])
    def test_is_that_of_the_matrix(self, array, lam):
        rng = np.random.default_rng(0)
        X = spectra(rng, 40)
        Y = spectra(rng, 40)
        if lam == np.inf:  # a model within reach: a third of the mass moves by one bin
            Y = (
                X
                + np.pad(X[:, :-1], ((0, 0), (1, 0))) / 3
                - np.pad(X[:, :-1], ((0, 0), (0, 1))) / 3
            )
        (cost,) = wtf.grid_cost(40, scale=None, spacing=0.1, reach=0.8)
        results = [
            wtf.wasserstein(array(X), array(Y), wtf.Wasserstein(c, 0.05, lam), tol=1e-8)
            for c in (cost, cost.to_dense())
        ]
        assert all(result.converged for result in results)
        assert_close(results[0].value, results[1].value, rtol=1e-12)
        assert_close(results[0].gradient, results[1].gradient, atol=1e-6)

    @numpy_only
    def test_many_bins_agree_to_rounding(self, monkeypatch):
        set_thresholds(monkeypatch, band_rows=64)
        rng = np.random.default_rng(0)
        X, U = spectra(rng, 4000, 1), 0.9 * np.sin(np.arange(4000) * 0.01)[None, :]
        (cost,) = wtf.grid_cost(4000, scale=None, spacing=0.01, reach=3.0)
        (value, Y), (expected, dense_Y) = (
            wtf.Wasserstein(c, 0.5, 1.0).conjugate(X, U) for c in (cost, cost.to_dense())
        )
        assert float(value) == pytest.approx(float(expected), rel=1e-12)
        np.testing.assert_allclose(Y, dense_Y, rtol=1e-12)

    @less_on_jax
    def test_refuses_a_model_out_of_reach(self, array):
        (cost,) = wtf.grid_cost(12, scale=None, reach=2.0)
        loss = wtf.Wasserstein(cost, 0.5)
        X, Y = np.full((1, 12), 0.01), np.full((1, 12), 0.01)
        X[0, 2], Y[0, 5] = 1.0, 1.0
        for pair in ((X, Y), (Y, X), (X[:, ::-1], Y[:, ::-1])):
            with pytest.raises(ValueError, match=r"cannot be reached from X .* in sample 0"):
                wtf.wasserstein(*(array(np.array(part)) for part in pair), loss)
        within = np.full((1, 12), 0.01)
        within[0, 4] = 1.0
        assert wtf.wasserstein(array(X), array(within), loss).converged

    @numpy_only
    def test_fits_and_projects(self, array, tmp_path):
        X = array(spectra(np.random.default_rng(1), 40, 5))
        (cost,) = wtf.grid_cost(40, scale=None, spacing=0.1, reach=0.8)
        fits = [
            wtf.nmf(X, 2, wtf.Wasserstein(c, 0.05, 1.0), rng=0, tol=1e-3)
            for c in (cost, cost.to_dense())
        ]
        assert fits[0].objective == pytest.approx(fits[1].objective, rel=1e-4)
        fits[0].save(tmp_path / "fit.npz")
        loaded = wtf.load(tmp_path / "fit.npz")
        (found,) = loaded.loss.costs
        assert repr(found) == "BandedCost(40 bins, reach of 8)"
        np.testing.assert_array_equal(found.steps, cost.steps)
        assert loaded.project(to_numpy(X)).shape == (5, 2)
