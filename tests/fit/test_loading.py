"""Reading fits: files that are damaged or forged, and losses that no file holds."""

import io
import json
import re
import tempfile
import tracemalloc
import warnings
import zipfile
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers import numpy_only, to_numpy, without_escape
from hypothesis import given, settings
from hypothesis import strategies as st
from own_losses import LeastSquares
from saved_fits import (
    LOSSES,
    RANKS,
    assert_same_fit,
    content,
    data,
    forge,
    not_a_fit,
    short_fit,
    write_content,
)

import wtfarray as wtf
from wtfarray._fit import storage

pytestmark = without_escape


def rank_one(arrays, header):
    for name in ("factor_0", "factor_1", "factor_2"):
        arrays[name] = arrays[name][:, :1]


def put(name, value, index=(0, 0)):
    """Replace one entry of an array."""

    def change(arrays, header):
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def swap(name, make):
    """Replace an array."""

    def change(arrays, header):
        arrays[name] = make(arrays[name])

    return change


def drop(name):
    return lambda arrays, _: arrays.pop(name)


def say(**fields):
    """Replace entries of the header."""
    return lambda _, header: header.update(fields)


def say_of_loss(**fields):
    return lambda _, header: header["loss"].update(fields)


FORGED = {
    "factor of other shape": (swap("factor_1", lambda a: a[:-1]), r"factor_1 has shape \(4, 2\)"),
    "factor of other rank": (swap("factor_1", lambda a: a[:, :1]), r"ranks \(2, 1, 2\)"),
    "factor without columns": (swap("factor_1", lambda a: a[:, :0]), r"ranks \(2, 0, 2\)"),
    "factor with one mode": (swap("factor_1", np.ravel), r"factor_1 has shape \(10,\)"),
    "all of other rank": (rank_one, r"weights has shape \(2,\): expected \(1\)"),
    "NaN": (put("factor_0", np.nan), r"factor_0 is nan at index \(0, 0\)"),
    "inf": (put("factor_2", np.inf), "factor_2 is inf"),
    "negative": (put("factor_0", -1e-3), "factor_0 is -0.001"),
    "negative weight": (put("weights", -1.0, 0), "weights is -1.0"),
    "columns of another sum": (swap("factor_1", lambda a: 2.0 * a), "columns of block 1 do not"),
    "rows of another sum": (put("factor_0", 0.0), "rows of block 0 do not sum"),
    "columns that overflow": (swap("factor_1", lambda a: a * 0 + 1e308), "columns of block 1"),
    "missing factor": (drop("factor_2"), "it has no factor_2"),
    "missing weights": (drop("weights"), "it has no weights"),
    "missing cost": (drop("cost_1"), "it has no cost_1"),
    "missing dual": (drop("dual"), "it has no dual"),
    "another array": (lambda a, _: a.update(factor_3=a["factor_0"]), "also holds factor_3.npy"),
    "a core": (lambda a, _: a.update(core=np.ones((2, 2, 2))), "also holds core.npy"),
    "factor of integers": (swap("factor_0", lambda a: a.astype(int)), "factor_0 is no array of"),
    "factor of objects": (swap("factor_0", lambda a: a.astype("S3")), "factor_0 is no array of"),
    "dual of other shape": (swap("dual", lambda a: a[1:]), r"dual has shape \(5, 5, 4\)"),
    "NaN in dual": (put("dual", np.nan, (0, 0, 0)), "is nan at index"),
    "NaN in history": (put("history", np.nan, (0, 1)), "history is nan"),
    "negative time": (put("history", -1.0, (0, 0)), "history is -1.0"),
    "half an evaluation": (put("history", 0.5, (0, 3)), "history is 0.5"),
    "history of other shape": (swap("history", lambda a: a[:, :3]), "history has shape"),
    "NaN in cost": (put("cost_0", np.nan), r"costs\[0\] is nan"),
    "negative cost": (put("cost_0", -1.0), r"costs\[0\] is -1.0"),
    "cost of other size": (swap("cost_0", lambda a: a[1:, 1:]), r"costs\[0\] has shape \(4, 4\)"),
    "cost that is not square": (swap("cost_0", lambda a: a[1:]), "expected a square matrix"),
    "other kind": (say(kind="tucker"), "it has no core"),
    "unknown kind": (say(kind="svd"), "kind is 'svd'"),
    "kind of no type": (say(kind=[1]), r"kind is \[1\]: expected str"),
    "unknown dtype": (say(dtype="int8"), "dtype is 'int8'"),
    "no NaN objective": (say(objective=float("nan")), "objective is nan"),
    "infinite objective": (say(objective=float("inf")), "objective is inf"),
    "objective of text": (say(objective="1"), "objective is '1'"),
    "huge objective": (say(objective=10**400), "int too large"),
    "negative gap": (say(gap=-1.0), "gap is -1.0"),
    "NaN gap": (say(gap=float("nan")), "gap is nan"),
    "number for a bool": (say(converged=1), "converged is 1: expected bool"),
    "bool for a number": (say(n_iter=True), "n_iter is True: expected int"),
    "negative iterations": (say(n_iter=-1), "n_iter is -1"),
    "message of bytes": (say(message=None), "message is None: expected str"),
    "too few rho": (say(rho=[1.0]), "3 constraints and 1 rho for 3 blocks"),
    "negative rho": (say(rho=[-1.0, 1.0, 1.0]), r"rho\[0\] is -1.0"),
    "NaN rho": (say(rho=[float("nan"), 1.0, 1.0]), r"rho\[0\] is nan"),
    "rho of text": (say(rho=["1", 1.0, 1.0]), r"rho\[0\] is '1'"),
    "too few constraints": (say(constraints=["rows"]), "1 constraints and 3 rho"),
    "unknown constraint": (say(constraints=["rows", "all", "some"]), r"constraints\[2\] is 'some'"),
    "constraint of no type": (say(constraints=["rows", [], None]), r"constraints\[1\] is \[\]"),
    "learned weights of any sum": (
        say(constraints=["rows", "columns", "columns", None], rho=[1.0] * 4, references=[1.0] * 4),
        "learned weights is None",
    ),
    "other shape": (say(shape=[6, 5, 5]), "factor_2 has shape"),
    "shape of floats": (say(shape=[6.0, 5.0, 4.0]), r"shape is \[6.0"),
    "empty shape": (say(shape=[]), r"shape is \[\]"),
    "huge shape": (say(shape=[10**12, 5, 4]), "factor_0 has shape"),
    "normalised of text": (say(normalised="yes"), "normalised is 'yes'"),
    "loss of no type": (say(loss=3), "loss is 3"),
    "unknown loss": (say(loss={"name": "Hinge"}), "name of the loss is 'Hinge'"),
    "loss without a name": (say(loss={}), "header has no name"),
    "sum of nothing": (say(loss={"name": "LossSum", "losses": []}), "losses is empty"),
    "sum of no losses": (say(loss={"name": "LossSum", "losses": [1]}), "loss is 1"),
    "costs left over": (say(loss={"name": "Frobenius"}), "also holds cost_0.npy"),
    "negative eps": (say_of_loss(eps=-1.0), "eps is -1.0"),
    "lam of text": (say_of_loss(lam="big"), "lam is 'big'"),
    "other costs": (say_of_loss(costs=["factor_0", "factor_1"]), "costs is"),
    "no costs": (say_of_loss(costs=[]), "costs is empty"),
    "modes of text": (say_of_loss(modes=["a", "b"]), "modes is 'a'"),
    "a mode twice": (say_of_loss(modes=[[1], [1]]), "expected different modes|costs"),
    "one mode": (say_of_loss(modes=[[1]]), "expected 2 modes"),
}


def load_refused(path):
    """The reason for which `load` refuses a file, without a warning."""
    said = re.escape(f"path is {str(path)!r}: expected a file written by `save` of a fit; ")
    with pytest.raises(ValueError, match=said) as caught:
        wtf.load(path)
    return re.sub(f"^{said}", "", str(caught.value))


@numpy_only
class TestLoad:
    @pytest.mark.parametrize("what", FORGED)
    def test_forged_content_is_refused(self, tmp_path, what):
        change, reason = FORGED[what]
        short_fit("cp", data(), "unbalanced").save(tmp_path / "fit.npz")
        forge(tmp_path / "fit.npz", change)
        assert re.search(reason, load_refused(tmp_path / "fit.npz"))

    def test_history_without_its_last_record_is_refused(self, tmp_path):
        path = tmp_path / "fit.npz"
        short_fit("cp", data(), "unbalanced").save(path)
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        np.savez(path, **(arrays | {"history": arrays["history"][:-1]}))
        assert load_refused(path) == "its arrays are not those that were written"

    @pytest.mark.parametrize("model", RANKS)
    def test_every_entry_of_the_header_is_needed(self, tmp_path, model):
        path = tmp_path / "fit.npz"
        short_fit(model, data()).save(path)
        arrays, header = content(path)
        for name in header:
            write_content(path, arrays, {k: v for k, v in header.items() if k != name})
            assert load_refused(path) == f"its header has no {name}"

    def test_core_of_other_shape_is_refused(self, tmp_path):
        short_fit("tucker", data()).save(tmp_path / "fit.npz")
        forge(tmp_path / "fit.npz", swap("core", lambda core: core[:1]))
        assert load_refused(tmp_path / "fit.npz").startswith("core has shape (1, 3, 2)")

    def test_number_too_large_for_the_dtype_is_refused(self, tmp_path):
        short_fit("cp", data().astype(np.float32)).save(tmp_path / "fit.npz")
        forge(tmp_path / "fit.npz", put("dual", 1e300, (0, 0, 0)))
        assert "expected finite values of float32" in load_refused(tmp_path / "fit.npz")

    def test_fixed_factor_need_not_be_normalised(self, tmp_path):
        start = short_fit("nmf", data())
        init = [start.factors[0], 3.0 * start.factors[1]]
        fit = short_fit("nmf", data(), init=init, fixed=[1], constraints=("rows", "columns"))
        fit.save(tmp_path / "fit.npz")
        loaded = wtf.load(tmp_path / "fit.npz")
        assert_same_fit(loaded, fit)
        np.testing.assert_allclose(loaded.factors[1].sum(axis=0), 3.0)

    def test_infinite_values_of_a_fit_are_read(self, tmp_path):
        """The dual variable is -inf where the model is 0; a gap may be unknown."""
        short_fit("cp", data()).save(tmp_path / "fit.npz")
        forge(tmp_path / "fit.npz", put("dual", -np.inf, (0, 0, 0)))
        forge(tmp_path / "fit.npz", say(gap=float("inf")))
        loaded = wtf.load(tmp_path / "fit.npz")
        assert loaded.dual[0, 0, 0] == -np.inf
        assert loaded.gap == np.inf

    def test_loss_of_the_callers_own_may_give_any_dual(self, tmp_path):
        short_fit("cp", data()).save(tmp_path / "fit.npz")
        forge(tmp_path / "fit.npz", put("dual", np.nan, (0, 0, 0)))
        forge(tmp_path / "fit.npz", say(loss={"name": "own", "type": "Hinge"}))
        assert np.isnan(wtf.load(tmp_path / "fit.npz", loss=wtf.Frobenius()).dual[0, 0, 0])
        with pytest.raises(ValueError, match="loss is None: expected the Hinge of the fit"):
            wtf.load(tmp_path / "fit.npz")

    def test_compressed_file_is_refused_before_it_is_expanded(self, tmp_path):
        path = tmp_path / "fit.npz"
        short_fit("cp", data()).save(path)
        arrays, header = content(path)
        encoded = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
        large = np.zeros((20_000, 1_000))
        np.savez_compressed(path, **(arrays | {"header": encoded, "factor_0": large}))
        del large
        assert path.stat().st_size < 300_000
        tracemalloc.start()
        assert load_refused(path) == "it is compressed"
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2_000_000

    @pytest.mark.parametrize("claim", ["npy", "zip"])
    def test_size_that_the_file_cannot_have_is_refused(self, tmp_path, claim):
        """Neither the header of an array nor that of the archive makes anything be allocated."""
        path = tmp_path / "fit.npz"
        short_fit("cp", data()).save(path)
        if claim == "npy":
            forge(path, say(shape=[10**11, 5, 4]))
            with zipfile.ZipFile(path) as archive:
                members = {name: archive.read(name) for name in archive.namelist()}
            before, large = members["factor_0.npy"], b"(100000000000, 2), }"
            members["factor_0.npy"] = before.replace(b"(6, 2), }".ljust(len(large)), large)
            assert members["factor_0.npy"] != before
            _, header = content(path)
            checksums = {name: zlib.crc32(m) for name, m in members.items() if "header" not in name}
            coded = json.dumps(header | {"checksums": checksums}).encode()
            stream = io.BytesIO()
            np.save(stream, np.frombuffer(coded, dtype=np.uint8))
            members["header.npy"] = stream.getvalue()
            with zipfile.ZipFile(path, "w") as archive:
                for name, member in members.items():
                    archive.writestr(name, member)
            expected = "bytes, not those of shape"
        else:
            whole = bytearray(path.read_bytes())
            entry = whole.rindex(b"PK\x01\x02", 0, whole.rindex(b"factor_0.npy"))
            whole[entry + 20 : entry + 28] = (2**31).to_bytes(4, "little") * 2
            path.write_bytes(whole)
            expected = "its arrays are larger than the file"
        assert expected in load_refused(path)

    def test_arrays_that_share_their_bytes_are_refused(self, tmp_path):
        """Many small entries of the directory must not add up to a large fit."""
        path = tmp_path / "fit.npz"
        short_fit("cp", data()).save(path)
        whole = path.read_bytes()
        start, end = whole.index(b"PK\x01\x02"), whole.index(b"PK\x05\x06")
        directory = whole[start:end] * 2
        count = 2 * int.from_bytes(whole[end + 8 : end + 10], "little")
        last = bytearray(whole[end:])
        last[8:12] = count.to_bytes(2, "little") * 2
        last[12:16] = len(directory).to_bytes(4, "little")
        path.write_bytes(whole[:start] + directory + last)
        assert load_refused(path) == "it holds two arrays of one name"

    @pytest.mark.parametrize("text", ["{", "[]", "3", "[" * 100_000, '{"kind": "cp"}', "\xff"])
    def test_header_that_is_no_header_is_refused(self, tmp_path, text):
        path = tmp_path / "fit.npz"
        np.savez(path, header=np.frombuffer(text.encode("latin1"), dtype=np.uint8))
        assert load_refused(path)

    def test_missing_file_is_an_error_of_the_system(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            wtf.load(tmp_path / "nothing.npz")
        with pytest.raises(OSError, match=r"directory|denied"):
            wtf.load(tmp_path)

    def test_error_of_the_disk_is_not_one_of_the_file(self, tmp_path, monkeypatch):
        def fail(*args):
            raise OSError(5, "Input/output error")

        short_fit("cp", data()).save(tmp_path / "fit.npz")
        monkeypatch.setattr(storage.Archive, "read", fail)
        with pytest.raises(OSError, match="Input/output error"):
            wtf.load(tmp_path / "fit.npz")

    def test_order_of_the_entries_in_memory_does_not_matter(self, tmp_path):
        fit = short_fit("cp", data())
        fit.save(tmp_path / "fit.npz")
        forge(tmp_path / "fit.npz", swap("dual", np.asfortranarray))
        forge(tmp_path / "fit.npz", swap("factor_0", lambda a: a.astype(">f8")))
        assert_same_fit(wtf.load(tmp_path / "fit.npz"), fit)


@cache
def saved(model):
    """A fit, and the bytes of its file."""
    fit = short_fit(model, data(), {"cp": "unbalanced", "nmf": "sum", "tucker": "KL"}[model])
    with tempfile.TemporaryDirectory() as folder:
        fit.save(Path(folder) / "fit.npz")
        return fit, (Path(folder) / "fit.npz").read_bytes()


def loaded_or_refused(write):
    """What `load` makes of a file, None if it refuses it; a warning is an error."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        path = Path(folder) / "fit.npz"
        write(path)
        try:
            return wtf.load(path)
        except ValueError as error:
            found = str(error)
    said = f"path is {str(path)!r}: expected a file written by `save` of a fit; "
    assert found.startswith(said)
    assert len(found) > len(said)
    return None


MODELS = st.sampled_from(sorted(RANKS))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@numpy_only
class TestDamage:
    """Whatever happened to a file: an equal fit, or the one error."""

    @settings(max_examples=200)
    @given(MODELS, st.lists(st.tuples(st.integers(0), st.integers(1, 255)), min_size=1, max_size=3))
    def test_flipped_bits(self, model, flips):
        fit, whole = saved(model)
        damaged = bytearray(whole)
        for position, mask in flips:
            damaged[position % len(whole)] ^= mask
        found = loaded_or_refused(lambda path: path.write_bytes(damaged))
        if found is not None:
            assert_same_fit(found, fit)

    @given(MODELS, st.floats(0, 1, exclude_max=True))
    def test_truncated(self, model, share):
        _, whole = saved(model)
        cut = whole[: int(share * len(whole))]
        assert loaded_or_refused(lambda path: path.write_bytes(cut)) is None

    @given(MODELS, st.data())
    def test_array_dropped_or_added(self, model, drawn):
        _, whole = saved(model)

        def write(path):
            path.write_bytes(whole)
            arrays, header = content(path)
            if drawn.draw(st.booleans()):
                del arrays[drawn.draw(st.sampled_from(sorted(arrays)))]
            else:
                arrays[drawn.draw(st.sampled_from(["factor_9", "cost_7", "core", "weights_"]))] = (
                    np.ones(3)
                )
                arrays.setdefault("another", np.ones(2))
            write_content(path, arrays, header)

        assert loaded_or_refused(write) is None

    @given(MODELS, st.data())
    def test_array_replaced(self, model, drawn):
        """By one of another shape or type, or with an entry that none can have."""
        _, whole = saved(model)

        def write(path):
            path.write_bytes(whole)
            arrays, header = content(path)
            name = drawn.draw(st.sampled_from(sorted(set(arrays) - {"dual", "history"})))
            array = arrays[name].copy()
            if drawn.draw(st.booleans()):
                array.flat[drawn.draw(st.integers(0, array.size - 1))] = drawn.draw(
                    st.sampled_from([np.nan, -np.inf, -1.0, -1e-300])
                )
            else:
                array = drawn.draw(
                    st.sampled_from(
                        [array[1:], array[..., None], array.astype(">i4"), array > 0, array + 0j]
                    )
                )
            write_content(path, arrays | {name: array}, header)

        assert loaded_or_refused(write) is None

    @settings(max_examples=200)
    @given(MODELS, JSON, st.data())
    def test_header_forged(self, model, value, drawn):
        """What is loaded all the same is a fit that can be used and saved."""
        _, whole = saved(model)

        def write(path):
            path.write_bytes(whole)
            arrays, header = content(path)
            place = header if drawn.draw(st.booleans()) else header["loss"]
            place[drawn.draw(st.sampled_from(sorted(place)))] = value
            write_content(path, arrays, header)

        found = loaded_or_refused(write)
        if found is not None:
            assert repr(found)
            assert found.to_tensor().shape == found.shape
            assert np.isfinite(found.objective)
            assert_same_fit(loaded_or_refused(found.save), found)


@numpy_only
@pytest.mark.parametrize("name", ["array.npy", "other.npz", "empty.npz", "half.npz"])
def test_load_refuses_files_that_are_no_fits(tmp_path, name):
    with pytest.raises(ValueError, match=f"path is .*{name}.*expected a file written by `save`"):
        wtf.load(not_a_fit(tmp_path / name))


class TestOwnLoss:
    """A file holds the losses of the library only: others have to be given again."""

    def fit(self, array, loss):
        return wtf.nmf(array(data()), 2, loss, rho=0.02, rng=0, tol=1e-4)

    @pytest.mark.parametrize("wrapped", [False, True])
    def test_fit_is_loaded_with_its_loss(self, xp, array, device, tmp_path, wrapped):
        loss = LeastSquares()
        loss = wtf.LossSum(loss, wtf.KullbackLeibler()) if wrapped else loss
        fit, path = self.fit(array, loss), tmp_path / "fit.npz"
        fit.save(path)
        loaded = wtf.load(path, loss=loss, xp=xp, device=device)
        assert loaded.loss is loss
        assert_same_fit(loaded, fit)
        X = array(data(1))
        found, expected = (f.project(X, tol=1e-5) for f in (loaded, fit))
        assert (to_numpy(found) == to_numpy(expected)).all()

    @numpy_only
    @pytest.mark.parametrize(
        "loss",
        [LeastSquares(), wtf.LossSum(wtf.LossSum(wtf.KullbackLeibler(), LeastSquares()))],
    )
    def test_fit_is_not_loaded_without_it(self, tmp_path, loss):
        self.fit(np.asarray, loss).save(tmp_path / "fit.npz")
        with pytest.raises(ValueError, match="loss is None: expected the LeastSquares of the fit"):
            wtf.load(tmp_path / "fit.npz")

    @numpy_only
    @pytest.mark.parametrize("name", LOSSES)
    def test_loss_that_the_file_holds_must_not_be_given(self, tmp_path, name):
        short_fit("nmf", data(), name).save(tmp_path / "fit.npz")
        for loss, kind in ((LOSSES[name], type(LOSSES[name]).__name__), (LeastSquares(), "Least")):
            with pytest.raises(ValueError, match=f"loss is a {kind}.*the loss is in the file"):
                wtf.load(tmp_path / "fit.npz", loss=loss)

    @numpy_only
    def test_object_that_is_no_loss_is_refused(self, tmp_path):
        self.fit(np.asarray, LeastSquares()).save(tmp_path / "fit.npz")
        with pytest.raises(TypeError, match="loss is a int: expected a loss"):
            wtf.load(tmp_path / "fit.npz", loss=3)
