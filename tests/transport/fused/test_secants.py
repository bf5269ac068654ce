"""Anderson acceleration of one sample, against that of many."""

import math

import numpy as np
import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

from wtfarray._transport import anderson
from wtfarray._transport.fused.secants import (
    combine,
    forget,
    inner_product,
    limit,
    reweight,
    store,
)

BINS, MEMORY, RIDGE = 9, 3, anderson.RIDGE


class One:
    """The pairs of one sample, beside those of `anderson` for the same sample."""

    def __init__(self, weights):
        self.other = anderson.new_secants(MEMORY, weights[None], 0.5)
        self.moves = np.zeros((MEMORY, BINS), np.float32)
        self.changes = self.moves.copy()
        self.scales, self.inverse = np.zeros(MEMORY), np.empty((MEMORY, MEMORY))
        forget(self.scales, self.inverse, RIDGE)
        self.weights = np.zeros(BINS, np.float32)
        assert reweight(self.weights, weights, 0.5)
        self.slot = 0

    def steps(self, move, change, residual, *, usable, max_step=math.inf):
        """What acceleration adds, by both."""
        numbers = (x[None] for x in (move, change, residual))
        flags = np.asarray([usable]), np.asarray([False])
        self.other, expected = anderson.accelerated(self.other, *numbers, *flags, max_step)
        self.moves[self.slot], self.changes[self.slot] = move, change
        room = np.empty(MEMORY), np.empty(MEMORY)
        weighted = (change * self.weights).astype(np.float32)
        pairs = self.scales, self.inverse
        store(self.changes, *pairs, RIDGE, self.slot, usable, weighted, *room)
        weighted = (residual * self.weights).astype(np.float32)
        extra = np.empty(BINS, np.float32)
        combine(self.moves, self.changes, *pairs, weighted, room[0], extra)
        limit(extra, max_step)
        self.slot = (self.slot + 1) % MEMORY
        return extra, expected[0]


def test_steps_are_those_of_many_samples():
    rng = np.random.default_rng(0)
    one = One(rng.random(BINS))
    for n in range(3 * MEMORY):
        found, expected = one.steps(*rng.normal(size=(3, BINS)), usable=n % 4 != 1)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one.inverse, one.other.inverse[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one.scales, one.other.scales[0], rtol=1e-5)


def test_long_steps_are_shortened():
    rng = np.random.default_rng(1)
    one, pairs = One(rng.random(BINS)), rng.normal(size=(3, BINS))
    free, _ = one.steps(*pairs, usable=True)
    most = 0.5 * float(np.abs(free).max())
    found, expected = One(one.weights.astype(float)).steps(*pairs, usable=True, max_step=most)
    assert np.abs(found).max() == pytest.approx(most, rel=1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("factor", [1.0, 1.9, 40.0])
def test_weights_are_renewed_where_they_have_changed_much(factor):
    Y = np.random.default_rng(2).random(BINS)
    moved = Y.copy()
    moved[0] *= factor
    one = One(Y)
    changed = reweight(one.weights, moved, 0.5)
    flagged = anderson.new_secants(MEMORY, Y[None], 0.5)
    flagged = flagged._replace(scales=np.ones_like(flagged.scales))
    expected = anderson.reweighted(flagged, moved[None], 0.5)
    assert changed == (expected.scales[0, 0] == 0.0)
    np.testing.assert_allclose(one.weights, expected.weights[0], rtol=1e-6)


def test_weights_of_an_empty_model():
    weights = np.ones(BINS, np.float32)
    assert not reweight(weights, np.zeros(BINS), 0.5)
    np.testing.assert_array_equal(weights, 1.0)


def test_inner_product_is_in_float32():
    a = np.asarray([1.0, 2.0**-13], np.float32)  # the sum of squares is 1 + 2^-26
    assert inner_product(a, a) == 1.0
