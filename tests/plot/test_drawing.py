"""What all plots share."""

import sys

import numpy as np
import pytest
from helpers import numpy_only, random_fit
from pictures import SHAPE, closed, data, plt

import wtfarray as wtf
from wtfarray import plot
from wtfarray.plot._drawing import mode_axis, mosaic_columns

__all__ = ["closed"]


@numpy_only
class TestModeAxis:
    def test_numbers_are_positions(self):
        axis = wtf.Axis("wavelength", [400, 410, 430], "nm")
        positions, label, names = mode_axis(axis, 1, 3)
        assert (positions.tolist(), label, names) == ([400, 410, 430], "wavelength [nm]", [])

    def test_few_names_are_shown(self):
        positions, label, names = mode_axis(wtf.Axis("gene", ["b", "a"]), 1, 2)
        assert (positions.tolist(), label, names) == ([0, 1], "gene", ["b", "a"])
        many = wtf.Axis("gene", [f"g{k}" for k in range(99)])
        assert mode_axis(many, 1, 99)[1:] == ("index of gene", [])

    def test_without_labels_bins_are_counted(self):
        positions, label, names = mode_axis(wtf.Axis(), 2, 3)
        assert (positions.tolist(), label, names) == ([0, 1, 2], "index along mode 2", [])


@numpy_only
@pytest.mark.parametrize("count", range(1, 13))
def test_mosaic_has_few_empty_tiles(count):
    columns = mosaic_columns(np.ones((count, 8, 8)))
    rows = -(-count // columns)
    assert 0 <= rows * columns - count <= 1


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
