"""Fits of data that are read in chunks: the same as in memory, in little memory, refusals."""

import gc
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from array_api_compat import is_jax_namespace
from fitting import data, planted, transport
from helpers import set_thresholds, to_numpy
from stored_data import Sliceable, trace
from teams import (
    GRID_LOSS,
    TIMEOUT,
    assert_alike,
    images,
    quietly,
    relative_differences,
    traced,
)

import wtfarray as wtf
from wtfarray._transport import anderson
from wtfarray.distributed import gather, run_threads


class MaskedHuber:
    """A loss of a user, with a mask."""

    def masked_value_and_gradient(self, X, Y, mask):
        root = np.sqrt(1.0 + (Y - X) ** 2)
        values = np.where(mask, root - 1.0, 0.0)
        return values.sum(axis=(1, 2)), np.where(mask, (Y - X) / root, 0.0)

    def value_and_gradient(self, X, Y):
        return self.masked_value_and_gradient(X, Y, X >= 0)


ROOT = Path(__file__).parent.parent.parent


def test_same_batches_give_the_same_fit(xp, array):
    X = array(data())
    batch = X.shape[0]
    expected, whole = trace(X, 2, transport(), batch=batch)
    found, fit = trace(Sliceable(X), 2, transport(), batch=batch, chunk=batch)
    # Bit by bit, but what reads files is not compiled by JAX, and rounds otherwise.
    rtol = 1e-11 if is_jax_namespace(xp) else 0.0
    np.testing.assert_allclose(found, expected, rtol=rtol)
    for a, b in zip(fit.factors, whole.factors, strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=rtol)
    np.testing.assert_allclose(np.asarray(fit.dual), to_numpy(whole.dual), rtol=rtol)
    np.testing.assert_allclose(fit.objective, whole.objective, rtol=rtol)


def test_other_batches_give_the_same_first_steps(array):
    X = array(data())
    expected, whole = trace(X, 2, transport(), batch=2)
    found, fit = trace(Sliceable(X), 2, transport(), batch=2, chunk=4)
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-10)
    assert fit.dual.shape == tuple(whole.dual.shape)
    assert abs(fit.objective - whole.objective) < 1e-6


@pytest.mark.usefixtures("on_numpy")
class TestFits:
    @pytest.mark.parametrize(
        "options",
        [
            {"model": wtf.cp, "rank": 2},
            {"model": wtf.tucker, "rank": (2, 2, 2)},
            {"loss": transport(lam=math.inf)},
            {"loss": wtf.KullbackLeibler()},
            {"loss": wtf.LossSum(transport(), wtf.Frobenius())},
            {"sample_weight": np.linspace(0.5, 2.0, 6)},
            {"init": "random"},
            {"init": "nnsvd"},
            {"init": "nnsvd", "model": wtf.cp},
            {"n_init": 2},
            {"constraints": (None, "columns")},
        ],
        ids=[
            *("cp", "tucker", "balanced", "KL", "sum", "weights", "random"),
            *("SVD", "SVD of CP", "n_init", "free"),
        ],
    )
    def test_options_work_as_in_memory(self, options):
        chosen = {"rank": 2, "loss": transport(), **options}
        expected, _ = trace(data(), batch=2, **chosen)
        found, fit = trace(Sliceable(data()), batch=2, chunk=4, **chosen)
        np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-10)
        assert math.isfinite(fit.objective)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"model": wtf.cp, "init": "nnsvd"},
            {"loss": wtf.LossSum(transport(), wtf.KullbackLeibler())},
            {"loss": MaskedHuber(), "rho": 1e-3},
        ],
        ids=["nmf", "cp and SVD", "sum", "own loss"],
    )
    def test_masks_work_as_in_memory(self, options):
        """Missing entries, most of a sample, and NaN there; the mask is stored as well."""
        X, mask = data(), np.random.default_rng(1).uniform(size=(6, 5, 4)) > 0.2
        mask[3, 1:] = False
        X[~mask] = math.nan
        chosen = {"rank": 2, "loss": transport(), **options}
        expected, whole = trace(X, mask=mask, batch=2, **chosen)
        found, fit = trace(Sliceable(X), mask=Sliceable(mask), batch=2, chunk=4, **chosen)
        np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-10)
        assert fit.constraints == whole.constraints
        assert fit.rho == pytest.approx(whole.rho, rel=1e-12)
        assert (np.asarray(fit.dual)[~mask] == 0.0).all()

    def test_mask_of_a_mode_and_mask_that_hides_nothing(self):
        bins = np.arange(20).reshape(5, 4) > 3
        expected, _ = trace(data(), 2, transport(), mask=bins, batch=2)
        found, _ = trace(Sliceable(data()), 2, transport(), mask=bins, batch=2, chunk=4)
        np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-10)
        expected, _ = trace(Sliceable(data()), 2, transport(), chunk=4)
        found, _ = trace(Sliceable(data()), 2, transport(), mask=np.ones((4,), bool), chunk=4)
        np.testing.assert_array_equal(found, expected)
        small, _ = trace(Sliceable(data()), 2, transport(), mask=Sliceable(bins[None] | False))
        whole, _ = trace(data(), 2, transport(), mask=bins)
        np.testing.assert_array_equal(small, whole)

    def test_checkpoint_belongs_to_its_mask(self, tmp_path):
        mask = np.ones((6, 5, 4), dtype=bool)
        mask[1, 2] = False
        options = {"chunk": 4, "checkpoint": tmp_path / "state"}
        with pytest.warns(UserWarning, match="stopped by the callback"):
            wtf.nmf(data(), 2, transport(), mask=mask, callback=lambda s: s.n_iter == 1, **options)
        with pytest.raises(ValueError, match="belongs to a fit with different data"):
            wtf.nmf(data(), 2, transport(), mask=~(~mask)[::-1], **options)

    def test_coarser_grid_initialises_the_finer_one(self):
        X = np.random.default_rng(0).dirichlet(np.ones(32), 6)
        loss = transport(shape=(32,), eps=0.05)
        expected, _ = trace(X, 2, loss, wtf.cp, batch=2, constraints=("rows", "columns"))
        found, _ = trace(X, 2, loss, wtf.cp, batch=2, chunk=4, constraints=("rows", "columns"))
        assert len(found) == len(expected)
        np.testing.assert_allclose(found[:5], expected[:5], rtol=1e-10)

    def test_fit_converges_to_that_of_the_array(self):
        X, init = planted("cp")
        expected = wtf.cp(X, 2, transport(), init=init)
        found = wtf.cp(Sliceable(X), 2, transport(), init=init, chunk=4)
        assert found.converged
        assert abs(found.objective - expected.objective) < 1e-4 * abs(expected.objective)

    def test_small_files_are_read_into_memory(self, tmp_path):
        np.save(tmp_path / "x.npy", data())
        expected, _ = trace(data(), 2, transport())
        found, fit = trace(np.load(tmp_path / "x.npy", mmap_mode="r"), 2, transport())
        np.testing.assert_array_equal(found, expected)
        assert isinstance(fit.dual, np.ndarray)

    def test_memory_map_is_read_in_chunks(self, tmp_path):
        np.save(tmp_path / "x.npy", data())
        expected, _ = trace(Sliceable(data()), 2, transport(), chunk=4)
        mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
        found, fit = trace(mapped, 2, transport(), chunk=4, scratch=tmp_path)
        np.testing.assert_array_equal(found, expected)
        del fit
        gc.collect()
        assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]

    def test_files_are_in_the_folder_of_the_user(self, tmp_path):
        _, fit = trace(Sliceable(data()), 2, transport(), chunk=4, scratch=tmp_path)
        assert tmp_path in fit.dual.path.parents
        fit.save(tmp_path / "fit.npz")
        loaded = wtf.load(tmp_path / "fit.npz")
        np.testing.assert_array_equal(loaded.dual, np.asarray(fit.dual))

    def test_interrupted_fit_continues_from_its_checkpoint(self, tmp_path):
        X, init = planted("cp")
        options = {"init": init, "chunk": 4, "checkpoint": tmp_path / "state"}
        expected = wtf.cp(X, 2, transport(), init=init)
        with pytest.warns(UserWarning, match="stopped by the callback"):
            first = wtf.cp(X, 2, transport(), callback=lambda s: s.n_iter == 12, **options)
        fit = wtf.cp(X, 2, transport(), **options)
        assert fit.converged
        assert fit.n_iter > first.n_iter
        assert abs(fit.objective - expected.objective) < 1e-4 * abs(expected.objective)

    def test_fixed_factors_without_mass_are_refused_by_sample(self):
        X, factors = planted("nmf")
        factors[0][5] = 0.0
        with pytest.raises(ValueError, match="make sample 5 of every model"):
            wtf.nmf(X, 2, transport(), init=factors, fixed=(0,), chunk=2, batch=2)

    def test_masses_that_cannot_be_met_are_refused_by_sample(self):
        X = data()
        X[4] *= 2.0
        options = {"constraints": ("rows", "columns"), "chunk": 2, "batch": 2}
        with pytest.raises(ValueError, match="sample 4 of X has"):
            wtf.nmf(X, 2, transport(lam=math.inf), **options)


def team(X, cuts, *, mask=None, last=8, **options):
    """Fits of several processes, each of which reads its own part in chunks."""

    def fit(comm):
        mine = [None if a is None else np.split(a, cuts)[comm.rank] for a in (X, mask)]
        given = {"rng": 0, "batch": 2, "chunk": 4, "comm": comm, **options}
        return traced(wtf.cp, Sliceable(mine[0]), 2, GRID_LOSS, mask=mine[1], last=last, **given)

    return run_threads(fit, len(cuts) + 1, timeout=TIMEOUT)


@quietly
@pytest.mark.usefixtures("on_numpy")
class TestTeam:
    @pytest.mark.parametrize(
        "options", [{}, {"init": "nnsvd"}, {"constraints": ("columns",) * 3}, {"masked": True}]
    )
    def test_first_steps_are_those_of_one_process(self, options, monkeypatch):
        """Entries are missing on one process only; batches are the same as those of one."""
        monkeypatch.setattr(anderson, "STORED", "float64")
        X, given = images(24), dict(options)
        if given.pop("masked", False):
            given["mask"] = np.random.default_rng(1).uniform(size=X.shape) > 0.2
            given["mask"][12:] = True
        one = traced(wtf.cp, X, 2, GRID_LOSS, rng=0, batch=2, chunk=4, last=8, **given)
        found = team(X, [4, 12], **given)
        # Inner problems start without secants in each evaluation, and amplify rounding.
        assert relative_differences(one, found[0], 8).max() <= 1e-9
        assert_alike(found)
        assert [trace.fit.dual.shape[0] for trace in found] == [4, 8, 12]

    def test_small_and_large_files_are_fitted_together(self, monkeypatch):
        """One process has so few samples that it would read them into memory if it were alone."""
        set_thresholds(monkeypatch, chunk_entries=100)
        found = team(images(8), [2], chunk=None, batch=None, last=2)
        assert_alike(found)
        assert [trace.fit.dual.shape for trace in found] == [(2, 6, 6), (6, 6, 6)]

    def test_small_files_are_read_into_memory(self):
        """Also by a process without samples, and with masks that are stored."""
        X, mask = images(8), images(8) > 0.002
        one = traced(wtf.cp, X, 2, GRID_LOSS, rng=0, last=3, mask=mask)

        def fit(comm):
            mine, seen = (Sliceable(np.split(a, [0, 3])[comm.rank]) for a in (X, mask))
            return traced(wtf.cp, mine, 2, GRID_LOSS, rng=0, last=3, mask=seen, comm=comm)

        found = run_threads(fit, 3, timeout=TIMEOUT)
        assert relative_differences(one, found[0], 3).max() <= 1e-9
        assert all(isinstance(trace.fit.dual, np.ndarray) for trace in found)

    def test_fit_continues_on_other_shards(self, tmp_path):
        X, path = images(24), tmp_path / "state"
        through = team(X, [4, 12], last=14)
        first = team(X, [4, 12], last=11, checkpoint=path)
        assert first[0].fit.n_iter == 11
        continued = team(X, [10], last=3, checkpoint=path)
        assert continued[0].fit.n_iter == 14
        assert continued[0].steps[-1] == pytest.approx(through[0].steps[-1], rel=1e-3)

    def test_gathered_fit_has_the_dual_variable_of_all(self):
        def fit(comm):
            mine = np.split(images(8), [3])[comm.rank]
            options = {"rng": 0, "chunk": 2, "max_iter": 2, "comm": comm}
            return gather(wtf.nmf(Sliceable(mine), 2, GRID_LOSS, **options), comm)

        whole, _ = run_threads(fit, 2, timeout=TIMEOUT)
        assert whole.dual.shape == (8, 6, 6)

    def test_process_without_samples_is_refused_by_name(self):
        with pytest.raises((ValueError, RuntimeError), match=r"X has shape \(0, 6, 6\)"):
            team(images(8), [0])


@pytest.mark.usefixtures("on_numpy")
class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"solver": "dual"}, "does not support data that are read in chunks"),
            ({"chunk": 0}, "chunk is 0: expected a positive integer"),
            ({"mask": np.ones((5, 5, 4), dtype=bool)}, "mask has shape .5, 5, 4.: expected one"),
            (
                {"mask": np.arange(120).reshape(6, 5, 4) > 3, "solver": "online"},
                "'online', which does not support a mask",
            ),
            ({"loss": transport(debias=True)}, "loss is debiased for an X that is read"),
            ({"scratch": "nowhere"}, "scratch is 'nowhere': expected a folder that exists"),
        ],
    )
    def test_option_is_named(self, options, message):
        with pytest.raises(ValueError, match=message):
            wtf.nmf(Sliceable(data()), 2, **{"loss": transport(), "chunk": 4, **options})

    def test_transport_of_the_samples_is_refused(self):
        loss = transport(shape=(6, 5, 4))
        with pytest.raises(ValueError, match="loss transports the first mode for an X"):
            wtf.cp(Sliceable(data()), 2, loss, chunk=4)

    def test_folder_without_chunks_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="scratch was given for an array in memory"):
            wtf.nmf(data(), 2, transport(), scratch=tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
@pytest.mark.usefixtures("on_numpy")
def test_memory_is_that_of_a_few_chunks(tmp_path):
    script = ROOT / "benchmarks" / "out_of_core.py"
    options = ["--size", "6MB", "--side", "32", "--chunk", "64", "--rank", "2", "--quick"]
    options += ["--headroom", "150MB"]
    done = subprocess.run(
        [sys.executable, str(script), *options, "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    peak = re.search(r"arrays: peak ([0-9.]+) MB", done.stdout)
    assert peak is not None
    assert float(peak[1]) < 6.0  # less than X: an array in memory takes several times as much
