"""Entropies, their constraint sets and their Legendre transforms."""

import math
from typing import Literal

from wtfarray._arrays.typing import Array, DType, Namespace
from wtfarray._arrays.validation import (
    as_floating,
    as_nonnegative,
    common_namespace,
    one_of,
    refuse_where,
)

Constraint = Literal["rows", "columns", "all"] | None


def check_constraint(name: str, constraint: object, ndim: int) -> None:
    """Refuse an unknown constraint, and "rows" or "columns" for an array that is not a matrix."""
    one_of(name, constraint, (None, "rows", "columns", "all"))
    if constraint in ("rows", "columns") and ndim != 2:
        msg = f"{name} is {constraint!r} for an array with {ndim} modes: expected None or 'all'"
        raise ValueError(msg)


def constrained_axes(constraint: Constraint, ndim: int) -> tuple[int, ...] | None:
    """The axes along which the entries sum to one; None without constraint."""
    return {None: None, "rows": (1,), "columns": (0,), "all": tuple(range(ndim))}[constraint]


def xlogx(a: Array, xp: Namespace) -> Array:
    """``a log a`` with 0 log 0 = 0."""
    return a * xp.log(xp.where(a > 0, a, 1.0))


def entropy_value(a: Array, xp: Namespace) -> Array:
    """``E(a) = <a, log a - 1>``."""
    return xp.sum(xlogx(a, xp) - a)


def entropy(a: Array, /) -> tuple[Array, Array]:
    """
    Negative entropy ``E(a) = <a, log a - 1>`` and its gradient ``log a``.

    Parameters
    ----------
    a : array
        Non-negative, any shape.

    Returns
    -------
    value : array ()
        With ``0 log 0 = 0``.
    gradient : array
        Same shape as ``a``; ``-inf`` where ``a`` is 0.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> value, gradient = wtf.entropy(np.array([1.0, 0.0, 1.0]))
    >>> float(value), gradient
    (-2.0, array([  0., -inf,   0.]))
    """
    xp = common_namespace(a=a)
    a = as_nonnegative("a", a, xp)
    gradient = xp.where(a > 0, xp.log(xp.where(a > 0, a, 1.0)), -math.inf)
    return entropy_value(a, xp), gradient


def entropy_conjugate(u: Array, /, constraint: Constraint = None) -> tuple[Array, Array]:
    """
    Legendre transform of the entropy over a constraint set, and its gradient.

    Proposition 1 of the paper, including the constants that matter for a duality gap.

    Parameters
    ----------
    u : array
        Any shape; a matrix for "rows" and "columns".
    constraint : {None, "rows", "columns", "all"}
        What sums to one: nothing, each row, each column, everything.

    Returns
    -------
    value : array ()
        ``sum exp(u)``, or the sum over the groups of ``logsumexp + 1``.
    gradient : array
        The maximiser: ``exp(u)``, or the softmax of each group.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> value, gradient = wtf.entropy_conjugate(np.zeros((2, 4)), "rows")
    >>> gradient[0]
    array([0.25, 0.25, 0.25, 0.25])
    """
    xp = common_namespace(u=u)
    u = as_floating("u", u, xp)
    check_constraint("constraint", constraint, u.ndim)
    refuse_where(~xp.isfinite(u), "u", u, "finite values")
    # The largest exponent for which the sum is finite; solvers use a smaller one.
    cap = math.log(float(xp.finfo(u.dtype).max)) - math.log(2.0 * math.prod(u.shape))
    value, maximiser = conjugate_of_entropy(u, constraint, xp, cap)
    return value, maximiser if constraint else xp.where(u > cap, math.inf, maximiser)


def largest_exponent(dtype: DType, xp: Namespace) -> float:
    """Exponents above this count as overflow, because products of exponentials would overflow."""
    return 0.3 * math.log(float(xp.finfo(dtype).max))


def conjugate_of_entropy(
    u: Array, constraint: Constraint, xp: Namespace, cap: float | None = None
) -> tuple[Array, Array]:
    """`entropy_conjugate` without checks (Prop. 1); inf for exponents above ``cap``."""
    axes = constrained_axes(constraint, u.ndim)
    if axes is None:
        cap = largest_exponent(u.dtype, xp) if cap is None else cap
        maximiser = xp.exp(xp.minimum(u, cap))
        return xp.where(xp.max(u) > cap, math.inf, xp.sum(maximiser)), maximiser
    top = xp.max(u, axis=axes, keepdims=True)
    weights = xp.exp(u - top)
    total = xp.sum(weights, axis=axes, keepdims=True)
    return xp.sum(xp.log(total) + top + 1.0), weights / total


def kl_divergence(a: Array, b: Array, xp: Namespace) -> Array:
    """
    The entries of ``KL(a|b) = <a, log(a/b)> - <a, 1> + <b, 1>``, with full relative accuracy.

    Near a = b the three terms cancel. With ``d = log(a/b)``, an entry is ``b psi(d)``,
    ``psi(d) = d e^d - e^d + 1``; the power series of psi is used for small d.
    """
    both = (a > 0) & (b > 0)
    a_safe, b_safe = xp.where(both, a, 1.0), xp.where(both, b, 1.0)
    excess = a_safe - b_safe
    close, near = xp.abs(excess) < 0.1 * b_safe, xp.abs(excess) < 0.5 * b_safe
    d = xp.log1p(xp.where(near, excess, 0.0) / b_safe)
    series = 0.0 * d
    for n in range(12, 1, -1):  # sum of (n - 1) / n! d^(n - 2), by Horner's rule
        series = series * d + (n - 1) / math.factorial(n)
    far = a_safe * xp.where(near, d, xp.log(a_safe) - xp.log(b_safe)) - excess
    entry = xp.where(close, b_safe * d * d * series, far)
    return xp.where(both, entry, xp.where(a > 0, math.inf, b))
