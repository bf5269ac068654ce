"""Files and folders that the commands read."""

from pathlib import Path

import numpy as np
import pytest
from command_line import GRID, SAMPLES, data, refuse, run
from helpers import numpy_only

import wtfarray as wtf


@numpy_only
class TestRead:
    def fitted(self, *words):
        result = run("fit", *words, "--rank", 2, "--loss", "kl", "--tol", "1e-3")
        assert result.exit_code == 0, result.output
        return wtf.load("fit.npz")

    def test_npz_files_are_read_by_key(self):
        np.savez("two.npz", X=data(), other=np.ones(3))
        assert self.fitted("two.npz", "--key", "X").shape == (SAMPLES, *GRID)
        np.savez("one.npz", some=data())
        assert self.fitted("one.npz").shape == (SAMPLES, *GRID)

    def test_csv_files_may_have_a_header_or_a_byte_order_mark(self):
        table = data().reshape(SAMPLES, -1)
        np.savetxt("plain.csv", table, delimiter=",")
        names = ",".join(f"bin {i}" for i in range(20))
        np.savetxt("named.csv", table, delimiter=",", header=names, comments="")
        marked = b"\xef\xbb\xbf" + Path("plain.csv").read_bytes()  # as spreadsheets write it
        Path("marked.csv").write_bytes(marked)
        for name in ("plain.csv", "named.csv", "marked.csv"):
            assert self.fitted(name, "--model", "nmf").shape == (SAMPLES, 20)

    def test_mat_files_are_read_by_key(self):
        io = pytest.importorskip("scipy.io")
        io.savemat("X.mat", {"images": data(), "other": 1.0})
        assert self.fitted("X.mat", "--key", "images").shape == (SAMPLES, *GRID)

    def test_folder_of_images_is_sorted_and_resized(self):
        Image = pytest.importorskip("PIL.Image")
        Path("images").mkdir()
        grey = np.random.default_rng(0).integers(1, 255, (3, 6, 4), dtype=np.uint8)
        for i in (2, 0, 1):
            Image.fromarray(grey[i]).save(f"images/{i}.png")
        Path("images/notes.txt").write_text("not an image", encoding="utf-8")
        from wtfarray.cli._data import read_array

        np.testing.assert_array_equal(read_array(Path("images"), None, None), grey)
        halved = read_array(Path("images"), None, (3, 2))
        expected = grey.reshape(3, 3, 2, 2, 2).mean(axis=(2, 4))
        np.testing.assert_allclose(halved, expected, rtol=1e-6)
        assert self.fitted("images", "--normalise").shape == (3, 6, 4)
        Image.fromarray(grey[0, :5]).save("images/3.png")
        assert "3.png is 5x4 and 0.png 6x4" in refuse("fit", "images", "--rank", 2)

    @pytest.mark.parametrize("dtype", ["uint16", "int32", "float32"])
    def test_images_of_more_than_eight_bits_keep_their_values(self, dtype):
        Image = pytest.importorskip("PIL.Image")
        from wtfarray.cli._data import read_array

        Path("deep").mkdir()
        values = np.linspace(0.0, 60000.0, 12).reshape(4, 3).astype(dtype)
        Image.fromarray(values).save("deep/0.tif")
        np.testing.assert_array_equal(read_array(Path("deep"), None, None)[0], values)
        Image.fromarray(values.astype(np.uint8)).save("deep/1.png")
        assert "1.png has 8 bits" in refuse("fit", "deep", "--rank", 2)
        Path("deep/1.png").write_bytes(Path("deep/1.png").read_bytes()[:60])
        assert "1.png cannot be read" in refuse("fit", "deep", "--rank", 2)

    def test_normalise_gives_samples_of_mass_one(self):
        np.save("heavy.npy", 7.0 * data())
        assert self.fitted("heavy.npy", "--normalise").constraints[0] == "rows"
        assert self.fitted("heavy.npy").constraints[0] is None
