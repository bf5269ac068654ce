"""Geometries of one axis: structured costs against their matrices."""

import numpy as np
import pytest

import wtfarray as wtf
from wtfarray._transport.banded import BandedCost, geometry_of
from wtfarray._transport.geometry import DenseGeometry


class TestGeometry:
    @pytest.mark.parametrize("reach", [1, 3])
    def test_agrees_with_the_matrix(self, array, reach):
        cost = BandedCost(array(np.arange(reach + 1.0) ** 2), 8)
        geometry, dense = geometry_of(cost), DenseGeometry(cost.to_dense())
        assert not geometry.all_finite
        for name in ("mean", "spacing", "typical_spacing"):
            assert getattr(geometry, name)() == pytest.approx(getattr(dense, name)(), rel=1e-15)
        assert float(geometry.largest) == float(dense.largest)
        for found, expected in zip(geometry.components(), dense.components(), strict=True):
            np.testing.assert_array_equal(found, expected)

    def test_without_reach_each_bin_is_a_component(self, array):
        labels, _ = geometry_of(BandedCost(array([0.0]), 5)).components()
        np.testing.assert_array_equal(labels, np.arange(5))

    def test_spacing_is_the_cost_of_the_most_distant_neighbour(self, array):
        cost = array([[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]])
        assert geometry_of(cost).spacing() == 4.0
        assert geometry_of(array([[0.0]])).spacing() == 0.0

    def test_typical_spacing_is_that_of_most_bins(self, array):
        points = np.asarray([0.0, 1.0, 2.0, 3.0, 13.0])  # the last is an outlier
        geometry = geometry_of(array((points[:, None] - points) ** 2))
        assert (geometry.typical_spacing(), geometry.spacing()) == (1.0, 100.0)
        assert geometry_of(array([[0.0]])).typical_spacing() == 0.0

    @pytest.mark.parametrize("p", [1.0, 2.0])
    def test_spacings_of_a_grid_are_the_same(self, p):
        for cost in wtf.grid_cost(5, 8, spacing=(0.1, 0.3), p=p):
            geometry = geometry_of(cost)
            assert geometry.typical_spacing() == pytest.approx(geometry.spacing(), rel=1e-14)

    def test_mean_and_largest_are_those_of_finite_costs(self, array):
        geometry = geometry_of(array([[0.0, np.inf], [3.0, 0.0]]))
        assert (geometry.mean(), float(geometry.largest)) == (1.0, 3.0)
