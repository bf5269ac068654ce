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
        content = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
        write_atomically(path, {"header": content, "x": np.arange(3.0)})

    def test_gives_arrays_and_header(self, tmp_path):
        path = tmp_path / "file.npz"
        self.file(path, {"kind": "cp", "n": 3})
        with reading("path", path, "a fit") as archive:
            assert archive.header == {"kind": "cp", "n": 3}
            np.testing.assert_array_equal(archive.read("x", (3,)), np.arange(3.0))
            archive.finish()

    def test_header_without_the_key_is_refused(self, tmp_path):
        path = tmp_path / "file.npz"
        self.file(path, {"identity": "1"})
        with (
            pytest.raises(ValueError, match=r"path is .*file\.npz.*expected a fit; .* no kind"),
            reading("path", path, "a fit") as archive,
        ):
            storage.get(archive.header, "kind", str)

    def test_missing_file_is_not_found(self, tmp_path):
        with (
            pytest.raises(FileNotFoundError, match=r"file\.npz"),
            reading("path", tmp_path / "file.npz", "a fit"),
        ):
            pass
