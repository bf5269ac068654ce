"""Arrays on disk: reading, writing, and that nothing stays behind."""

import gc

import numpy as np
import pytest

from wtfarray._arrays.scratch import Scratch

pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.fixture
def stored(tmp_path):
    found = Scratch(tmp_path).zeros((7, 3, 2), "float64")
    found.write(0, np.arange(42.0).reshape(7, 3, 2))
    return found


class TestFileArray:
    def test_new_array_is_zero(self, tmp_path):
        found = Scratch(tmp_path).zeros((3, 2), "float32")
        assert found.dtype == np.float32
        assert len(found) == 3
        np.testing.assert_array_equal(np.asarray(found), np.zeros((3, 2)))

    def test_samples_are_replaced(self, stored):
        stored.write(2, np.ones((2, 3, 2)))
        expected = np.arange(42.0).reshape(7, 3, 2)
        expected[2:4] = 1.0
        np.testing.assert_array_equal(stored.memmap(), expected)

    @pytest.mark.parametrize(
        "key",
        [
            slice(None),
            slice(2, 5),
            slice(5, 2),
            slice(None, None, 2),
            slice(None, None, -1),
            slice(-3, None),
            4,
            -1,
            np.int64(2),
            (3, 1),
            (slice(1, 3), 0),
            (Ellipsis, 1),
            [5, 0],
        ],
    )
    def test_indexing_is_that_of_numpy(self, stored, key):
        np.testing.assert_array_equal(stored[key], np.arange(42.0).reshape(7, 3, 2)[key])

    def test_index_out_of_range_is_refused(self, stored):
        with pytest.raises(IndexError):
            stored[7]

    def test_conversion_without_a_copy_is_refused(self, stored):
        with pytest.raises(ValueError, match="without a copy"):
            np.asarray(stored, copy=False)

    def test_what_is_read_is_a_copy(self, stored):
        part = stored[:2]
        part[:] = -1.0
        assert float(stored[0][0, 0]) == 0.0


class TestScratch:
    def test_file_is_deleted_with_its_array(self, stored):
        path = stored.path
        assert path.exists()
        folder = Scratch(path.parent.parent)
        other = folder.zeros((1, 1), "float64").path
        gc.collect()
        assert not other.exists()
        assert path.exists()

    def test_folder_is_deleted_with_the_last_array(self, tmp_path):
        stored = Scratch(tmp_path).zeros((2, 2), "float64")
        gc.collect()
        assert len(list(tmp_path.iterdir())) == 1
        del stored
        gc.collect()
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("folder", ["no-such-folder", 3])
    def test_folder_that_does_not_exist_is_refused(self, folder):
        with pytest.raises(ValueError, match=r"scratch is .*: expected a folder that exists"):
            Scratch(folder)
