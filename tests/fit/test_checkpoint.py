"""Fits that were stopped or killed, resumed from their checkpoints."""

import errno
import math
import re
import tempfile
import warnings
import zipfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from array_api_compat import device, is_jax_namespace, is_numpy_namespace
from helpers import assert_close, numpy_only, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_fits import (
    COSTS,
    LOSSES,
    content,
    data,
    forge,
    limited_files,
    not_a_fit,
    write_content,
)

import wtfarray as wtf
from wtfarray._arrays.sums import ALONE
from wtfarray._fit import checkpoint, storage
from wtfarray._fit.checkpoint import Checkpoint
from wtfarray._optimize.objective import Point
from wtfarray._solvers.envelope import Progress, new_pairs
from wtfarray._solvers.objective import Evaluation

OTHER = {
    "data": {"X": data(1)},
    "rank": {"rank": 3},
    "eps": {"loss": wtf.Wasserstein(COSTS, 0.3, 5.0)},
    "cost": {"loss": wtf.Wasserstein([c * 2.0 for c in COSTS], 0.2, 5.0)},
    "rho": {"rho": 0.03},
    "constraints": {"constraints": (None, "columns", "columns")},
    "seed": {"rng": 1},
    "seed of numpy": {"rng": np.int64(1)},
    "generator": {"rng": np.random.default_rng(0)},
    "sample_weight": {"sample_weight": np.arange(1.0, 7.0)},
    "init": {"init": "nnsvd"},
    "weights": {"weights": "fixed"},
}


class TestCheckpoint:
    def stopped(self, X, path, steps, name="unbalanced", **options):
        with pytest.warns(UserWarning, match="stopped by the callback"):
            return wtf.cp(
                X,
                2,
                LOSSES[name],
                rho=0.02,
                rng=0,
                checkpoint=path,
                callback=lambda state: state.n_iter == steps,
                **options,
            )

    @pytest.mark.parametrize("name", ["unbalanced", "balanced", "KL", "sum"])
    @pytest.mark.parametrize("steps", [10, 20])
    def test_resumed_fit_is_bit_equal_to_one_never_stopped(self, xp, array, tmp_path, name, steps):
        """The state is written every ten iterations: a stop there changes nothing."""
        if not is_numpy_namespace(xp) and (name, steps) != ("KL", 10):
            pytest.skip("one loss is enough: the others take long")
        X, options = array(data()), {"rho": 0.02, "rng": 0, "tol": 1e-9}
        whole = wtf.cp(X, 2, LOSSES[name], checkpoint=tmp_path / "whole.npz", **options)
        assert whole.n_iter > steps
        path = tmp_path / "part.npz"
        self.stopped(X, path, steps, name, tol=1e-9)
        assert path.exists()
        rest = wtf.cp(X, 2, LOSSES[name], checkpoint=path, **options)
        assert rest.converged
        assert rest.n_iter == whole.n_iter
        assert rest.objective == whole.objective
        for a, b in zip(rest.factors, whole.factors, strict=True):
            assert (to_numpy(a) == to_numpy(b)).all()
        found, expected = ([r.objective for r in f.history] for f in (rest, whole))
        assert found == expected

    @numpy_only
    @pytest.mark.parametrize("steps", [1, 7])
    def test_fit_can_be_resumed_from_any_iteration(self, tmp_path, steps):
        path = tmp_path / "fit.npz"
        part = self.stopped(data(), path, steps)
        seen = []
        rest = wtf.cp(
            data(),
            2,
            LOSSES["unbalanced"],
            rho=0.02,
            rng=0,
            checkpoint=path,
            callback=lambda state: seen.append(state.n_iter),
        )
        assert seen[0] == steps + 1
        assert rest.objective < part.objective
        assert rest.history[:steps] == part.history[:steps]
        assert rest.history[-1].time > part.history[-2].time
        plain = wtf.cp(data(), 2, LOSSES["unbalanced"], rho=0.02, rng=0)
        assert rest.objective == pytest.approx(plain.objective, rel=1e-5)

    @numpy_only
    def test_fit_can_be_resumed_at_a_coarse_smoothing_level(self, tmp_path):
        X = np.random.default_rng(3).dirichlet(np.ones(12), 6)
        loss = wtf.Wasserstein(wtf.grid_cost(12), 0.005, 5.0)
        options = {"init": "random", "rng": 0, "tol": 1e-4}
        whole = wtf.nmf(X, 2, loss, checkpoint=tmp_path / "whole.npz", **options)
        path, levels = tmp_path / "part.npz", []

        def stop(state):
            levels.append(state.level)
            return state.n_iter == 10

        with pytest.warns(UserWarning, match="stopped by the callback"):
            wtf.nmf(X, 2, loss, checkpoint=path, callback=stop, **options)
        assert levels[-1] > 1.0
        rest = wtf.nmf(X, 2, loss, checkpoint=path, **options)
        assert rest.objective == whole.objective
        assert rest.n_iter == whole.n_iter

    @numpy_only
    def test_killed_fit_can_be_resumed(self, tmp_path):
        """The last checkpoint is complete whatever ends the process."""
        path = tmp_path / "fit.npz"

        def kill(state):
            if state.n_iter == 15:
                raise MemoryError

        options = {"rho": 0.02, "rng": 0, "tol": 1e-9}
        with pytest.raises(MemoryError):
            wtf.cp(data(), 2, LOSSES["unbalanced"], checkpoint=path, callback=kill, **options)
        whole = wtf.cp(
            data(), 2, LOSSES["unbalanced"], checkpoint=tmp_path / "whole.npz", **options
        )
        rest = wtf.cp(data(), 2, LOSSES["unbalanced"], checkpoint=path, **options)
        assert rest.objective == whole.objective
        assert rest.n_iter == whole.n_iter

    @numpy_only
    def test_checkpoint_is_removed_on_convergence(self, tmp_path):
        path = tmp_path / "fit.npz"
        fit = wtf.cp(data(), 2, LOSSES["unbalanced"], rho=0.02, rng=0, tol=1e-9, checkpoint=path)
        assert fit.converged
        assert fit.n_iter > 10
        assert list(tmp_path.iterdir()) == []

    @numpy_only
    def test_file_holds_no_pickled_objects(self, tmp_path):
        self.stopped(data(), tmp_path / "fit.npz", 3)
        with np.load(tmp_path / "fit.npz", allow_pickle=False) as stored:
            assert stored.files
            assert all(stored[name].dtype != object for name in stored.files)

    @numpy_only
    @pytest.mark.parametrize("what", OTHER)
    def test_checkpoint_of_another_fit_is_refused(self, tmp_path, what):
        path = tmp_path / "fit.npz"
        self.stopped(data(), path, 3)
        before = path.read_bytes()
        options = {"X": data(), "rank": 2, "loss": LOSSES["unbalanced"], "rho": 0.02, "rng": 0}
        options |= OTHER[what]
        arguments = [options.pop(name) for name in ("X", "rank", "loss")]
        with pytest.raises(ValueError, match=r"checkpoint .*fit.npz.* different data"):
            wtf.cp(*arguments, checkpoint=path, **options)
        assert path.read_bytes() == before

    def test_resumed_fit_keeps_dtype_and_device(self, xp, array, tmp_path):
        if is_jax_namespace(xp):
            pytest.skip("JAX compiles every shape: the round trip of the state is tested above")
        path = tmp_path / "fit.npz"
        X = array(data(), "float32")
        self.stopped(X, path, 3, "KL")
        rest = wtf.cp(X, 2, LOSSES["KL"], rho=0.02, rng=0, checkpoint=path)
        assert rest.factors[0].dtype == X.dtype
        assert device(rest.factors[0]) == device(X)


@numpy_only
@pytest.mark.parametrize("name", ["array.npy", "other.npz", "empty.npz", "half.npz", "fit.npz"])
def test_files_that_are_no_checkpoints_are_refused(tmp_path, name):
    path = not_a_fit(tmp_path / name)
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=f"checkpoint is .*{name}.*expected a file written by a fit"
    ):
        wtf.cp(data(), 2, LOSSES["KL"], rho=0.02, rng=0, checkpoint=path)
    assert path.read_bytes() == before


def fit_with(path, **options):
    return wtf.cp(
        data(), 2, LOSSES["unbalanced"], rho=0.02, rng=0, tol=1e-9, checkpoint=path, **options
    )


@numpy_only
class TestFullDisk:
    def test_fit_goes_on_without_its_checkpoint(self, tmp_path):
        """The probe fits, the checkpoint does not; an older file stays what it was."""
        expected = fit_with(tmp_path / "other.npz")
        said = re.escape(f"checkpoint {str(tmp_path / 'fit.npz')!r} cannot be written: File too")
        limit = limited_files(storage.PROBE + 100)
        with limit, pytest.warns(UserWarning, match=said) as caught:
            found = fit_with(tmp_path / "fit.npz")
        assert len(caught) == 1
        assert found.n_iter > 2 * checkpoint.EVERY
        assert found.objective == expected.objective
        assert list(tmp_path.iterdir()) == []

    def test_fit_goes_on_when_the_disk_fills_up(self, tmp_path, monkeypatch):
        path = tmp_path / "fit.npz"
        write, count = storage.np.savez, []

        def full(stream, **arrays):
            count.append(1)
            if len(count) == 1:
                stream.write(b"half")
                raise OSError(errno.ENOSPC, "No space left on device")
            write(stream, **arrays)

        monkeypatch.setattr(storage.np, "savez", full)
        with pytest.warns(UserWarning, match="cannot be written: No space left on device"):
            found = fit_with(path)
        assert found.converged
        assert len(count) > 1  # it is tried again
        assert list(tmp_path.iterdir()) == []

    def test_folder_is_tried_before_the_fit(self, tmp_path):
        begun = []
        with (
            limited_files(100),
            pytest.raises(ValueError, match=r"folder that can.*File too large"),
        ):
            fit_with(tmp_path / "fit.npz", callback=begun.append)
        assert not begun

    def test_read_only_folder_is_refused_before_the_fit(self, tmp_path, monkeypatch):
        def refuse(**_):
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
        with pytest.raises(ValueError, match=r"checkpoint is .*expected a folder .*Read-only"):
            fit_with(tmp_path / "fit.npz")

    def test_checkpoint_that_cannot_be_removed_is_no_error(self, tmp_path, monkeypatch):
        def refuse(*_, **__):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(checkpoint.Path, "unlink", refuse)
        with pytest.warns(UserWarning, match="cannot be removed: Permission denied"):
            assert fit_with(tmp_path / "fit.npz").converged


def put(name, value, index=0):
    """Replace one entry of an array."""

    def change(arrays, _):
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def swap(name, make):
    """Replace an array."""

    def change(arrays, _):
        arrays[name] = make(arrays[name])

    return change


def say(name, value, index=None):
    """Replace an entry of the header, or one of a list there."""

    def change(_, header):
        if index is None:
            header[name] = value
        else:
            header[name][index] = value

    return change


FORGED = {
    "x of other shape": (swap("x", lambda a: a[1:]), "x has shape"),
    "NaN in x": (put("x", np.nan), "x is nan"),
    "x of zeros": (swap("x", lambda a: 0.0 * a), "block 0 is nan"),
    "x that overflows": (swap("x", lambda a: a * 0 + 1e200), "block 0 is nan"),
    "NaN in gradient": (put("gradient", np.nan), "gradient is nan"),
    "gradient of other shape": (swap("gradient", lambda a: a[:, None]), "gradient has shape"),
    "NaN in state": (put("state_0", np.nan), "state_0 is nan"),
    "inf in state": (put("state_0", np.inf), "state_0 is inf"),
    "state of other shape": (swap("state_0", lambda a: a[1:]), "state_0 has shape"),
    "no state": (lambda a, _: a.pop("state_0"), "it has no state_0"),
    "another state": (lambda a, _: a.update(state_1=a["state_0"]), "also holds state_1.npy"),
    "rows of other shape": (swap("pairs_rows", lambda a: a[2:]), "pairs_rows has shape"),
    "NaN in rows": (put("pairs_rows", np.nan), "pairs_rows is nan"),
    "NaN in gram": (put("pairs_gram", np.nan), "pairs_gram is nan"),
    "no curvature": (swap("pairs_gram", lambda a: 0.0 * a), "curvature is not positive"),
    "gram of other shape": (swap("pairs_gram", lambda a: a[1:, 1:]), "pairs_gram has shape"),
    "unknown slot": (put("pairs_used", 99.0), "slots of its curvature pairs"),
    "half a slot": (put("pairs_used", 0.5), "slots of its curvature pairs"),
    "a slot twice": (swap("pairs_used", lambda a: np.repeat(a, 2)), "slots of its curvature"),
    "negative scale": (swap("pairs_scale", lambda a: -a), "curvature is not positive"),
    "zero diagonal": (swap("pairs_diagonal", lambda a: 0.0 * a), "curvature is not positive"),
    "NaN in diagonal": (put("pairs_diagonal", np.nan), "pairs_diagonal is nan"),
    "scale of other shape": (swap("pairs_scale", lambda a: a[None]), "pairs_scale has shape"),
    "NaN in history": (put("history", np.nan), "history is nan"),
    "NaN value": (say("point", float("nan"), 0), "point is nan"),
    "negative norm": (say("point", -1.0, 1), "point is -1.0"),
    "short point": (say("point", [1.0]), "zip"),
    "point of text": (say("point", "1234"), "point is '1234': expected list"),
    "NaN error": (say("current", float("nan"), 0), "the error is nan"),
    "converged of text": (say("current", "yes", 2), "converged is 'yes'"),
    "long current": (say("current", [0.0] * 4), "unpack"),
    "negative level": (say("progress", -1, 0), "level is -1"),
    "level out of range": (say("progress", 7, 0), "level is 7"),
    "level of no integer": (say("progress", 0.0, 0), "level is 0.0"),
    "NaN decrease": (say("numbers", float("nan"), 0), "numbers is nan"),
    "large tightness": (say("numbers", 9.0, 1), "tightness is 9.0"),
    "negative iterations": (say("n_iter", -3), "n_iter is -3"),
    "infinite time": (say("seconds", float("inf")), "seconds is inf"),
    "identity of no type": (say("identity", 1), "identity is 1"),
}


@cache
def stopped():
    """The bytes of a checkpoint after a few steps, and the fit that is resumed from it."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "cp: stopped")
        path = Path(folder) / "fit.npz"
        fit_with(path, callback=lambda state: state.n_iter == 5)
        whole = path.read_bytes()
        return whole, fit_with(path)


def resume_refused(path):
    """The reason for which a fit refuses its checkpoint, which it leaves as it is."""
    before = path.read_bytes()
    said = re.escape(f"checkpoint is {str(path)!r}: expected a file written by a fit; ")
    with pytest.raises(ValueError, match=said) as caught:
        fit_with(path)
    assert path.read_bytes() == before
    return re.sub(f"^{said}", "", str(caught.value))


@numpy_only
class TestForged:
    @pytest.mark.parametrize("what", FORGED)
    def test_forged_content_is_refused(self, tmp_path, what):
        change, reason = FORGED[what]
        path = tmp_path / "fit.npz"
        path.write_bytes(stopped()[0])
        forge(path, change)
        assert reason in resume_refused(path)

    def test_every_entry_of_the_header_is_needed(self, tmp_path):
        path = tmp_path / "fit.npz"
        path.write_bytes(stopped()[0])
        arrays, header = content(path)
        for name in header:
            write_content(path, arrays, {k: v for k, v in header.items() if k != name})
            assert resume_refused(path) == f"its header has no {name}"

    def test_history_without_its_last_record_is_refused(self, tmp_path):
        path = tmp_path / "fit.npz"
        path.write_bytes(stopped()[0])
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        np.savez(path, **(arrays | {"history": arrays["history"][:-1]}))
        assert resume_refused(path) == "its arrays are not those that were written"

    @settings(max_examples=50)
    @given(st.integers(0), st.integers(1, 255))
    def test_flipped_bits(self, position, mask):
        """They do not change the result, or the file is refused."""
        whole, expected = stopped()
        damaged = bytearray(whole)
        damaged[position % len(whole)] ^= mask
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fit.npz"
            path.write_bytes(damaged)
            try:
                found = fit_with(path)
            except ValueError as error:
                said = str(error)
            else:
                assert found.objective == expected.objective
                return
        assert said.startswith(f"checkpoint is {str(path)!r}: expected a file written by a fit; ")


SAMPLES, BINS = 30, 40


@pytest.fixture(params=[1.0, 25.0], ids=["lam=1", "lam=25"])
def loss(request):
    return wtf.Wasserstein(wtf.grid_cost(BINS), eps=0.05, lam=request.param)


@pytest.mark.parametrize("kind", ["samples", "whole"])
def test_sparse_fit_resumed_at_a_coarse_level_is_bit_equal(tmp_path, backend, kind):
    if backend.name != "numpy":
        pytest.skip("the file is the same on every backend")
    rng = np.random.default_rng(0)
    X, modes = np.zeros((30, 40)), (1,)
    X[np.arange(30), rng.integers(0, 40, 30)] = 1.0
    if kind == "whole":
        X, modes = np.zeros((20, 20)), (0, 1)
        X[rng.integers(0, 20, 12), rng.integers(0, 20, 12)] = 1 / 12
    costs = wtf.grid_cost(*(X.shape[mode] for mode in modes))
    loss = wtf.Wasserstein(costs, eps=3e-3, lam=10.0, modes=modes)
    options = {"rng": 0, "max_iter": 10, "tol": 1e-9, "init": "random"}
    levels = []

    def stop(state):
        levels.append(state.level)
        return state.n_iter == 20

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "cp: ")
        whole = wtf.cp(X, 2, loss, checkpoint=tmp_path / "whole", **options)
        wtf.cp(X, 2, loss, checkpoint=tmp_path / "half", callback=stop, **options)
        resumed = wtf.cp(X, 2, loss, checkpoint=tmp_path / "half", **options)
    assert levels[-1] > 1
    assert resumed.objective == whole.objective


class TestFile:
    """The file on its own, with a state that no fit has been in."""

    def state(self, array, dtype="float64"):
        """Progress, curvature, inner states, history, iterations and seconds."""
        rng = np.random.default_rng(0)

        def point(seed):
            x, gradient = np.random.default_rng(seed).normal(size=(2, 5))
            return Point(array(x, dtype), array(gradient, dtype), 1.5 + seed, 0.3, 0.7, -1e-17)

        first, second, third = map(point, range(3))
        pairs = new_pairs(first)
        pairs.update(first, second)
        pairs.update(second, third)
        current = Evaluation(third, 1e-9, 2e-8, converged=True)
        progress = Progress(1, 17, current, math.inf, 0.09, 2, 1)
        states = [array(rng.normal(size=(2, 3)), dtype), array(rng.normal(size=(4,)), dtype)]
        history = [wtf.Record(0.1, 0.1 + 0.2, math.inf, 3), wtf.Record(1 / 3, -2.0, 1e-300, 9)]
        return progress, pairs, states, history, 23, 4.5

    def file(self, path, arrays, arguments=("cp", 2, 0.1)):
        return Checkpoint(path, arrays, arguments)

    def read(self, checkpoint, array=np.array, dtype="float64"):
        """What the file holds, for an objective whose only block is its point."""
        progress, _, states, *_ = self.state(array, dtype)
        objective = SimpleNamespace(
            blocks=lambda x: [x], states=lambda: states, sums=ALONE, shared=0
        )
        return checkpoint.read(objective, progress.current.point.x, 2)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_round_trip_is_bit_equal(self, array, tmp_path, dtype):
        X = array(data(), dtype)
        progress, pairs, states, history, n_iter, seconds = self.state(array, dtype)
        path = tmp_path / "fit.npz"
        self.file(path, [X]).write(progress, pairs, states, history, n_iter, seconds)
        found = self.read(self.file(path, [X]), array, dtype)
        assert found.history == history
        assert (found.n_iter, found.seconds) == (n_iter, seconds)
        for name in ("level", "n_iter", "decrease", "tightness", "small_steps", "failures"):
            assert getattr(found.progress, name) == getattr(progress, name), name
        for name in ("error", "gap", "converged"):
            assert getattr(found.progress.current, name) == getattr(progress.current, name), name
        point, expected = found.progress.current.point, progress.current.point
        for name in ("value", "norm", "square", "slope"):
            assert getattr(point, name) == getattr(expected, name), name
        arrays = [(point.x, expected.x), (point.gradient, expected.gradient)]
        arrays += zip(found.states, states, strict=True)
        for a, b in arrays:
            assert_close(a, b, rtol=0)
        before, after = pairs.export(), found.pairs.export()
        assert before.keys() == after.keys()
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
        directions = [p.direction(expected) for p in (pairs, found.pairs)]
        assert directions[0][1] == directions[1][1]
        assert_close(directions[0][0], directions[1][0], rtol=0)

    @numpy_only
    def test_missing_file_is_no_error(self, tmp_path):
        assert self.read(self.file(tmp_path / "fit.npz", [data()])) is None

    @numpy_only
    def test_empty_history_can_be_stored(self, tmp_path):
        checkpoint = self.file(tmp_path / "fit.npz", [data()])
        progress, pairs, states, *_ = self.state(np.array)
        checkpoint.write(progress, pairs, states, [], 0, 0.0)
        assert self.read(checkpoint).history == []

    @numpy_only
    @pytest.mark.parametrize(
        ("arrays", "arguments"),
        [
            ([data(1)], ("cp", 2, 0.1)),
            ([data(), np.ones(1)], ("cp", 2, 0.1)),
            ([data()], ("cp", 3, 0.1)),
            ([data()], ("cp", 2, 0.1 + 1e-16)),
        ],
    )
    def test_other_data_or_arguments_are_refused(self, tmp_path, arrays, arguments):
        path = tmp_path / "fit.npz"
        self.file(path, [data()]).write(*self.state(np.array))
        message = r"checkpoint .*fit\.npz.* different data or arguments.*remove it"
        with pytest.raises(ValueError, match=message):
            self.read(self.file(path, arrays, arguments))
        assert self.read(self.file(path, [data()])).n_iter == 23

    @numpy_only
    def test_truncated_file_is_refused_by_name(self, tmp_path):
        path = tmp_path / "fit.npz"
        checkpoint = self.file(path, [data()])
        checkpoint.write(*self.state(np.array))
        whole = path.read_bytes()
        for size in (0, 1, 10, len(whole) // 2, len(whole) - 30):
            path.write_bytes(whole[:size])
            with pytest.raises(
                ValueError, match=r"checkpoint is .*fit\.npz.* a file written by a fit"
            ):
                self.read(checkpoint)

    @numpy_only
    @pytest.mark.parametrize("member", ["header.npy", "x.npy", "history.npy", "pairs_gram.npy"])
    def test_damaged_file_is_refused_by_name(self, tmp_path, member):
        path = tmp_path / "fit.npz"
        checkpoint = self.file(path, [data()])
        checkpoint.write(*self.state(np.array))
        damage(path, member)
        with pytest.raises(ValueError, match=r"checkpoint is .*fit\.npz.* a file written by a fit"):
            self.read(checkpoint)

    @numpy_only
    def test_write_replaces_and_remove_deletes(self, tmp_path):
        path = tmp_path / "fit.npz"
        checkpoint = self.file(path, [data()])
        progress, pairs, states, history, *_ = self.state(np.array)
        for n_iter in (1, 2):
            checkpoint.write(progress, pairs, states, history, n_iter, 0.0)
        assert self.read(checkpoint).n_iter == 2
        assert list(tmp_path.iterdir()) == [path]
        checkpoint.remove()
        assert list(tmp_path.iterdir()) == []
        checkpoint.remove()  # twice is no error

    @numpy_only
    @pytest.mark.parametrize("path", [3, b"fit.npz"])
    def test_paths_of_another_type_are_refused(self, path):
        with pytest.raises(TypeError, match=r"checkpoint is .*: expected a path"):
            self.file(path, [data()])

    @numpy_only
    def test_folders_are_refused(self, tmp_path):
        for path in (tmp_path, tmp_path / "missing" / "fit.npz"):
            with pytest.raises(ValueError, match="expected a file in a folder that exists"):
                self.file(path, [data()])


def damage(path, member):
    """Change one byte in the middle of a member of a zip file."""
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
        inside = archive.read(member)
    start = content.index(inside, info.header_offset)
    content[start + len(inside) - 2] ^= 0xFF
    path.write_bytes(bytes(content))
