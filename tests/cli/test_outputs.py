"""What the commands write, also if the disk is full or the output cannot be drawn."""

import errno
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from command_line import QUICK, data, refuse, run
from helpers import numpy_only
from saved_fits import limited_files

import wtfarray as wtf
from wtfarray._fit.storage import PROBE
from wtfarray.cli import _outputs
from wtfarray.cli._group import NOT_CONVERGED, NOT_WRITTEN
from wtfarray.cli._report import Watch


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
        step = Watch.step

        def interrupt(watch, state):
            if state.n_iter == 3:
                signal.raise_signal(signal.SIGINT)
            return step(watch, state)

        monkeypatch.setattr(Watch, "step", interrupt)
        result = run("fit", "X.npy", *QUICK, "--tol", 1e-14, "--out", "full.npz")
        assert result.exit_code == NOT_WRITTEN
        path = self.found(result, "full.npz", elsewhere)
        assert f"add --init {path}" in result.stderr

    def test_error_of_the_picture_does_not_hide_the_fit(self, monkeypatch):
        pytest.importorskip("matplotlib")

        def fail(*_):
            msg = "too large to draw"
            raise ValueError(msg)

        monkeypatch.setattr(_outputs, "_draw_atoms", fail)
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
