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
    squares = p * p
    axes = constrained_axes(constraint, p.ndim)
    return squares if axes is None else squares / sums.over(squares, axes)


def pull_back(
    p: Array, block: Array, gradient: Array, constraint: Constraint, sums: Sums = ALONE
) -> Array:
    """The gradient in p, from the gradient in the block."""
    axes = constrained_axes(constraint, p.ndim)
    if axes is None:
        return 2.0 * p * gradient
    tangent = gradient - sums.over(block * gradient, axes)
    return 2.0 * p * tangent / sums.over(p * p, axes)


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
