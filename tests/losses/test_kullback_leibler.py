"""The Kullback-Leibler divergence and its conjugate."""

import numpy as np
import pytest
from helpers import assert_close, to_numpy
from hypothesis import given
from oracles import (
    SHAPE,
    assert_same,
    central_differences,
    evaluate,
    few,
    kl,
    random_data,
    random_dual,
    some_seed,
)

import wtfarray as wtf


class TestKullbackLeibler:
    def test_conjugate_follows_the_formula(self, array):
        rng = np.random.default_rng(0)
        X, U = random_data(rng), random_dual(rng, 1.0)
        expected = -np.sum(X * np.log(1 - U)), X / (1 - U)
        assert_same(evaluate(wtf.KullbackLeibler(), X, U, array), expected, rtol=1e-14)

    @few
    @given(seed=some_seed)
    def test_conjugate_is_the_supremum(self, array, seed):
        rng = np.random.default_rng(seed)
        X, U = rng.exponential(size=SHAPE), random_dual(rng, 1.0)
        value, best = evaluate(wtf.KullbackLeibler(), X, U, array)
        size = np.sum(best) + abs(value)
        assert np.sum(U * best) - kl(X, best) == pytest.approx(value, abs=1e-13 * size)
        for amount in (1e-2, 1.0):
            Y = best * np.exp(amount * rng.normal(size=SHAPE))
            assert np.sum(U * Y) - kl(X, Y) <= value + 1e-13 * size

    def test_gradient_agrees_with_central_differences(self, array):
        rng = np.random.default_rng(1)
        loss, X, U = wtf.KullbackLeibler(), random_data(rng), random_dual(rng, 1.0)
        expected = central_differences(lambda u: evaluate(loss, X, u, array)[0], U, 1e-5)
        np.testing.assert_allclose(evaluate(loss, X, U, array)[1], expected, rtol=1e-7, atol=1e-9)

    def test_gap_is_primal_minus_dual(self, array):
        rng = np.random.default_rng(2)
        X, Y, g = random_data(rng), rng.exponential(size=SHAPE), rng.normal(size=SHAPE)
        bound = wtf.KullbackLeibler().bind(array(X))
        values, marginal = bound.conjugate(array(g))
        u = -np.expm1(-g)
        primal = np.array([kl(x, y) for x, y in zip(X, Y, strict=True)])
        expected = primal + to_numpy(values) - np.sum(u * Y, axis=1)
        assert_close(bound.gap(array(g), marginal, array(Y)), array(expected), rtol=1e-12)

    def test_dual_variable_of_one_or_more_is_refused(self, array):
        with pytest.raises(ValueError, match=r"U is 1.0 at index \(1,\): expected values below 1"):
            wtf.KullbackLeibler().conjugate(array([1.0, 2.0]), array([0.0, 1.0]))

    def test_slope_that_is_too_steep_for_float32_is_infinite_without_a_warning(self, xp, array):
        model = xp.astype(array([1e-30, 1.0]), xp.float32)
        data = xp.astype(array([1e10, 1.0]), xp.float32)
        _, gradient = wtf.KullbackLeibler().value_and_gradient(data, model)
        np.testing.assert_array_equal(to_numpy(gradient), [-np.inf, 0.0])
