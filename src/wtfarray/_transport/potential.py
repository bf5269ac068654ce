"""
The change of variables between the potential g, unconstrained, and the dual variable u < lam.

``u = -lam expm1(-g/lam)``, and ``u = g`` for infinite lam. As a function of g the semi-unbalanced
conjugate is the balanced one, and the constraint u < lam disappears.
"""

import math

from wtfarray._arrays.typing import Array, Namespace
from wtfarray._dispatch import may_use_exp
from wtfarray._models.entropy import largest_exponent

SATURATION = 40.0
"""At this multiple of lam in g, ``u = lam`` up to rounding, as at bins that no mass reaches."""


def shrinkage(g: Array, lam: float, rho: float, xp: Namespace) -> tuple[Array, Array, Array]:
    """
    ``expm1(-g/lam)``, ``exp(-g/lam)``, and whether, (), an exponent is too large: then NaN.

    The dual variable is ``-lam`` times the first, its derivative in g is the second. ``rho`` is the
    number by which the dual variable will be divided.
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


def dual_of_potential(g: Array, lam: float, xp: Namespace) -> Array:
    """``u = -lam expm1(-g/lam)``; balanced (lam infinite): u = g."""
    if math.isinf(lam):
        return g
    cap = largest_exponent(g.dtype, xp)
    return xp.expm1(xp.minimum(g * (-1.0 / lam), cap)) * (-lam)


def potential_of_dual(u: Array, lam: float, xp: Namespace) -> Array:
    """``g = -lam log(1 - u/lam)``, the inverse of `dual_of_potential`, for u < lam."""
    return u if math.isinf(lam) else xp.log1p(u * (-1.0 / lam)) * (-lam)
