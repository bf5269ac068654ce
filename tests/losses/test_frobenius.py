"""The squared Frobenius distance and its conjugate."""

import numpy as np
import pytest
from helpers import assert_close, to_numpy
from hypothesis import given
from oracles import SHAPE, assert_same, central_differences, evaluate, few, random_data, some_seed

import wtfarray as wtf


class TestFrobenius:
    def test_conjugate_follows_the_formula(self, array):
        X, U = np.abs(np.random.default_rng(0).normal(size=(2, 3, 4)))
        expected = np.sum(X * U) + 0.5 * np.sum(U**2), X + U
        assert_same(evaluate(wtf.Frobenius(), X, U, array), expected, rtol=1e-14)

    @few
    @given(seed=some_seed)
    def test_conjugate_is_the_supremum(self, array, seed):
        rng = np.random.default_rng(seed)
        X, U = random_data(rng), rng.normal(size=SHAPE)
        value, best = evaluate(wtf.Frobenius(), X, U, array)

        def below(Y):
            return np.sum(U * Y) - 0.5 * np.sum((X - Y) ** 2)

        assert below(best) == pytest.approx(value, rel=1e-12, abs=1e-12)
        for amount in (1e-3, 1.0):
            assert below(best + amount * rng.normal(size=SHAPE)) <= value

    def test_gradient_agrees_with_central_differences(self, array):
        rng = np.random.default_rng(1)
        X, U = random_data(rng), rng.normal(size=SHAPE)
        expected = central_differences(lambda u: evaluate(wtf.Frobenius(), X, u, array)[0], U, 1e-3)
        np.testing.assert_allclose(evaluate(wtf.Frobenius(), X, U, array)[1], expected, rtol=1e-10)

    def test_gap_is_primal_minus_dual(self, array):
        rng = np.random.default_rng(2)
        X, Y, g = random_data(rng), random_data(rng), rng.normal(size=SHAPE)
        bound = wtf.Frobenius().bind(array(X))
        values, marginal = bound.conjugate(array(g))
        expected = 0.5 * np.sum((X - Y) ** 2, axis=1) + to_numpy(values) - np.sum(g * Y, axis=1)
        assert_close(bound.gap(array(g), marginal, array(Y)), array(expected), rtol=1e-12)
