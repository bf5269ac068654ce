"""
Certificates of the inner problem: bounds on the duality gap of a dual point.

The plan of any potential has the first marginal X. For finite lam it is feasible, and its duality
gap has a closed form. For balanced transport it has to be made feasible first: it is rounded or,
if some costs are infinite and rounding would use forbidden transport, corrected on its support.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, largest, per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import kl_divergence, xlogx
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.potential import scaled_by_potential

MAX_STEPS = 500
"""Largest number of conjugate gradient steps in `corrected_gap`."""
MAX_CORRECTION = 1e6
"""Largest deficit of a bin, in units of its marginal, that they correct."""


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


def semi_unbalanced_gap(lam: float, g: Array, q: Array, Y: Array, exponents: Array) -> Array:
    """
    The duality gap of the plan of g, ``lam KL(q | Y exp(-g/lam))``, (N,), for the worst rounding.

    Rounding of the ``exponents`` of the plan, g in units of eps, (N, ...), changes q by a factor
    ``exp(d)``. Where they are large, the gap of the rounded q may be far too small. To second order
    the worst one is ``(sqrt(gap) + sqrt(lam/2 <q, (exp(d) - 1)^2>))^2``.
    """
    xp = array_namespace(g)
    gap = per_sample(kl_divergence(q, scaled_by_potential(Y, g, lam, xp), xp)) * lam
    rounding = xp.abs(xp.where(q > 0, exponents, 0.0)) * float(xp.finfo(q.dtype).eps)
    off = xp.expm1(xp.minimum(rounding, 20.0))  # whose square is a number of float32
    return (xp.sqrt(xp.maximum(gap, 0.0)) + xp.sqrt(inner(q, off * off) * (0.5 * lam))) ** 2


def rounded_gap(plan: Plan, Y: Array) -> Array:
    """
    Gap of the plan rounded to the marginals X and Y (Altschuler, Weed and Rigollet 2017).

    The columns of the plan G of g are scaled down by ``s = min(1, Y/q)``. The deficits of the
    marginals, rr of X and rc of Y, both of mass mR, are transported by ``rr rc^T / mR``. The gap of
    a feasible plan P is ``eps KL(P|G)``, which is convex in P: the bound is the mean of its values
    at the two parts, each scaled up to mass m. It is evaluated without cancellation.
    """
    xp = array_namespace(Y)
    kernel, log_a, h, q = plan.kernel, plan.log_a, plan.h, plan.q
    kept = xp.minimum(q, Y)
    column_deficit = Y - kept
    removed = xp.where(q > 0, (q - kept) / xp.where(q > 0, q, 1.0), 0.0)  # 1 - s
    small = removed < 0.5
    log_s = xp.where(
        small | (kept <= 0),
        xp.log1p(-xp.where(small, removed, 0.0)),
        xp.log(xp.where(kept > 0, kept, 1.0)) - xp.log(xp.where(q > 0, q, 1.0)),
    )
    log_removed = xp.where(removed > 0, xp.log(xp.where(removed > 0, removed, 1.0)), -math.inf)
    row_deficit = xp.exp(log_a + kernel.log_apply(h + log_removed))  # rr = a K(f (1 - s))
    m1, mR = per_sample(kept), per_sample(column_deficit)
    mass = xp.where(m1 + mR > 0, m1 + mR, 1.0)
    infeasible = mR > 0
    # Up to rounding rr has mass mR: rescale it, or replace it by a multiple of X.
    total = per_sample(row_deficit)
    accurate = total >= 0.5 * mR
    row_deficit = xp.where(
        spread(accurate, row_deficit),
        row_deficit * spread(mR / xp.where(accurate & infeasible, total, 1.0), row_deficit),
        plan.x * spread(mR / mass, row_deficit),
    )
    ratio = mR / mass
    safe_ratio, mR_safe = xp.where(infeasible, ratio, 1.0), xp.where(infeasible, mR, 1.0)
    scaled_part = inner(kept, log_s) - m1 * xp.log1p(-xp.where(ratio < 1.0, ratio, 0.0))
    product_part = (
        per_sample(xlogx(row_deficit, xp))
        - inner(row_deficit, xp.where(row_deficit > 0, log_a, 0.0))
        + per_sample(xlogx(column_deficit, xp))
        - inner(column_deficit, xp.where(column_deficit > 0, h, 0.0))
        - mR * (xp.log(mR_safe) + xp.log(safe_ratio))
    )
    cost = kernel.product_cost(row_deficit, column_deficit) / mR_safe
    product_part, cost = (xp.where(infeasible, part, 0.0) for part in (product_part, cost))
    gap = (scaled_part + product_part) * kernel.eps + cost
    return xp.maximum(gap, 0.0)


def corrected_gap(plan: Plan, g: Array, Y: Array) -> Array:
    """
    Gap of the plan corrected to the marginals X and Y, (N,); inf where no feasible plan was found.

    Rounding may transport mass between any two bins, which infinite costs forbid. Here
    ``P_ij = G_ij (1 + b_j - c_i)``, ``c = G b / x``: the row sums do not change, and the column
    sums become ``q + L b``, ``L = diag(q) - G^T diag(1/x) G``. Conjugate gradients solve
    ``q + L b = Y``. If no factor is negative, P is feasible and its gap ``eps KL(P|G)`` is at most
    ``eps <b, L b>``, because ``t log t - t + 1 <= (t - 1)^2``. The residual ``Y - q - L b`` is
    attributed to rounding of Y if it is no larger than rounding of the plan's exponents explains;
    it adds ``|g|`` per unit to the gap.
    """
    xp = array_namespace(Y)
    mass = per_sample(plan.x)
    rounding, known = _plan_rounding(plan)
    deficit = xp.where(spread(known, Y), Y - plan.q, 0.0)
    b = _conjugate_gradients(plan, deficit, rounding, mass * rounding)
    b, log_c = _means(plan, b)
    # No factor is negative if b >= 0 and c <= 1; scaling b down achieves the latter.
    largest_c = xp.exp(xp.minimum(xp.max(log_c, axis=tuple(range(1, Y.ndim))), 50.0))
    b = b / spread(xp.maximum(largest_c * (1.0 + 4.0 * float(xp.finfo(Y.dtype).eps)), 1.0), b)
    Lb = _laplacian(plan, b)
    residual = deficit - Lb
    centred_g = xp.where(Y > 0, g, 0.0)
    centred_g = centred_g - spread(inner(centred_g, Y) / xp.where(mass > 0, mass, 1.0), centred_g)
    gap = inner(b, Lb) * plan.kernel.eps + inner(xp.abs(centred_g), xp.abs(residual))
    feasible = known & (per_sample(xp.abs(residual)) <= 16.0 * mass * rounding)
    return xp.where(feasible, xp.maximum(gap, 0.0), math.inf)


def _plan_rounding(plan: Plan) -> tuple[Array, Array]:
    """
    Relative rounding error of the entries of the plan, (N,): that of their exponents.

    Also returns the samples, (N,) bool, whose entries have any digits at all.
    """
    xp = array_namespace(plan.h)
    logs = (plan.h, plan.log_a)
    exponents = sum(largest(xp.where(log > -math.inf, log, 0.0)) for log in logs)
    # A bound for the exponents of a solution; if there is none, the iterates diverge.
    bound = 4.0 * plan.kernel.potential_range() / plan.kernel.eps
    unit = float(xp.finfo(plan.h.dtype).eps)
    return (xp.minimum(exponents, bound) + 16.0) * unit, exponents * unit <= 1.0


def _means(plan: Plan, b: Array) -> tuple[Array, Array]:
    """``b`` minus its minimum, and ``log c`` of the result, ``c = G b / x``."""
    xp = array_namespace(b)
    positive = plan.q > 0
    lowest = xp.min(xp.where(positive, b, math.inf), axis=tuple(range(1, b.ndim)), keepdims=True)
    b = xp.where(positive, b - lowest, 0.0)
    log_b = xp.where(b > 0, xp.log(xp.where(b > 0, b, 1.0)), -math.inf)
    log_x = xp.log(xp.where(plan.x > 0, plan.x, 1.0))
    return b, plan.log_a + plan.kernel.log_apply(plan.h + log_b) - log_x


def _laplacian(plan: Plan, b: Array) -> Array:
    """``L b``, ``L = diag(q) - G^T diag(1/x) G``."""
    b, log_c = _means(plan, b)
    xp = array_namespace(b)
    return plan.q * b - xp.exp(plan.h + plan.kernel.log_apply_adjoint(plan.log_a + log_c))


def _conjugate_gradients(plan: Plan, deficit: Array, rounding: Array, tolerance: Array) -> Array:
    """Solve ``L b = deficit`` in each sample, until the residual is below the tolerance, (N,)."""
    xp = array_namespace(deficit)
    usable = plan.q >= float(xp.finfo(plan.q.dtype).smallest_normal)
    # A bin with a far larger deficit, whose square may overflow, is left as it is: a residual.
    usable = usable & (xp.abs(deficit) <= MAX_CORRECTION * plan.q)
    inverse = xp.where(usable, 1.0 / xp.where(usable, plan.q, 1.0), 0.0)

    def unfinished(b: Array, residual: Array) -> Array:
        # The iterates grow: if b is this large, no feasible plan of this form is near.
        return (per_sample(xp.abs(residual)) > tolerance) & (largest(b) <= 2.0)

    def any_active(state: tuple[Array, ...]) -> Array:
        return xp.any(state[4]) & (state[5] < MAX_STEPS)

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        b, residual, direction, square, active, n = state
        image = _laplacian(plan, direction)
        curvature = inner(direction, image)
        # L vanishes, up to rounding, on vectors constant on each component of the plan.
        active = active & (curvature > rounding * inner(direction, plan.q * direction))
        length = spread(xp.where(active, square / xp.where(active, curvature, 1.0), 0.0), b)
        b, residual = b + length * direction, residual - length * image
        previous, square = square, inner(residual, inverse * residual)
        ratio = xp.where(previous > 0, square / xp.where(previous > 0, previous, 1.0), 0.0)
        active = active & unfinished(b, residual)
        direction = inverse * residual + spread(ratio, b) * direction
        return b, residual, xp.where(spread(active, b), direction, 0.0), square, active, n + 1

    b, direction = xp.zeros_like(deficit), inverse * deficit
    start = (
        b,
        deficit,
        direction,
        inner(deficit, direction),
        unfinished(b, deficit),
        0.0 * tolerance[0],
    )
    return plan.kernel.flow.while_loop(any_active, step, start)[0]
