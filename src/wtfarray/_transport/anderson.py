"""
Anderson acceleration of many small fixed-point problems at once, one per sample.

For ``g <- g + r(g)``, ``r = target - phi(g)``, a step is ``r + sum_i c_i (dg_i - dphi_i)`` with
``c = argmin |r - sum_i c_i dphi_i|`` in a weighted norm (Anderson 1965, Journal of the ACM 12;
Walker and Ni 2011, SIAM Journal on Numerical Analysis 49). The pairs (dg, dphi) do not depend on
the target, and stay exact secants when it moves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from array_api_compat import device as device_of
from array_api_compat import is_numpy_array, is_torch_array, is_writeable_array

from wtfarray._arrays.namespace import array_namespace, has_float64
from wtfarray._arrays.samples import inner, largest
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
    scales: Array
    """The inverse of the norm of each change, 0 for a pair that is not used; (N, memory)."""
    inverse: Array
    """
    Inverses of the Gram matrices of the scaled changes, plus a ridge, (N, memory, memory).

    In float64 where there is one: in float32 the errors of their updates would grow.
    """
    weights: Array
    """Of the norm, (N, m)."""
    identity: Array
    """The identity matrix, (memory, memory)."""
    away: Array
    """Minus the identity matrix, in the dtype of the moves."""
    ridge: Array | float
    """Added to the diagonal of the Gram matrices."""
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
    scales = xp.zeros((samples, memory), **kind)
    double = xp.float64 if has_float64(weights) else weights.dtype
    identity = xp.eye(memory, dtype=double, device=kind["device"])
    away = xp.astype(-identity, kind["dtype"])
    # Numbers on the host where the rings are written in place.
    slot: Array | int = 0
    if not is_writeable_array(moves):
        slot = xp.asarray(0, device=kind["device"])
        ridge = xp.full((), ridge, dtype=double, device=kind["device"])
    inverse = xp.zeros_like(weights[:, :1, None], dtype=double) + _without_pairs(identity, ridge)
    return Secants(moves, changes, scales, inverse, normalised, identity, away, ridge, slot)


def reweighted(secants: Secants, weights: Array, unit: float) -> Secants:
    """
    Forget the pairs of samples in which the ``weights``, (N, m), have changed much.

    There the norm would ignore bins that now matter, and steps would be wild in them.
    """
    xp = array_namespace(weights)
    old, new = secants.weights, _normalised(weights, unit)
    square = unit * unit  # with which the weights sum to one, so that nothing overflows
    changed = inner(new * square, new / (old + SMALLEST / square)) > DRIFT
    secants = without(secants, changed)
    return secants._replace(weights=xp.where(changed[:, None], new, old))


def _normalised(weights: Array, unit: float) -> Array:
    """Weights in float32 that sum to ``1 / unit^2`` in each sample."""
    xp = array_namespace(weights)
    total = xp.sum(weights, axis=1, keepdims=True) * (unit * unit)
    least = float(xp.finfo(weights.dtype).smallest_normal)
    return xp.astype(weights / xp.maximum(total, least), getattr(xp, STORED), copy=False)


def _without_pairs(identity: Array, ridge: Array | float) -> Array:
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
    the addition, (N, m), elsewhere of length ``max_step`` at the most. The rings that are passed
    are overwritten if the library can do so.
    """
    xp = array_namespace(move)
    moves, changes, scales, inverse, weights, identity, away, ridge, slot = secants
    moves, changes = put(moves, slot, move), put(changes, slot, change)
    # The products of all changes with the newest and with the residual, in one pass over them.
    residual = xp.astype(residual, weights.dtype, copy=False)
    both = xp.stack([changes[:, slot, :], residual], axis=1)
    both *= weights[:, None, :]
    products = xp.matmul(changes, both.mT)
    square = products[:, slot, 0]
    scale = xp.where(usable & (square > SMALLEST), square, math.inf) ** -0.5
    scales = put(scales, slot, scale)
    products = xp.astype(products * scales[:, :, None], identity.dtype, copy=False)
    row = products[:, :, 0] * scale[:, None]
    inverse = _replaced(inverse, row, identity, ridge, slot)
    following = (slot + 1) % moves.shape[1]
    secants = Secants(moves, changes, scales, inverse, weights, identity, away, ridge, following)
    if identity.dtype == xp.float32:
        secants = without(secants, _are_inaccurate(secants))
    shares = _shares(secants, products[:, :, 1])
    shares = xp.where(worse[:, None], away[slot, ...][None, :], shares)
    step = _combined(moves, shares)
    excess = xp.where(worse, 1.0, _excess(step, max_step))
    return secants, step / excess[:, None]


def predicted(secants: Secants, residual: Array, max_step: Array | float) -> Array:
    """What acceleration adds to the plain step, (N, m), without a new pair."""
    xp = array_namespace(residual)
    weighted = xp.astype(residual, secants.weights.dtype, copy=False) * secants.weights
    products = xp.matmul(secants.changes, weighted[:, :, None])[:, :, 0] * secants.scales
    products = xp.astype(products, secants.inverse.dtype, copy=False)
    step = _combined(secants.moves, _shares(secants, products))
    return step / _excess(step, max_step)[:, None]


def _shares(secants: Secants, products: Array) -> Array:
    """
    The coefficients of the pairs, (N, memory), by least squares.

    ``products``, (N, memory), are those of the scaled changes with the residual.
    """
    xp = array_namespace(products)
    shares = xp.matmul(secants.inverse, products[:, :, None])[:, :, 0]
    return xp.astype(shares, secants.scales.dtype, copy=False) * secants.scales


def _combined(moves: Array, shares: Array) -> Array:
    """The moves of each sample with the given coefficients, summed; (N, m)."""
    return array_namespace(shares).matmul(shares[:, None, :], moves)[:, 0, :]


def _excess(step: Array, max_step: Array | float) -> Array:
    """By how much the step of each sample is too long, (N,): 1 if it is not."""
    xp = array_namespace(step)
    ratio = largest(step) / (max_step + 1e-30)  # 1e-30 instead of 0
    return xp.astype(xp.maximum(ratio, 1.0), step.dtype, copy=False)


def _replaced(
    inverse: Array, row: Array, identity: Array, ridge: Array | float, slot: Array | int
) -> Array:
    """
    The inverse of a matrix of which one row and column are replaced, (N, memory, memory).

    By two corrections of rank one, for the removal of the old row and for the new one. The diagonal
    of the matrix is one plus the ridge, whatever the row has there: after the removal nothing is
    left at that place but rounding.
    """
    xp = array_namespace(inverse)
    old = inverse[:, :, slot]
    reduced = inverse - old[:, :, None] * (old / old[:, slot, None])[:, None, :]
    border = xp.matmul(reduced, row[:, :, None])[:, :, 0]
    pivot = (1.0 + ridge) - inner(row, border)
    # Without rounding the pivot is at least the ridge.
    border -= identity[slot, ...]
    border /= xp.sqrt(xp.maximum(pivot, 0.5 * ridge))[:, None]
    reduced += border[:, :, None] * border[:, None, :]
    return reduced


def _are_inaccurate(secants: Secants) -> Array:
    """
    Samples, (N,) bool, whose inverses have lost their digits, as they may in float32.

    Without rounding their diagonals are between ``1 / (1 + ridge)`` and twice ``1 / ridge``.
    """
    xp = array_namespace(secants.inverse)
    diagonal = xp.sum(secants.inverse * secants.identity, axis=2)
    plausible = (diagonal > 0.5) & (diagonal * secants.ridge < 4.0)  # not for NaN
    return ~xp.all(plausible, axis=1)


def without(secants: Secants, samples: Array) -> Secants:
    """Forget all pairs of the given samples, (N,) bool."""
    xp = array_namespace(samples)
    scales = xp.where(samples[:, None], 0.0, secants.scales)
    reset = _without_pairs(secants.identity, secants.ridge)
    inverse = xp.where(samples[:, None, None], reset, secants.inverse)
    return secants._replace(scales=scales, inverse=inverse)


def put(ring: Array, slot: Array | int, row: Array) -> Array:
    """Replace ``ring[:, slot]``, in the dtype of the ring, and in place if the library can."""
    if is_numpy_array(ring) or is_torch_array(ring):
        ring[:, slot, ...] = row  # which changes the dtype
        return ring
    row = array_namespace(ring).astype(row, ring.dtype, copy=False)
    if is_writeable_array(ring):
        ring[:, slot, ...] = row
        return ring
    return ring.at[:, slot].set(row)  # JAX
