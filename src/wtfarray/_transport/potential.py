"""The change of variables between the potential g, which is free, and the dual variable u < lam."""

import math

from wtfarray._arrays.typing import Array, Namespace
from wtfarray._models.entropy import largest_exponent

SLIGHT = 1e-11
"""Errors of the exponents of a block, those of the dual variable over rho, let pass for speed."""


def shrinkage(g: Array, lam: float, rho: float, xp: Namespace) -> tuple[Array, Array, Array]:
    """
    ``expm1(-g/lam)``, ``exp(-g/lam)``, and whether, (), that is too large somewhere: then NaN.

    The dual variable is ``-lam`` times the first, the second is its derivative. ``rho`` is what the
    dual variable will be divided by.
    """
    lowest = xp.min(g)
    outside = ~(lowest >= -lam * largest_exponent(g.dtype, xp))
    # One number decides it: a minimum entry by entry would be a pass more.
    exponent = g * xp.where(outside, math.nan, xp.full_like(lowest, -1.0 / lam))
    if lam * float(xp.finfo(g.dtype).eps) <= SLIGHT * rho:
        slope = xp.exp(exponent)  # libraries take up to three times as long for expm1
        return slope - 1.0, slope, outside
    shrunk = xp.expm1(exponent)
    return shrunk, shrunk + 1.0, outside


def dual_of_free(g: Array, lam: float, xp: Namespace) -> Array:
    """
    The paper's dual variable ``u = -lam expm1(-g/lam)``.

    ``g`` is free where ``u < lam`` is a constraint; balanced (lam infinite): u = g.
    """
    if math.isinf(lam):
        return g
    cap = largest_exponent(g.dtype, xp)
    return xp.expm1(xp.minimum(g * (-1.0 / lam), cap)) * (-lam)


def free_of_dual(u: Array, lam: float, xp: Namespace) -> Array:
    """``g = -lam log(1 - u/lam)``, the inverse of `dual_of_free`, for u < lam."""
    return u if math.isinf(lam) else xp.log1p(u * (-1.0 / lam)) * (-lam)
