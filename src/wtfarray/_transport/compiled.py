"""The inner problem as one loop compiled by JAX, without transfers to the host."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from wtfarray._arrays.samples import flat, per_sample
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import xlogx
from wtfarray._transport.anderson import Secants, new_secants, without
from wtfarray._transport.banded import axis_kernel
from wtfarray._transport.compiled_step import CompiledKernel
from wtfarray._transport.inner_solver import CHECK_EVERY, gap_factor
from wtfarray._transport.iterate import Iterate, search_radius
from wtfarray._transport.potential import dual_product
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.sinkhorn import (
    SinkhornState,
    first_state,
    masked_target,
    memory_for,
    sinkhorn_step,
)

MEMORY = 8
"""Number of secants per sample."""


def compiled_problem(
    data: Array,
    costs: tuple[Any, ...],
    eps: float,
    lam: float,
    order: tuple[int, ...],
    known_range: float,
    *,
    all_finite: bool,
) -> TransportProblem:
    """As `TransportProblem.of`, for evaluation in the log domain only."""
    axes = tuple(axis_kernel(cost, eps) for cost in costs)
    constant = per_sample(xlogx(data, jnp) - data) * (-eps)
    kernel = CompiledKernel(axes, eps, all_finite, known_range)
    return TransportProblem(data, kernel, lam, order, per_sample(data), constant)


class Carry(NamedTuple):
    """State of the loop."""

    state: SinkhornState
    secants: Secants
    n: Array
    values: Array
    """Lower bounds of the loss at the last iterate whose gap was computed, (N,)."""
    gap: Array
    limit: Array
    """The largest gap allowed."""
    check: Array
    """The gap is computed again once its estimate is below this."""


def solve_compiled(
    problem: TransportProblem, g: Array, Y: Array, tol: Array, max_iter: Array
) -> tuple[Array, Array]:
    """Iterate until the relative gap is at most ``tol``; returns g and the values, (N,)."""
    target = masked_target(problem, Y)
    memory = min(MEMORY, memory_for(math.prod(g.shape[1:])))
    radius, factor = search_radius(problem), gap_factor(problem)

    def advance(carry: Carry) -> Carry:
        state, secants, point = sinkhorn_step(
            problem, target, carry.state, carry.secants, safe=True, max_step=radius
        )
        secants = without(secants, point.worse)
        n, estimate = carry.n + 1, jnp.sum(point.gap_bound(factor))
        due = (estimate <= jnp.minimum(carry.limit, carry.check)) | (n % CHECK_EVERY == 0)
        due = due | (n == max_iter)
        values, gap, limit = lax.cond(
            due,
            lambda: _gap_at(problem, point, Y, tol),
            lambda: (carry.values, carry.gap, carry.limit),
        )
        later = estimate * jnp.where(gap < math.inf, jnp.minimum(0.5, (limit / gap) ** 2), 0.1)
        return Carry(state, secants, n, values, gap, limit, jnp.where(due, later, carry.check))

    def unfinished(carry: Carry) -> Array:
        return (carry.n == 0) | ((carry.gap > carry.limit) & (carry.n < max_iter))

    never = jnp.asarray(math.inf, dtype=g.dtype)
    first = Carry(
        first_state(problem, g),
        new_secants(memory, flat(Y), problem.damping),
        *(jnp.asarray(0), jnp.zeros_like(problem.mass), never, never, never),
    )
    carry = lax.while_loop(unfinished, advance, first)
    return carry.state.g, carry.values


def _gap_at(
    problem: TransportProblem, point: Iterate, Y: Array, tol: Array
) -> tuple[Array, Array, Array]:
    """
    Values, (N,), gap and the largest gap allowed at an iterate.

    As `TransportProblem.bounds`, but reuses the marginal of the iterate: a shift of g by c adds
    ``c <X, 1>`` to the conjugate.
    """
    values = dual_product(point.g, Y, problem.lam, problem.kernel.flow)
    values = values - problem.value(point.marginal) - problem.mass * point.shift
    allowed = jnp.where((Y > 0) | ~problem.reachable, point.g, -math.inf)
    gap = jnp.sum(problem.gap(allowed, point.marginal.q, Y))
    floor = jnp.sum(problem.mass) * problem.kernel.eps
    return values, gap, tol * jnp.maximum(jnp.abs(jnp.sum(values)), floor)
