"""The curvature pairs of L-BFGS against the inverse Hessian that they define."""

import itertools

import numpy as np
import pytest
from curvature_pairs import EPS, N, bfgs_inverse, iterates, point, updated
from helpers import assert_close, numpy_only, to_numpy

from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._optimize.objective import Point
from wtfarray._optimize.scaled_curvature import ScaledCurvaturePairs


class TestDirection:
    @pytest.mark.parametrize("memory", [1, 3, 10])
    @pytest.mark.parametrize("count", [2, 5, 8])
    def test_direction_agrees_with_the_bfgs_formula(self, xp, array, memory, count):
        points, xs, gradients = iterates(array, count)
        direction, slope = updated(xp, points, memory).direction(points[-1])
        inverse = bfgs_inverse(np.diff(xs, axis=0), np.diff(gradients, axis=0), memory)
        expected = -inverse @ gradients[-1]
        assert_close(direction, array(expected), rtol=1e-9, atol=1e-11)
        assert slope == pytest.approx(gradients[-1] @ expected, rel=1e-9)
        assert slope < 0

    def test_newest_pair_satisfies_the_secant_equation(self, xp, array):
        points, xs, gradients = iterates(array, 4)
        pairs = updated(xp, points, 10)
        step, change = xs[-1] - xs[-2], gradients[-1] - gradients[-2]
        # The inverse Hessian maps the newest change to the newest step.
        changed = point(array, xs[-1], change)
        pairs.renew(changed)
        assert_close(pairs.direction(changed)[0], array(-step), rtol=1e-9, atol=1e-11)

    def test_without_pairs_the_first_step_has_length_one(self, xp, array):
        (start,), _, gradients = iterates(array, 1)
        pairs = CurvaturePairs(start, 3, EPS, xp)
        direction, slope = pairs.direction(start)
        assert pairs.empty
        norm = np.linalg.norm(gradients[0])
        assert_close(direction, array(-gradients[0] / norm), rtol=1e-13)
        assert slope == pytest.approx(-norm, rel=1e-13)

    def test_float32_is_kept(self, xp, array):
        points, xs, gradients = iterates(array, 3, dtype="float32")
        direction, _ = updated(xp, points, 5).direction(points[-1])
        inverse = bfgs_inverse(np.diff(xs, axis=0), np.diff(gradients, axis=0), 5)
        assert_close(direction, array(-inverse @ gradients[-1], "float32"), rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("kind", [CurvaturePairs, ScaledCurvaturePairs])
    def test_pairs_whose_direction_would_overflow_are_forgotten(self, xp, array, kind):
        """Each step has next to no curvature, and the change of the next one lies along it."""
        steps = np.eye(N)
        changes = 1e-4 * steps + np.eye(N, k=-1)
        xs, gradients = (np.cumsum(rows, axis=0) for rows in (steps, changes))
        points = [
            point(array, x, gradient, "float32") for x, gradient in zip(xs, gradients, strict=True)
        ]
        pairs = kind(points[0], N, 2.0**-23, xp)
        for old, new in itertools.pairwise(points):
            pairs.update(old, new)
        assert not pairs.empty
        last = points[-1]
        direction, slope = pairs.direction(last)
        assert pairs.empty
        assert slope < 0
        np.testing.assert_array_less(to_numpy(direction) * gradients[-1], 1e-12)


class TestUpdate:
    def test_pair_of_negative_curvature_is_ignored(self, xp, array):
        points, *_ = iterates(array, 4)
        pairs = updated(xp, points, 5)
        before, _ = pairs.direction(points[-1])
        # Against the curvature: the gradient changes against the step.
        last = points[-1]
        x, gradient = to_numpy(last.x), to_numpy(last.gradient)
        concave = point(array, x + 1.0, gradient - 1.0)
        pairs.update(last, concave)
        pairs.renew(last)
        assert_close(pairs.direction(last)[0], before, rtol=1e-9)

    def test_equal_points_are_ignored(self, xp, array):
        (start,), *_ = iterates(array, 1)
        pairs = CurvaturePairs(start, 3, EPS, xp)
        pairs.update(start, start)
        assert pairs.empty

    def test_cleared_pairs_give_steepest_descent(self, xp, array):
        points, xs, gradients = iterates(array, 4)
        pairs = updated(xp, points, 3)
        assert not pairs.empty
        pairs.clear()
        assert pairs.empty
        step, change = xs[-1] - xs[-2], gradients[-1] - gradients[-2]
        scale = (step @ change) / (change @ change)
        expected = array(-scale * gradients[-1])
        assert_close(pairs.direction(points[-1])[0], expected, rtol=1e-12)


@pytest.mark.parametrize("kind", [CurvaturePairs, ScaledCurvaturePairs])
class TestExport:
    def test_restored_pairs_give_bit_equal_directions(self, xp, array, kind):
        points, *_ = iterates(array, 8)
        pairs = updated(xp, points[:6], 3, kind)
        stored = {name: value.copy() for name, value in pairs.export().items()}
        restored = kind(points[0], 3, EPS, xp)
        restored.restore(stored)
        first, second = (to_numpy(p.direction(points[5])[0]) for p in (pairs, restored))
        np.testing.assert_array_equal(first, second)
        for old, new in ((points[5], points[6]), (points[6], points[7])):
            pairs.update(old, new)
            restored.update(old, new)
            first, second = (to_numpy(p.direction(new)[0]) for p in (pairs, restored))
            np.testing.assert_array_equal(first, second)

    def test_cleared_pairs_are_restored(self, xp, array, kind):
        points, *_ = iterates(array, 6)
        pairs = updated(xp, points, 3, kind)
        pairs.clear()
        stored = {name: value.copy() for name, value in pairs.export().items()}
        restored = kind(points[0], 3, EPS, xp)
        restored.restore(stored)
        (first, slope), (second, same) = (p.direction(points[5]) for p in (pairs, restored))
        np.testing.assert_array_equal(to_numpy(first), to_numpy(second))
        assert slope == same


def test_plain_pairs_are_measured_only_when_they_are_added(xp, array):
    points, *_ = iterates(array, 3)
    pairs = updated(xp, points[:2], 4)
    assert pairs.measure_ahead(points[1], points[2].x, points[2].gradient) is None


@numpy_only
def test_products_that_overflow_do_not_warn():
    """In float32; the slope is not finite then, and the minimiser drops the pairs."""
    xs = [np.full(3, k * 1e20, "float32") for k in (0.0, 1.0)]
    old, new = (Point(x, x, 0.0, 1e20, 0.0, 0.0) for x in xs)
    pairs = CurvaturePairs(old, 2, 1e-7, np)
    pairs.update(old, new)
