"""Atoms, factors and reconstructions: what the pictures show, for arrays of every library."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import numpy_only, random_fit, sizes_made_dense, to_numpy
from pictures import SHAPE, closed, covers_data, data, labelled, picture

import wtfarray as wtf
from wtfarray import plot

__all__ = ["closed"]


class TestAtoms:
    def test_atoms_of_one_mode_are_lines(self, array):
        fit = random_fit(array, "nmf", (6, 9), 3)
        ax = plot.atoms(fit)
        for r, line in enumerate(ax.lines):
            np.testing.assert_allclose(line.get_ydata(), to_numpy(fit.factors[1])[:, r])
        assert len(ax.lines) == 3
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0", "1", "2"]
        assert labelled(ax)

    @pytest.mark.parametrize(("model", "rank"), [("cp", 4), ("nmf", 4), ("tucker", (4, 2, 3))])
    def test_atoms_of_two_modes_are_a_mosaic(self, array, model, rank):
        fit = random_fit(array, model, SHAPE, rank)
        ax = plot.atoms(fit)
        A = [to_numpy(factor) for factor in fit.factors]
        if model == "cp":
            expected = np.einsum("ir,jr->rij", A[1], A[2])
        elif model == "nmf":
            expected = A[1].T.reshape(-1, 5, 4)
        else:
            expected = np.einsum("rab,ia,jb->rij", to_numpy(fit.core), A[1], A[2])
        expected /= expected.max(axis=(1, 2), keepdims=True)
        tiles = picture(ax)
        gap, columns = 1, (tiles.shape[1] + 1) // 5
        for r, tile in enumerate(expected):
            top, left = (r // columns) * (5 + gap), (r % columns) * (4 + gap)
            np.testing.assert_allclose(tiles[top : top + 5, left : left + 4], tile)
        assert np.isfinite(tiles).sum() == expected.size
        assert [text.get_text() for text in ax.texts] == ["0", "1", "2", "3"]
        assert (ax.get_ylabel(), ax.get_xlabel()) == ("mode 1", "mode 2")

    @numpy_only
    def test_atoms_are_scaled_by_their_weights(self):
        fit = random_fit(np.array, "nmf", (6, 9), 2, learned=True)
        drawn = np.stack([line.get_ydata() for line in plot.atoms(fit).lines])
        np.testing.assert_allclose(drawn.sum(axis=1), fit.weights)

    @numpy_only
    def test_mode_chooses_the_factor_to_draw(self):
        fit = random_fit(np.array, "cp", (6, 5, 4, 3), 2)
        ax = plot.atoms(fit, mode=-1)
        np.testing.assert_array_equal(ax.lines[1].get_ydata(), fit.factors[3][:, 1])
        assert ax.get_xlabel() == "index along mode 3"
        with pytest.raises(ValueError, match=r"the atoms have 3 modes: .* a mode of 0, 1, 2, 3"):
            plot.atoms(fit)

    @numpy_only
    def test_shape_unflattens_images(self):
        fit = random_fit(np.array, "nmf", (6, 20), 1)
        np.testing.assert_allclose(
            picture(plot.atoms(fit, shape=(5, 4))),
            fit.factors[1].reshape(5, 4) / fit.factors[1].max(),
        )
        with pytest.raises(ValueError, match=r"shape is \(3, 4\): expected sizes whose product"):
            plot.atoms(fit, shape=(3, 4))

    @numpy_only
    def test_many_lines_differ_in_colour_or_style(self):
        ax = plot.atoms(random_fit(np.array, "nmf", (6, 9), 20))
        looks = {(line.get_color(), line.get_linestyle()) for line in ax.lines}
        assert len(looks) == 20

    @numpy_only
    def test_labels_are_drawn(self):
        axes = (wtf.Axis(), wtf.Axis("wavelength", np.linspace(400, 480, 9), "nm"))
        fit = replace(random_fit(np.array, "nmf", (6, 9), 2), axes=axes)
        ax = plot.atoms(fit)
        assert ax.get_xlabel() == "wavelength [nm]"
        np.testing.assert_array_equal(ax.lines[0].get_xdata(), axes[1].values)
        axes = (wtf.Axis(), wtf.Axis("x", unit="m"), wtf.Axis())
        ax = plot.atoms(replace(random_fit(np.array, "cp", SHAPE, 2), axes=axes))
        assert (ax.get_ylabel(), ax.get_xlabel()) == ("x [m]", "mode 2")

    @numpy_only
    def test_bins_with_names_are_points(self):
        axes = (wtf.Axis(), wtf.Axis("gene", list("abc")))
        ax = plot.atoms(replace(random_fit(np.array, "nmf", (6, 3), 2), axes=axes))
        assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b", "c"]
        assert {(line.get_linestyle(), line.get_marker()) for line in ax.lines} == {("None", "o")}

    @numpy_only
    def test_modes_with_one_bin_are_left_out(self):
        fit = random_fit(np.array, "cp", (6, 1, 5), 2)
        ax = plot.atoms(fit)
        assert ax.lines[0].get_ydata().shape == (5,)
        assert ax.get_xlabel() == "index along mode 2"
        only = plot.atoms(fit, mode=1)
        assert only.lines[0].get_marker() == "o"
        assert plot.atoms(random_fit(np.array, "nmf", (6, 1), 2)).lines[1].get_marker() == "o"

    @numpy_only
    @pytest.mark.parametrize("rank", [2, 20])
    def test_legend_covers_no_data(self, rank):
        assert not covers_data(plot.atoms(random_fit(np.array, "nmf", (6, 9), rank)))
        fit = random_fit(np.array, "nmf", (6, 9), 2)
        assert not covers_data(plot.reconstruction(fit, data((6, 9))))
        assert not covers_data(plot.convergence(fit))


class TestFactors:
    @pytest.mark.parametrize(
        ("kind", "shape", "rank"),
        [("cp", (6, 5, 4, 3), 2), ("tucker", (6, 5, 4), (2, 2, 2)), ("nmf", (6, 5, 4, 3), 2)],
    )
    def test_one_panel_per_factor(self, array, kind, shape, rank):
        fit = random_fit(array, kind, shape, rank)
        panels = plot.factors(fit)
        assert len(panels) == len(fit.factors)
        assert len({ax.figure for ax in panels}) == 1
        for factor, ax in zip(fit.factors, panels, strict=True):
            np.testing.assert_array_equal(ax.lines[0].get_ydata(), to_numpy(factor)[:, 0])

    @numpy_only
    def test_images_are_a_mosaic(self):
        panels = plot.factors(random_fit(np.array, "nmf", SHAPE, 2))
        assert len(panels[1].images) == 1


class TestReconstruction:
    def test_samples_of_one_mode_are_areas_under_lines(self, array):
        X = array(data((6, 9)))
        fit = random_fit(array, "nmf", (6, 9), 2)
        ax = plot.reconstruction(fit, X, samples=(4, 1))
        model = to_numpy(fit.to_tensor())
        step = 1.1 * max(model[[4, 1]].max(), data((6, 9))[[4, 1]].max())
        for j, i in enumerate((4, 1)):
            np.testing.assert_allclose(ax.lines[j].get_ydata() + j * step, model[i], atol=1e-12)
            area = ax.collections[j].get_paths()[0].vertices[:, 1] + j * step
            assert area.max() == pytest.approx(data((6, 9))[i].max())
        assert [label.get_text() for label in ax.get_yticklabels()] == ["4", "1"]
        assert labelled(ax)

    def test_samples_of_two_modes_are_rows_of_images(self, array):
        X = array(data())
        fit = random_fit(array, "cp", SHAPE, 2)
        tiles = picture(plot.reconstruction(fit, X, samples=(0, 5)))
        model = to_numpy(fit.to_tensor())[5]
        most = max(model.max(), data()[5].max())
        np.testing.assert_allclose(tiles[:5, 5:9], data()[5] / most)
        np.testing.assert_allclose(tiles[6:, 5:9], model / most)

    @numpy_only
    def test_samples_out_of_range_and_other_data_are_refused(self):
        fit = random_fit(np.array, "nmf", (2, 9), 2)
        assert len(plot.reconstruction(fit, data((2, 9))).lines) == 2
        with pytest.raises(ValueError, match=r"samples is \(7,\): expected indices below 2"):
            plot.reconstruction(fit, data((2, 9)), samples=(7,))
        with pytest.raises(ValueError, match=r"X has shape \(3, 9\): expected \(2, 9\)"):
            plot.reconstruction(fit, data((3, 9)))

    @numpy_only
    def test_missing_entries_are_left_blank(self, array):
        X, fit = data(), random_fit(array, "cp", SHAPE, 2)
        X[0, 1] = np.nan
        whole, gaps = (
            np.ma.filled(picture(plot.reconstruction(fit, Z)), -1.0) for Z in (data(), X)
        )
        finite = np.isfinite(gaps)
        assert finite.sum() < np.isfinite(whole).sum()
        assert finite.any()
        X, fit = data((6, 9)), random_fit(array, "nmf", (6, 9), 2)
        X[:, 4] = np.nan
        limits = plot.reconstruction(fit, X).get_ylim()
        assert np.isfinite(limits).all()

    @numpy_only
    def test_sparse_data(self, array, monkeypatch):
        sparse = pytest.importorskip("scipy.sparse")
        X, fit = data((6, 9)), random_fit(array, "nmf", (6, 9), 2)
        sizes = sizes_made_dense(monkeypatch)
        plot.reconstruction(fit, sparse.csr_array(X), samples=(4, 1))
        assert set(sizes) == {(1, 9)}

    @numpy_only
    def test_samples_are_named(self):
        axes = (wtf.Axis("vial", list("abcdef")), wtf.Axis("x", np.arange(9.0) * 2))
        fit = replace(random_fit(np.array, "nmf", (6, 9), 2), axes=axes)
        ax = plot.reconstruction(fit, data((6, 9)), samples=(4, 1))
        assert [label.get_text() for label in ax.get_yticklabels()] == ["e", "b"]
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "vial")
        assert ax.lines[0].get_xdata()[-1] == 16.0
