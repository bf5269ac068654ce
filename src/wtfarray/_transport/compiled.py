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
from wtfarray._transport.debiased import (
    PLAIN_SHARE,
    SYMMETRIC_SHARE,
    DebiasedBounds,
    arriving,
    debiased_bounds,
    shifted_model,
)
from wtfarray._transport.inner_solver import CHECK_EVERY, gap_factor
from wtfarray._transport.iterate import Iterate, search_radius
from wtfarray._transport.potential import dual_product
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.relaxed_source import debiased_problem
from wtfarray._transport.sinkhorn import (
    SinkhornState,
    first_state,
    memory_for,
    sinkhorn_step,
)
from wtfarray._transport.symmetric import solve_symmetric
from wtfarray._transport.target import masked_target

MEMORY = 8
"""Number of secants per sample."""
MAX_ROUNDS = 8
"""Largest number of alternations between the plain and the symmetric problem."""
TIGHTENING = 0.1
"""Factor on the tolerance of the plain problem from one of these rounds to the next."""


def compiled_problem(
    data: Array,
    costs: tuple[Any, ...],
    eps: float,
    lam: float,
    order: tuple[int, ...],
    known_range: float,
    *,
    all_finite: bool,
    source_lam: float = math.inf,
) -> TransportProblem:
    """As `TransportProblem.of`, for evaluation in the log domain only."""
    axes = tuple(axis_kernel(cost, eps) for cost in costs)
    constant = per_sample(xlogx(data, jnp) - data) * (-eps)
    kernel = CompiledKernel(axes, eps, all_finite, known_range)
    mass = per_sample(data)
    return TransportProblem(data, kernel, lam, order, mass, constant, source_lam=source_lam)


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


class Round(NamedTuple):
    """State of the alternation between the plain and the symmetric problem."""

    g: Array
    p: Array
    h: Array
    """``g - p`` of the last round, from which q is found."""
    tol: Array
    """Relative gap of the plain problem, which is larger than the debiased loss."""
    gap: Array
    limit: Array
    n: Array


def solve_compiled_debiased(
    problem: TransportProblem, g: Array, Y: Array, tol: Array, max_iter: Array
) -> DebiasedBounds:
    """As `solve_debiased`, in one loop; stops when the relative gap is at most ``tol``."""
    floor = jnp.sum(problem.mass) * problem.kernel.eps
    problem, own = debiased_problem(problem)
    kernel, lam = problem.kernel, problem.lam
    problem.reachable  # noqa: B018  fill the cache now: arrays must not outlive the loop's trace

    def advance(state: Round) -> Round:
        q = arriving(problem, Y, state.h)
        p = solve_symmetric(kernel, q, state.p, SYMMETRIC_SHARE * tol * floor).p
        model, p_plain = shifted_model(Y, p, lam)
        g, _ = solve_compiled(problem, state.g, model, state.tol, max_iter)
        bounds = debiased_bounds(problem, own, g, Y, p).bounds
        limit = tol * jnp.maximum(jnp.abs(jnp.sum(bounds.values)), floor)
        gap = jnp.sum(bounds.gaps)
        return Round(g, p, g - p_plain, TIGHTENING * state.tol, gap, limit, state.n + 1)

    def unfinished(state: Round) -> Array:
        return (state.n == 0) | ((state.gap > state.limit) & (state.n < MAX_ROUNDS))

    never = jnp.asarray(math.inf, dtype=g.dtype)
    zero = jnp.zeros_like(Y)
    none = jnp.zeros_like(never)
    first = Round(g, zero, zero, PLAIN_SHARE * tol, never, none, jnp.asarray(0))
    last = lax.while_loop(unfinished, advance, first)
    return debiased_bounds(problem, own, last.g, Y, last.p)
