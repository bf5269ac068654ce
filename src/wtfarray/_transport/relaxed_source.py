"""
The debiased loss with a relaxed first marginal, as one with an exact first marginal of other data.

With the price s of mass that stays behind, and the potential p of the transport of x to itself,

``L(x, y) = min_{x', q} s KL(x'|x) + OT(x', q) - <p, x' - x> - OT(x, x)/2 - OT(q, q)/2
+ lam KL(q|y)``

in which ``-OT(x', x')/2``, which is concave, is replaced by its tangent at x. Then the problem is
convex, L is not negative and 0 at ``y = x``. Since ``s KL(x'|x) - <p, x'> = s KL(x' | x exp(p/s)) -
s <x, exp(p/s) - 1>``, the plain problem is that of the data ``x exp(p/s)``. docs/losses.md has the
proofs.
"""

from __future__ import annotations

import math
from dataclasses import replace

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample, spread
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import xlogx
from wtfarray._transport.logarithms import smallest_sum
from wtfarray._transport.potential import scaled_by_potential
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.symmetric import CENTRE, RADIUS, SelfTransport, self_transport

DERIVATIVE_STEPS = 22
"""Chebyshev steps for the derivative of p in x: errors fall by 5.8 in each, to rounding."""


def debiased_problem(
    problem: TransportProblem, sums: Sums = ALONE
) -> tuple[TransportProblem, SelfTransport]:
    """
    The plain problem that is solved for the debiased loss, and the transport of X to itself.

    If the first marginal is relaxed, the data of the plain problem are ``X exp(p/s)``, and the
    bound of ``-OT(X, X)/2`` is that of all terms of the loss that do not depend on the model.
    ``sums`` are those over the samples of all processes.
    """
    x, s = problem.data, problem.source_lam
    own = self_transport(problem.kernel, x, sums)
    if not problem.relaxes_data:
        return problem, own
    xp = array_namespace(x)
    p = xp.where(x > 0, own.p, 0.0)
    tangent = inner(p - xp.expm1(p * (1.0 / s)) * s, x)
    return _with_data(problem, scaled_by_potential(x, -1.0 * p, s, xp)), own._replace(
        lower=own.lower + tangent
    )


def _with_data(problem: TransportProblem, data: Array) -> TransportProblem:
    """The same problem for other data."""
    if problem.plain is not None:
        kernel, lam, order = problem.kernel, problem.lam, problem.order
        return problem.of(data, kernel, lam, order, problem.missing, problem.source_lam)
    xp = array_namespace(data)
    constant = per_sample(xlogx(data, xp) - data) * (-problem.kernel.eps)
    return replace(problem, data=data, mass=per_sample(data), constant=constant)


def gradient_in_data(problem: TransportProblem, own: SelfTransport, log_Kf: Array) -> Array:
    """
    The gradient of the debiased loss in X, (N, ...), from ``log K f`` of the solution.

    With ``mu = exp(p/eps)`` of ``own`` it is ``eps log(K mu / K f)``. If the first marginal is
    relaxed, the plan takes ``x' = x (K f / K mu)^(eps / (s + eps))``, and the gradient is ``s (1 -
    x'/x)`` plus that by way of p. Its derivative in x is ``eps (D + P)^-1``, with x on the diagonal
    of D and the plan P of x to itself.
    """
    xp = array_namespace(log_Kf)
    eps, s = problem.kernel.eps, problem.source_lam
    known = (own.log_product > -math.inf) & (log_Kf > -math.inf)
    pair = (xp.where(known, logs, 0.0) for logs in (own.log_product, log_Kf))
    difference = next(pair) - next(pair)
    if not problem.relaxes_data:
        return difference * eps
    stays = -xp.expm1(difference * (-eps / (s + eps)))  # 1 - x'/x
    if not problem.kernel.all_finite:
        stays = xp.where(log_Kf > -math.inf, stays, 1.0)
    return stays * s + _solve_self_plan(problem, own, stays) * eps


def _solve_self_plan(problem: TransportProblem, own: SelfTransport, b: Array) -> Array:
    """Solve ``w + K (mu w) / K mu = b`` by Chebyshev's iteration; eigenvalues as in `symmetric`."""
    xp = array_namespace(b)
    kernel, live = problem.kernel, problem.data > 0
    logs = xp.where(live, own.p * (1.0 / kernel.eps), -math.inf)
    top = xp.max(logs, axis=tuple(range(1, logs.ndim)))
    mu = xp.exp(logs - spread(xp.where(top > -math.inf, top, 0.0), logs))
    product = kernel.apply(mu)
    # Where this underflows all of X is far away.
    near = product >= smallest_sum(b.dtype, math.prod(b.shape[1:]), xp)
    product = xp.where(near, product, 1.0)

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        w, move, ratio, n = state
        residual = b - w - xp.where(near, kernel.apply(mu * w) / product, 0.0)
        following = 1.0 / (2.0 * CENTRE / RADIUS - ratio)
        move = move * (ratio * following) + residual * (following * (2.0 / RADIUS))
        return w + move, move, following, n + 1.0

    def unfinished(state: tuple[Array, ...]) -> Array:
        return state[3] < DERIVATIVE_STEPS

    first, zero = b * (1.0 / CENTRE), 0.0 * xp.sum(b)
    return kernel.flow.while_loop(unfinished, step, (first, first, zero + RADIUS / CENTRE, zero))[0]
