"""
Anderson acceleration of many small fixed-point problems at once, one per sample.

For ``g <- g + d (target - phi(g))`` a step is ``d r + sum_i c_i (dg_i - d dphi_i)``, where
``r = target - phi`` and ``c = argmin |r - sum_i c_i dphi_i|`` in a weighted norm (Anderson 1965, J.
ACM 12; Walker and Ni 2011, SIAM J. Numer. Anal. 49). The pairs (dg, dphi) do not depend on the
target, and stay exact secants when it moves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from array_api_compat import device as device_of
from array_api_compat import is_writeable_array
from numpy.typing import NDArray

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, merge_samples, take_samples
from wtfarray._arrays.typing import Array

RIDGE = 1e-4
"""Added to the unit diagonal of the Gram matrices: the size of their rounding errors."""
SINGLE_RIDGE = 1e-3
"""The same if their inverses are kept in float32."""
SMALLEST = 1e-37
"""Squares below this are too close to the smallest number of float32 to divide by."""


class Secants(NamedTuple):
    """
    The last pairs of N samples of m bins, in rings in which the next pair replaces the oldest.

    They are kept in float32, whatever the dtype of the problem: a step needs a few digits of its
    direction, and most of what an iteration reads from memory is these rings. Each pair is divided
    by the norm of its change.
    """

    moves: Array
    """``dg - d dphi``, (N, memory, m)."""
    changes: Array
    """dphi, (N, memory, m), of norm one."""
    lengths: Array
    """The largest absolute value of each move, (N, memory)."""
    inverse: Array
    """Inverses of the Gram matrices of the changes plus the ridge, (N, memory, memory)."""
    valid: Array
    """1 for each pair of a sample that may be used, else 0; (N, memory)."""
    weights: Array
    """Of the norm, (N, m); they sum to one in each sample."""
    identity: Array
    """The identity matrix, (memory, memory), in the dtype of the inverse."""
    slot: Array | int
    """Where the next pair goes."""


def new_secants(memory: int, weights: Array) -> Secants:
    """No pairs yet; the ``weights`` of the norm, (N, m), need not be normalised."""
    xp = array_namespace(weights)
    samples, bins = weights.shape
    kind = {"dtype": xp.float32, "device": device_of(weights)}
    total = xp.sum(weights, axis=1, keepdims=True)
    normalised = xp.astype(weights / xp.where(total > 0, total, 1.0), xp.float32)
    # An array each, because they are written in place.
    moves, changes = (xp.zeros((samples, memory, bins), **kind) for _ in range(2))
    lengths, valid = (xp.zeros((samples, memory), **kind) for _ in range(2))
    identity = xp.eye(memory, dtype=weights.dtype, device=device_of(weights))
    inverse = xp.zeros_like(weights[:, :1, None]) + _without_pairs(identity)
    # A number on the host where the rings are written in place.
    slot = 0 if is_writeable_array(moves) else xp.asarray(0)
    return Secants(moves, changes, lengths, inverse, valid, normalised, identity, slot)


def _ridge(identity: Array) -> float:
    return RIDGE if identity.dtype == array_namespace(identity).float64 else SINGLE_RIDGE


def _without_pairs(identity: Array) -> Array:
    """The inverse if no pair is valid, (1, memory, memory)."""
    return identity[None, ...] * (1.0 / (1.0 + _ridge(identity)))


def accelerated(
    secants: Secants,
    move: Array,
    change: Array,
    difference: Array,
    usable: Array,
    worse: Array,
    max_step: Array | float,
) -> tuple[Secants, Array]:
    """
    Store a pair in place of the oldest, and find what acceleration adds to the plain step.

    ``move = dg - d dphi``, ``change = dphi`` and ``difference = target - phi`` are (N, m). The pair
    is used in the samples in ``usable``, (N,) bool. In the samples in ``worse``, (N,) bool, the step
    leads back to the plain step of the point before: it is minus the move. Returns the pairs and
    the addition, (N, m), of length ``max_step`` at the most. The rings that are passed are
    overwritten if the library can do so.
    """
    xp = array_namespace(move)
    moves, changes, lengths, inverse, valid, weights, identity, slot = secants
    single, double = valid.dtype, identity.dtype
    move, change = xp.astype(move, single), xp.astype(change, single)
    weighted = change * weights
    square = inner(weighted, change)
    nonzero = square > SMALLEST
    norm = xp.sqrt(xp.where(nonzero, square, 1.0))
    scale = (1.0 / norm)[:, None]
    move *= scale
    change *= scale
    moves, changes = put(moves, slot, move), put(changes, slot, change)
    lengths = put(lengths, slot, xp.max(xp.abs(move), axis=1))
    valid = put(valid, slot, xp.astype(usable & nonzero, single))
    row = xp.matmul(changes, weighted[:, :, None])[:, :, 0] * (scale * valid * valid[:, slot, None])
    inverse = _replaced(inverse, xp.astype(row, double), identity, slot)
    secants = Secants(
        moves,
        changes,
        lengths,
        inverse,
        valid,
        weights,
        identity,
        (slot + 1) % moves.shape[1],
    )
    shares = _shares(secants, difference, max_step)
    newest = xp.astype(identity[slot, ...], single)
    shares = xp.where(worse[:, None], norm[:, None] * (-1.0 * newest), shares)
    return secants, _combined(secants, shares, difference.dtype)


def predicted(secants: Secants, difference: Array, max_step: Array | float) -> Array:
    """What acceleration adds to the plain step, (N, m), without a new pair."""
    return _combined(secants, _shares(secants, difference, max_step), difference.dtype)


def _shares(secants: Secants, difference: Array, max_step: Array | float) -> Array:
    """The coefficients of the pairs, (N, memory), by least squares."""
    xp = array_namespace(difference)
    valid, inverse = secants.valid, secants.inverse
    weighted = xp.astype(difference, valid.dtype) * secants.weights
    products = xp.matmul(secants.changes, weighted[:, :, None])[:, :, 0] * valid
    shares = xp.matmul(inverse, xp.astype(products, inverse.dtype)[:, :, None])[:, :, 0]
    shares = xp.astype(shares, valid.dtype) * valid
    # A bound on the largest entry of the step; 1e-30 instead of 0.
    length = xp.sum(xp.abs(shares) * secants.lengths, axis=1) + 1e-30
    return shares * xp.minimum(max_step / length, xp.ones_like(length))[:, None]


def _combined(secants: Secants, shares: Array, dtype: object) -> Array:
    xp = array_namespace(shares)
    return xp.astype(xp.matmul(shares[:, None, :], secants.moves)[:, 0, :], dtype)


def _replaced(inverse: Array, row: Array, identity: Array, slot: Array | int) -> Array:
    """
    The inverse of a matrix in which one row and column are replaced, (N, memory, memory).

    The row ends with the diagonal... by two corrections of rank one: the Schur complement without the old row, and
    the bordering with the new one.
    """
    xp = array_namespace(inverse)
    unit = identity[slot, ...]
    old = inverse[:, :, slot]
    others = row * (1.0 - unit)
    reduced = inverse - old[:, :, None] * (old / old[:, slot, None])[:, None, :]
    border = xp.matmul(reduced, others[:, :, None])[:, :, 0]
    ridge = _ridge(identity)
    pivot = 1.0 + ridge - xp.sum(others * border, axis=1)
    border = (border - unit) / xp.sqrt(xp.maximum(pivot, 0.5 * ridge))[:, None]
    return reduced + border[:, :, None] * border[:, None, :]


def without(secants: Secants, samples: Array) -> Secants:
    """Forget all pairs of the given samples, (N,) bool."""
    xp = array_namespace(samples)
    kept = xp.astype(~samples, secants.valid.dtype)
    reset = _without_pairs(secants.identity)
    inverse = xp.where(samples[:, None, None], reset, secants.inverse)
    return secants._replace(valid=secants.valid * kept[:, None], inverse=inverse)


def secants_of(secants: Secants, samples: NDArray[np.intp]) -> Secants:
    """The pairs of some samples, by their numbers."""
    stacks = (take_samples(stack, samples) for stack in secants[:6])
    return Secants(*stacks, secants.identity, secants.slot)


def merged(secants: Secants, others: Secants, samples: NDArray[np.intp]) -> Secants:
    """Replace the pairs of some samples by ``others``, whose oldest pair may be elsewhere."""
    xp = array_namespace(secants.moves)
    shift = int(secants.slot) - int(others.slot)
    stacks = []
    for name in ("moves", "changes", "lengths", "inverse", "valid"):
        theirs = xp.roll(getattr(others, name), shift, axis=1)
        if name == "inverse":
            theirs = xp.roll(theirs, shift, axis=2)
        stacks.append(merge_samples(getattr(secants, name), theirs, samples))
    return Secants(*stacks, secants.weights, *secants[-2:])


def put(ring: Array, slot: Array | int, row: Array) -> Array:
    """Replace ``ring[:, slot]``, in place if the library can."""
    if is_writeable_array(ring):
        ring[:, slot, ...] = row
        return ring
    return ring.at[:, slot].set(row)  # JAX
