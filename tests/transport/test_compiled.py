"""The compiled loop against the same iterations on the host."""

import functools
import math

import numpy as np
import pytest
from exact_transport import exact_values, samples_with_zeros
from helpers import to_numpy

import wtfarray as wtf

jax = pytest.importorskip("jax", reason="JAX is not installed; the jax session has it")

import jax.numpy as jnp  # noqa: E402

from wtfarray._transport.compiled import compiled_problem, solve_compiled  # noqa: E402
from wtfarray._transport.sinkhorn import Sinkhorn  # noqa: E402

COST, EPS = wtf.grid_cost(6)[0], 0.2


@pytest.fixture(autouse=True)
def only_on_jax(backend):
    if backend.name != "jax":
        pytest.skip("compiled loops are JAX's: tested in the jax session")


@functools.cache
def solver_of(lam):
    """The compiled solve of three samples, as a function of X, Y, g, tol and max_iter."""
    known_range = wtf.Wasserstein(COST, EPS, lam).bind(np.ones((3, 6))).kernel.potential_range()

    @jax.jit
    def solve(X, Y, g, tol, max_iter):
        costs = (jnp.asarray(COST),)
        problem = compiled_problem(X, costs, EPS, lam, (0, 1), known_range, all_finite=True)
        return solve_compiled(problem, g, Y, tol, max_iter)

    return solve


def compiled(lam, X, Y, g, tol, max_iter):
    found = solver_of(lam)(*map(jnp.asarray, (X, Y, g)), tol, max_iter)
    return [to_numpy(a) for a in found]


@pytest.mark.parametrize("lam", [1.0, math.inf])
class TestLoop:
    def test_iterates_are_those_of_the_host(self, lam):
        """With no tolerance the loop ends at max_iter: a plain step, then steps with secants."""
        X, Y = samples_with_zeros(lam)
        g = np.random.default_rng(0).normal(size=X.shape)
        problem = wtf.Wasserstein(COST, EPS, lam).bind(X)
        points = Sinkhorn(problem, g).iterates(Y)
        for n in range(1, 6):
            point = next(points)
            found, values = compiled(lam, X, Y, g, 0.0, n)
            live = Y > 0
            # Secants are in single precision, and rounded differently.
            np.testing.assert_allclose(found[live], point.g[live], rtol=0, atol=1e-5)
            expected = problem.bounds(point.g, Y)[0]
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-7)

    def test_first_iterates_agree_to_rounding(self, lam):
        X, Y = samples_with_zeros(lam)
        g = np.random.default_rng(0).normal(size=X.shape)
        points = Sinkhorn(wtf.Wasserstein(COST, EPS, lam).bind(X), g).iterates(Y)
        for n in (1, 2):
            point, live = next(points), Y > 0
            found, _ = compiled(lam, X, Y, g, 0.0, n)
            np.testing.assert_allclose(found[live], point.g[live], rtol=0, atol=1e-13)

    def test_solution_agrees_with_plain_sinkhorn(self, lam):
        X, Y = samples_with_zeros(lam)
        _, values = compiled(lam, X, Y, np.zeros(X.shape), 1e-9, 2000)
        exact = exact_values(X, Y, COST, EPS, lam)
        np.testing.assert_allclose(values, exact, rtol=0, atol=1e-8)
        assert np.all(values <= exact + 1e-13)
