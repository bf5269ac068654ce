"""The commands, through click's runner and once as a process that is interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from array_api_compat import is_torch_namespace
from command_line import GRID, QUICK, SAMPLES, data, refuse, run
from helpers import numpy_only
from saved_fits import forge

import wtfarray as wtf
from wtfarray.cli._group import INTERRUPTED, NOT_CONVERGED


@numpy_only
class TestFit:
    def test_fit_is_that_of_the_library(self):
        result = run("fit", "X.npy", *QUICK, "--lam", 5, "--rho", 0.02, "--seed", 3)
        assert result.exit_code == 0, result.output
        loss = wtf.Wasserstein(wtf.grid_cost(*GRID), eps=0.1, lam=5.0)
        expected = wtf.cp(data(), 2, loss, rho=0.02, rng=3, tol=1e-3)
        found = wtf.load("fit.npz")
        assert found.kind == "cp"
        assert found.objective == expected.objective
        for a, b in zip(found.factors, expected.factors, strict=True):
            np.testing.assert_array_equal(a, b)
        assert f"{expected.objective:.8g}" in result.stdout
        assert "fit.npz" in result.stdout

    @pytest.mark.parametrize("model", ["cp", "nmf"])
    def test_grid_reshapes_the_rows_of_a_table(self, model):
        for name in ("X.npy", "table.npy"):
            words = ("--model", model, "--grid", "5x4", "--out", f"{name}.npz")
            assert run("fit", name, *QUICK, *words).exit_code == 0
        a, b = (wtf.load(f"{name}.npz") for name in ("X.npy", "table.npy"))
        assert a.shape == b.shape == (SAMPLES, *GRID)
        assert len(a.loss.costs) == 2
        assert a.objective == b.objective

    def test_dual_solver_fits_the_frobenius_loss(self):
        words = ("--rank", 2, "--tol", 1e-3, "--solver", "dual", "--loss", "frobenius")
        result = run("fit", "X.npy", *words)
        assert result.exit_code == 0
        assert "Frobenius" in result.stdout

    def test_exit_code_tells_that_a_fit_has_not_converged(self):
        result = run("fit", "X.npy", *QUICK, "--max-iter", 1, "--tol", 1e-14)
        assert result.exit_code == NOT_CONVERGED
        assert "stopped after max_iter = 1" in " ".join(result.stdout.split())
        assert not wtf.load("fit.npz").converged

    def test_init_starts_from_a_saved_fit(self):
        run("fit", "X.npy", *QUICK, "--out", "first.npz")
        words = ("--init", "first.npz", "--max-iter", 1, "--tol", 1e-14)
        run("fit", "X.npy", *QUICK, *words)
        first, second = wtf.load("first.npz"), wtf.load("fit.npz")
        assert second.n_iter <= 1
        assert second.objective <= first.objective + first.gap

    def test_quiet_fit_in_float32_prints_nothing(self):
        result = run("fit", "X.npy", *QUICK, "--dtype", "float32", "--quiet")
        assert (result.exit_code, result.output) == (0, "")
        assert wtf.load("fit.npz").factors[0].dtype == np.float32

    @pytest.mark.parametrize("suffix", ["png", "pdf"])
    def test_plot_writes_a_picture_of_the_atoms(self, suffix):
        pytest.importorskip("matplotlib")
        assert run("fit", "X.npy", *QUICK, "--plot", f"atoms.{suffix}").exit_code == 0
        start = Path(f"atoms.{suffix}").read_bytes()[:4]
        assert start == {"png": b"\x89PNG", "pdf": b"%PDF"}[suffix]

    def test_plot_draws_factors_when_atoms_have_many_modes(self):
        pytest.importorskip("matplotlib")
        np.save("four.npy", data().reshape(4, 2, 5, 4))
        words = ("--loss", "kl", "--plot", "atoms.png")
        assert run("fit", "four.npy", "--rank", 2, *words).exit_code == 0
        assert Path("atoms.png").exists()


def test_fit_on_torch_agrees_with_numpy(xp):
    if not is_torch_namespace(xp):
        pytest.skip("tested with torch")
    for backend in ("torch", "numpy"):
        words = ("--backend", backend, "--device", "cpu", "--out", f"{backend}.npz")
        assert run("fit", "X.npy", *QUICK, *words).exit_code == 0
    a, b = wtf.load("torch.npz"), wtf.load("numpy.npz")
    assert a.objective == pytest.approx(b.objective, rel=1e-6)


@numpy_only
class TestProject:
    def test_coefficients_are_those_of_the_library(self):
        run("fit", "X.npy", *QUICK)
        expected = wtf.load("fit.npz").project(data()[:3])
        np.save("new.npy", 4.0 * data()[:3].reshape(3, -1))
        for out in ("c.npy", "c.csv"):
            result = run("project", "fit.npz", "new.npy", "--normalise", "--out", out)
            assert result.exit_code == 0, result.output
        close = {"rtol": 1e-6, "atol": 1e-12}  # some are 0 but for rounding
        np.testing.assert_allclose(np.load("c.npy"), expected, **close)
        np.testing.assert_allclose(
            np.loadtxt("c.csv", delimiter=",", skiprows=1)[:, 1:], expected, **close
        )

    def test_exit_code_tells_that_a_projection_has_not_converged(self):
        run("fit", "X.npy", *QUICK)
        words = ("--max-iter", 1, "--tol", 1e-14)
        result = run("project", "fit.npz", "X.npy", *words)
        assert result.exit_code == NOT_CONVERGED
        assert "stopped after max_iter = 1" in result.stderr
        assert np.load("coefficients.npy").shape == (SAMPLES, 2)

    def test_other_shapes_and_files_are_refused(self):
        run("fit", "X.npy", *QUICK)
        np.save("other.npy", np.ones((2, 7)))
        assert "X has shape (2, 7): expected (n, 5, 4)" in refuse("project", "fit.npz", "other.npy")
        assert "X.npy is not a fit" in refuse("project", "X.npy", "X.npy")


@numpy_only
@pytest.mark.parametrize("words", [["info"], ["project"], ["fit", "X.npy", *QUICK, "--init"]])
def test_damaged_fit_is_refused_in_one_line(words):
    run("fit", "X.npy", *QUICK, "--out", "first.npz")
    forge("first.npz", lambda _, header: header.update(objective="low"))
    rest = ["X.npy"] if words == ["project"] else []
    said = refuse(*words, "first.npz", *rest)
    assert "first.npz is not a fit" in said
    assert "objective is 'low'" in said


@numpy_only
def test_info_summarises_a_saved_fit():
    run("fit", "X.npy", *QUICK)
    result = run("info", "fit.npz")
    assert result.exit_code == 0
    fit = wtf.load("fit.npz")
    for part in ("cp, rank 2", "8 x 5 x 4", f"{fit.objective:.8g}", "eps=0.1", "yes"):
        assert part in result.stdout
    assert "is not a fit" in refuse("info", "table.npy")


@numpy_only
@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for another process on Windows")
class TestInterrupt:
    def begin(self, *words):
        """Start a fit in another process that would never converge."""
        command = [sys.executable, "-m", "wtfarray", "fit", "X.npy", *QUICK, "--tol", "1e-300"]
        command += ["--max-iter", "1000000000", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for(self, path, process):
        end = time.monotonic() + 60
        while not path.exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end, f"no {path} after a minute"
            time.sleep(0.02)

    def test_interrupted_fit_is_written_and_can_be_resumed(self):
        big = np.random.default_rng(1).gamma(1.0, size=(40, 16, 16))
        np.save("X.npy", big / big.sum(axis=(1, 2), keepdims=True))
        kept = Path("state.npz")
        process = self.begin("--checkpoint", str(kept), "--lam", "100", "--rank", "6")
        self.wait_for(kept, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == INTERRUPTED, err
        assert "Traceback" not in err
        assert "the same command continues from the checkpoint" in err
        assert "interrupted: the best so far" in " ".join(out.split())
        first = wtf.load("fit.npz")
        assert kept.exists()
        assert not first.converged

        words = ("--checkpoint", kept, "--lam", 100, "--rank", 6, "--tol", 1e-2)
        result = run("fit", "X.npy", *QUICK, *words)
        assert result.exit_code == 0, result.output
        second = wtf.load("fit.npz")
        assert second.n_iter > first.n_iter
        assert second.objective <= first.objective + first.gap
        assert not kept.exists()


@numpy_only
class TestProjectMass:
    def test_raw_counts_are_warned_of_and_the_exit_code_is_that_of_the_solver(self):
        assert run("fit", "X.npy", *QUICK).exit_code == 0
        np.save("raw.npy", 200.0 * data()[:3])
        result = run("project", "fit.npz", "raw.npy", "--tol", 1e-4)
        assert result.exit_code == 0, result.output
        lines = [line for line in result.stderr.splitlines() if line.startswith("wtfarray: ")]
        assert len(lines) == 1
        assert lines[0].startswith("wtfarray: project: sample 0 of X has mass 200")
        assert "divide each by its sum" in lines[0]
        assert np.load("coefficients.npy").shape == (3, 2)

    def test_normalised_samples_are_not(self):
        assert run("fit", "X.npy", *QUICK).exit_code == 0
        np.save("raw.npy", 200.0 * data()[:3])
        np.save("new.npy", data()[:3])
        for words in (("new.npy",), ("raw.npy", "--normalise")):
            result = run("project", "fit.npz", *words, "--tol", 1e-4)
            assert result.exit_code == 0, result.output
            assert "has mass" not in result.stderr

    def test_not_converged_goes_before(self):
        assert run("fit", "X.npy", *QUICK).exit_code == 0
        np.save("raw.npy", 200.0 * data()[:3])
        result = run("project", "fit.npz", "raw.npy", "--tol", 1e-14, "--max-iter", 1)
        assert result.exit_code == NOT_CONVERGED
        assert "divide each by its sum" in result.stderr
        assert "stopped after max_iter = 1" in result.stderr


def test_comm_reads_rows_of_npy_files_only(tmp_path, on_numpy):
    from wtfarray.cli._data import read_rows
    from wtfarray.distributed import threads

    X = np.arange(14.0).reshape(7, 2)
    np.save(tmp_path / "X.npy", X)
    parts = [read_rows(tmp_path / "X.npy", comm) for comm in threads(3)]
    assert np.array_equal(np.concatenate(parts), X)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    with pytest.raises(ValueError, match=r"--comm was given with .*X\.csv: expected an \.npy file"):
        read_rows(tmp_path / "X.csv", threads(1)[0])
