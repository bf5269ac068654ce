"""The unit of the data does not matter: c X has the factors of X, one of them times c."""

import warnings

import numpy as np
import pytest
from fitting import LOSSES, RANKS, objective_of
from helpers import numpy_only, set_thresholds, to_numpy
from stored_data import Sliceable

import wtfarray as wtf

UNITS = (1e6, 1e-6)


def mixtures(samples=8):
    """Samples of different mass, mean 1, with zeros; (samples, 5, 4), as the costs of LOSSES."""
    rng = np.random.default_rng(3)
    shares = rng.gamma(1.0, size=(samples, 2))
    atoms = np.stack([np.outer(rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(4))) for _ in "ab"])
    X = np.tensordot(shares, atoms, axes=1) * rng.uniform(0.9, 1.1, (samples, 5, 4))
    X[1, 2, :] = 0.0
    return X * samples / X.sum()


def assert_proportional(fit, one, unit, rtol=1e-6):
    """The first factor, or the core, is multiplied by the unit; all others are the same."""
    carrier = next(k for k, c in enumerate(fit.constraints) if c is None)
    blocks, expected = ([*f.factors, *([] if f.core is None else [f.core])] for f in (fit, one))
    for k, (block, other) in enumerate(zip(blocks, expected, strict=True)):
        scaled = to_numpy(other) * (unit if k == carrier else 1.0)
        np.testing.assert_allclose(to_numpy(block), scaled, rtol=rtol, atol=rtol * scaled.max())
    assert fit.references[carrier] == pytest.approx(unit * one.references[carrier])
    assert fit.n_iter == one.n_iter


@pytest.fixture(autouse=True)
def no_restarts(monkeypatch):
    """Fits of few steps: after many, rounding alone makes factors differ by more than 1e-6."""
    set_thresholds(monkeypatch, escape_entries=0)


class TestFits:
    @pytest.mark.parametrize("name", ["unbalanced", "Frobenius"])
    def test_every_library(self, array, name):
        X, loss = mixtures(), LOSSES[name]
        options = {"rng": 0, "tol": 1e-3}
        one = wtf.nmf(array(X), 2, loss, **options)
        assert_proportional(wtf.nmf(array(1e6 * X), 2, loss, **options), one, 1e6)

    @numpy_only
    @pytest.mark.parametrize("name", ["unbalanced", "KL", "Frobenius"])
    @pytest.mark.parametrize("model", RANKS)
    def test_default_rho(self, model, name):
        X, loss = mixtures(), LOSSES[name]
        options = {"rng": 0, "tol": 1e-3}
        one = getattr(wtf, model)(X, RANKS[model], loss, **options)
        assert one.converged
        for unit in UNITS:
            fit = getattr(wtf, model)(unit * X, RANKS[model], loss, **options)
            assert fit.converged
            assert_proportional(fit, one, unit)
            assert fit.objective == pytest.approx(objective_of(unit * X, fit), rel=1e-4)

    @numpy_only
    @pytest.mark.parametrize("unit", UNITS)
    def test_rho_in_the_unit_of_the_loss(self, unit):
        """Given weights: that of the mass as it is, those of normalised factors in the new unit."""
        X, loss = mixtures(), LOSSES["unbalanced"]
        one = wtf.cp(X, 2, loss, rho=0.05, rng=0, tol=1e-3)
        fit = wtf.cp(unit * X, 2, loss, rho=(0.05, 0.05 * unit, 0.05 * unit), rng=0, tol=1e-3)
        assert_proportional(fit, one, unit)

    @numpy_only
    @pytest.mark.parametrize("solver", ["envelope", "online"])
    def test_data_in_chunks(self, solver):
        X, loss = mixtures(), LOSSES["unbalanced"]
        options = {"rng": 0, "tol": 1e-2, "solver": solver, "chunk": 3}
        options |= {"max_iter": 2, "batch": 4} if solver == "online" else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            one = wtf.nmf(Sliceable(X), 2, loss, **options)
            fit = wtf.nmf(Sliceable(1e6 * X), 2, loss, **options)
        assert fit.references == pytest.approx((1e6, 1.0))
        assert fit.objective == pytest.approx(objective_of(1e6 * X, fit), rel=1e-4)
        assert_proportional(fit, one, 1e6, 1e-3)

    @numpy_only
    @pytest.mark.parametrize("name", ["dual", "debiased"])
    def test_inner_problems_that_depend_on_rounding(self, name):
        """Their paths differ, their minima do not."""
        X, loss = mixtures(), LOSSES["unbalanced"]
        options = {"rng": 0, "tol": 1e-3, "constraints": (None, "columns")}
        if name == "dual":
            options["solver"] = "dual"
        else:
            loss = wtf.Wasserstein(loss.costs, loss.eps, loss.lam, debias=True)
        one = wtf.nmf(X, 2, loss, **options)
        offset = loss.eps * X.sum() if name == "dual" else 0.0
        fit = wtf.nmf(1e6 * X, 2, loss, **options)
        assert fit.converged
        value = fit.objective / 1e6 - offset * np.log(1e6)
        assert value == pytest.approx(one.objective, rel=1e-2)

    @numpy_only
    def test_projection(self):
        X, loss = mixtures(), LOSSES["unbalanced"]
        one = wtf.nmf(X, 2, loss, rng=0, tol=1e-3)
        expected = one.projection(X[:3])
        for unit in UNITS:
            fit = wtf.nmf(unit * X, 2, loss, rng=0, tol=1e-3)
            found = fit.projection(unit * X[:3])
            np.testing.assert_allclose(
                found.factors[0], unit * expected.factors[0], rtol=1e-4, atol=1e-4 * unit
            )
            alone = fit.project(unit * X[1:2])
            np.testing.assert_allclose(alone[0], found.factors[0][1], rtol=1e-3, atol=1e-3 * unit)

    @numpy_only
    def test_rank_scan(self):
        X, loss = mixtures(), wtf.KullbackLeibler()
        options = {"n_seeds": 2, "held_out": 0.25, "tol": 1e-3}
        one = wtf.rank_scan(X, [1, 2, 3], loss, **options)
        scan = wtf.rank_scan(1e6 * X, [1, 2, 3], loss, **options)
        assert scan.suggested == one.suggested
        noise = 1e-3 * one.records[0].loss
        for record, other in zip(scan.records, one.records, strict=True):
            assert record.loss / 1e6 == pytest.approx(other.loss, abs=noise)
            assert record.held_out / 1e6 == pytest.approx(other.held_out, abs=10 * noise)

    @numpy_only
    def test_callback_and_start_are_in_the_unit_of_the_data(self):
        X, seen = 1e6 * mixtures(), []
        fit = wtf.nmf(
            X, 2, wtf.KullbackLeibler(), rng=0, tol=1e-3, callback=lambda s: seen.append(s.blocks())
        )
        np.testing.assert_array_equal(seen[-1][0], fit.factors[0])
        again = wtf.nmf(X, 2, wtf.KullbackLeibler(), init=fit, max_iter=50, tol=1e-3)
        assert again.n_iter < 10
        np.testing.assert_allclose(again.factors[0], fit.factors[0], rtol=0.05, atol=1e3)

    @numpy_only
    def test_saved_fit_projects_alike(self, tmp_path):
        X = 1e6 * mixtures()
        fit = wtf.nmf(X, 2, wtf.KullbackLeibler(), rng=0, tol=1e-3)
        fit.save(tmp_path / "fit")
        again = wtf.load(tmp_path / "fit.npz")
        assert again.references == fit.references
        np.testing.assert_array_equal(again.project(X), fit.project(X))
