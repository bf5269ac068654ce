"""Points of Newton's method: value, gradient and step, against differences."""

import math

import numpy as np
import pytest
from helpers import numpy_only

import wtfarray as wtf
from wtfarray._transport.newton import Newton
from wtfarray._transport.newton_point import log_ratio_at, newton_point

EPS = 0.05


def solver_of(lam, samples=4, bins=5):
    rng = np.random.default_rng(0)
    X, Y = rng.dirichlet(np.ones(bins), (2, samples))
    problem = wtf.Wasserstein(wtf.grid_cost(bins), eps=EPS, lam=lam).bind(X)
    return Newton(problem, np.zeros_like(Y)), Y


def point_at(solver, g, Y, batch=10):
    live = np.ones_like(Y, dtype=bool)
    return newton_point(g, Y, live, solver.problem, solver._constants, batch=batch)


@numpy_only
@pytest.mark.parametrize("lam", [0.5, 10.0, math.inf])
def test_gradient_and_step_agree_with_differences(lam):
    """For finite lam a point is moved by the best constant first: differences from there."""
    solver, Y = solver_of(lam)
    at = point_at(solver, np.random.default_rng(1).normal(0.0, 0.1, Y.shape), Y)
    h = 1e-5
    hessian = np.zeros((*Y.shape, Y.shape[1]))
    for j in range(Y.shape[1]):
        step = np.zeros_like(Y)
        step[:, j] = h
        after, before = (solver.problem.bounds(at.g + s * step, Y)[0] for s in (1.0, -1.0))
        slope = (after - before) / (2 * h)
        assert np.allclose(slope, at.gradient[:, j], rtol=1e-5, atol=1e-8)
        shifted = [at.g + s * step for s in (1.0, -1.0)]
        marginals = [solver.problem.safe_conjugate(g)[1] for g in shifted]
        wanted = [Y if math.isinf(lam) else Y * np.exp(-g / lam) for g in shifted]
        ends = [w - q for w, q in zip(wanted, marginals, strict=True)]
        hessian[:, :, j] = (ends[0] - ends[1]) / (2 * h)
    # -H step = gradient, up to the Levenberg-Marquardt term, which grows with the gradient.
    radius = solver._constants.radius
    damping = np.abs(at.gradient) / radius
    product = np.einsum("nij,nj->ni", -hessian, at.step) + damping * at.step
    if math.isinf(lam):
        # The value is invariant to constants: a term of rank one makes the matrix regular.
        diagonal = np.einsum("nii->ni", -hessian) + damping
        along = np.sum(diagonal * at.step, axis=1) / np.sum(diagonal, axis=1)
        product += diagonal * along[:, None]
    assert np.allclose(product, at.gradient, rtol=1e-3, atol=1e-6)
    assert np.allclose(at.decrement, np.abs(np.sum(at.gradient * at.step, axis=1)))


@numpy_only
@pytest.mark.parametrize("lam", [0.5, math.inf])
def test_points_do_not_depend_on_the_batch(lam):
    solver, Y = solver_of(lam)
    g = np.random.default_rng(1).normal(0.0, 0.1, Y.shape)
    whole, parts = (point_at(solver, g, Y, batch) for batch in (10, 3))
    for name in ("g", "logs", "q", "gradient", "value", "step"):
        assert np.allclose(getattr(whole, name), getattr(parts, name), rtol=1e-10, atol=1e-14)


@numpy_only
def test_where_takes_whole_samples():
    solver, Y = solver_of(0.5)
    first, second = (point_at(solver, g + 0.0 * Y, Y) for g in (0.0, np.arange(5.0) / 50))
    mixed = first.where(np.asarray([True, False, False, True]), second)
    assert np.array_equal(mixed.q[1:3], first.q[1:3])
    assert np.array_equal(mixed.q[::3], second.q[::3])
    assert np.array_equal(mixed.value[::3], second.value[::3])


@numpy_only
@pytest.mark.parametrize("lam", [0.5, math.inf])
def test_log_ratio_is_that_of_target_and_marginal(lam):
    solver, Y = solver_of(lam)
    at = point_at(solver, np.random.default_rng(1).normal(0.0, 0.1, Y.shape), Y)
    live = np.ones_like(Y, dtype=bool)
    found = log_ratio_at(at, np.log(Y), live, solver.problem, solver._constants, batch=3)
    wanted = Y if math.isinf(lam) else Y * np.exp(-at.g / lam)
    assert np.allclose(found, np.log(wanted / at.q), rtol=1e-9, atol=1e-12)
