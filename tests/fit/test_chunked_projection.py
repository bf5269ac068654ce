"""New samples that are read in chunks: the same coefficients, and never dense as a whole."""

import math
import tracemalloc
import warnings

import numpy as np
import pytest
from helpers import numpy_only, set_thresholds, to_numpy, without_escape
from stored_data import Sliceable

import wtfarray as wtf
from wtfarray._arrays.scratch import FileArray
from wtfarray._fit.chunked_projection import is_separable

pytestmark = without_escape

SAMPLES = np.random.default_rng(1).dirichlet(np.ones(6), 10)
LOSSES = {
    "Wasserstein": wtf.Wasserstein(wtf.grid_cost(6), 0.2, 5.0),
    "balanced": wtf.Wasserstein(wtf.grid_cost(6), 0.2),
    "KL": wtf.KullbackLeibler(),
}


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of four samples of six bins."""
    set_thresholds(monkeypatch, chunk_entries=24, chunk_batches=1)


def fitted(X, loss, **options):
    return wtf.nmf(X, 2, loss, rng=0, tol=1e-3, **options)


@pytest.mark.usefixtures("small_chunks")
def test_projection_is_that_of_the_array(xp, array):
    check_projection(SAMPLES[:8, :], "Wasserstein", xp, array)


@numpy_only
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss(xp, array, name):
    """With empty samples, and one chunk of nothing else."""
    values = SAMPLES.copy()
    if name != "balanced":
        values[[1, 4, 5, 6, 7], :] = 0.0
    check_projection(values, name, xp, array)


def check_projection(values, name, xp, array):
    X = array(values)
    fit = fitted(array(SAMPLES[:8, :]), LOSSES[name])
    source = Sliceable(X)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="project: ")  # of float32
        found, whole = fit.projection(source), fit.projection(X)
    assert max(stop - start for start, stop in source.read) == 4
    exact = whole.factors[0].dtype == xp.float64
    tol = 1e-4 if exact else 2e-2
    np.testing.assert_allclose(to_numpy(found.factors[0]), to_numpy(whole.factors[0]), atol=tol)
    assert math.isclose(found.objective, whole.objective, rel_tol=1e-6 if exact else 1e-3)
    assert found.gap <= 1e-6 * abs(found.objective) or not exact
    assert found.shape == whole.shape
    assert found.history[-1].objective == found.objective
    assert isinstance(found.dual, FileArray)
    assert found.dual.shape == values.shape
    duals = np.asarray(found.dual), to_numpy(whole.dual)
    if name == "balanced":  # unique up to a constant for each sample
        duals = tuple(dual - dual.mean(axis=1, keepdims=True) for dual in duals)
    filled = values.sum(axis=1) > 0
    assert np.abs(duals[0] - duals[1])[filled].max() < (1e-3 if exact else 0.1)


@numpy_only
class TestContainers:
    def test_sparse_matrix_is_never_dense(self, monkeypatch):
        sparse = pytest.importorskip("scipy.sparse")
        index = np.arange(8_000)
        values = np.random.default_rng(0).gamma(1.0, size=8_000)
        wide = sparse.csr_array((values, (index // 20, 7 * index % 2000)), shape=(400, 2000))
        fit = fitted(wide[:40], wtf.KullbackLeibler(), init="random")
        set_thresholds(monkeypatch, chunk_entries=32_000, chunk_batches=2)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="project: ")
            tracemalloc.start()
            found = fit.projection(wide, max_iter=1)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert found.factors[0].shape == (400, 2)
        assert peak < 400 * 2000 * 8

    @pytest.mark.parametrize("kind", ["csr_array", "csc_array", "coo_matrix"])
    @pytest.mark.usefixtures("small_chunks")
    def test_sparse_matrix(self, kind):
        sparse = pytest.importorskip("scipy.sparse")
        values = np.where(SAMPLES > 0.15, SAMPLES, 0.0)
        fit = fitted(SAMPLES, LOSSES["KL"])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="project: ")
            found, whole = (fit.project(Z) for Z in (getattr(sparse, kind)(values), values))
        np.testing.assert_allclose(found, whole, atol=1e-5)

    @pytest.mark.usefixtures("small_chunks")
    def test_memmap(self, tmp_path):
        np.save(tmp_path / "X.npy", SAMPLES)
        X = np.load(tmp_path / "X.npy", mmap_mode="r")
        fit = fitted(SAMPLES, LOSSES["KL"])
        np.testing.assert_allclose(fit.project(X), fit.project(SAMPLES), atol=1e-5)

    def test_small_data_are_those_of_the_array(self):
        fit = fitted(SAMPLES, LOSSES["KL"])
        found = fit.projection(Sliceable(SAMPLES))
        assert np.array_equal(found.factors[0], fit.project(SAMPLES))
        assert isinstance(found.dual, np.ndarray)

    @pytest.mark.usefixtures("small_chunks")
    def test_file_is_saved_with_its_dual(self, tmp_path):
        fit = fitted(SAMPLES, LOSSES["KL"])
        found = fit.projection(Sliceable(SAMPLES))
        assert np.array_equal(found.factors[0], fit.project(Sliceable(SAMPLES)))
        found.save(tmp_path / "fit.npz")
        assert np.array_equal(wtf.load(tmp_path / "fit.npz").dual, np.asarray(found.dual))


@numpy_only
@pytest.mark.usefixtures("small_chunks")
class TestWhole:
    """Problems in which samples depend on each other, or have a mask: read into memory."""

    def test_mask(self):
        fit, mask = fitted(SAMPLES, LOSSES["KL"]), SAMPLES > 0.02
        found = fit.project(Sliceable(SAMPLES), mask=mask)
        assert np.array_equal(found, fit.project(SAMPLES, mask=mask))

    def test_constraint_over_samples(self):
        fit = fitted(SAMPLES, LOSSES["KL"], constraints=("columns", None))
        source = Sliceable(SAMPLES)
        assert np.array_equal(fit.project(source), fit.project(SAMPLES))
        assert (0, 10) in source.read

    def test_which_problems_are_separable(self):
        own = type("Own", (), {"value_and_gradient": None})()
        assert is_separable(wtf.LossSum(*LOSSES.values()), "rows")
        assert not is_separable(LOSSES["KL"], "all")
        assert not is_separable(own, None)


@numpy_only
@pytest.mark.usefixtures("small_chunks")
class TestMessages:
    def test_bad_entry(self):
        values = SAMPLES.copy()
        values[5, 2] = -1.0
        with pytest.raises(ValueError, match=r"X\[4:8\] is -1.0 at index \(1, 2\)"):
            fitted(SAMPLES, LOSSES["KL"]).project(Sliceable(values))

    def test_wrong_shape(self):
        with pytest.raises(ValueError, match=r"X has shape \(10, 5\): expected \(n, 6\)"):
            fitted(SAMPLES, LOSSES["KL"]).project(Sliceable(SAMPLES[:, :5]))

    def test_mass_and_convergence(self):
        """Both warnings, once each, with the index in all samples."""
        values = SAMPLES.copy()
        values[7, :] *= 10
        fit = fitted(SAMPLES, LOSSES["Wasserstein"])
        with pytest.warns(UserWarning, match="project: ") as caught:
            found = fit.projection(Sliceable(values), max_iter=1)
        messages = [str(warning.message) for warning in caught]
        assert len(messages) == 2
        assert "sample 7 of X has mass 10" in messages[0]
        assert "max_iter" in messages[1]
        assert not found.converged
        assert found.message in messages[1]
