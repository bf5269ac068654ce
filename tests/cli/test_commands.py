"""The commands, through click's runner and once as a process that is interrupted."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from array_api_compat import is_torch_namespace
from command_line import GRID, QUICK, SAMPLES, data, refuse, run
from helpers import numpy_only
from saved_fits import forge, limited_files

import wtfarray as wtf
from wtfarray._fit.storage import PROBE
from wtfarray.cli import _commands
from wtfarray.cli._commands import BAD_INPUT, INTERRUPTED, NOT_CONVERGED, NOT_WRITTEN


@numpy_only
class TestFit:
    def test_loss_may_be_debiased(self):
        assert run("fit", "X.npy", *QUICK, "--debias").exit_code == 0
        assert wtf.load("fit.npz").loss.debias
        assert "--debias was given with --loss kl" in refuse(
            "fit", "X.npy", "--rank", 2, "--debias", "--loss", "kl"
        )

    def test_reach_and_price_of_mass_that_stays_behind(self):
        words = ("--model", "nmf", "--reach", "2,inf", "--source-lam", 5)
        assert run("fit", "X.npy", *QUICK, *words).exit_code == 0
        loss = wtf.load("fit.npz").loss
        assert loss.source_lam == 5.0
        assert isinstance(loss.costs[0], wtf.BandedCost)
        assert loss.costs[0].reach == 2
        assert loss.costs[1].shape == (GRID[1], GRID[1])
        words = ("--rank", 2, "--reach", 2)
        assert "--reach was given with --cost" in refuse("fit", "X.npy", *words, "--cost", "X.npy")
        assert "--reach was given with --loss" in refuse("fit", "X.npy", *words, "--loss", "kl")
        assert "reach has 3 entries" in refuse("fit", "X.npy", "--rank", 2, "--reach", "2,2,2")

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

    def test_table_without_a_grid_has_a_line_cost(self):
        assert run("fit", "table.npy", *QUICK, "--model", "nmf").exit_code == 0
        assert [cost.shape for cost in wtf.load("fit.npz").loss.costs] == [(20, 20)]

    def test_grid_of_all_modes_transports_all(self):
        result = run("fit", "X.npy", *QUICK, "--grid", "8x5x4", "--lam", "inf", "--normalise")
        assert result.exit_code in {0, NOT_CONVERGED}
        assert wtf.load("fit.npz").loss.transported((8, 5, 4)) == (0, 1, 2)

    def test_dense_cost_is_read_from_a_file(self):
        cost = wtf.point_cost(np.arange(20.0))
        np.save("C.npy", cost)
        assert run("fit", "X.npy", *QUICK, "--cost", "C.npy").exit_code == 0
        loss = wtf.load("fit.npz").loss
        assert loss.modes == ((1, 2),)
        np.testing.assert_array_equal(loss.costs[0], cost)

    def test_tucker_takes_one_rank_and_rho_per_block(self):
        words = ("--model", "tucker", "--rank", "2,3,2", "--loss", "kl", "--rho", "0.1,0.2,0.3,0.4")
        assert run("fit", "X.npy", *words, "--tol", "1e-3").exit_code == 0
        fit = wtf.load("fit.npz")
        assert fit.core.shape == (2, 3, 2)
        assert isinstance(fit.loss, wtf.KullbackLeibler)
        assert fit.rho == (0.1, 0.2, 0.3, 0.4)

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
class TestRefused:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["nothing.npy"], "nothing.npy' does not exist"),
            (["X.npy", "--rank", "two"], "'two': expected positive integers"),
            (["X.npy", "--rank", "0"], "'0': expected positive integers"),
            (["X.npy", "--rank", "2,2"], "rank is (2, 2): expected a positive integer"),
            (["X.npy", "--model", "tucker"], "rank is (2,): expected 3 positive integers"),
            (["X.npy", "--grid", "5,4"], "'5,4': expected positive integers"),
            (["X.npy", "--grid", "6x4"], "expected (N, 24) or (..., 6, 4)"),
            (["X.npy", "--eps", "0"], "eps is 0.0: expected a positive number"),
            (["X.npy", "--lam", "many"], "'many' is not a valid float"),
            (["X.npy", "--rho", "1,b"], "'1,b': expected numbers"),
            (["X.npy", "--rho", "1,2"], "rho has 2 entries"),
            (["X.npy", "--loss", "hinge"], "'hinge' is not one of"),
            (["X.npy", "--key", "X"], "contains a single array"),
            (["X.npy", "--device", "cuda"], "--device is cuda: expected cpu for NumPy"),
            (["X.npy", "--out", "fit.txt"], "--out is fit.txt: expected a file with suffix .npz"),
            (["X.npy", "--out", "no/fit.npz"], "folder no does not exist"),
            (
                ["X.npy", "--solver", "dual", "--checkpoint", "c.npz"],
                "does not support a checkpoint",
            ),
            (["X.npy", "--init", "X.npy"], "X.npy is not a fit"),
            (["X.npy", "--colour", "red"], "No such option"),
            (["two.npz"], "two.npz contains a, b: expected one of them"),
            (["two.npz", "--key", "c"], "--key is 'c' and two.npz contains a, b"),
            (["words.csv"], "words.csv cannot be read: could not convert string"),
            (["gap.csv"], "gap.csv cannot be read: could not convert string ''"),
            (["gap.csv"], "--missing nan takes empty fields and NA as missing"),
            (["ragged.csv"], "ragged.csv cannot be read: the number of columns changed"),
            (["void.npy"], "void.npy cannot be read: No data left in file"),
            (["number.npy", "--normalise"], "number.npy contains float64, 0-d"),
            (["member.npz"], "member.npz contains no array"),
            (["damaged.npz"], "damaged.npz cannot be read: Bad CRC-32"),
            (["void.mat"], "void.mat cannot be read"),
            (["X.npy", "--seed", "-1"], "'--seed': -1 is not in the range x>=0"),
            (["X.npy", "--loss", "kl", "--eps", "1"], "--eps was given with --loss kl"),
            (["empty", "--key", "X"], "--key is 'X'"),
            (["X.npy", "--checkpoint", "two.npz"], "checkpoint is 'two.npz'"),
            (["pickle.npy"], "allow_pickle=False"),
            (["negative.npy"], "X is -1.0 at index (0, 0)"),
            (["zero.npy", "--normalise"], "sample 1 has mass 0.0"),
            (["complex.npy"], "complex.npy contains complex128, 2-d: expected an array of real"),
            (["junk.npz"], "junk.npz is not an .npz file"),
            (["text.npz"], "text.npz is not an .npz file"),
            (["line.npy"], "expected samples and at least one more mode"),
            (["notes.txt"], "notes.txt has suffix '.txt'"),
            (["empty"], "empty contains no images"),
        ],
    )
    def test_bad_input_is_refused_in_one_line(self, words, said):
        np.savez("two.npz", a=np.ones(2), b=np.ones(2))
        np.save("pickle.npy", np.array([None]), allow_pickle=True)
        np.save("negative.npy", -np.ones((2, 2)))
        np.save("zero.npy", np.array([[1.0, 1.0], [0.0, 0.0]]))
        np.save("complex.npy", np.ones((2, 2), dtype=complex))
        np.save("line.npy", np.ones(3))
        Path("gap.csv").write_text("1,,3\n1,2,3\n4,5,6\n", encoding="utf-8")
        Path("ragged.csv").write_text("1,2,3\n1,2\n", encoding="utf-8")
        Path("void.npy").touch()
        Path("void.mat").touch()
        np.save("number.npy", np.float64(3.0))
        with zipfile.ZipFile("member.npz", "w") as archive:
            archive.writestr("text", "no array")
        np.savez("damaged.npz", np.ones((20, 20)))
        whole = Path("damaged.npz").read_bytes()
        Path("damaged.npz").write_bytes(whole[:1000] + b"?" + whole[1001:])
        Path("words.csv").write_text("a,b\nc,d\n", encoding="utf-8")
        Path("junk.npz").write_bytes(b"PK\x03\x04 but no archive")
        Path("text.npz").write_text("1,2", encoding="utf-8")
        Path("notes.txt").write_text("1,2", encoding="utf-8")
        Path("empty").mkdir()
        rank = () if "--rank" in words else ("--rank", "2")
        assert said in refuse("fit", *words, *rank)
        assert not Path("fit.npz").exists()

    def test_unwritable_figure_is_refused_before_fitting(self):
        pytest.importorskip("matplotlib")
        assert "--plot is atoms.xyz" in refuse("fit", "X.npy", *QUICK, "--plot", "atoms.xyz")
        assert not Path("fit.npz").exists()

    def test_missing_array_library_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        said = refuse("fit", "X.npy", *QUICK, "--backend", "torch")
        assert said.endswith("--backend torch needs torch: pip install 'wtfarray[torch]'")

    def test_missing_click_names_the_extra(self):
        code = "import sys; sys.modules['click'] = None; import wtfarray.cli; wtfarray.cli.main()"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == BAD_INPUT
        said = "wtfarray: the command line needs click: pip install 'wtfarray[cli]'\n"
        assert done.stderr == said


@numpy_only
class TestProject:
    def test_coefficients_are_those_of_the_library(self):
        run("fit", "X.npy", *QUICK)
        expected = wtf.load("fit.npz").project(data()[:3])
        np.save("new.npy", 4.0 * data()[:3].reshape(3, -1))
        for out in ("c.npy", "c.csv"):
            result = run("project", "fit.npz", "new.npy", "--normalise", "--out", out)
            assert result.exit_code == 0, result.output
        np.testing.assert_allclose(np.load("c.npy"), expected, rtol=1e-6)
        np.testing.assert_allclose(
            np.loadtxt("c.csv", delimiter=",", skiprows=1)[:, 1:], expected, rtol=1e-6
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


@pytest.fixture
def elsewhere(tmp_path_factory, monkeypatch):
    """The folder for temporary files, and ``full.*`` here, on a device without room."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    for suffix in ("npz", "npy", "csv", "png", "svg"):
        Path(f"full.{suffix}").symlink_to("/dev/full")
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("HOME", str(folder))
    return folder


@numpy_only
class TestFullDisk:
    def found(self, result, name, folder):
        """The file that the message names."""
        (path,) = folder.glob(f"wtfarray-unwritten-*/{name}")
        said = f"{name} cannot be written: No space left on device; written to {path} instead"
        assert f"wtfarray: {said}" in result.stderr.splitlines()
        assert str(path) in "".join(result.stdout.split())
        return path

    def test_fit_is_written_elsewhere(self, elsewhere):
        result = run("fit", "X.npy", *QUICK, "--out", "full.npz")
        assert result.exit_code == NOT_WRITTEN
        assert wtf.load(self.found(result, "full.npz", elsewhere)).converged

    @pytest.mark.parametrize("name", ["full.png", "full.svg"])
    def test_picture_is_written_elsewhere(self, elsewhere, name):
        pytest.importorskip("matplotlib")
        result = run("fit", "X.npy", *QUICK, "--plot", name)
        assert result.exit_code == NOT_WRITTEN
        assert wtf.load("fit.npz").converged
        assert self.found(result, name, elsewhere).stat().st_size > 1000

    @pytest.mark.parametrize("name", ["full.npy", "full.csv"])
    def test_coefficients_are_written_elsewhere(self, elsewhere, name):
        run("fit", "X.npy", *QUICK)
        result = run("project", "fit.npz", "X.npy", "--out", name)
        assert result.exit_code == NOT_WRITTEN
        path = self.found(result, name, elsewhere)
        if path.suffix == ".npy":
            found = np.load(path)
        else:
            found = np.loadtxt(path, delimiter=",", skiprows=1)[:, 1:]
        np.testing.assert_allclose(found, wtf.load("fit.npz").project(data()), rtol=1e-6)

    def test_loss_of_the_result_is_not_called_bad_input(self, tmp_path, elsewhere):
        """Where no file may grow there is no other place either; the table is all there is."""
        np.save("large.npy", np.random.default_rng(0).dirichlet(np.ones(100), 40))
        words = ("--rank", 2, "--loss", "kl", "--model", "nmf")
        with limited_files(PROBE + 100):
            result = run("fit", "large.npy", *words)
        assert result.exit_code == NOT_WRITTEN
        assert (
            "fit.npz cannot be written: File too large; neither can other folders" in result.stderr
        )
        assert "objective" in result.stdout
        assert not Path("fit.npz").exists()
        assert not [*elsewhere.iterdir(), *tmp_path.glob("*.part"), *tmp_path.glob("wtfarray*")]

    @pytest.mark.parametrize("name", ["c.npy", "c.csv"])
    def test_old_coefficients_stay_whole(self, name):
        run("fit", "X.npy", *QUICK)
        np.save("many.npy", np.tile(data(), (50, 1, 1)))
        assert run("project", "fit.npz", "X.npy", "--out", name).exit_code == 0
        before = Path(name).read_bytes()
        with limited_files(PROBE + 100):
            result = run("project", "fit.npz", "many.npy", "--out", name)
        assert result.exit_code == NOT_WRITTEN
        assert Path(name).read_bytes() == before

    def test_old_picture_stays_whole(self):
        pytest.importorskip("matplotlib")
        run("fit", "X.npy", *QUICK, "--plot", "atoms.png")
        before = Path("atoms.png").read_bytes()
        with limited_files(2 * PROBE):
            result = run("fit", "X.npy", *QUICK, "--plot", "atoms.png")
        assert result.exit_code == NOT_WRITTEN
        assert Path("atoms.png").read_bytes() == before

    def test_interrupted_fit_advises_to_go_on_from_where_it_is(self, elsewhere, monkeypatch):
        step = _commands.Watch.step

        def interrupt(watch, state):
            if state.n_iter == 3:
                signal.raise_signal(signal.SIGINT)
            return step(watch, state)

        monkeypatch.setattr(_commands.Watch, "step", interrupt)
        result = run("fit", "X.npy", *QUICK, "--tol", 1e-14, "--out", "full.npz")
        assert result.exit_code == NOT_WRITTEN
        path = self.found(result, "full.npz", elsewhere)
        assert f"add --init {path}" in result.stderr

    def test_error_of_the_picture_does_not_hide_the_fit(self, monkeypatch):
        pytest.importorskip("matplotlib")

        def fail(*_):
            msg = "too large to draw"
            raise ValueError(msg)

        monkeypatch.setattr(_commands, "_draw_atoms", fail)
        result = run("fit", "X.npy", *QUICK, "--plot", "atoms.png")
        assert result.exit_code == NOT_WRITTEN
        assert "atoms.png cannot be drawn: too large to draw" in result.stderr
        assert wtf.load("fit.npz").converged

    def test_full_folder_is_refused_before_fitting(self):
        with limited_files(100):
            said = refuse("fit", "X.npy", *QUICK, "--out", "some.npz")
        assert "--out is some.npz, but the folder is not writable: File too large" in said

    def test_checkpoint_that_cannot_be_written_is_reported_once(self, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("wtfarray._fit.checkpoint.write_atomically", full)
        words = ("--tol", 1e-12, "--checkpoint", "state.npz")
        result = run("fit", "X.npy", *QUICK, *words)
        fit = wtf.load("fit.npz")
        assert fit.n_iter > 20
        assert result.exit_code == (0 if fit.converged else NOT_CONVERGED)
        said = "wtfarray: checkpoint 'state.npz' cannot be written: No space left on device\n"
        assert result.stderr == said

    @pytest.mark.usefixtures("elsewhere")
    def test_table_that_cannot_be_shown_does_not_hide_the_fit(self):
        command = [sys.executable, "-m", "wtfarray", "fit", "X.npy", *QUICK]
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            done = subprocess.run(
                command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert done.returncode == NOT_WRITTEN
        assert done.stderr == "wtfarray: the table cannot be shown: No space left on device\n"
        assert wtf.load("fit.npz").converged


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
def test_bare_command_shows_help_and_version():
    assert "Usage:" in run().output
    assert wtf.__version__ in run("--version").stdout
    assert "Exit codes" in run("fit", "--help").stdout


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
