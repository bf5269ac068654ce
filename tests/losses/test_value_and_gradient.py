"""The one method of every loss: values of samples, (n_0,) or (), and the gradient in Y."""

import math

import numpy as np
import pytest
from exact_transport import exact_values, samples_with_zeros
from fitting import spare_jax
from helpers import to_numpy

import wtfarray as wtf

COST, EPS = wtf.grid_cost(6)[0], 0.3
LAMS = [1.0, math.inf]
SHAPE = (3, 4, 6)


@pytest.fixture(autouse=True)
def not_on_jax(xp):
    spare_jax(xp)


def tensors():
    rng = np.random.default_rng(0)
    X, Y = rng.uniform(0.2, 1.0, size=(2, *SHAPE))
    return X, Y


class TestWasserstein:
    @pytest.mark.parametrize("lam", LAMS)
    def test_agrees_with_wasserstein(self, array, xp, lam):
        X, Y = samples_with_zeros(lam)
        loss = wtf.Wasserstein(COST, EPS, lam)
        values, gradient = loss.value_and_gradient(array(X), array(Y))
        expected = wtf.wasserstein(array(X), array(Y), loss)
        assert tuple(values.shape) == (3,)
        assert tuple(gradient.shape) == (3, 6)
        assert float(xp.sum(values)) == pytest.approx(float(expected.value), rel=1e-14)
        np.testing.assert_array_equal(to_numpy(gradient), to_numpy(expected.gradient))

    @pytest.mark.parametrize("lam", LAMS)
    def test_values_are_those_of_the_samples(self, array, lam):
        X, Y = samples_with_zeros(lam)
        values, _ = wtf.Wasserstein(COST, EPS, lam).value_and_gradient(array(X), array(Y))
        exact = exact_values(X, Y, COST, EPS, lam)
        np.testing.assert_allclose(to_numpy(values), exact, rtol=0, atol=1e-5)

    @pytest.mark.parametrize(
        ("modes", "sizes", "shape"),
        [
            ((2,), (6,), (3,)),
            ((1,), (4,), (3,)),
            ((1, 2), (4, 6), (3,)),
            ((0,), (3,), ()),
            ((0, 2), (3, 6), ()),
            ((0, 1, 2), (3, 4, 6), ()),
        ],
    )
    def test_values_are_summed_over_all_modes_but_the_first(self, array, xp, modes, sizes, shape):
        X, Y = tensors()
        loss = wtf.Wasserstein(wtf.grid_cost(*sizes), EPS, 1.0, modes=modes)
        values, gradient = loss.value_and_gradient(array(X), array(Y))
        assert tuple(values.shape) == shape
        assert tuple(gradient.shape) == SHAPE
        expected = wtf.wasserstein(array(X), array(Y), loss)
        assert float(xp.sum(values)) == pytest.approx(float(expected.value), rel=1e-13)
        if shape == (3,) and modes == (2,):
            fibres = exact_values(X.reshape(12, 6), Y.reshape(12, 6), COST, EPS, 1.0)
            np.testing.assert_allclose(
                to_numpy(values), fibres.reshape(3, 4).sum(axis=1), atol=1e-4
            )

    def test_gradient_is_minus_infinity_where_the_model_is_zero(self, array):
        X, Y = samples_with_zeros(1.0)
        _, gradient = wtf.Wasserstein(COST, EPS, 1.0).value_and_gradient(array(X), array(Y))
        np.testing.assert_array_equal(np.isneginf(to_numpy(gradient)), Y == 0)

    def test_single_sample_has_one_value(self, array):
        X, Y = samples_with_zeros(1.0)
        values, gradient = wtf.Wasserstein(COST, EPS, 1.0).value_and_gradient(
            array(X[1]), array(Y[1])
        )
        assert tuple(values.shape) == ()
        assert tuple(gradient.shape) == (6,)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_dtype_is_that_of_the_data(self, array, dtype):
        X, Y = samples_with_zeros(1.0)
        found = wtf.Wasserstein(COST, EPS, 1.0).value_and_gradient(array(X, dtype), array(Y, dtype))
        assert all(a.dtype == array(0.0, dtype).dtype for a in found)


class TestLossSum:
    def test_is_the_sum_of_its_losses(self, array):
        X, Y = map(array, tensors())
        parts = [
            wtf.Wasserstein(COST, EPS, 1.0, modes=(2,)),
            wtf.Wasserstein(wtf.grid_cost(4), EPS, 2.0, modes=(1,)),
            wtf.Frobenius(),
        ]
        values, gradient = wtf.LossSum(*parts).value_and_gradient(X, Y)
        each = [part.value_and_gradient(X, Y) for part in parts]
        assert tuple(values.shape) == (3,)
        np.testing.assert_allclose(
            to_numpy(values), sum(to_numpy(value) for value, _ in each), rtol=1e-13
        )
        np.testing.assert_allclose(
            to_numpy(gradient), sum(to_numpy(other) for _, other in each), rtol=1e-13
        )

    def test_transport_of_the_first_mode_makes_the_value_one_number(self, array):
        X, Y = map(array, tensors())
        parts = [
            wtf.Wasserstein(COST, EPS, 1.0, modes=(2,)),
            wtf.Wasserstein(wtf.grid_cost(3), EPS, 2.0, modes=(0,)),
        ]
        values, gradient = wtf.LossSum(*parts).value_and_gradient(X, Y)
        each = [wtf.wasserstein(X, Y, part) for part in parts]
        assert tuple(values.shape) == ()
        assert float(values) == pytest.approx(sum(float(r.value) for r in each), rel=1e-13)
        np.testing.assert_allclose(
            to_numpy(gradient), sum(to_numpy(r.gradient) for r in each), rtol=1e-13
        )

    def test_sum_of_one_loss_is_that_loss(self, array):
        X, Y = samples_with_zeros(1.0)
        loss = wtf.Wasserstein(COST, EPS, 1.0)
        found = wtf.LossSum(loss).value_and_gradient(array(X), array(Y))
        expected = loss.value_and_gradient(array(X), array(Y))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(to_numpy(a), to_numpy(b))

    def test_arguments_are_left_alone(self, array):
        X, Y = samples_with_zeros(1.0)
        data, model = array(X), array(Y)
        loss = wtf.LossSum(wtf.Frobenius(), wtf.Wasserstein(COST, EPS, 1.0))
        loss.value_and_gradient(data, model)
        np.testing.assert_array_equal(to_numpy(data), X)
        np.testing.assert_array_equal(to_numpy(model), Y)
