"""Data that are read in chunks: what is recognised, how it is read, and its checks."""

import threading

import numpy as np
import pytest
from helpers import to_numpy
from stored_data import Sliceable

from wtfarray._arrays.stored import (
    StoredData,
    chunks_of,
    is_larger_than_a_chunk,
    is_stored,
    like,
)

VALUES = np.random.default_rng(0).dirichlet(np.ones(6), 7).reshape(7, 2, 3)


class TestRecognition:
    @pytest.mark.usefixtures("on_numpy")
    def test_memory_maps_and_sliceables_are_stored(self, tmp_path):
        np.save(tmp_path / "x.npy", VALUES)
        assert is_stored(np.load(tmp_path / "x.npy", mmap_mode="r"))
        assert is_stored(Sliceable(VALUES))

    @pytest.mark.parametrize("package", ["h5py", "zarr"])
    @pytest.mark.usefixtures("on_numpy")
    def test_files_of_other_packages_are_stored(self, package, tmp_path):
        library = pytest.importorskip(package)
        if package == "zarr":
            stored = library.open(
                str(tmp_path / "x.zarr"), mode="w", shape=VALUES.shape, dtype="f8"
            )
            stored[:] = VALUES
            assert is_stored(stored)
            np.testing.assert_array_equal(StoredData(stored).read(slice(2, 4)), VALUES[2:4])
        else:
            with library.File(tmp_path / "x.h5", "w") as file:
                stored = file.create_dataset("X", data=VALUES)
                assert is_stored(stored)
                np.testing.assert_array_equal(StoredData(stored).read(slice(2, 4)), VALUES[2:4])

    def test_arrays_in_memory_are_not(self, array):
        assert not is_stored(array(VALUES))

    @pytest.mark.usefixtures("on_numpy")
    def test_other_containers_are_not(self):
        pandas = pytest.importorskip("pandas")
        for other in ([1.0], "x", 3.0, np.float64(1.0), pandas.Series([1.0])):
            assert not is_stored(other)


class TestChunks:
    def test_chunks_are_the_data_in_their_library(self, array, xp, device):
        import array_api_compat

        data = StoredData(Sliceable(array(VALUES)), chunk=3)
        found = list(data.chunks())
        assert [(rows.start, rows.stop) for rows, _ in found] == [(0, 3), (3, 6), (6, 7)]
        for rows, part in found:
            np.testing.assert_array_equal(to_numpy(part), VALUES[rows])
            assert array_api_compat.device(part) == device
        assert array_api_compat.array_namespace(data.like) is array_api_compat.array_namespace(
            found[0][1]
        )
        assert data.dtype == xp.float64

    def test_array_in_memory_is_one_chunk(self, array):
        X = array(VALUES)
        assert [rows for rows, _ in chunks_of(X)] == [None]
        assert like(X) is X

    @pytest.mark.usefixtures("on_numpy")
    def test_one_thread_reads_ahead(self):
        threads = []

        class Watched(Sliceable):
            def __getitem__(self, rows):
                threads.append(threading.get_ident())
                return super().__getitem__(rows)

        source = Watched(VALUES)
        chunks = StoredData(source, chunk=2).chunks()
        threads.clear()
        source.read.clear()
        next(chunks)
        next(chunks)
        for _ in range(1000):
            if len(source.read) == 3:
                break
            threading.Event().wait(0.01)
        assert source.read == [(0, 2), (2, 4), (4, 6)]  # the third without having been asked for
        chunks.close()
        assert set(threads).isdisjoint({threading.get_ident()})
        assert len(set(threads)) == 1

    @pytest.mark.usefixtures("on_numpy")
    def test_error_of_the_reader_is_raised(self):
        class Broken(Sliceable):
            def __getitem__(self, rows):
                if rows.start == 4:
                    msg = "the disk is gone"
                    raise OSError(msg)
                return super().__getitem__(rows)

        with pytest.raises(OSError, match="the disk is gone"):
            list(StoredData(Broken(VALUES), chunk=2).chunks())

    @pytest.mark.usefixtures("on_numpy")
    def test_slices_of_another_shape_are_refused(self):
        class Short(Sliceable):
            def __getitem__(self, rows):
                return super().__getitem__(slice(0, 1))

        with pytest.raises(ValueError, match=r"X\[2:4\] has shape \(1, 2, 3\): expected \(2, 2, 3"):
            StoredData(Short(VALUES), chunk=2).read(slice(2, 4))

    @pytest.mark.usefixtures("on_numpy")
    def test_integers_become_floats(self):
        data = StoredData(Sliceable(np.arange(12, dtype=np.uint8).reshape(4, 3)), chunk=2)
        assert data.dtype == np.float64
        assert [part.dtype for _, part in data.chunks()] == [np.float64] * 2

    @pytest.mark.usefixtures("on_numpy")
    def test_functions_are_applied_one_after_the_other(self):
        data = StoredData(VALUES, chunk=3).prepared(lambda x: x[:, :, 0]).prepared(lambda x: 2 * x)
        assert data.shape == (7, 2)
        np.testing.assert_array_equal(
            np.concatenate([part for _, part in data.chunks()]), 2.0 * VALUES[:, :, 0]
        )

    @pytest.mark.usefixtures("on_numpy")
    def test_empty_data_are_refused(self):
        with pytest.raises(ValueError, match=r"X has shape \(0, 3\): expected at least one mode"):
            StoredData(Sliceable(np.zeros((0, 3))))


class TestSummary:
    def test_summary_is_that_of_the_whole(self, array):
        values = VALUES.copy()
        values[3] *= 2.0
        values[5, 0] = 0.0
        found = StoredData(Sliceable(array(values)), chunk=2).summary("X")
        np.testing.assert_allclose(found.mass, values.sum(axis=(1, 2)), rtol=1e-14)
        assert found.positive_share == pytest.approx(np.mean(values > 0))
        assert not found.unit
        assert StoredData(Sliceable(array(VALUES)), chunk=2).summary("X").unit

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (-1.0, r"X\[4:6\] is -1.0 at index \(1, 0, 2\): expected non-negative values"),
            (np.nan, r"X\[4:6\] is nan at index \(1, 0, 2\): expected finite values"),
        ],
    )
    @pytest.mark.usefixtures("on_numpy")
    def test_bad_entries_are_named(self, value, message):
        values = VALUES.copy()
        values[5, 0, 2] = value
        with pytest.raises(ValueError, match=message):
            StoredData(Sliceable(values), chunk=2).summary("X")

    @pytest.mark.usefixtures("on_numpy")
    def test_zeros_and_extreme_sums_are_refused(self):
        with pytest.raises(ValueError, match="X is zero everywhere"):
            StoredData(Sliceable(0.0 * VALUES), chunk=2).summary("X")
        with pytest.raises(ValueError, match="X sums to"):
            StoredData(Sliceable(1e200 * VALUES), chunk=2).summary("X")


def test_large_memory_map_is_read_in_chunks(tmp_path):
    """A sparse file takes no room."""
    large = np.memmap(tmp_path / "x", np.float64, mode="w+", shape=(10_000, 100, 100))
    assert is_larger_than_a_chunk(large)
    assert not is_larger_than_a_chunk(large[:3])
    assert not is_larger_than_a_chunk(np.zeros((2, 3)))
