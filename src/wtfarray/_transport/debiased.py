"""
The debiased loss for one model Y: its certificate, and a solver.

``D(x, y) = min_q S(x, q) + lam KL(q|y)``, where ``S(x, q) = OT(x, q) - OT(x, x)/2 - OT(q, q)/2`` is
the Sinkhorn divergence of balanced transport; ``D = S`` if lam is infinite. With the potential g of
``OT(x, q)`` and p of ``OT(q, q)`` the gradient of S in q is ``h = g - p``. D is solved by the plain
loss: with ``mu = exp(p/eps)`` it is the minimum over p of ``Phi(x, y exp(p/lam)) - lam <y,
exp(p/lam) - 1> + eps/2 <mu, K mu> - OT(x, x)/2``. docs/losses.md has the derivation.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import or_float64
from wtfarray._models.entropy import kl_divergence
from wtfarray._transport.certificate import Plan, corrected_gap, rounded_gap
from wtfarray._transport.inner_solver import inner_solver
from wtfarray._transport.logarithms import logsumexp
from wtfarray._transport.potential import (
    SATURATION,
    dual_of_potential,
    dual_product,
    scaled_by_potential,
)
from wtfarray._transport.problem import Bounds, TransportProblem
from wtfarray._transport.relaxed_source import debiased_problem, gradient_in_data
from wtfarray._transport.solve import (
    LEVEL_ITERATIONS,
    Solution,
    approximate,
    relative_gap,
    solve_to_bounds,
    within_reach,
)
from wtfarray._transport.symmetric import (
    SelfTransport,
    lower_bound,
    scaled_to,
    solve_symmetric,
)

PLAIN_SHARE = 0.5
"""Share of the allowed gap for the plain problem."""
SYMMETRIC_SHARE = 0.01
"""Share of the allowed gap for the symmetric problem, whose iterations are cheap."""
SMALLEST_SHARE = 0.99
"""The model of the plain problem is at least the smallest number of the dtype to this power."""
MAX_ROUNDS = 50
"""Largest number of alternations between the two problems; one or two are usual."""


@dataclass(frozen=True, eq=False)
class DebiasedBounds:
    """Bounds of the loss at potentials g and p, sample by sample."""

    bounds: Bounds
    """The values are lower bounds; u is the gradient in Y; kernel products at g."""
    g: Array
    """g plus the best constant of each sample, (N, ...)."""
    gradient_X: Array  # noqa: N815
    """(N, ...)."""


def shifted_model(Y: Array, p: Array, lam: float) -> tuple[Array, Array]:
    """
    ``Y exp(p/lam)``, for which the plain problem is solved, and this p; Y itself if balanced.

    Where Y is very small p is of no account but may be very negative: it is increased until the
    product does not underflow, since no mass can ever arrive where that is 0.
    """
    xp = array_namespace(Y)
    if math.isinf(lam):
        return Y, p
    least = SMALLEST_SHARE * math.log(float(xp.finfo(Y.dtype).smallest_normal))
    p = xp.maximum(p, (least - xp.log(xp.where(Y > 0, Y, 1.0))) * lam)
    return scaled_by_potential(Y, -1.0 * p, lam, xp), p


def arriving(problem: TransportProblem, Y: Array, h: Array) -> Array:
    """``q = Y exp(-h/lam)``, scaled to the masses of X unless that is relaxed; Y if balanced."""
    if problem.conserves_mass:
        return Y
    q = scaled_by_potential(Y, h, problem.lam, array_namespace(Y))
    return q if problem.relaxes_data else scaled_to(q, problem.mass)


def debiased_bounds(
    problem: TransportProblem, own: SelfTransport, g: Array, Y: Array, p: Array
) -> DebiasedBounds:
    """
    Lower bounds and gaps of the loss, which hold for any g and p if K is positive definite.

    The plan of g is optimal between X and its own second marginal q, so that ``OT(X, q)`` is known.
    With ``p' = eps log(q / K mu)`` and ``h = g - p'`` the gap is ``lam KL(q | Y exp(-h/lam)) + eps
    KL(q | r)``, ``r = mu * K mu``. For infinite lam it is that of the plain loss plus ``eps KL(Y |
    r)``. The gap of ``OT(X, X)/2`` is added. ``problem`` and ``own`` are those of
    `debiased_problem`.
    """
    xp = array_namespace(Y)
    kernel, eps, lam = problem.kernel, problem.kernel.eps, problem.lam
    live = (Y > 0) & problem.reachable
    logs = xp.where(live, g * (1.0 / eps), -math.inf)
    log_Kf = kernel.log_apply(logs)
    log_a = problem.log_scaling(log_Kf)
    log_adjoint = kernel.log_apply_adjoint(log_a)
    log_q = xp.where(live, logs + log_adjoint, -math.inf)
    q = Y if problem.conserves_mass else xp.exp(log_q)
    log_mu = xp.where(q > 0, p * (1.0 / eps), -math.inf)
    log_product = kernel.log_apply(log_mu)
    r = xp.where(q > 0, xp.exp(log_mu + log_product), 0.0)
    h = _gradient_in_marginal(problem, log_product, log_adjoint)
    if problem.relaxes_data:
        # The mass of q depends on the constant of g.
        shift = _best_constant(problem, h, Y, per_sample(q))
        q = xp.exp(log_q + spread(shift * (1.0 / (problem.source_lam + eps)), q))
        h = h + spread(shift * problem.exponent, h)
        log_Kf = log_Kf + spread(shift * (1.0 / eps), g)
        log_adjoint = log_adjoint - spread(shift * (problem.exponent / eps), g)
    conjugate = problem.value_of_logs(log_Kf)
    gap = per_sample(kl_divergence(q, r, xp)) * eps + own.gap
    if problem.conserves_mass:
        plan = Plan(kernel, log_a, logs, problem.data, xp.exp(log_q))
        masked = xp.where(live, g, -math.inf)
        rounded = rounded_gap(plan, Y) if kernel.all_finite else corrected_gap(plan, masked, Y)
        gap = gap + rounded
        lower = inner(xp.where(live, g, 0.0), Y) - conjugate
        lower = lower + lower_bound(eps, Y, log_product, per_sample(r))
        p_live = xp.where(live, xp.log(xp.where(live, Y, 1.0)) - log_product, 0.0) * eps
        h = xp.where(live, g - p_live, h)
        mass = xp.where(problem.mass > 0, problem.mass, 1.0)
        shift = -1.0 * inner(h, Y) / mass
        h = h + spread(shift, h)
    elif not problem.relaxes_data:
        shift = _best_constant(problem, h, Y, problem.mass)
        h = h + spread(shift, h)
        conjugate = conjugate + shift * problem.mass
    if not problem.conserves_mass:
        arrived = per_sample(q) if problem.relaxes_data else problem.mass
        lower = (arrived - 0.5 * per_sample(r)) * eps - conjugate
        lower = lower + dual_product(h, Y, lam, kernel.flow)
        gap = gap + per_sample(kl_divergence(q, scaled_by_potential(Y, h, lam, xp), xp)) * lam
    u = dual_of_potential(h, lam, xp)
    if problem.conserves_mass and problem.unreachable is not None:
        u = xp.where(problem.unreachable, math.inf, u)
    if not problem.relaxes_data:
        change = spread(shift * (1.0 / eps), g)
        log_Kf, log_adjoint = log_Kf + change, log_adjoint - change
    bounds = Bounds(lower + own.lower, gap, u, log_Kf, log_adjoint)
    return DebiasedBounds(bounds, g + spread(shift, g), gradient_in_data(problem, own, log_Kf))


def _gradient_in_marginal(
    problem: TransportProblem, log_product: Array, log_adjoint: Array
) -> Array:
    """``h = g - p'``, ``p' = eps log(q / K mu)``, ``g = eps log(q / K^T a)``: finite at q = 0."""
    xp = array_namespace(log_product)
    eps, lam = problem.kernel.eps, problem.lam
    known = (log_adjoint > -math.inf) & (log_product > -math.inf)
    h = xp.where(known, log_product, 0.0) - xp.where(known, log_adjoint, 0.0)
    least = SATURATION * (eps if math.isinf(lam) else lam)
    return xp.where(known & problem.reachable, h * eps, least)


def _constant(number: float, _: float) -> float:
    """The gap that is allowed, whatever the value."""
    return number


def _best_constant(problem: TransportProblem, h: Array, Y: Array, mass: Array) -> Array:
    """
    The constant to add to g, (N,), with which q, of the given mass, weighs what ``Y exp(-h/lam)``.

    It is added to h as well. If the first marginal is relaxed, q is multiplied by ``exp(c / (s +
    eps))``, and ``c s / (s + eps)`` is added to h.
    """
    xp = array_namespace(Y)
    logs = xp.log(xp.where(Y > 0, Y, 1.0)) - h * (1.0 / problem.lam)
    logs = logsumexp(xp.where(Y > 0, logs, -math.inf), tuple(range(1, Y.ndim)), xp)
    filled = (mass > 0) & (logs > -math.inf)
    logs = xp.where(filled, logs, 0.0) - xp.log(xp.where(filled, mass, 1.0))
    share = problem.exponent / problem.lam
    return logs * (1.0 / (share + 1.0 / (problem.source_lam + problem.kernel.eps)))


def solve_debiased(
    problem: TransportProblem,
    Y: Array,
    levels: tuple[float, ...],
    *,
    tol: float,
    max_iter: int,
    potential: Array | None = None,
) -> Solution:
    """
    As `solve_transport`, for the debiased loss.

    The plain problem is solved for ``Y exp(p/lam)``, and p for the marginal that it finds, in turn.
    The error shrinks by a factor of ``eps / (lam + eps)`` or less in each round.
    """
    xp = array_namespace(Y)
    allowed = relative_gap(problem, tol)
    floor = allowed(0.0)
    problem, own = debiased_problem(problem)
    kernel, lam = problem.kernel, problem.lam
    g, p = xp.zeros_like(Y), xp.zeros_like(Y)
    n_iter = 0
    if potential is not None:
        g = within_reach(problem, potential, Y)
    else:
        for level in levels[:-1]:
            coarse = inner_solver(problem.at_eps(kernel.eps * level), g)
            g, n = approximate(coarse, Y, min(LEVEL_ITERATIONS, max_iter))
            n_iter += n
    h, share, left = 0.0 * Y, PLAIN_SHARE * floor, max_iter
    for _ in range(MAX_ROUNDS):
        q = arriving(problem, Y, h)
        p = solve_symmetric(kernel, q, p, SYMMETRIC_SHARE * floor, safe=False).p
        model, p_plain = shifted_model(Y, p, lam)
        solver = inner_solver(problem, g)
        g, _, n = solve_to_bounds(solver, model, partial(_constant, share), left)
        n_iter, left = n_iter + n, left - n
        found = debiased_bounds(problem, own, g, Y, p)
        g, h = found.g, g - p_plain
        gap, value = float(xp.sum(found.bounds.gaps)), float(xp.sum(found.bounds.values))
        converged = gap <= allowed(value)
        if converged or left <= 0 or problem.conserves_mass:
            break
        share = PLAIN_SHARE * allowed(value)
    message = f"duality gap {gap:.1e} after {n_iter} iterations"
    if not converged:
        message += f": increase `max_iter`, loosen `tol` or choose a larger eps{or_float64(Y)}"
        warnings.warn(message, stacklevel=5)
    return Solution(
        problem, Y, found.g, found.bounds, gap, converged, message, n_iter, found.gradient_X
    )
