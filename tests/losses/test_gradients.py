"""Gradients in both arguments for automatic differentiation, against central differences."""

import math
import warnings

import numpy as np
import pytest
from fitting import spare_jax
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._losses.gradients import losses_and_gradients, sample_shape, training_tolerance

LAMS = [1.0, math.inf]


def samples(lam):
    rng = np.random.default_rng(0)
    X, Y = rng.uniform(5.0, 40.0, (2, 3, 4))
    if math.isinf(lam):
        Y *= X.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
    return X, Y


def loss_of(lam):
    return wtf.Wasserstein(wtf.grid_cost(4), eps=0.2, lam=lam)


@pytest.mark.parametrize("lam", LAMS)
class TestGradients:
    def test_values_sum_to_the_loss_and_gradient_in_y_is_its_gradient(self, xp, array, lam):
        X, Y = samples(lam)
        values, _, in_Y, _ = losses_and_gradients(array(X), array(Y), loss_of(lam), 1e-12, 5000)
        expected = wtf.wasserstein(X, Y, loss_of(lam), tol=1e-12, max_iter=5000)
        assert tuple(values.shape) == (3,)
        assert float(xp.sum(values)) == pytest.approx(float(expected.value), rel=1e-10)
        found, other = to_numpy(in_Y), expected.gradient
        if math.isinf(lam):  # known up to a constant per sample
            found, other = (a - a.mean(axis=1, keepdims=True) for a in (found, other))
        np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-5)

    def test_gradients_agree_with_central_differences(self, xp, array, lam):
        spare_jax(xp)
        X, Y = samples(lam)
        loss, h = loss_of(lam), 1e-3
        gradients = losses_and_gradients(array(X), array(Y), loss, 1e-12, 5000)[1:3]
        in_X, in_Y = (to_numpy(gradient) for gradient in gradients)
        rng = np.random.default_rng(1)
        for moves_X, moves_Y in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
            step_X, step_Y = moves_X * rng.normal(size=X.shape), moves_Y * rng.normal(size=X.shape)
            if math.isinf(lam):  # along which the masses stay equal
                step_X -= step_X.mean(axis=1, keepdims=True)
                step_Y -= step_Y.mean(axis=1, keepdims=True)
            ends = [
                float(wtf.wasserstein(X + t * step_X, Y + t * step_Y, loss, tol=1e-13).value)
                for t in (h, -h)
            ]
            found = np.sum(in_X * step_X) + np.sum(in_Y * step_Y)
            assert found == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5, abs=1e-5)


class TestTrainingTolerance:
    @pytest.mark.parametrize(
        ("dtype", "lam", "expected"),
        [
            *(("float32", 1.0, 1e-3), ("float32", math.inf, 1e-3)),
            *(("float64", 1.0, 1e-6), ("float64", math.inf, 1e-4)),
        ],
    )
    def test_default_depends_on_dtype_and_lam(self, array, dtype, lam, expected):
        assert training_tolerance(None, array([1.0], dtype), lam) == expected
        assert training_tolerance(0.25, array([1.0], dtype), lam) == 0.25

    @pytest.mark.parametrize("lam", LAMS)
    def test_gradients_at_the_default_have_three_digits(self, array, lam):
        X, Y = samples(lam)
        tol = training_tolerance(None, array(Y), lam)
        *_, found, _ = losses_and_gradients(array(X), array(Y), loss_of(lam), tol, 5000)
        *_, exact, _ = losses_and_gradients(array(X), array(Y), loss_of(lam), 1e-13, 5000)
        error = np.abs(to_numpy(found) - to_numpy(exact)).max()
        assert error <= 1e-3 * np.abs(to_numpy(exact)).max()

    def test_tolerance_that_is_not_positive_is_refused(self, array):
        with pytest.raises(ValueError, match=r"tol is 0\.0: expected a positive number"):
            training_tolerance(0.0, array([1.0]), 1.0)


class TestPotential:
    """A warm start: the same solution, in fewer iterations."""

    @pytest.mark.parametrize("lam", LAMS)
    @pytest.mark.parametrize("scale", [0.0, 1.0, 1e8, 1e300])
    def test_any_finite_potential_leads_to_the_same_solution(self, array, lam, scale):
        X, Y = samples(lam)
        start = array(scale * np.random.default_rng(2).normal(size=X.shape))
        arguments = array(X), array(Y), loss_of(lam), 1e-12, 5000
        cold, warm = losses_and_gradients(*arguments), losses_and_gradients(*arguments, start)
        np.testing.assert_allclose(to_numpy(warm.values), to_numpy(cold.values), rtol=1e-10)
        for found, expected in ((warm.in_X, cold.in_X), (warm.in_Y, cold.in_Y)):
            np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-4)

    @pytest.mark.parametrize("lam", LAMS)
    def test_solution_takes_one_iteration(self, array, lam):
        X, Y = samples(lam)
        arguments = array(X), array(Y), loss_of(lam), 1e-10
        cold = losses_and_gradients(*arguments, 5000)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warm = losses_and_gradients(*arguments, 1, cold.potential)
        np.testing.assert_allclose(to_numpy(warm.values), to_numpy(cold.values), rtol=1e-9)
        with pytest.warns(UserWarning, match="after 1 iterations: increase `max_iter`"):
            losses_and_gradients(*arguments, 1, 0.0 * cold.potential)

    @pytest.mark.parametrize("lam", LAMS)
    def test_nothing_is_kept_between_calls(self, array, lam):
        X, Y = samples(lam)
        loss = loss_of(lam)
        first = losses_and_gradients(array(X), array(Y), loss, 1e-6, 5000)
        losses_and_gradients(array(X), array(Y), loss, 1e-12, 5000, first.potential)
        again = losses_and_gradients(array(X), array(Y), loss, 1e-6, 5000)
        for found, expected in zip(again, first, strict=True):
            np.testing.assert_array_equal(to_numpy(found), to_numpy(expected))

    def test_potential_has_the_modes_of_the_data(self, array):
        """Transport along the first mode: the stack is the transpose."""
        X, Y = (A.T for A in samples(1.0))
        loss = wtf.Wasserstein(wtf.grid_cost(4), eps=0.2, lam=1.0, modes=(0,))
        found = losses_and_gradients(array(X), array(Y), loss, 1e-12, 5000)
        expected = losses_and_gradients(array(X.T), array(Y.T), loss_of(1.0), 1e-12, 5000)
        assert tuple(found.potential.shape) == (4, 3)
        np.testing.assert_allclose(
            to_numpy(found.potential), to_numpy(expected.potential).T, atol=1e-5
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses_and_gradients(array(X), array(Y), loss, 1e-8, 1, found.potential)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_potential_that_is_not_finite_is_refused(self, array, bad):
        X, Y = samples(1.0)
        start = np.zeros(X.shape)
        start[1, 2] = bad
        with pytest.raises(
            ValueError, match=rf"potential is {bad} at index \(1, 2\): expected fin"
        ):
            losses_and_gradients(array(X), array(Y), loss_of(1.0), 1e-6, 100, array(start))

    def test_other_shapes_and_dtypes_are_refused(self, array):
        X, Y = samples(1.0)
        arguments = array(X), array(Y), loss_of(1.0), 1e-6, 100
        with pytest.raises(ValueError, match=r"potential has shape \(3, 3\): expected \(3, 4\)"):
            losses_and_gradients(*arguments, array(X[:, :3]))
        with pytest.raises(TypeError, match=r"potential has dtype .*float32 and X .*float64: exp"):
            losses_and_gradients(*arguments, array(X, "float32"))


@pytest.mark.parametrize(
    ("modes", "expected"), [(None, (3, 4)), ((0,), (4, 5)), ((1,), (3, 5)), ((-1,), (3, 4))]
)
def test_sample_shape_leaves_out_the_transported_modes(modes, expected):
    size = (3, 4, 5)[2 if modes is None else modes[0]]
    loss = wtf.Wasserstein(wtf.grid_cost(size), 0.1, modes=modes)
    assert sample_shape(loss, (3, 4, 5)) == expected
