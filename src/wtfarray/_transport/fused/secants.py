"""Anderson acceleration of one sample; the formulas are those of `anderson`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wtfarray._transport.anderson import DRIFT, SMALLEST
from wtfarray._transport.fused.exponentials import SMALLEST_NORMAL
from wtfarray._transport.fused.machine_code import machine_code, machine_code_without_nan
from wtfarray._transport.fused.rows import row


@machine_code
def forget(scales: NDArray[np.float64], inverse: NDArray[np.float64], ridge: float) -> None:
    """Forget all pairs."""
    scales[:] = 0.0
    inverse[:] = 0.0
    for i in range(scales.shape[0]):
        inverse[i, i] = 1.0 / (1.0 + ridge)


@machine_code
def reweight(weights: NDArray[np.float32], Y: NDArray[np.float64], unit: float) -> bool:
    """Take Y, (m,), as the weights of the norm if it has changed much; returns whether it has."""
    total = 0.0
    for j in range(Y.shape[0]):
        total += Y[j]
    share = 1.0 / max(total * unit * unit, SMALLEST_NORMAL)
    smallest = SMALLEST / (unit * unit)
    ratio = 0.0
    for j in range(Y.shape[0]):
        new = Y[j] * share
        ratio += new / (weights[j] + smallest) * (new * unit * unit)
    changed = ratio > DRIFT
    if changed:
        for j in range(Y.shape[0]):
            weights[j] = Y[j] * share
    return bool(changed)


@machine_code
def inner_product(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """The inner product of two vectors, in float32."""
    total = np.float32(0.0)
    for j in range(a.shape[0]):
        total += a[j] * b[j]
    return total  # type: ignore[return-value]  # float64 would be half as fast


@machine_code
def store(
    changes: NDArray[np.float32],
    scales: NDArray[np.float64],
    inverse: NDArray[np.float64],
    ridge: float,
    slot: int,
    usable: bool,  # noqa: FBT001
    weighted: NDArray[np.float32],
    products: NDArray[np.float64],
    border: NDArray[np.float64],
) -> None:
    """
    Take the pair in ``slot`` into the inverse of the Gram matrix, if it is ``usable``.

    ``weighted`` is its change times the weights, (m,). ``products`` and ``border``, (memory,), are
    overwritten. See `anderson.accelerated`.
    """
    memory = scales.shape[0]
    for p in range(memory):
        products[p] = inner_product(row(changes, p), weighted)
    square = products[slot]
    scales[slot] = 1.0 / math.sqrt(square) if usable and square > SMALLEST else 0.0
    for p in range(memory):
        products[p] *= scales[p] * scales[slot]
    # Remove the old row and column: what is left of them is rounding.
    for p in range(memory):
        border[p] = inverse[p, slot]
    pivot = border[slot]
    for p in range(memory):
        share = border[p] / pivot
        for q in range(memory):
            inverse[p, q] -= share * border[q]
    total = 0.0
    for p in range(memory):
        border[p] = 0.0
        for q in range(memory):
            border[p] += inverse[p, q] * products[q]
        total += products[p] * border[p]
    border[slot] -= 1.0
    # Without rounding the pivot is at least the ridge.
    pivot = max(1.0 + ridge - total, 0.5 * ridge)
    for p in range(memory):
        share = border[p] / pivot
        for q in range(memory):
            inverse[p, q] += share * border[q]


@machine_code
def combine(
    moves: NDArray[np.float32],
    changes: NDArray[np.float32],
    scales: NDArray[np.float64],
    inverse: NDArray[np.float64],
    weighted: NDArray[np.float32],
    products: NDArray[np.float64],
    extra: NDArray[np.float32],
) -> None:
    """
    Set ``extra``, (m,), to what acceleration adds to the plain step.

    ``weighted`` is the residual times the weights, (m,). ``products``, (memory,), is overwritten.
    """
    memory = scales.shape[0]
    for p in range(memory):
        products[p] = inner_product(row(changes, p), weighted) * scales[p]
    extra[:] = np.float32(0.0)
    for p in range(memory):
        total = 0.0
        for q in range(memory):
            total += inverse[p, q] * products[q]
        share = np.float32(total * scales[p])
        if share != 0.0:
            move = row(moves, p)
            for j in range(extra.shape[0]):
                extra[j] += share * move[j]


@machine_code_without_nan
def limit(extra: NDArray[np.float32], max_step: float) -> None:
    """Shorten a step, (m,), so that its largest entry is ``max_step`` at the most."""
    largest = np.float32(0.0)
    for j in range(extra.shape[0]):
        largest = max(largest, abs(extra[j]))
    if largest > max_step:
        share = np.float32(max_step / largest)
        for j in range(extra.shape[0]):
            extra[j] *= share
