"""The iterations of one sample after the other: `sinkhorn.sinkhorn_step`, for finite costs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wtfarray._transport.anderson import RIDGE
from wtfarray._transport.fused.exponentials import SMALLEST_NORMAL, exp, log, log_of_any
from wtfarray._transport.fused.machine_code import (
    Kept,
    machine_code,
    machine_code_without_nan,
)
from wtfarray._transport.fused.products import log_product, product
from wtfarray._transport.fused.rows import row
from wtfarray._transport.fused.secants import combine, forget, limit, reweight, store
from wtfarray._transport.fused.sources import DIGEST
from wtfarray._transport.fused.state import Course, Kernel, Limits, Result, Samples, State, Vector
from wtfarray._transport.sinkhorn import GROWTH


class Work(NamedTuple):
    """Vectors of one sample that are overwritten in every iteration, (m,) or (memory,)."""

    live: NDArray[np.bool_]
    """Bins in which Y is positive."""
    target: NDArray[np.float64]
    """log Y times the damping, 0 where not live."""
    logs: NDArray[np.float64]
    """``log K^T a``, up to a constant."""
    f: NDArray[np.float64]
    Kf: NDArray[np.float64]
    """``K f`` or, in the log domain, its logarithm."""
    back: NDArray[np.float64]
    spare: NDArray[np.float64]
    aim: NDArray[np.float64]
    """``Y exp(-g/lam)``, which q is to equal."""
    extra: NDArray[np.float32]
    weighted: NDArray[np.float32]
    products: NDArray[np.float64]
    border: NDArray[np.float64]


@machine_code
def new_work(bins: int, memory: int) -> Work:
    """Room for the iterations of one thread."""
    return Work(
        np.empty(bins, np.bool_),
        np.empty(bins),
        np.empty(bins),
        np.empty(bins),
        np.empty(bins),
        np.empty(bins),
        np.empty(bins),
        np.empty(bins),
        np.empty(bins, np.float32),
        np.empty(bins, np.float32),
        np.empty(memory),
        np.empty(memory),
    )


@machine_code_without_nan
def largest(values: NDArray[np.float64]) -> float:
    """The largest entry of a vector, of which none is NaN."""
    # Four maxima, because one would wait for itself.
    first = second = third = fourth = -math.inf
    size = values.shape[0]
    whole = size - size % 4
    for j in range(0, whole, 4):
        first = max(first, values[j])
        second = max(second, values[j + 1])
        third = max(third, values[j + 2])
        fourth = max(fourth, values[j + 3])
    for j in range(whole, size):
        first = max(first, values[j])
    return max(first, second, third, fourth)


@machine_code_without_nan
def smallest(values: NDArray[np.float64]) -> float:
    """The smallest entry of a vector, of which none is NaN."""
    first = second = third = fourth = math.inf
    size = values.shape[0]
    whole = size - size % 4
    for j in range(0, whole, 4):
        first = min(first, values[j])
        second = min(second, values[j + 1])
        third = min(third, values[j + 2])
        fourth = min(fourth, values[j + 3])
    for j in range(whole, size):
        first = min(first, values[j])
    return min(first, second, third, fourth)


@machine_code
def set_target(Y: Vector, damping: float, live: NDArray[np.bool_], target: Vector) -> None:
    """``log Y`` times the damping, 0 where Y is not live."""
    for j in range(Y.shape[0]):
        live[j] = Y[j] > 0.0
    if smallest(Y) >= SMALLEST_NORMAL:
        for j in range(Y.shape[0]):
            target[j] = damping * log(Y[j])
    else:
        for j in range(Y.shape[0]):
            target[j] = damping * log_of_any(Y[j]) if live[j] else 0.0


@machine_code
def plain_marginal(
    kernel: Kernel,
    X: Vector,
    g: Vector,
    live: NDArray[np.bool_],
    factor: float,
    floor: float,
    threshold: float,
    logs: Vector,
    f: Vector,
    Kf: Vector,
    back: Vector,
    spare: Vector,
    q: Vector,
) -> tuple[bool, float]:
    """
    Set q, ``K f`` and ``log K^T a``, up to a constant, at g, by plain products; factor is 1/eps.

    Returns whether digits were lost, and the maximum of g, which has been subtracted from it.
    """
    for j in range(g.shape[0]):
        logs[j] = g[j] if live[j] else -math.inf
    top = largest(logs)
    for j in range(g.shape[0]):
        f[j] = exp((logs[j] - top) * factor)
    product(kernel.sizes, kernel.matrices, kernel.transposes, f, Kf, spare)
    for j in range(g.shape[0]):
        Kf[j] = Kf[j] + floor if X[j] > 0.0 else 1.0
    for j in range(g.shape[0]):
        back[j] = X[j] / Kf[j]
    product(kernel.sizes, kernel.transposes, kernel.matrices, back, q, spare)
    for j in range(g.shape[0]):
        back[j] = q[j] if live[j] else 1.0
    lost = not (smallest(Kf) >= threshold and smallest(back) >= threshold)
    for j in range(g.shape[0]):
        back[j] = max(back[j], floor)
    for j in range(g.shape[0]):
        q[j] = f[j] * back[j]
    for j in range(g.shape[0]):
        logs[j] = log(back[j])
    return lost, top


@machine_code
def safe_marginal(
    kernel: Kernel,
    X: Vector,
    g: Vector,
    live: NDArray[np.bool_],
    factor: float,
    logs: Vector,
    f: Vector,
    log_Kf: Vector,
    back: Vector,
    spare: Vector,
    q: Vector,
) -> None:
    """The same in the log domain, accurate for every g, and ``log K f``."""
    for j in range(g.shape[0]):
        f[j] = g[j] * factor if live[j] else -math.inf
    log_product(kernel.sizes, kernel.exponents, f, log_Kf, spare)
    for j in range(g.shape[0]):
        back[j] = log_of_any(X[j]) - log_Kf[j] if X[j] > 0.0 else -math.inf
    log_product(kernel.sizes, kernel.transposed_exponents, back, logs, spare)
    for j in range(g.shape[0]):
        q[j] = exp(f[j] + logs[j]) if live[j] else 0.0


@machine_code
def best_constant(
    Y: Vector, g: Vector, live: NDArray[np.bool_], mass: float, lam: float, aim: Vector
) -> float:
    """The constant to add to g, see `translation`; sets ``Y exp(-g/lam)`` for the sum of both."""
    if math.isinf(lam):
        for j in range(g.shape[0]):
            aim[j] = Y[j]
        return 0.0
    per_lam = 1.0 / lam
    for j in range(g.shape[0]):
        aim[j] = g[j] if live[j] else math.inf
    lowest = smallest(aim)
    for j in range(g.shape[0]):
        aim[j] = Y[j] * exp((lowest - g[j]) * per_lam)
    total = 0.0
    for j in range(g.shape[0]):
        total += aim[j]
    total /= mass
    for j in range(g.shape[0]):
        aim[j] *= 1.0 / total
    return math.log(total) * lam - lowest


@machine_code
def predict(
    target: Vector,
    base: Vector,
    rest: Vector,
    live: NDArray[np.bool_],
    weights: NDArray[np.float32],
    residual: Vector,
    weighted: NDArray[np.float32],
) -> None:
    """The plain step at the last g for a new target, also ``weighted``; see `sinkhorn.prepared`."""
    for j in range(target.shape[0]):
        residual[j] = target[j] - rest[j] - base[j] if live[j] else 0.0
    for j in range(target.shape[0]):
        weighted[j] = residual[j] * weights[j]


@machine_code
def new_pair(
    g: Vector,
    logs: Vector,
    offset: float,
    damping: float,
    live: NDArray[np.bool_],
    target: Vector,
    base: Vector,
    rest: Vector,
    move: NDArray[np.float32],
    change: NDArray[np.float32],
    residual: Vector,
) -> None:
    """
    Set ``change`` to dphi, ``move`` to ``dg - dphi``, and the residual; renew the last g and rest.

    ``phi = damping (g/lam + log q)``, of which ``logs`` holds all but g and the ``offset``.
    """
    for j in range(g.shape[0]):
        residual[j] = (logs[j] - offset) * damping if live[j] else -g[j]  # the new rest
    for j in range(g.shape[0]):
        move[j] = rest[j] - residual[j]
    for j in range(g.shape[0]):
        change[j] = g[j] - base[j] - (rest[j] - residual[j])
    for j in range(g.shape[0]):
        rest[j] = residual[j]
        base[j] = g[j]
    for j in range(g.shape[0]):
        residual[j] = target[j] - rest[j] - g[j]


@machine_code
def difference(a: Vector, b: Vector, out: Vector) -> float:
    """Set ``out`` to ``a - b``; returns its L1 norm."""
    total = 0.0
    for j in range(a.shape[0]):
        out[j] = a[j] - b[j]
        total += abs(out[j])
    return total


@machine_code
def error_of(gradient: Vector, residual: Vector, extra: NDArray[np.float32]) -> float:
    """The estimated error of the dual value, see `Iterate.decrement`."""
    first, second = 0.0, 0.0
    for j in range(gradient.shape[0]):
        first += gradient[j] * residual[j]
        second += gradient[j] * extra[j]
    return max(abs(first), abs(first + second))


@machine_code
def run(  # noqa: PLR0912, PLR0915 -- rows that are passed on would be counted by every thread
    samples: Samples,
    state: State,
    result: Result,
    s: int,
    Y: Vector,
    weight: float,
    limits: Limits,
    course: Course,
    work: Work,
) -> None:
    """Iterate a sample until it is within the limits, and keep the last iterate."""
    bins, X, kernel, mass, lam = (
        Y.shape[0],
        row(samples.X, s),
        samples.kernel,
        samples.mass[s],
        samples.lam,
    )
    factor, damping = 1.0 / samples.eps, samples.damping
    floor, threshold, max_step = samples.floor, samples.threshold, samples.max_step
    ahead, base, rest = row(state.ahead, s), row(state.g, s), row(state.rest, s)
    moves, changes, scales = row(state.moves, s), row(state.changes, s), row(state.scales, s)
    inverse, weights = row(state.inverse, s), row(state.weights, s)
    slot, known, safe = state.slot[s], state.size[s], state.safe[s]
    g, q, residual = row(result.g, s), row(result.q, s), row(result.residual, s)
    gradient, log_Kf = row(result.gradient, s), row(result.log_Kf, s)
    live, target, logs, f, Kf = work.live, work.target, work.logs, work.f, work.Kf
    back, spare, aim, extra = work.back, work.spare, work.aim, work.extra
    weighted, products, border = work.weighted, work.products, work.border
    error, distance, least, most = limits.error, limits.distance, limits.least, limits.most
    set_target(Y, damping, live, target)
    if course.begins:
        known = math.inf if known >= 0.0 else known
        if reweight(weights, Y, damping):
            forget(scales, inverse, RIDGE)
    if course.predicts:
        predict(target, base, rest, live, weights, residual, weighted)
        combine(moves, changes, scales, inverse, weighted, products, extra)
        limit(extra, max_step)
        for j in range(bins):
            ahead[j] = base[j] + residual[j] + extra[j]
    n, shift, top, size, decrement, done = 0, 0.0, 0.0, 0.0, 0.0, False
    while n < least or (n < most and not done):
        top = 0.0
        if not safe:
            safe, top = plain_marginal(
                kernel, X, ahead, live, factor, floor, threshold, logs, f, Kf, back, spare, q
            )
        if safe:
            top = 0.0
            safe_marginal(kernel, X, ahead, live, factor, logs, f, Kf, back, spare, q)
        shift = best_constant(Y, ahead, live, mass, lam, aim)
        for j in range(bins):
            g[j] = ahead[j] + shift
        size = difference(aim, q, gradient)
        # A sample that has not been iterated before has no last gradient, and no pair.
        usable = known >= 0.0 and size <= GROWTH * known
        worse = known >= 0.0 and not usable
        move, change = row(moves, slot), row(changes, slot)
        offset = (top + shift) * factor
        new_pair(g, logs, offset, damping, live, target, base, rest, move, change, residual)
        for j in range(bins):
            weighted[j] = change[j] * weights[j]
        store(changes, scales, inverse, RIDGE, slot, usable, weighted, products, border)
        if worse:
            # Back to the plain step of the point before.
            for j in range(bins):
                extra[j] = -move[j]
            forget(scales, inverse, RIDGE)
        else:
            for j in range(bins):
                weighted[j] = residual[j] * weights[j]
            combine(moves, changes, scales, inverse, weighted, products, extra)
            limit(extra, max_step)
        slot = (slot + 1) % scales.shape[0]
        for j in range(bins):
            ahead[j] = g[j] + residual[j] + extra[j]
        decrement = error_of(gradient, residual, extra)
        known = size = math.inf if worse else size
        n += 1
        done = decrement * weight <= error and size <= distance * mass
    state.slot[s], state.size[s], state.safe[s] = slot, known, safe
    result.shift[s], result.decrement[s], result.size[s] = shift, decrement, size
    result.iterations[s] += n
    for j in range(bins):
        log_Kf[j] = Kf[j] if safe else log(Kf[j]) + top * factor


def _iterate(
    samples: Samples,
    state: State,
    result: Result,
    Y: NDArray[np.float64],
    weights: NDArray[np.float64],
    chosen: NDArray[np.intp],
    start: int,
    stop: int,
    limits: Limits,
    course: Course,
) -> None:
    work = new_work(Y.shape[1], state.scales.shape[1])
    for position in range(start, stop):
        s = chosen[position]
        run(samples, state, result, s, row(Y, s), weights[s], limits, course, work)


iterate = Kept(_iterate, DIGEST)
"""
Iterate the ``chosen`` samples, from ``start`` to ``stop`` of them, each until it is within limits.
"""
