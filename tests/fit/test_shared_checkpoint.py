"""Checkpoints of several processes: a file for each, and a manifest."""

import sys

import numpy as np
import pytest
from helpers import numpy_only
from teams import GRID_LOSS, TIMEOUT, images, quietly, traced

import wtfarray as wtf
from wtfarray.distributed import run_threads

pytestmark = [numpy_only, quietly]
CUTS = [9]
test_module = sys.modules[__name__]


class KilledError(Exception):
    """Stands for the end of a process, which writes nothing any more."""


def fit(path, cuts=CUTS, killed_at=None, **options):
    """A fit of a team, which rank 1 may leave after a step."""

    def run(comm):
        def callback(state):
            if comm.rank == 1 and state.n_iter == killed_at:
                raise KilledError

        mine = np.split(images(), cuts)[comm.rank]
        given = {"rng": 0, "max_iter": 35, "tol": 1e-9, **options}
        return wtf.cp(mine, 2, GRID_LOSS, callback=callback, checkpoint=path, comm=comm, **given)

    return run_threads(run, len(cuts) + 1, timeout=TIMEOUT)


def names(path):
    return sorted(file.name for file in path.parent.iterdir())


def test_fit_that_was_killed_continues_bitwise(tmp_path):
    path = tmp_path / "state.npz"
    through = fit(tmp_path / "other.npz")
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(KilledError):
        fit(path, killed_at=27)
    assert names(path) == ["state.npz", "state.npz.step20.rank0", "state.npz.step20.rank1"]
    continued = fit(path)
    for a, b in zip(through, continued, strict=True):
        pairs = zip(a.factors, b.factors, strict=True)
        assert all(np.array_equal(old, new) for old, new in pairs)
        assert (a.objective, a.n_iter) == (b.objective, b.n_iter)


def test_files_are_removed_after_convergence(tmp_path):
    path = tmp_path / "state.npz"
    found = fit(path, tol=1e-3, max_iter=300)
    assert found[0].converged
    assert names(path) == []


def test_constraint_over_all_samples(tmp_path):
    """The norms of the first factor are sums over the ranks, when a state is read as well."""
    path, constraints = tmp_path / "state.npz", ("columns",) * 3
    with pytest.raises(KilledError):
        fit(path, killed_at=12, constraints=constraints)
    assert fit(path, constraints=constraints, max_iter=15)[0].n_iter >= 15


@pytest.mark.parametrize(
    ("cuts", "options"),
    [([9, 12], {}), ([4], {}), ([0, 3, 3, 20], {}), ([4, 9], {"constraints": ("columns",) * 3})],
)
def test_fit_continues_on_other_shards(tmp_path, cuts, options):
    """On more processes, on as many with other samples, and on some without any."""
    path = tmp_path / "state.npz"
    through = fit(tmp_path / "other.npz", **options)
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(KilledError):
        fit(path, killed_at=27, **options)
    continued = fit(path, cuts=cuts, **options)
    assert continued[0].n_iter == through[0].n_iter
    kept, found = ([r.objective for r in team[0].history] for team in (through, continued))
    assert found[:20] == kept[:20]
    # The memory of L-BFGS has gone over: without it, the steps would be others at once.
    np.testing.assert_allclose(found[20:24], kept[20:24], rtol=2e-5)
    rows = [np.concatenate([part.factors[0] for part in team]) for team in (continued, through)]
    np.testing.assert_allclose(*rows, rtol=0.05, atol=1e-3)
    assert all(np.array_equal(part.factors[1], continued[0].factors[1]) for part in continued)
    assert len(names(path)) == 2 + len(cuts)  # no file of the old shards is left


def test_fewer_processes_and_files_that_are_left_over(tmp_path):
    path = tmp_path / "state.npz"
    with pytest.raises(KilledError):
        fit(path, cuts=[3, 9, 20], killed_at=12)
    fit(path, cuts=[20], max_iter=25)
    assert names(path) == ["state.npz", "state.npz.step20.rank0", "state.npz.step20.rank1"]
    with pytest.raises(ValueError, match="belongs to 2 processes; continue on two or more"):
        wtf.cp(images(), 2, GRID_LOSS, rng=0, max_iter=35, tol=1e-9, checkpoint=path)


@pytest.mark.parametrize("change", ["order", "values", "number"])
def test_other_samples_are_refused_on_other_shards(tmp_path, change, monkeypatch):
    path, X = tmp_path / "state.npz", images()
    with pytest.raises(KilledError):
        fit(path, killed_at=12)
    other = {"order": X[::-1], "values": X * (1.0 + 1e-12 * (X > 0.1)), "number": X[1:]}[change]
    monkeypatch.setattr(test_module, "images", lambda: other)
    expected = "24 samples on 2 processes" if change == "number" else "different data or arguments"
    with pytest.raises((ValueError, RuntimeError), match=expected):
        fit(path, cuts=[4, 9])


def test_other_data_are_refused(tmp_path):
    path = tmp_path / "state.npz"
    with pytest.raises(KilledError):
        fit(path, killed_at=12)
    with pytest.raises((ValueError, RuntimeError), match="different data or arguments"):
        fit(path, rho=0.02)


def test_missing_file_of_one_rank_is_named(tmp_path):
    path = tmp_path / "state.npz"
    with pytest.raises(KilledError):
        fit(path, killed_at=12)
    (tmp_path / "state.npz.step10.rank1").unlink()
    with pytest.raises((ValueError, RuntimeError), match=r"step10\.rank1' was not found"):
        fit(path)


def test_one_process_writes_one_file(tmp_path):
    path = tmp_path / "state.npz"
    traced(wtf.cp, images(), 2, GRID_LOSS, rng=0, last=10, checkpoint=path)
    assert names(path) == ["state.npz"]
