"""
Transport of a measure to itself, which the debiased loss subtracts.

With ``mu = exp(p/eps)`` and a symmetric kernel K, ``OT(q, q) = max_p 2 <p, q> - eps <mu, K mu>``.
At the solution ``q = mu * K mu``; every p is the solution for its own marginal ``r = mu * K mu``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample, spread
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import kl_divergence
from wtfarray._transport.banded import BandedCost
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.logarithms import smallest_sum

CENTRE, RADIUS = 1.5, 0.5
"""
Of the interval that holds the derivatives of ``log r`` in ``p/eps``.

They are 1 plus the eigenvalues of the symmetric plan, which are from 0 to 1 if K is positive
definite. Chebyshev's iteration for this interval multiplies errors by ``1 / T_k(3)`` in k steps, to
first order: 1/3, 1/17, 1/99.
"""
LARGEST_EXPONENT = 40.0
"""Of a marginal in an error estimate: with more, the error is large in any case."""
MAX_ITER = 100
"""Largest number of steps; some twenty reach rounding if K is positive definite."""


class SymmetricPotential(NamedTuple):
    """A potential of every sample, (N, ...), with its kernel product and error."""

    p: Array
    log_product: Array
    """``log K mu``, with mu = 0 where q is 0."""
    error: Array
    """Estimated error of ``OT(q, q) / 2``, (N,)."""
    applications: Array | int
    """Number of kernel applications."""

    def log_marginal(self, eps: float) -> Array:
        """``log r``, ``r = mu * K mu``."""
        return self.p * (1.0 / eps) + self.log_product


def solve_symmetric(
    kernel: GibbsKernel,
    q: Array,
    p: Array,
    tolerance: Array | float,
    *,
    known: Array | None = None,
    safe: bool = True,
    max_iter: int = MAX_ITER,
    weights: Array | None = None,
    sums: Sums = ALONE,
) -> SymmetricPotential:
    """
    Solve ``p/eps + log K exp(p/eps) = log q`` from p until the errors sum up to the tolerance.

    ``known`` is `SymmetricPotential.log_product` of p, for a similar q, if it has been computed
    before. Plain kernel products are tried first unless ``safe``. Errors are weighted by
    ``weights``, (N,), if there are any, and added over the samples of all processes by ``sums``.
    """
    xp = array_namespace(q)
    flow, eps = kernel.flow, kernel.eps
    live = q > 0
    log_q = xp.log(xp.where(live, q, 1.0))

    def evaluated(p: Array, log_product: Array, count: Array | int) -> tuple[Array, ...]:
        log_r = p * (1.0 / eps) + log_product
        residual = xp.where(live, log_q - log_r, 0.0)
        return p, log_product, residual, error_estimate(q, log_r, residual, eps), count

    def product(p: Array) -> Array:
        logs = xp.where(live, p * (1.0 / eps), -math.inf)
        return kernel.log_apply(logs) if safe else _log_product(kernel, logs, live)

    def unfinished(state: tuple[Array, ...]) -> Array:
        error = state[3] if weights is None else state[3] * weights
        return (sums.array(xp.sum(error)) > tolerance) & (state[4] < max_iter)

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        p, _, residual, error, count, move, ratio, start = state
        following = 1.0 / (2.0 * CENTRE / RADIUS - ratio)
        # The first step, and samples that have moved away, take a step without momentum.
        plain = residual * (eps / CENTRE)
        fast = move * spread(ratio * following, move) + residual * (2.0 * eps / RADIUS) * spread(
            following, move
        )
        moves = xp.where(spread(start, move), plain, fast)
        ratio = xp.where(start, ratio, following)
        p = p + moves
        *new, count = evaluated(p, product(p), count + 1)
        worse = ~(new[3] <= error)
        return *new, count, moves, xp.where(worse, RADIUS / CENTRE, ratio), worse

    zero = 0 * xp.astype(xp.sum(xp.astype(live, xp.int32)), xp.int32)
    first = evaluated(p, product(p), zero + 1) if known is None else evaluated(p, known, zero)
    ratio = 0.0 * first[3] + RADIUS / CENTRE
    state = (*first, 0.0 * p, ratio, ratio > 0)
    p, log_product, _, error, count, *_ = flow.while_loop(unfinished, step, state)
    return SymmetricPotential(p, log_product, error, count)


def error_estimate(q: Array, log_r: Array, residual: Array, eps: float) -> Array:
    """
    Bound ``eps KL(q|r)`` by ``eps/2 <max(q, r), log(q/r)^2>``, (N,).

    The residual is ``log(q/r)``, and 0 at bins that do not count.
    """
    xp = array_namespace(q)
    r = xp.exp(xp.minimum(log_r, LARGEST_EXPONENT))
    return inner(xp.maximum(q, r) * residual, residual) * (0.5 * eps)


def _log_product(kernel: GibbsKernel, logs: Array, live: Array) -> Array:
    """``log K exp(logs)`` by plain products, or in the log domain if these lose digits."""
    xp = array_namespace(logs)
    top = xp.max(logs, axis=tuple(range(1, logs.ndim)), keepdims=True)
    top = xp.where(top > -math.inf, top, 0.0)
    product = kernel.apply(xp.exp(logs - top))
    threshold = smallest_sum(product.dtype, math.prod(product.shape[1:]), xp)
    accurate = product >= threshold
    if bool(xp.all(accurate | ~live)):
        return xp.log(xp.where(accurate, product, 1.0)) + top
    return kernel.log_apply(logs)


class SelfTransport(NamedTuple):
    """Bounds of ``-OT(x, x)/2`` of every sample, and what they took."""

    lower: Array
    """(N,)."""
    gap: Array
    """The upper bound minus the lower one, (N,)."""
    log_product: Array
    """``log K mu``, (N, ...)."""
    p: Array
    """The potential, (N, ...)."""


def self_transport(kernel: GibbsKernel, x: Array, sums: Sums = ALONE) -> SelfTransport:
    """
    ``-OT(x, x)/2`` to rounding.

    For every p it is at most ``-<p, x> + eps/2 <r, 1>``. If K is positive definite, ``<m, K m> >= 2
    <m, K mu> - <mu, K mu>`` for all m, and with the best m it is at least
    ``-eps <x, log(x / K mu)> + eps <x, 1> - eps/2 <r, 1>``: their difference is ``eps KL(x|r)``.
    """
    xp = array_namespace(x)
    mass = per_sample(x)
    tolerance = kernel.eps * float(xp.finfo(x.dtype).eps) * sums.array(xp.sum(mass))
    found = solve_symmetric(kernel, x, xp.zeros_like(x), tolerance, sums=sums)
    live = x > 0
    r = xp.where(live, xp.exp(found.log_marginal(kernel.eps)), 0.0)
    return SelfTransport(
        lower_bound(kernel.eps, x, found.log_product, per_sample(r)),
        per_sample(kl_divergence(x, r, xp)) * kernel.eps,
        found.log_product,
        found.p,
    )


def lower_bound(eps: float, q: Array, log_product: Array, total: Array) -> Array:
    """``-eps <q, log(q / K mu)> + eps <q, 1> - eps/2 <r, 1>``, (N,); ``total`` is ``<r, 1>``."""
    xp = array_namespace(q)
    live = q > 0
    logs = xp.where(live, xp.log(xp.where(live, q, 1.0)) - log_product, 0.0)
    return (per_sample(q) - inner(q, logs) - 0.5 * total) * eps


def scaled_to(q: Array, mass: Array) -> Array:
    """Every sample of q scaled to the given mass, (N,)."""
    xp = array_namespace(q)
    total = per_sample(q)
    ratio = xp.where(total > 0, mass / xp.where(total > 0, total, 1.0), 0.0)
    return q * spread(ratio, q)


def are_positive_definite(costs: Sequence[Any], eps: float) -> bool:
    """Whether ``exp(-C/eps)`` of every cost has no negative eigenvalue, up to rounding."""
    return all(_smallest_eigenvalue(cost, eps) >= 0.0 for cost in costs)


def _smallest_eigenvalue(cost: Any, eps: float) -> float:
    """A lower bound of the smallest eigenvalue of a kernel matrix, plus its rounding error."""
    if isinstance(cost, BandedCost):
        # The eigenvalues of a Toeplitz matrix are in the range of its symbol, a Fourier series.
        steps = np.exp(to_host(cost.steps).astype(np.float64) * (-1.0 / eps))
        series = np.zeros(8 * steps.size)
        series[: steps.size] = 2.0 * steps
        values = np.fft.rfft(series).real - steps[0]
        rounding, dtype = float(values.max()), to_host(cost.steps).dtype
    else:
        table = to_host(cost)
        kernel = np.exp(table.astype(np.float64) * (-1.0 / eps))
        values = np.linalg.eigvalsh(kernel)
        rounding, dtype = float(kernel.sum(axis=1).max()), table.dtype
    return float(values.min()) + 16.0 * float(np.finfo(dtype).eps) * rounding
