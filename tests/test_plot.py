"""Pictures: what they show, for arrays of every library."""

import sys

import numpy as np
import pytest
from helpers import numpy_only, random_fit, to_numpy

import wtfarray as wtf

mpl = pytest.importorskip("matplotlib", reason="plots need Matplotlib")
mpl.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

from wtfarray import plot  # noqa: E402

SHAPE = (6, 5, 4)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def data(shape=SHAPE):
    X = np.random.default_rng(0).gamma(1.0, size=shape) + 0.01
    return X / X.sum(axis=tuple(range(1, len(shape))), keepdims=True)


def picture(ax):
    """The image that was drawn, NaN between the tiles."""
    return np.ma.filled(ax.images[0].get_array().astype(float), np.nan)


def labelled(ax):
    return bool(ax.get_xlabel()) and bool(ax.get_ylabel())


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
    @pytest.mark.parametrize("count", range(1, 13))
    def test_mosaic_has_few_empty_tiles(self, count):
        columns = plot._columns(np.ones((count, 8, 8)))
        rows = -(-count // columns)
        assert 0 <= rows * columns - count <= 1


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


class TestConvergence:
    def test_objective_and_gap_are_drawn(self, array):
        fit = random_fit(array, "nmf", (6, 9), 2)
        ax = plot.convergence(fit)
        objective, gap, last = ax.lines
        np.testing.assert_array_equal(objective.get_ydata(), [1.0, 0.5])
        np.testing.assert_array_equal(gap.get_ydata(), [0.5, 0.1, 0.2])
        assert last.get_ydata() == [0.2]
        assert ax.get_yscale() == "log"
        assert labelled(ax)

    @numpy_only
    def test_loss_without_gap_draws_one_curve(self):
        ax = plot.convergence(wtf.nmf(data((6, 9)), 2, wtf.KullbackLeibler(), rng=0))
        assert len(ax.lines[0].get_ydata()) > 0
        assert len(ax.lines) == 1
        assert len(ax.get_legend().get_texts()) == 1


class TestCore:
    @pytest.mark.parametrize(
        ("shape", "rank"), [((6, 5, 4), (2, 3, 2)), ((6, 9), (2, 3)), ((4, 3, 2, 2), (1, 3, 2, 2))]
    )
    def test_core_is_a_heat_map(self, array, shape, rank):
        fit = random_fit(array, "tucker", shape, rank)
        ax = plot.core(fit)
        np.testing.assert_allclose(picture(ax), to_numpy(fit.core).reshape(rank[0], -1))
        last = ",".join(str(r - 1) for r in rank[1:])
        assert ax.get_xticklabels()[-1].get_text() == last
        assert labelled(ax)

    @numpy_only
    def test_fit_without_core_is_refused(self):
        with pytest.raises(ValueError, match="fit is a cp fit, which has no core"):
            plot.core(random_fit(np.array, "cp", SHAPE, 2))


@numpy_only
class TestRankScan:
    def scan(self, **options):
        return wtf.rank_scan(data((8, 9)), [1, 2, 3], wtf.KullbackLeibler(), **options)

    def test_loss_held_out_loss_and_stability_are_drawn(self):
        scan = self.scan(held_out=2, n_seeds=2)
        ax = plot.rank_scan(scan)
        left, right = ax.figure.axes
        np.testing.assert_array_equal(left.lines[0].get_ydata(), [r.loss for r in scan])
        np.testing.assert_array_equal(left.lines[1].get_ydata(), [r.held_out for r in scan])
        np.testing.assert_array_equal(right.lines[0].get_ydata(), [r.stability for r in scan])
        assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3"]
        assert len(ax.get_legend().get_texts()) == 3

    def test_missing_quantities_are_not_drawn(self):
        ax = plot.rank_scan(self.scan(held_out=None, n_seeds=1))
        assert len(ax.figure.axes) == 1
        assert len(ax.lines) == 1


@numpy_only
class TestEveryPlot:
    def test_plot_is_drawn_on_the_given_axes(self):
        fit, X = random_fit(np.array, "tucker", SHAPE, (2, 2, 2)), data()
        scan = wtf.rank_scan(data((8, 9)), [1], wtf.KullbackLeibler(), n_seeds=1)
        _, axes = plt.subplots(1, 5)
        assert plot.atoms(fit, ax=axes[0]) is axes[0]
        assert plot.reconstruction(fit, X, ax=axes[1]) is axes[1]
        assert plot.convergence(fit, ax=axes[2]) is axes[2]
        assert plot.core(fit, ax=axes[3]) is axes[3]
        assert plot.rank_scan(scan, ax=axes[4]) is axes[4]
        assert len(plt.get_fignums()) == 1

    @pytest.mark.parametrize("name", plot.__all__)
    def test_what_is_no_fit_is_refused(self, name):
        words = ("scan is a int", "fit is a int")
        arguments = (3, data()) if name == "reconstruction" else (3,)
        with pytest.raises(TypeError, match=words[name != "rank_scan"]):
            getattr(plot, name)(*arguments)

    def test_missing_matplotlib_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(ImportError, match=r"pip install 'wtfarray\[plot\]'"):
            plot.atoms(random_fit(np.array, "nmf", (6, 9), 2))
