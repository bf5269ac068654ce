"""Reading the arrays and the header of a file."""

import json

import numpy as np
import pytest
from helpers import numpy_only

from wtfarray._fit import storage
from wtfarray._fit.storage import reading, write_atomically


@numpy_only
class TestReading:
    def file(self, path, header):
        write_atomically(path, header, {"x": np.arange(3.0), "y": np.ones((2, 2))})

    def test_gives_arrays_and_header(self, tmp_path):
        path = tmp_path / "file.npz"
        self.file(path, {"kind": "cp", "n": 3})
        with reading("path", path, "a fit") as archive:
            assert archive.header == {"kind": "cp", "n": 3}
            np.testing.assert_array_equal(archive.read("x", (3,)), np.arange(3.0))
            np.testing.assert_array_equal(archive.read("y", (2, 2)), np.ones((2, 2)))
            archive.finish()

    def test_header_without_the_key_is_refused(self, tmp_path):
        path = tmp_path / "file.npz"
        self.file(path, {"identity": "1"})
        with (
            pytest.raises(ValueError, match=r"path is .*file\.npz.*expected a fit; .* no kind"),
            reading("path", path, "a fit") as archive,
        ):
            storage.get(archive.header, "kind", str)

    @pytest.mark.parametrize("change", ["shorter", "other values", "missing", "added", "swapped"])
    def test_other_arrays_than_were_written_are_refused(self, tmp_path, change):
        path = tmp_path / "file.npz"
        self.file(path, {"kind": "cp"})
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        changes = {
            "shorter": lambda: arrays.update(x=arrays["x"][:-1]),
            "other values": lambda: arrays.update(x=-arrays["x"]),
            "missing": lambda: arrays.pop("x"),
            "added": lambda: arrays.update(z=arrays["x"]),
            "swapped": lambda: arrays.update(x=arrays["y"], y=arrays["x"]),
        }
        changes[change]()
        np.savez(path, **arrays)
        with (
            pytest.raises(
                ValueError, match=r"file\.npz.*its arrays are not those that were written"
            ),
            reading("path", path, "a fit"),
        ):
            pass

    def test_file_without_checksums_is_refused(self, tmp_path):
        path = tmp_path / "file.npz"
        np.savez(path, header=np.frombuffer(json.dumps({"kind": "cp"}).encode(), dtype=np.uint8))
        with (
            pytest.raises(ValueError, match=r"file\.npz.*its header has no checksums"),
            reading("path", path, "a fit"),
        ):
            pass

    def test_missing_file_is_not_found(self, tmp_path):
        with (
            pytest.raises(FileNotFoundError, match=r"file\.npz"),
            reading("path", tmp_path / "file.npz", "a fit"),
        ):
            pass
