"""Gradients in both arguments for automatic differentiation, against central differences."""

import math

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
        values, _, in_Y = losses_and_gradients(array(X), array(Y), loss_of(lam), 1e-12, 5000)
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
        gradients = losses_and_gradients(array(X), array(Y), loss, 1e-12, 5000)[1:]
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
    @pytest.mark.parametrize(("dtype", "expected"), [("float32", 1e-3), ("float64", 1e-6)])
    def test_default_depends_on_the_dtype(self, array, dtype, expected):
        assert training_tolerance(None, array([1.0], dtype)) == expected
        assert training_tolerance(0.25, array([1.0], dtype)) == 0.25

    def test_tolerance_that_is_not_positive_is_refused(self, array):
        with pytest.raises(ValueError, match=r"tol is 0\.0: expected a positive number"):
            training_tolerance(0.0, array([1.0]))


@pytest.mark.parametrize(
    ("modes", "expected"), [(None, (3, 4)), ((0,), (4, 5)), ((1,), (3, 5)), ((-1,), (3, 4))]
)
def test_sample_shape_leaves_out_the_transported_modes(modes, expected):
    size = (3, 4, 5)[2 if modes is None else modes[0]]
    loss = wtf.Wasserstein(wtf.grid_cost(size), 0.1, modes=modes)
    assert sample_shape(loss, (3, 4, 5)) == expected
