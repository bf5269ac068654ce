"""Random transport problems, and the formulas of the losses written out densely."""

import math
import sys

import numpy as np
import pytest
from helpers import to_numpy
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

few = settings(
    # JAX compiles every operation anew for every shape.
    max_examples=2 if "jax" in sys.modules else 30,
    suppress_health_check=[HealthCheck.differing_executors],
)


some_seed = st.integers(0, 10_000)


LAMS = [0.5, 5.0, math.inf]


every_lam = pytest.mark.parametrize("lam", LAMS)


SHAPE = (3, 6)


def exponent(low, high):
    """Powers of ten, spread evenly in the exponent."""
    return st.floats(low, high).map(lambda t: 10**t)


def random_cost(rng, n, forbidden=0.0):
    """A cost of mean 1 that is not symmetric; the diagonal is always finite."""
    infinite = (rng.uniform(size=(n, n)) < forbidden) & ~np.eye(n, dtype=bool)
    return np.where(infinite, np.inf, rng.exponential(size=(n, n)))


def random_data(rng, shape=SHAPE):
    """Samples with some zeros."""
    return rng.exponential(size=shape) * (rng.uniform(size=shape) < 0.8) + 1e-3 * np.eye(*shape)


def random_dual(rng, lam, shape=SHAPE):
    """Dual variables below lam."""
    return np.minimum(rng.normal(size=shape), 0.9 * lam)


def xlogx(a):
    return a * np.log(np.where(a > 0, a, 1.0))


def entropy_of(a):
    return np.sum(xlogx(a) - a)


def kl(a, b):
    """KL(a|b) of positive b."""
    return np.sum(xlogx(a) - a * np.log(b) - a + b)


def free(u, lam):
    return u if math.isinf(lam) else -lam * np.log1p(-u / lam)


def dense_plans(x, g, cost, eps):
    """The plan ``a_i K_ij f_j`` of every sample, whose rows sum to x."""
    logs = g[:, None, :] / eps - cost[None] / eps
    weights = np.exp(logs - logs.max(axis=2, keepdims=True))
    return x[:, :, None] * weights / weights.sum(axis=2, keepdims=True)


def plan_value(plan, cost, eps):
    """``eps H(G|K) = eps <G, log G - 1> + <C, G>``."""
    return eps * entropy_of(plan) + np.sum(
        np.where(plan > 0, plan * np.where(plan > 0, cost, 0), 0)
    )


def central_differences(function, x, step):
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        move = np.zeros_like(x)
        move[index] = step
        gradient[index] = (function(x + move) - function(x - move)) / (2 * step)
    return gradient


def evaluate(loss, X, U, array, dtype="float64"):
    """Value and gradient of the conjugate, as a float and a NumPy array."""
    value, gradient = loss.conjugate(array(X, dtype), array(U, dtype))
    assert value.dtype == gradient.dtype == array(0.0, dtype).dtype
    return float(value), to_numpy(gradient)


def assert_same(first, second, rtol=1e-13):
    assert first[0] == pytest.approx(second[0], rel=rtol, abs=rtol)
    np.testing.assert_allclose(first[1], second[1], rtol=rtol, atol=rtol)
