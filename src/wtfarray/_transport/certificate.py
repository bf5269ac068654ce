"""
Certificates of the inner problem: bounds on what a dual point lacks.

For finite lam the plan of any potential has the right first marginal, and its duality gap is a
closed formula. Balanced, the plan has to be made feasible first: it is rounded, or, where infinite
costs forbid the plan that rounding makes, mended along the transport that is allowed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from array_api_compat import array_namespace

from wtfarray._arrays.samples import inner, largest, per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import kl_divergence, xlogx
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.potential import shrink

MAX_STEPS = 500
"""Steps of conjugate gradients in `mended_gap`."""


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """The plan ``G = diag(a) K diag(exp(h))`` of a potential ``g = eps h``, sample by sample."""

    kernel: GibbsKernel
    log_a: Array
    h: Array
    x: Array
    """Its first marginal, the data."""
    q: Array
    """Its second marginal."""


def semi_unbalanced_gap(lam: float, g: Array, q: Array, Y: Array) -> Array:
    """``lam KL(q | Y exp(-g/lam))``, (N,): what the duality gap of the plan of g collapses to."""
    xp = array_namespace(g)
    return per_sample(kl_divergence(q, shrink(Y, g, lam, xp), xp)) * lam


def rounded_gap(plan: Plan, Y: Array) -> Array:
    """
    Gap of the plan rounded to the marginals X and Y (Altschuler, Weed and Rigollet 2017).

    The plan G of g is scaled down by ``s = min(1, Y/q)``; what is then missing, rr of X and rc
    of Y, both of mass mR, is sent by ``rr rc^T / mR``. The gap of a feasible plan P is
    ``eps KL(P|G)``, which is convex in P: the bound is the mean of its values at the two parts,
    each scaled up to mass m, and takes the form below, without cancellation.
    """
    xp = array_namespace(Y)
    kernel, log_a, h, q = plan.kernel, plan.log_a, plan.h, plan.q
    kept = xp.minimum(q, Y)
    missing = Y - kept
    share = xp.where(q > 0, (q - kept) / xp.where(q > 0, q, 1.0), 0.0)  # 1 - s
    slight = share < 0.5
    log_s = xp.where(
        slight | (kept <= 0),
        xp.log1p(-xp.where(slight, share, 0.0)),
        xp.log(xp.where(kept > 0, kept, 1.0)) - xp.log(xp.where(q > 0, q, 1.0)),
    )
    log_share = xp.where(share > 0, xp.log(xp.where(share > 0, share, 1.0)), -math.inf)
    lost = xp.exp(log_a + kernel.log_apply(h + log_share))  # rr = a K(f (1 - s))
    m1, mR = per_sample(kept), per_sample(missing)
    mass = xp.where(m1 + mR > 0, m1 + mR, 1.0)
    moves = mR > 0
    # rr weighs mR, but for rounding: make it so, or share the rounding out over all of X.
    found = per_sample(lost)
    sound = found >= 0.5 * mR
    lost = xp.where(
        spread(sound, lost),
        lost * spread(mR / xp.where(sound & moves, found, 1.0), lost),
        plan.x * spread(mR / mass, lost),
    )
    ratio = mR / mass
    some, mR_safe = xp.where(moves, ratio, 1.0), xp.where(moves, mR, 1.0)
    shrink = inner(kept, log_s) - m1 * xp.log1p(-xp.where(ratio < 1.0, ratio, 0.0))
    rest = (
        per_sample(xlogx(lost, xp))
        - inner(lost, xp.where(lost > 0, log_a, 0.0))
        + per_sample(xlogx(missing, xp))
        - inner(missing, xp.where(missing > 0, h, 0.0))
        - mR * (xp.log(mR_safe) + xp.log(some))
    )
    cost = kernel.product_cost(lost, missing) / mR_safe
    gap = (shrink + xp.where(moves, rest, 0.0)) * kernel.eps + xp.where(moves, cost, 0.0)
    return xp.maximum(gap, 0.0)


def mended_gap(plan: Plan, g: Array, Y: Array) -> Array:
    """
    Gap of the plan mended to the marginals X and Y, (N,); inf where no feasible plan was found.

    Rounding a plan transports what is left over between any two bins, which may be forbidden. Here
    ``P_ij = G_ij (1 + b_j - c_i)``, ``c = G b / x``: the rows stay and the columns become ``q +
    L b``, ``L = diag(q) - G^T diag(1/x) G``. By conjugate gradients they become Y. If no factor is
    negative P is feasible, and its gap ``eps KL(P|G)`` is at most ``eps <b, L b>``, because ``t log
    t - t + 1 <= (t - 1)^2``. What is left of ``Y - q - L b`` counts as rounding of Y up to that of
    the plan's exponents, and costs ``|g|`` there.
    """
    xp = array_namespace(Y)
    mass = per_sample(plan.x)
    missing = Y - plan.q
    rounding = _plan_rounding(plan)
    b = _conjugate_gradients(plan, missing, rounding, mass * rounding)
    b, log_c = _means(plan, b)
    # No factor is negative if b is 0 at least and c at most 1, which a smaller b always is.
    most = xp.exp(xp.minimum(xp.max(log_c, axis=tuple(range(1, Y.ndim))), 50.0))
    b = b / spread(xp.maximum(most * (1.0 + 4.0 * float(xp.finfo(Y.dtype).eps)), 1.0), b)
    change = _laplacian(plan, b)
    rest = missing - change
    price = xp.where(Y > 0, g, 0.0)
    price = price - spread(inner(price, Y) / xp.where(mass > 0, mass, 1.0), price)
    gap = inner(b, change) * plan.kernel.eps + inner(xp.abs(price), xp.abs(rest))
    feasible = per_sample(xp.abs(rest)) <= 16.0 * mass * rounding
    return xp.where(feasible, xp.maximum(gap, 0.0), math.inf)


def _plan_rounding(plan: Plan) -> Array:
    """Of an entry of the plan, relative to it, (N,): that of its exponents."""
    xp = array_namespace(plan.h)
    logs = (plan.h, plan.log_a)
    exponents = sum(largest(xp.where(log > -math.inf, log, 0.0)) for log in logs)
    # Those of a solution; where there is none they grow and grow.
    most = 4.0 * plan.kernel.potential_range() / plan.kernel.eps
    return (xp.minimum(exponents, most) + 16.0) * float(xp.finfo(plan.h.dtype).eps)


def _means(plan: Plan, b: Array) -> tuple[Array, Array]:
    """``b`` less its minimum, and the logarithm of the means ``c`` of that."""
    xp = array_namespace(b)
    some = plan.q > 0
    low = xp.min(xp.where(some, b, math.inf), axis=tuple(range(1, b.ndim)), keepdims=True)
    b = xp.where(some, b - low, 0.0)
    log_b = xp.where(b > 0, xp.log(xp.where(b > 0, b, 1.0)), -math.inf)
    log_x = xp.log(xp.where(plan.x > 0, plan.x, 1.0))
    return b, plan.log_a + plan.kernel.log_apply(plan.h + log_b) - log_x


def _laplacian(plan: Plan, b: Array) -> Array:
    """``L b``."""
    b, log_c = _means(plan, b)
    xp = array_namespace(b)
    return plan.q * b - xp.exp(plan.h + plan.kernel.log_apply_adjoint(plan.log_a + log_c))


def _conjugate_gradients(plan: Plan, missing: Array, rounding: Array, tolerance: Array) -> Array:
    """Solve ``L b = missing``, sample by sample, until what is left is below the tolerance."""
    xp = array_namespace(missing)
    some = plan.q > 0
    inverse = xp.where(some, 1.0 / xp.where(some, plan.q, 1.0), 0.0)

    def unfinished(b: Array, rest: Array) -> Array:
        # The iterates grow: where one is this large, no feasible plan is near.
        return (per_sample(xp.abs(rest)) > tolerance) & (largest(b) <= 2.0)

    def goes_on(state: tuple[Array, ...]) -> Array:
        return xp.any(state[4]) & (state[5] < MAX_STEPS)

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        b, rest, direction, square, moves, n = state
        change = _laplacian(plan, direction)
        curvature = inner(direction, change)
        # Between parts of the plan that nothing joins L is flat, but for rounding.
        moves = moves & (curvature > rounding * inner(direction, plan.q * direction))
        length = spread(xp.where(moves, square / xp.where(moves, curvature, 1.0), 0.0), b)
        b, rest = b + length * direction, rest - length * change
        before, square = square, inner(rest, inverse * rest)
        ratio = xp.where(before > 0, square / xp.where(before > 0, before, 1.0), 0.0)
        direction = inverse * rest + spread(ratio, b) * direction
        return b, rest, direction, square, moves & unfinished(b, rest), n + 1

    b, direction = xp.zeros_like(missing), inverse * missing
    start = (
        b,
        missing,
        direction,
        inner(missing, direction),
        unfinished(b, missing),
        0.0 * tolerance[0],
    )
    return plan.kernel.flow.while_loop(goes_on, step, start)[0]
