"""Writing fits: round trips, atomic writes, full disks."""

import os
from pathlib import Path

import numpy as np
import pytest
from array_api_compat import is_jax_namespace
from helpers import numpy_only, without_escape
from saved_fits import (
    LOSSES,
    RANKS,
    assert_same_fit,
    data,
    in_library,
    limited_files,
    objective,
    short_fit,
)

import wtfarray as wtf
from wtfarray._fit import storage

pytestmark = without_escape


class TestSave:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("model", RANKS)
    def test_round_trip_is_bit_equal(self, xp, array, device, tmp_path, model, dtype):
        if is_jax_namespace(xp) and dtype == "float32" and model != "nmf":
            # JAX compiles every shape and dtype: the fits of these are computed by NumPy.
            fit = in_library(short_fit(model, data().astype(dtype)), array, dtype)
        else:
            fit = short_fit(model, array(data(), dtype))
        fit.save(tmp_path / "fit.npz")
        loaded = wtf.load(tmp_path / "fit.npz", xp=xp, device=device)
        assert_same_fit(loaded, fit)

    @numpy_only
    @pytest.mark.parametrize("name", LOSSES)
    def test_every_loss_is_restored(self, tmp_path, name):
        fit = short_fit("nmf", data(), name)
        fit.save(tmp_path / "fit.npz")
        loaded = wtf.load(tmp_path / "fit.npz")
        assert_same_fit(loaded, fit)
        assert repr(loaded.loss) == repr(fit.loss)
        again, expected = (
            short_fit("nmf", data(), init=f, name=name).objective for f in (loaded, fit)
        )
        assert again == expected
        X = data(1)
        assert objective(X, loaded) == objective(X, fit)

    def test_file_can_be_read_by_another_library(self, xp, array, device, tmp_path):
        """Written by one library, read by NumPy, written again, read by the first."""
        fit = short_fit("cp", array(data()))
        fit.save(tmp_path / "fit.npz")
        plain = wtf.load(tmp_path / "fit.npz")
        assert all(isinstance(factor, np.ndarray) for factor in plain.factors)
        plain.save(tmp_path / "again.npz")
        assert_same_fit(wtf.load(tmp_path / "again.npz", xp=xp, device=device), fit)

    def test_loaded_fit_projects_data_of_another_dtype(self, xp, array, device, tmp_path):
        short_fit("cp", array(data())).save(tmp_path / "fit.npz")
        loaded = wtf.load(tmp_path / "fit.npz", xp=xp, device=device)
        X = array(data(1), "float32")
        assert loaded.project(X, tol=1e-4).dtype == X.dtype

    @numpy_only
    def test_file_holds_no_pickled_objects(self, tmp_path):
        short_fit("cp", data(), "unbalanced").save(tmp_path / "fit.npz")
        with np.load(tmp_path / "fit.npz", allow_pickle=False) as stored:
            assert all(stored[name].dtype != object for name in stored.files)
            assert {"factor_0", "factor_1", "factor_2", "weights", "header"} <= set(stored.files)

    @numpy_only
    def test_suffix_is_added(self, tmp_path):
        short_fit("cp", data()).save(tmp_path / "fit")
        assert [path.name for path in tmp_path.iterdir()] == ["fit.npz"]
        short_fit("cp", data()).save(str(tmp_path / "fit.npz"))
        assert [path.name for path in tmp_path.iterdir()] == ["fit.npz"]

    @numpy_only
    @pytest.mark.skipif(os.name != "posix", reason="other systems have no such permissions")
    def test_file_has_the_default_permissions(self, tmp_path):
        path, other = tmp_path / "fit.npz", tmp_path / "other"
        short_fit("cp", data()).save(path)
        other.touch()
        assert path.stat().st_mode == other.stat().st_mode

    @numpy_only
    @pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
    @pytest.mark.parametrize("step", ["write", "replace"])
    def test_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch, step, error):
        path = tmp_path / "fit.npz"
        short_fit("cp", data()).save(path)
        before = path.read_bytes()

        def half(stream, **arrays):
            stream.write(b"half")
            raise error

        def fail(*args):
            raise error

        if step == "write":
            monkeypatch.setattr(storage.np, "savez", half)
        else:
            monkeypatch.setattr(storage.Path, "replace", fail)
        with pytest.raises(type(error)):
            short_fit("cp", data(1)).save(path)
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["fit.npz"]  # noqa: PTH208

    @numpy_only
    def test_full_disk_raises_and_leaves_the_old_file(self, tmp_path):
        path = tmp_path / "fit.npz"
        short_fit("cp", data()).save(path)
        before = path.read_bytes()
        with limited_files(len(before) // 2), pytest.raises(OSError, match="File too large"):
            short_fit("cp", data(1)).save(path)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["fit.npz"]

    @numpy_only
    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
    def test_devices_are_written_to_directly(self, tmp_path):
        link = tmp_path / "fit.npz"
        link.symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            short_fit("cp", data()).save(link)
        assert link.is_symlink()

    @numpy_only
    @pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
    def test_symbolic_link_stays_one(self, tmp_path):
        (tmp_path / "link.npz").symlink_to(tmp_path / "fit.npz")
        fit = short_fit("cp", data())
        fit.save(tmp_path / "link.npz")
        assert (tmp_path / "link.npz").is_symlink()
        assert_same_fit(wtf.load(tmp_path / "fit.npz"), fit)

    @numpy_only
    def test_name_may_be_as_long_as_the_system_allows(self, tmp_path):
        path = tmp_path / f"{'n' * 240}.npz"
        short_fit("cp", data()).save(path)
        assert wtf.load(path).kind == "cp"
