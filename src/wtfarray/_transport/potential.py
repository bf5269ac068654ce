"""
The change of variables between the potential g, unconstrained, and the dual variable u < lam.

``u = -lam expm1(-g/lam)``, and ``u = g`` for infinite lam. As a function of g the semi-unbalanced
conjugate is the balanced one, and the constraint u < lam disappears.
"""

import math

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample
from wtfarray._arrays.typing import Array, Namespace
from wtfarray._dispatch import may_use_exp
from wtfarray._models.entropy import largest_exponent
from wtfarray._transport.control_flow import ControlFlow

SATURATION = 40.0
"""At this multiple of lam in g, ``u = lam`` up to rounding, as at bins that no mass reaches."""


def is_infinite(lam: float) -> bool:
    """Whether the transport is balanced; a number that JAX traces stands for a finite one."""
    return isinstance(lam, float) and math.isinf(lam)


def shrinkage(g: Array, lam: float, rho: float, xp: Namespace) -> tuple[Array, Array, Array]:
    """
    ``expm1(-g/lam)``, ``exp(-g/lam)``, and whether, (), an exponent is too large: then NaN.

    The dual variable is ``-lam`` times the first, its derivative in g is the second. ``rho`` is the
    number by which the dual variable will be divided, 0 if it is to be as accurate as possible.
    """
    lowest = xp.min(g)
    outside = ~(lowest >= -lam * largest_exponent(g.dtype, xp))
    # NaN by one scalar: clipping every entry would be one more pass over memory.
    exponent = g * xp.where(outside, math.nan, xp.full_like(lowest, -1.0 / lam))
    if may_use_exp(lam, rho, float(xp.finfo(g.dtype).eps)):
        derivative = xp.exp(exponent)
        return derivative - 1.0, derivative, outside
    change = xp.expm1(exponent)
    return change, change + 1.0, outside


def dual_of_potential(
    g: Array, lam: float, xp: Namespace, *, rough: bool = False, capped: bool = True
) -> Array:
    """
    ``u = -lam expm1(-g/lam)``; balanced (lam infinite): u = g.

    Where that is too large for a number of the dtype it is the largest: see `dual_product`. If a
    ``rough`` result will do, as `may_use_exp` says, exp replaces expm1, which is slower. If it is
    not ``capped``, it is -inf where it is too large.
    """
    if is_infinite(lam):
        return g
    exponent = g * (-1.0 / lam)
    if capped:
        exponent = xp.minimum(exponent, _overflow(g, lam, xp))
    if rough:
        u = xp.exp(exponent)
        u -= 1.0
    else:
        u = xp.expm1(exponent)
    u *= -lam
    return u


def dual_product(g: Array, Y: Array, lam: float, flow: ControlFlow) -> Array:
    """
    ``<u(g), Y>`` of each sample, (N,), also where u itself overflows.

    There ``u Y = lam (Y - exp(log Y - g/lam))``, and the last number is the mass that arrives.
    """
    xp = array_namespace(g)
    if is_infinite(lam):
        return inner(g, Y)
    cap = _overflow(g, lam, xp)

    def split() -> Array:
        exponent = g * (-1.0 / lam)
        large = exponent > cap
        u = xp.where(large, 0.0, dual_of_potential(g, lam, xp))
        some = large & (Y > 0)
        logs = xp.log(xp.where(some, Y, 1.0)) + xp.where(some, exponent, 0.0)
        arriving = xp.exp(xp.minimum(logs, cap))
        return inner(u, Y) + per_sample(xp.where(some, Y - arriving, 0.0)) * lam

    overflows = flow.decide(xp.min(g) < -lam * cap)
    return flow.cond(overflows, split, lambda: inner(dual_of_potential(g, lam, xp), Y))


def scaled_by_potential(Y: Array, g: Array, lam: float, xp: Namespace) -> Array:
    """``Y exp(-g/lam)``, 0 where Y is, also where the exponential itself overflows."""
    exponent = xp.where(Y > 0, g, 0.0) * (-1.0 / lam)
    cap = _overflow(g, lam, xp)
    # Two factors, the second of which is 1 unless the first overflows.
    return Y * xp.exp(xp.minimum(exponent, cap)) * xp.exp(xp.clip(exponent - cap, 0.0, cap))


def _overflow(g: Array, lam: float, xp: Namespace) -> Array | float:
    """The largest x for which ``lam exp(x)`` and exp(x) are numbers of the dtype."""
    largest = math.log(float(xp.finfo(g.dtype).max))
    traced = not isinstance(lam, float | int)  # by JAX
    return largest - (xp.log(xp.maximum(lam, 1.0)) if traced else max(math.log(lam), 0.0)) - 1.0


def potential_of_dual(u: Array, lam: float, xp: Namespace) -> Array:
    """``g = -lam log(1 - u/lam)``, the inverse of `dual_of_potential`, for u < lam."""
    return u if is_infinite(lam) else xp.log1p(u * (-1.0 / lam)) * (-lam)
