"""Bad input and missing packages are refused in one line; help and version."""

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command_line import QUICK, refuse, run
from helpers import numpy_only

import wtfarray as wtf
from wtfarray.cli._group import BAD_INPUT


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
def test_bare_command_shows_help_and_version():
    assert "Usage:" in run().output
    assert wtf.__version__ in run("--version").stdout
    assert "Exit codes" in run("fit", "--help").stdout
