"""
Blocks as points of spheres: ``A = p^2 / sum p^2`` in every group that sums to one, else ``p^2``.

Euclidean in p is the Fisher metric in A; non-negativity and the constraints need no more care.
"""

from array_api_compat import array_namespace

from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import Constraint, constrained_axes


def to_sphere(block: Array) -> Array:
    """A p that stands for a non-negative block."""
    return array_namespace(block).sqrt(block)


def from_sphere(p: Array, constraint: Constraint) -> Array:
    """The block that p stands for."""
    xp = array_namespace(p)
    squares = p * p
    axes = constrained_axes(constraint, p.ndim)
    return squares if axes is None else squares / xp.sum(squares, axis=axes, keepdims=True)


def pull_back(p: Array, block: Array, gradient: Array, constraint: Constraint) -> Array:
    """The gradient in p, from the gradient in the block that p stands for."""
    xp = array_namespace(p)
    axes = constrained_axes(constraint, p.ndim)
    if axes is None:
        return 2.0 * p * gradient
    tangent = gradient - xp.sum(block * gradient, axis=axes, keepdims=True)
    return 2.0 * p * tangent / xp.sum(p * p, axis=axes, keepdims=True)


def push_forward(p: Array, pulled: Array, constraint: Constraint) -> tuple[Array, Array]:
    """The block that p stands for, and its gradient along the constraint; undoes `pull_back`."""
    xp = array_namespace(p)
    axes = constrained_axes(constraint, p.ndim)
    some = p != 0
    gradient = xp.where(some, 0.5 * pulled / xp.where(some, p, 1.0), 0.0)
    if axes is not None:
        gradient = gradient * xp.sum(p * p, axis=axes, keepdims=True)
    return from_sphere(p, constraint), gradient
