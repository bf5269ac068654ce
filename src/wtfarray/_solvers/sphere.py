"""
Sphere variables: ``A = p^2 / sum p^2`` in every group that sums to one, ``A = p^2`` elsewhere.

The Euclidean metric in p is the Fisher metric in A. Every p gives a feasible block, so p is
unconstrained.
"""

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import Constraint, constrained_axes


def to_sphere(block: Array) -> Array:
    """The p that represents a non-negative block."""
    return array_namespace(block).sqrt(block)


def from_sphere(p: Array, constraint: Constraint, sums: Sums = ALONE) -> Array:
    """The block that p represents; ``sums`` are those over its rows."""
    return normalised(p * p, constraint, sums)[0]


def normalised(
    squares: Array, constraint: Constraint, sums: Sums = ALONE
) -> tuple[Array, Array | None]:
    """The block whose p has these squares, and their sum in every group; None without groups."""
    axes = constrained_axes(constraint, squares.ndim)
    if axes is None:
        return squares, None
    totals = sums.over(squares, axes)
    return squares / totals, totals


def pull_back(
    p: Array, block: Array, gradient: Array, constraint: Constraint, sums: Sums = ALONE
) -> Array:
    """The gradient in p, from the gradient in the block."""
    axes = constrained_axes(constraint, p.ndim)
    totals = None if axes is None else sums.over(p * p, axes)
    return 2.0 * p * scaled_tangent(gradient, block * gradient, totals, constraint, sums)


def scaled_tangent(
    gradient: Array,
    weighted: Array,
    totals: Array | None,
    constraint: Constraint,
    sums: Sums = ALONE,
) -> Array:
    """
    The gradient in the block along its constraint, divided by the sums of squares of p.

    ``weighted`` is the gradient times the block, and ``totals`` are those sums.
    """
    axes = constrained_axes(constraint, gradient.ndim)
    if axes is None:
        return gradient
    return (gradient - sums.over(weighted, axes)) / totals


def push_forward(
    p: Array, pulled: Array, constraint: Constraint, sums: Sums = ALONE
) -> tuple[Array, Array]:
    """The block, and the gradient in it along the constraint: the inverse of `pull_back`."""
    xp = array_namespace(p)
    axes = constrained_axes(constraint, p.ndim)
    nonzero = p != 0
    gradient = xp.where(nonzero, 0.5 * pulled / xp.where(nonzero, p, 1.0), 0.0)
    if axes is not None:
        gradient = gradient * sums.over(p * p, axes)
    return from_sphere(p, constraint, sums), gradient
