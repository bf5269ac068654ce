"""Curvature pairs with a diagonal against the inverse Hessian that they define."""

import numpy as np
import pytest
from curvature_pairs import EPS, N, bfgs_inverse, diagonal_of, iterates, point, updated
from helpers import assert_close, numpy_only, to_numpy

from wtfarray._optimize.objective import Point
from wtfarray._optimize.scaled_curvature import ScaledCurvaturePairs


class TestScaled:
    """The first inverse Hessian is a diagonal."""

    @pytest.mark.parametrize("memory", [1, 3, 10])
    @pytest.mark.parametrize("count", [2, 5, 8])
    @pytest.mark.parametrize(("recent", "spread"), [(2, 1e9), (10, 30.0), (4, 1.5)])
    def test_direction_agrees_with_the_bfgs_formula(self, xp, array, memory, count, recent, spread):
        points, xs, gradients = iterates(array, count)
        pairs = updated(xp, points, memory, ScaledCurvaturePairs, recent=recent, spread=spread)
        direction, slope = pairs.direction(points[-1])
        steps, changes = np.diff(xs, axis=0), np.diff(gradients, axis=0)
        last = min(recent, memory)
        d = diagonal_of(steps[-last:], changes[-last:], spread)
        expected = -bfgs_inverse(steps, changes, memory, d) @ gradients[-1]
        assert_close(direction, array(expected), rtol=1e-9, atol=1e-11)
        assert slope == pytest.approx(gradients[-1] @ expected, rel=1e-9)
        assert slope < 0

    def test_diagonal_quadratic_is_solved_in_one_step(self, xp, array):
        curvatures = np.geomspace(0.1, 10.0, N)
        rng = np.random.default_rng(0)
        xs = rng.normal(size=(4, N))
        points = [point(array, x, curvatures * x) for x in xs]
        pairs = updated(xp, points, 3, ScaledCurvaturePairs)
        assert_close(pairs.direction(points[-1])[0], array(-xs[-1]), rtol=1e-9)
        plain = to_numpy(updated(xp, points, 3).direction(points[-1])[0])
        assert np.abs(plain + xs[-1]).max() > 0.1

    def test_newest_pair_satisfies_the_secant_equation(self, xp, array):
        points, xs, gradients = iterates(array, 6)
        pairs = updated(xp, points, 10, ScaledCurvaturePairs)
        changed = point(array, xs[-1], gradients[-1] - gradients[-2])
        pairs.renew(changed)
        expected = array(xs[-2] - xs[-1])
        assert_close(pairs.direction(changed)[0], expected, rtol=1e-9, atol=1e-11)

    def test_without_pairs_the_first_step_has_length_one(self, xp, array):
        (start,), _, gradients = iterates(array, 1)
        direction, slope = ScaledCurvaturePairs(start, 3, EPS, xp).direction(start)
        norm = np.linalg.norm(gradients[0])
        assert_close(direction, array(-gradients[0] / norm), rtol=1e-13)
        assert slope == pytest.approx(-norm, rel=1e-13)

    def test_entries_that_never_move_do_no_harm(self, xp, array):
        """As where a factor is exactly 0: step and gradient are 0 there, even in most entries."""
        curvatures = np.geomspace(0.5, 2.0, N)
        xs = np.random.default_rng(0).normal(size=(3, N)) * ([0.0] * (N - 2) + [1.0, 1.0])
        points = [point(array, x, curvatures * x) for x in xs]
        direction, slope = updated(xp, points, 3, ScaledCurvaturePairs).direction(points[-1])
        assert_close(direction, array(-xs[-1]), rtol=1e-9, atol=1e-12)
        assert slope < 0

    def test_pair_of_negative_curvature_is_ignored(self, xp, array):
        points, *_ = iterates(array, 4)
        pairs = updated(xp, points, 5, ScaledCurvaturePairs)
        before, slope = pairs.direction(points[-1])
        last = points[-1]
        x, gradient = to_numpy(last.x), to_numpy(last.gradient)
        pairs.update(last, point(array, x + 1.0, gradient - 1.0))
        pairs.renew(last)
        after, same = pairs.direction(last)
        assert_close(after, before, rtol=1e-9)
        assert same == pytest.approx(slope, rel=1e-9)

    def test_first_pair_of_negative_curvature_leaves_steepest_descent(self, xp, array):
        (start,), *_ = iterates(array, 1)
        pairs = ScaledCurvaturePairs(start, 3, EPS, xp)
        x, gradient = to_numpy(start.x), to_numpy(start.gradient)
        new = point(array, x + 1.0, gradient - 1.0)
        pairs.update(start, new)
        assert pairs.empty
        direction, slope = pairs.direction(new)
        assert slope == pytest.approx(float(to_numpy(direction) @ (gradient - 1.0)))
        assert slope < 0

    def test_cleared_pairs_keep_the_diagonal(self, xp, array):
        points, xs, gradients = iterates(array, 4)
        pairs = updated(xp, points, 5, ScaledCurvaturePairs)
        pairs.clear()
        assert pairs.empty
        steps, changes = np.diff(xs, axis=0), np.diff(gradients, axis=0)
        d = diagonal_of(steps, changes, 30.0)
        scale = (steps[-1] @ changes[-1]) / (changes[-1] @ (d * changes[-1]))
        direction, slope = pairs.direction(points[-1])
        assert_close(direction, array(-scale * d * gradients[-1]), rtol=1e-9)
        assert slope == pytest.approx(float(to_numpy(direction) @ gradients[-1]), rel=1e-9)

    def test_float32_is_kept(self, xp, array):
        points, xs, gradients = iterates(array, 3, dtype="float32")
        direction, _ = updated(xp, points, 5, ScaledCurvaturePairs).direction(points[-1])
        steps, changes = np.diff(xs, axis=0), np.diff(gradients, axis=0)
        inverse = bfgs_inverse(steps, changes, 5, diagonal_of(steps, changes, 30.0))
        assert_close(direction, array(-inverse @ gradients[-1], "float32"), rtol=1e-3, atol=1e-3)


class TestMeasureAhead:
    """The inner products with the pair of a trial point, before it is accepted."""

    @pytest.mark.parametrize("count", [3, 7])
    def test_accepted_trial_gives_the_bits_of_an_update(self, xp, array, count):
        points, *_ = iterates(array, count)
        expected = updated(xp, points, 4, ScaledCurvaturePairs)
        pairs = updated(xp, points[:-1], 4, ScaledCurvaturePairs)
        old, new = points[-2:]
        measured = pairs.measure_ahead(old, new.x, new.gradient)
        pairs.update(old, new, to_numpy(measured))
        self.assert_equal(pairs, expected, new)

    @pytest.mark.parametrize("count", [3, 7])
    @pytest.mark.parametrize("bad", [0.5, np.nan])
    def test_rejected_trial_leaves_nothing_behind(self, xp, array, count, bad):
        points, *_ = iterates(array, count)
        pairs, expected = (updated(xp, points, 4, ScaledCurvaturePairs) for _ in range(2))
        new = points[-1]
        for _ in range(2):
            pairs.measure_ahead(new, new.x + 1.0, new.gradient * bad)
        self.assert_equal(pairs, expected, new)

    def test_trial_from_another_point_is_not_taken(self, xp, array):
        points, *_ = iterates(array, 7)
        expected = updated(xp, points, 4, ScaledCurvaturePairs)
        pairs = updated(xp, points[:-1], 4, ScaledCurvaturePairs)
        old, new = points[-2:]
        measured = pairs.measure_ahead(points[0], new.x, new.gradient)
        pairs.update(old, new, to_numpy(measured))
        self.assert_equal(pairs, expected, new)

    def test_negative_curvature_is_found(self, xp, array):
        points, *_ = iterates(array, 5)
        pairs, expected = (updated(xp, points, 4, ScaledCurvaturePairs) for _ in range(2))
        old = points[-1]
        new = point(array, to_numpy(old.x) + 1.0, to_numpy(old.gradient) - 1.0)
        pairs.update(old, new, to_numpy(pairs.measure_ahead(old, new.x, new.gradient)))
        expected.update(old, new)
        self.assert_equal(pairs, expected, new)

    def assert_equal(self, pairs, expected, newest):
        (first, slope), (second, same) = (p.direction(newest) for p in (pairs, expected))
        np.testing.assert_array_equal(to_numpy(first), to_numpy(second))
        assert slope == same
        stored, wanted = pairs.export(), expected.export()
        assert stored["used"].tolist() == wanted["used"].tolist()
        for name in ("rows", "gram", "diagonal"):
            np.testing.assert_array_equal(stored[name], wanted[name])


def test_scales_are_unknown_if_squares_underflow(xp, array):
    """In float32 the squares of tiny steps are 0, and no number of the diagonal may become NaN."""
    xs = [array(np.full(3, k * 1e-25), dtype="float32") for k in (0.0, 1.0)]
    old, new = (Point(x, x + 1e-25, 0.0, 1e-25, 0.0, 0.0) for x in xs)
    pairs = ScaledCurvaturePairs(old, 2, 1e-7, xp)
    pairs.update(old, new)
    direction, _ = pairs.direction(new)
    assert np.isfinite(to_numpy(direction)).all()
    assert np.isfinite(pairs.export()["diagonal"]).all()


@numpy_only
@pytest.mark.parametrize(
    ("steps", "changes"),
    [([1.0, 2.0, 3.0], [1e-20, 1.0, 2.0]), ([6e11, 6e11, 0.0], [1e-12, 2e-12, 0.0])],
)
def test_ratios_of_squares_do_not_overflow(steps, changes):
    """In float32: the ratio of the squares of steps and changes would be above 1e38."""
    zero = np.zeros(3, "float32")
    old = Point(zero, zero, 0.0, 0.0, 0.0, 0.0)
    pairs = ScaledCurvaturePairs(old, 2, 1e-7, np)
    new = point(np.asarray, np.asarray(steps), np.asarray(changes), "float32")
    pairs.update(old, new)
    assert np.isfinite(pairs.direction(new)[0]).all()
    assert np.isfinite(pairs.export()["diagonal"]).all()


@numpy_only
def test_variables_that_moved_by_rounding_only_do_not_move_the_diagonal():
    """Noise in one variable, of both signs and sizes: all diagonals are those without it."""
    rng = np.random.default_rng(3)
    (first, second), *_ = iterates(np.asarray, 2)
    found = []
    for noise in (0.0, 4e-16, -9e-16):
        x, gradient = second.x.copy(), second.gradient.copy()
        x[0] = first.x[0] * (1.0 + noise)
        gradient[0] = first.gradient[0] + rng.normal() * 1e-15
        pairs = ScaledCurvaturePairs(first, 3, EPS, np)
        new = point(np.asarray, x, gradient)
        pairs.update(first, new)
        found.append(pairs.export()["diagonal"])
    assert not np.allclose(found[0], 1.0)  # the pair was stored
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-12)
