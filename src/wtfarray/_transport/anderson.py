"""
Anderson acceleration of many small fixed-point problems at once, one per sample.

For ``g <- g + r(g)``, ``r = target - phi(g)``, a step is ``r + sum_i c_i (dg_i - dphi_i)`` with
``c = argmin |r - sum_i c_i dphi_i|`` in a weighted norm (Anderson 1965, Journal of the ACM 12;
Walker and Ni 2011, SIAM Journal on Numerical Analysis 49). The pairs (dg, dphi) do not depend on
the target, and stay exact secants when it moves.
"""

from __future__ import annotations

from typing import NamedTuple

from array_api_compat import device as device_of
from array_api_compat import is_writeable_array

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner
from wtfarray._arrays.typing import Array

RIDGE = 1e-3
"""Added to the unit diagonal of the Gram matrices: above their rounding errors in float32."""
DRIFT = 3.0
"""Weights have changed much if their mean ratio to the old ones, weighted by them, exceeds this."""
STORED = "float32"
"""The dtype in which pairs are kept."""
SMALLEST = 1e-37
"""Squares below this are too close to the smallest number of float32 to divide by."""


class Secants(NamedTuple):
    """
    The last pairs of N samples of m bins, in rings in which the next pair replaces the oldest.

    They are kept in float32, whatever the dtype of the problem: a step needs a few digits of its
    direction, and most of what an iteration reads from memory is these rings.
    """

    moves: Array
    """``dg - dphi``, (N, memory, m)."""
    changes: Array
    """dphi, (N, memory, m)."""
    lengths: Array
    """The largest absolute value of each move, (N, memory)."""
    scales: Array
    """The inverse of the norm of each change, 0 for a pair that is not used; (N, memory)."""
    inverse: Array
    """Inverses of the Gram matrices of the scaled changes, plus a ridge, (N, memory, memory)."""
    weights: Array
    """Of the norm, (N, m)."""
    identity: Array
    """The identity matrix, (memory, memory), in the dtype of the inverse."""
    ridge: Array
    """Added to the diagonal of the Gram matrices, ()."""
    slot: Array | int
    """Where the next pair goes."""


def new_secants(memory: int, weights: Array, unit: float, ridge: float = RIDGE) -> Secants:
    """
    No pairs yet.

    The ``weights`` of the norm, (N, m), need not be normalised. ``unit`` is a typical size of phi.
    A larger ``ridge`` than the default makes for shorter, safer steps.
    """
    xp = array_namespace(weights)
    samples, bins = weights.shape
    kind = {"dtype": getattr(xp, STORED), "device": device_of(weights)}
    normalised = _normalised(weights, unit)
    # An array each, because they are written in place.
    moves, changes = (xp.zeros((samples, memory, bins), **kind) for _ in range(2))
    lengths, scales = (xp.zeros((samples, memory), **kind) for _ in range(2))
    identity = xp.eye(memory, dtype=weights.dtype, device=device_of(weights))
    diagonal = xp.full((), ridge, dtype=weights.dtype, device=kind["device"])
    inverse = xp.zeros_like(weights[:, :1, None]) + _without_pairs(identity, diagonal)
    # A number on the host where the rings are written in place.
    slot = 0 if is_writeable_array(moves) else xp.asarray(0, device=kind["device"])
    return Secants(moves, changes, lengths, scales, inverse, normalised, identity, diagonal, slot)


def reweighted(secants: Secants, weights: Array, unit: float) -> Secants:
    """
    Forget the pairs of samples in which the ``weights``, (N, m), have changed much.

    There the norm would ignore bins that now matter, and steps would be wild in them.
    """
    xp = array_namespace(weights)
    old, new = secants.weights, _normalised(weights, unit)
    # In units in which they sum to one, so that no quotient overflows.
    share = new * (unit * unit)
    changed = inner(share, share / (old * (unit * unit) + SMALLEST)) > DRIFT
    secants = without(secants, changed)
    return secants._replace(weights=xp.where(changed[:, None], new, old))


def _normalised(weights: Array, unit: float) -> Array:
    """Weights in float32 that sum to ``1 / unit^2`` in each sample."""
    xp = array_namespace(weights)
    total = xp.sum(weights, axis=1, keepdims=True) * (unit * unit)
    return xp.astype(weights / xp.where(total > 0, total, 1.0), getattr(xp, STORED))


def _without_pairs(identity: Array, ridge: Array) -> Array:
    """The inverse if no pair is used, (1, memory, memory)."""
    return identity[None, ...] / (1.0 + ridge)


def accelerated(
    secants: Secants,
    move: Array,
    change: Array,
    residual: Array,
    usable: Array,
    worse: Array,
    max_step: Array | float,
) -> tuple[Secants, Array]:
    """
    Store a pair in place of the oldest, and find what acceleration adds to the plain step.

    ``move = dg - dphi``, ``change = dphi`` and ``residual = target - phi`` are (N, m). The pair is
    used in the samples in ``usable``, (N,) bool. In the samples in ``worse``, (N,) bool, the step
    leads back to the plain step of the point before: it is minus the move. Returns the pairs and
    the addition, (N, m), of length ``max_step`` at the most. The rings that are passed are
    overwritten if the library can do so.
    """
    xp = array_namespace(move)
    moves, changes, lengths, scales, inverse, weights, identity, ridge, slot = secants
    single = scales.dtype
    move, change = xp.astype(move, single), xp.astype(change, single)
    weighted = change * weights
    square = inner(weighted, change)
    usable = usable & (square > SMALLEST)
    scale = xp.where(usable, 1.0 / xp.sqrt(xp.where(usable, square, 1.0)), 0.0)
    moves, changes = put(moves, slot, move), put(changes, slot, change)
    lengths = put(lengths, slot, xp.max(xp.abs(move), axis=1))
    scales = put(scales, slot, scale)
    row = xp.matmul(changes, weighted[:, :, None])[:, :, 0] * (scales * scale[:, None])
    inverse = _replaced(inverse, xp.astype(row, identity.dtype), identity, ridge, slot)
    following = (slot + 1) % moves.shape[1]
    secants = Secants(moves, changes, lengths, scales, inverse, weights, identity, ridge, following)
    back = xp.astype(identity[slot, ...], single) * (-1.0)
    shares = xp.where(worse[:, None], back[None, :], _shares(secants, residual, max_step))
    return secants, _combined(moves, shares, residual.dtype)


def predicted(secants: Secants, residual: Array, max_step: Array | float) -> Array:
    """What acceleration adds to the plain step, (N, m), without a new pair."""
    return _combined(secants.moves, _shares(secants, residual, max_step), residual.dtype)


def _shares(secants: Secants, residual: Array, max_step: Array | float) -> Array:
    """The coefficients of the pairs, (N, memory), by least squares."""
    xp = array_namespace(residual)
    scales, inverse = secants.scales, secants.inverse
    weighted = xp.astype(residual, scales.dtype) * secants.weights
    products = xp.matmul(secants.changes, weighted[:, :, None])[:, :, 0] * scales
    shares = xp.matmul(inverse, xp.astype(products, inverse.dtype)[:, :, None])[:, :, 0]
    shares = xp.astype(shares, scales.dtype) * scales
    # A bound on the length of the step; 1e-30 instead of 0.
    length = inner(xp.abs(shares), secants.lengths) + 1e-30
    allowed = xp.minimum(length, 0.0 * length + max_step)
    return shares * (allowed / length)[:, None]


def _combined(moves: Array, shares: Array, dtype: object) -> Array:
    """The moves of each sample with the given coefficients, summed; (N, m)."""
    xp = array_namespace(shares)
    return xp.astype(xp.matmul(shares[:, None, :], moves)[:, 0, :], dtype)


def _replaced(
    inverse: Array, row: Array, identity: Array, ridge: Array, slot: Array | int
) -> Array:
    """
    The inverse of a matrix of which one row and column are replaced, (N, memory, memory).

    By two corrections of rank one, for the removal of the old row and for the new one. The diagonal
    of the matrix is one plus the ridge.
    """
    xp = array_namespace(inverse)
    unit = identity[slot, ...]
    old = inverse[:, :, slot]
    row = row * (1.0 - unit)
    reduced = inverse - old[:, :, None] * (old / old[:, slot, None])[:, None, :]
    border = xp.matmul(reduced, row[:, :, None])[:, :, 0]
    pivot = 1.0 + ridge - inner(row, border)
    # Without rounding the pivot is at least the ridge.
    border = (border - unit) / xp.sqrt(xp.maximum(pivot, 0.5 * ridge))[:, None]
    return reduced + border[:, :, None] * border[:, None, :]


def without(secants: Secants, samples: Array) -> Secants:
    """Forget all pairs of the given samples, (N,) bool."""
    xp = array_namespace(samples)
    scales = xp.where(samples[:, None], 0.0, secants.scales)
    reset = _without_pairs(secants.identity, secants.ridge)
    inverse = xp.where(samples[:, None, None], reset, secants.inverse)
    return secants._replace(scales=scales, inverse=inverse)


def put(ring: Array, slot: Array | int, row: Array) -> Array:
    """Replace ``ring[:, slot]``, in place if the library can."""
    if is_writeable_array(ring):
        ring[:, slot, ...] = row
        return ring
    return ring.at[:, slot].set(row)  # JAX
