"""Files that the command line reads in chunks."""

from pathlib import Path

import numpy as np
from command_line import data, refuse, run
from helpers import numpy_only

import wtfarray as wtf
from wtfarray.cli._stored import SamplesInFile
from wtfarray.distributed import threads

pytestmark = numpy_only
KL = ("--rank", "2", "--loss", "kl", "--tol", "1e-3")


def test_fit_is_that_of_the_array_in_chunks(tmp_path):
    words = ("--chunk", 3, "--scratch", tmp_path, "--grid", "5x4")
    assert run("fit", "table.npy", *KL, *words).exit_code == 0
    expected = wtf.cp(data(), 2, wtf.KullbackLeibler(), rng=0, tol=1e-3, chunk=3)
    found = wtf.load("fit.npz")
    assert found.objective == expected.objective
    np.testing.assert_array_equal(found.factors[0], expected.factors[0])
    np.testing.assert_array_equal(found.dual, np.asarray(expected.dual))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".npy", ".npy", ".npz"]


def test_missing_and_normalised_samples():
    X = 3.0 * data()
    X[2, 1] = X[4, :, 2] = -1.0
    np.save("gaps.npy", X)
    words = ("--missing", -1, "--normalise", "--out")
    assert run("fit", "gaps.npy", *KL, *words, "a.npz").exit_code == 0
    assert run("fit", "gaps.npy", *KL, *words, "b.npz", "--chunk", 3).exit_code == 0
    whole, chunks = wtf.load("a.npz"), wtf.load("b.npz")
    assert chunks.constraints == whole.constraints
    assert abs(chunks.objective - whole.objective) < 1e-2 * abs(whole.objective)
    assert (chunks.dual[4, :, 2] == 0.0).all()


def test_online_solver_has_defaults_of_its_own():
    rng = np.random.default_rng(0)
    atoms = rng.dirichlet(np.ones(8), 2)
    np.save("many.npy", rng.dirichlet(np.ones(2), 200) @ atoms)
    result = run("fit", "many.npy", "--rank", 2, "--eps", 0.2, "--solver", "online", "--chunk", 200)
    assert result.exit_code == 0, result.output
    loss = wtf.Wasserstein(wtf.grid_cost(8), eps=0.2, lam=10.0)
    X = np.load("many.npy", mmap_mode="r")
    expected = wtf.cp(X, 2, loss, rng=0, solver="online", chunk=200)
    assert wtf.load("fit.npz").objective == expected.objective


def test_only_some_samples_are_read():
    library = ("numpy", None, "float32")
    samples = SamplesInFile(Path("table.npy"), (5, 4), 0.5, *library, normalise=True)
    seen = samples.mask()
    part = samples[2:4]
    assert samples.shape == seen.shape == (8, 5, 4)
    assert part.dtype == samples.dtype == np.float32
    np.testing.assert_allclose(part, data()[2:4], rtol=1e-6)
    assert seen[1:3].all()


def test_each_process_reads_its_part():
    parts = []
    for comm in threads(3):
        library = ("numpy", None, "float64", comm)
        samples = SamplesInFile(Path("X.npy"), None, None, *library, normalise=False)
        parts.append(samples[0 : samples.shape[0]])
    np.testing.assert_array_equal(np.concatenate(parts), data())


def test_refusals():
    np.savetxt("table.csv", data().reshape(8, -1), delimiter=",")
    words = ("--rank", 2, "--chunk", 3)
    assert "expected an .npy file, which is read in chunks" in refuse("fit", "table.csv", *words)
    X = data()
    X[5] = 0.0
    np.save("empty.npy", X)
    assert "--normalise: sample 5 has mass 0.0" in refuse("fit", "empty.npy", *words, "--normalise")
    assert "scratch was given" in refuse("fit", "X.npy", "--rank", 2, "--scratch", ".")
