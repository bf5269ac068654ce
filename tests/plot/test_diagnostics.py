"""Convergence, core and rank scan: what the pictures show."""

import numpy as np
import pytest
from helpers import numpy_only, random_fit, to_numpy
from pictures import SHAPE, closed, data, labelled, picture

import wtfarray as wtf
from wtfarray import plot

__all__ = ["closed"]


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
