"""Ground costs against the full product cost, formed here."""

import itertools

import numpy as np
import pytest
from helpers import assert_close, to_numpy

import wtfarray as wtf

GRIDS = [(1,), (7,), (4, 3), (5, 1), (3, 2, 4)]
every_grid = pytest.mark.parametrize("shape", GRIDS, ids=str)


def full_cost(costs):
    """The cost between all pairs of grid points in C order, from one matrix per axis."""
    total = np.zeros((1, 1))
    for cost in costs:
        n, m = len(total), len(cost)
        total = (total[:, None, :, None] + cost[None, :, None, :]).reshape(n * m, n * m)
    return total


def grid_points(shape, spacing):
    return np.array(list(itertools.product(*(range(n) for n in shape)))) * np.array(spacing)


def assert_is_median(values, statistic):
    """Half of the values lie on either side, and one of them is the statistic."""
    assert np.mean(values <= statistic + 1e-12) >= 0.5
    assert np.mean(values >= statistic - 1e-12) >= 0.5
    assert np.min(np.abs(values - statistic)) <= 1e-12


class TestGridCost:
    @every_grid
    @pytest.mark.parametrize("p", [0.5, 1, 2, 3.5])
    def test_entries_are_powers_of_distances(self, shape, p):
        spacing = (0.5, 2.0, 3.0)[: len(shape)]
        costs = wtf.grid_cost(*shape, p=p, spacing=spacing, scale=None)
        assert len(costs) == len(shape)
        for cost, n, step in zip(costs, shape, spacing, strict=True):
            expected = [[abs(step * (i - j)) ** p for j in range(n)] for i in range(n)]
            np.testing.assert_allclose(cost, expected, rtol=1e-15)

    @pytest.mark.parametrize("shape", [(7,), (4, 3), (5, 1), (3, 2, 4)], ids=str)
    @pytest.mark.parametrize("p", [1, 2])
    @pytest.mark.parametrize("spacing", [1.0, 0.01, (1.0, 5.0, 0.2)])
    def test_mean_of_the_whole_cost_is_one(self, shape, p, spacing):
        steps = spacing[: len(shape)] if isinstance(spacing, tuple) else spacing
        full = full_cost(wtf.grid_cost(*shape, p=p, spacing=steps))
        np.testing.assert_allclose(full.mean(), 1.0, rtol=1e-14)

    @pytest.mark.parametrize("shape", [(7,), (4, 3), (5, 1), (3, 2, 4)], ids=str)
    def test_max_of_the_whole_cost_is_one(self, shape):
        full = full_cost(wtf.grid_cost(*shape, scale="max"))
        np.testing.assert_allclose(full.max(), 1.0, rtol=1e-14)

    @pytest.mark.parametrize("shape", [(7,), (4, 3), (5, 1), (3, 2, 4)], ids=str)
    @pytest.mark.parametrize("p", [1, 2])
    def test_median_of_the_whole_cost_is_one(self, shape, p):
        assert_is_median(full_cost(wtf.grid_cost(*shape, p=p, scale="median")), 1.0)

    def test_axes_keep_their_proportion(self):
        plain = wtf.grid_cost(4, 3, scale=None, spacing=(1.0, 2.0))
        ratio = plain[0][0, 1] / wtf.grid_cost(4, 3, spacing=(1.0, 2.0))[0][0, 1]
        for cost, scaled in zip(plain, wtf.grid_cost(4, 3, spacing=(1.0, 2.0)), strict=True):
            np.testing.assert_allclose(cost, ratio * scaled, rtol=1e-14)

    def test_one_spacing_serves_all_axes(self):
        one, each = wtf.grid_cost(4, 3, spacing=0.3), wtf.grid_cost(4, 3, spacing=(0.3, 0.3))
        for a, b in zip(one, each, strict=True):
            np.testing.assert_array_equal(a, b)

    @pytest.mark.parametrize("scale", ["mean", "max", None])
    def test_cost_of_a_single_point_is_zero(self, scale):
        for cost in wtf.grid_cost(1, 1, scale=scale):
            np.testing.assert_array_equal(cost, [[0.0]])

    def test_costs_are_numpy_arrays_by_default(self):
        assert all(type(cost) is np.ndarray for cost in wtf.grid_cost(2, 3))

    def test_costs_follow_xp_and_device(self, xp, device, array):
        plain = wtf.grid_cost(3, 2)
        for cost, expected in zip(wtf.grid_cost(3, 2, xp=xp, device=device), plain, strict=True):
            assert_close(cost, array(expected), rtol=0)

    @pytest.mark.parametrize("shape", [(0,), (3, -1), (2.0,), (True,)])
    def test_non_positive_sizes_are_refused(self, shape):
        with pytest.raises((TypeError, ValueError), match=r"shape.*: expected"):
            wtf.grid_cost(*shape)

    def test_empty_shape_is_refused(self):
        with pytest.raises(TypeError, match="shape is empty"):
            wtf.grid_cost()

    @pytest.mark.parametrize("option", ["p", "spacing"])
    @pytest.mark.parametrize("value", [0, -1.0, np.inf, np.nan])
    def test_non_positive_options_are_refused(self, option, value):
        with pytest.raises(ValueError, match=f"{option} is .*: expected a positive number"):
            wtf.grid_cost(3, **{option: value})

    def test_another_number_of_spacings_is_refused(self):
        with pytest.raises(ValueError, match="spacing has 3 entries"):
            wtf.grid_cost(3, 2, spacing=(1.0, 2.0, 3.0))

    def test_unknown_scale_is_refused(self):
        with pytest.raises(ValueError, match=r"scale is 'sum': expected .*'mean'"):
            wtf.grid_cost(3, scale="sum")

    def test_median_of_zero_is_refused(self):
        with pytest.raises(ValueError, match="median cost is 0"):
            wtf.grid_cost(1, scale="median")


class TestPointCost:
    @pytest.mark.parametrize("dimension", [1, 2, 3])
    @pytest.mark.parametrize("p", [0.5, 1, 2, 3])
    def test_entries_are_powers_of_distances(self, array, dimension, p):
        points = np.random.default_rng(0).normal(size=(6, dimension))
        expected = np.linalg.norm(points[:, None] - points[None], axis=2) ** p
        assert_close(wtf.point_cost(array(points), p=p, scale=None), array(expected), rtol=1e-14)

    def test_one_dimensional_points_may_be_a_vector(self, array):
        points = np.random.default_rng(0).normal(size=6)
        expected = wtf.point_cost(array(points[:, None]))
        assert_close(wtf.point_cost(array(points)), expected, rtol=0)

    @pytest.mark.parametrize(
        ("scale", "statistic"), [("mean", np.mean), ("max", np.max), ("median", np.median)]
    )
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_chosen_statistic_becomes_one(self, array, scale, statistic, dtype):
        points = np.random.default_rng(0).normal(size=(7, 2))  # 49 costs: the median is one of them
        cost = wtf.point_cost(array(points, dtype), scale=scale)
        assert cost.dtype == array(0.0, dtype).dtype
        rtol = 1e-6 if dtype == "float32" else 1e-14
        np.testing.assert_allclose(statistic(to_numpy(cost)), 1.0, rtol=rtol)

    @pytest.mark.parametrize("shape", [(7,), (4, 3), (5, 1), (3, 2, 4)], ids=str)
    @pytest.mark.parametrize("scale", ["mean", "max", "median", None])
    def test_agrees_with_grid_cost_on_a_grid(self, array, shape, scale):
        spacing = (0.5, 2.0, 3.0)[: len(shape)]
        full = full_cost(wtf.grid_cost(*shape, spacing=spacing, scale=scale))
        cost = wtf.point_cost(array(grid_points(shape, spacing)), scale=scale)
        assert_close(cost, array(full), rtol=1e-14)

    @pytest.mark.parametrize("scale", ["mean", "max", None])
    @pytest.mark.parametrize("points", [[3.0], [[1.0, 2.0]]])
    def test_cost_of_a_single_point_is_zero(self, array, scale, points):
        assert_close(wtf.point_cost(array(points), scale=scale), array([[0.0]]))

    def test_coinciding_points_cost_nothing(self, array):
        cost = wtf.point_cost(array([[0.0, 1.0], [0.0, 1.0], [3.0, 5.0]]), scale=None)
        assert_close(cost, array([[0.0, 0.0, 25.0], [0.0, 0.0, 25.0], [25.0, 25.0, 0.0]]))

    def test_integers_are_converted(self, array, xp, device):
        cost = wtf.point_cost(array([0, 1, 3], "int64"), scale=None)
        default = xp.__array_namespace_info__().default_dtypes(device=device)["real floating"]
        assert cost.dtype == default
        np.testing.assert_array_equal(to_numpy(cost), [[0, 1, 9], [1, 0, 4], [9, 4, 0]])

    @pytest.mark.parametrize("shape", [(0,), (0, 2), (3, 0), (2, 2, 2), ()])
    def test_points_of_another_shape_are_refused(self, array, shape):
        with pytest.raises(ValueError, match=r"points has shape .*: expected"):
            wtf.point_cost(array(np.zeros(shape)))

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_non_finite_points_are_refused(self, array, value):
        with pytest.raises(ValueError, match=r"points is (nan|inf) at index \(1, 0\)"):
            wtf.point_cost(array([[0.0], [value], [1.0]]))

    def test_list_is_refused(self):
        with pytest.raises(TypeError, match="points is a list"):
            wtf.point_cost([0.0, 1.0])

    @pytest.mark.parametrize("p", [0, -2, np.inf])
    def test_non_positive_power_is_refused(self, array, p):
        with pytest.raises(ValueError, match=r"p is .*: expected a positive number"):
            wtf.point_cost(array([0.0, 1.0]), p=p)

    def test_unknown_scale_is_refused(self, array):
        with pytest.raises(ValueError, match=r"scale is 'sum': expected .*'mean'"):
            wtf.point_cost(array([0.0, 1.0]), scale="sum")

    def test_median_of_zero_is_refused(self, array):
        with pytest.raises(ValueError, match="median cost is 0"):
            wtf.point_cost(array([0.0, 0.0, 0.0, 1.0]), scale="median")
