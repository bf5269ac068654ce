"""Gibbs kernels K = exp(-C / eps): plain and log-domain application, axis by axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import filled_up
from wtfarray._arrays.typing import Array, Namespace
from wtfarray._dispatch import keeps_both_layouts, sums_over_pairs
from wtfarray._models.tensor import apply_to_mode
from wtfarray._transport.control_flow import ControlFlow, HostControlFlow


@dataclass(frozen=True, eq=False, repr=False)
class GibbsKernel:
    """
    The kernel of a cost that is a sum over axes; with one axis, a dense kernel.

    It acts on stacks (N, m_1, ..., m_t) of N samples; ``costs[k - 1]`` is (m_k, m_k) and belongs to
    axis k. One application takes ``N m (m_1 + ... + m_t)`` multiplications for samples of m bins,
    instead of ``N m^2`` with the full cost matrix.
    """

    costs: tuple[Array, ...]
    eps: float
    matrices: tuple[Array, ...]
    all_finite: bool
    """Whether every cost is finite: mass can be transported between any two bins."""

    flow: ClassVar[ControlFlow] = HostControlFlow()
    """How branches and loops that depend on the data are executed."""

    @classmethod
    def of(cls, costs: tuple[Array, ...], eps: float) -> GibbsKernel:
        """Compute the matrices ``exp(-C/eps)`` of all axes."""
        xp = array_namespace(*costs)
        matrices = tuple(xp.exp(cost * (-1.0 / eps)) for cost in costs)
        return cls(costs, eps, matrices, are_finite(costs))

    def apply(self, stack: Array) -> Array:
        """``K F`` for every sample F, by plain products."""
        return _apply(stack, self._forward)

    def apply_adjoint(self, stack: Array) -> Array:
        """``K^T F`` for every sample F, by plain products."""
        return _apply(stack, self._adjoint)

    def log_apply(self, logs: Array) -> Array:
        """``log(K exp(logs))``, accurate to rounding; entries may be ``-inf``."""
        return self._log_product(logs, self._forward, self.costs)

    def log_apply_adjoint(self, logs: Array) -> Array:
        """``log(K^T exp(logs))``, accurate to rounding; entries may be ``-inf``."""
        return self._log_product(logs, self._adjoint, tuple(c.mT for c in self.costs))

    def __post_init__(self) -> None:
        """Fill the cache now: arrays created under ``jax.jit`` must not outlive the trace."""
        self._forward  # noqa: B018

    @cached_property
    def _forward(self) -> tuple[Array, ...]:
        """
        The matrices of K, in the memory layout that suits the products.

        The last axis is multiplied from the right by the transpose of its matrix. If that is small,
        it is stored in C order, for which BLAS is one and a half times as fast.
        """
        *others, last = self.matrices
        if not keeps_both_layouts(last.shape[0]):
            return self.matrices
        xp = array_namespace(last)
        rows = xp.reshape(xp.reshape(last.mT, (-1,)), last.shape)
        return (*others, rows.mT)

    @property
    def _adjoint(self) -> tuple[Array, ...]:
        """The matrices of K^T."""
        return tuple(matrix.mT for matrix in self.matrices)

    def _log_product(
        self, logs: Array, matrices: tuple[Array, ...], costs: tuple[Array, ...]
    ) -> Array:
        if sums_over_pairs(logs.shape[0], math.prod(logs.shape[1:])):
            return _log_apply_dense(logs, dense(costs) * (-1.0 / self.eps))
        return _log_apply(logs, matrices, costs, self.eps)

    def potential_range(self) -> float:
        """A bound on the range of a potential: see the function `potential_range`."""
        return self._potential_range

    @cached_property
    def _potential_range(self) -> float:
        return potential_range(self.costs)

    def spacing(self) -> float:
        """The largest cost, over bins and axes, from a bin to its nearest neighbour."""
        spacings = [0.0]
        for cost in map(to_host, self.costs):
            others = np.where(np.isfinite(cost) & ~np.eye(len(cost), dtype=bool), cost, math.inf)
            nearest = others.min(axis=1)
            spacings.append(float(nearest[np.isfinite(nearest)].max(initial=0.0)))
        return max(spacings)

    def can_reach(self, targets: Array) -> Array:
        """Bins from which some of the ``targets`` can be reached; broadcasts against them."""
        return _any_along(targets, self.costs, all_finite=self.all_finite)

    def reachable_from(self, sources: Array) -> Array:
        """Bins that can be reached from some of the ``sources``; broadcasts against them."""
        costs = tuple(cost.mT for cost in self.costs)
        return _any_along(sources, costs, all_finite=self.all_finite)

    def product_cost(self, sources: Array, targets: Array) -> Array:
        """``<C, a b^T>`` of each sample, (N,), for finite costs."""
        xp = array_namespace(sources)
        total = xp.zeros_like(xp.reshape(sources, (sources.shape[0], -1))[:, 0])
        for axis, cost in enumerate(self.costs, start=1):
            others = tuple(k for k in range(1, sources.ndim) if k != axis)
            a, b = (xp.sum(s, axis=others) if others else s for s in (sources, targets))
            total = total + xp.sum(a * xp.matmul(b, cost.mT), axis=1)
        return total


def _apply(stack: Array, matrices: tuple[Array, ...]) -> Array:
    """Multiply every axis by its matrix, starting with the last, which needs no batched product."""
    for axis in range(len(matrices), 0, -1):
        stack = apply_to_mode(stack, matrices[axis - 1], axis)
    return stack


def are_finite(costs: Sequence[Array]) -> bool:
    """Whether every cost is finite."""
    xp = array_namespace(*costs)
    return all(bool(xp.all(xp.isfinite(cost))) for cost in costs)


def potential_range(costs: Sequence[Array]) -> float:
    """Bound: the largest finite cost, times the number of bins if some are inf, over all axes."""
    xp = array_namespace(*costs)
    all_finite, total = are_finite(costs), 0.0
    for cost in costs:
        largest = float(xp.max(xp.where(xp.isfinite(cost), cost, 0.0)))
        total += largest if all_finite else largest * float(cost.shape[0])
    return total


def _any_along(mask: Array, costs: tuple[Array, ...], *, all_finite: bool) -> Array:
    """Whether any bin of ``mask`` is at a finite cost; (N, 1, ..., 1) if all costs are finite."""
    xp = array_namespace(mask)
    if all_finite:
        return xp.any(mask, axis=tuple(range(1, mask.ndim)), keepdims=True)
    count = xp.astype(mask, costs[0].dtype)
    for axis, cost in enumerate(costs, start=1):
        count = apply_to_mode(count, xp.astype(xp.isfinite(cost), cost.dtype), axis)
    return count > 0


def smallest_sum(dtype: object, terms: int, xp: Namespace) -> float:
    """A sum of ``terms`` products below this may have lost digits to underflow."""
    info = xp.finfo(dtype)
    return float(info.smallest_normal) / float(info.eps) * terms


def from_logs(logs: Array, axis: int) -> tuple[Array, Array]:
    """Mantissa and scale of ``exp(logs)``: one scale per fibre, with mantissas of maximum 1."""
    xp = array_namespace(logs)
    top = xp.max(logs, axis=axis, keepdims=True)
    return xp.exp(logs - xp.where(top > -math.inf, top, 0.0)), top


def to_logs(mantissa: Array, scale: Array) -> Array:
    """``log(mantissa exp(scale))``."""
    xp = array_namespace(mantissa)
    positive = mantissa > 0
    return xp.where(positive, xp.log(xp.where(positive, mantissa, 1.0)) + scale, -math.inf)


def _log_apply(
    logs: Array, matrices: tuple[Array, ...], costs: tuple[Array, ...], eps: float
) -> Array:
    """
    Apply the kernel one axis at a time, by plain products of mantissas with separate scales.

    Before each product every fibre is scaled to a maximum of 1. Entries that underflow
    nevertheless are recomputed by log-sum-exps.
    """
    xp = array_namespace(logs)
    exact: Array | None = logs
    mantissa, scale = from_logs(logs, 1)
    for axis, (matrix, cost) in enumerate(zip(matrices, costs, strict=True), start=1):
        fibres, top = _one_scale_per_fibre(mantissa, scale, axis, xp)
        product = apply_to_mode(fibres, matrix, axis)
        accurate = product >= smallest_sum(product.dtype, product.shape[axis], xp)
        underflows = ~accurate & (top > -math.inf)
        if bool(xp.any(underflows)):
            previous = to_logs(mantissa, scale) if exact is None else exact
            exact = xp.where(accurate, xp.log(xp.where(accurate, product, 1.0)) + top, -math.inf)
            exact = _recompute(exact, underflows, previous, cost * (-1.0 / eps), axis, xp)
            mantissa, scale = from_logs(exact, min(axis + 1, len(matrices)))
        else:
            exact, mantissa, scale = None, product, top
    return to_logs(mantissa, scale) if exact is None else exact


def _log_apply_dense(logs: Array, exponents: Array) -> Array:
    """The same by log-sum-exps over all pairs of bins, which is faster for small samples."""
    xp = array_namespace(logs)
    flat = xp.reshape(logs, (logs.shape[0], -1))
    return xp.reshape(logsumexp(flat[:, None, :] + exponents[None, :, :], 2, xp), logs.shape)


def dense(costs: Sequence[Array]) -> Array:
    """The full cost matrix, (m, m), of a cost that is a sum over axes."""
    xp = array_namespace(*costs)
    total = costs[0]
    for cost in costs[1:]:
        size = total.shape[0] * cost.shape[0]
        total = xp.reshape(total[:, None, :, None] + cost[None, :, None, :], (size, size))
    return total


def _one_scale_per_fibre(
    mantissa: Array, scale: Array, axis: int, xp: Namespace
) -> tuple[Array, Array]:
    """Make the scale constant along one axis, and the maximum of the mantissa 1 in each fibre."""
    top = xp.max(scale, axis=axis, keepdims=True)
    scaled = mantissa
    if scale.shape[axis] > 1:
        scaled = mantissa * xp.exp(scale - xp.where(top > -math.inf, top, 0.0))
    largest = xp.max(scaled, axis=axis, keepdims=True)
    # A fibre that underflowed to subnormal numbers must not be scaled up to a maximum of 1.
    weak = largest < float(xp.finfo(mantissa.dtype).eps)
    if bool(xp.any(weak & (xp.max(mantissa, axis=axis, keepdims=True) > 0))):
        # The maximum of such a fibre is far below that of its scales: compute it from logarithms.
        return from_logs(to_logs(mantissa, scale), axis)
    positive = largest > 0
    largest = xp.where(positive, largest, 1.0)
    return scaled / largest, xp.where(positive, xp.log(largest) + top, -math.inf)


def _recompute(
    result: Array, mask: Array, logs: Array, exponents: Array, axis: int, xp: Namespace
) -> Array:
    """Replace the entries of ``result`` in ``mask`` by log-sum-exps over their fibres."""
    n = logs.shape[axis]
    fibres = xp.reshape(xp.moveaxis(logs, axis, -1), (-1, n))
    flat = xp.reshape(xp.moveaxis(result, axis, -1), (-1,))
    flat_mask = xp.reshape(xp.moveaxis(mask, axis, -1), (-1,))
    (entries,) = xp.nonzero(flat_mask)
    count = entries.shape[0]
    padding = filled_up(count) - count
    entries = xp.concat([entries, xp.repeat(entries[:1], padding)])
    pieces = [flat]
    chunk = max(1, flat.shape[0] // n)  # no temporary is larger than the stack itself
    for start in range(0, count, chunk):
        batch = entries[start : min(start + chunk, count + padding)]
        terms = xp.take(fibres, batch // n, axis=0) + xp.take(exponents, batch % n, axis=0)
        pieces.append(logsumexp(terms, 1, xp))
    # Not every library can assign to masked entries: take old and new ones by index instead.
    rank_in_mask = xp.cumulative_sum(xp.astype(flat_mask, entries.dtype))
    unchanged = xp.cumulative_sum(xp.ones_like(rank_in_mask)) - 1
    source = xp.where(flat_mask, rank_in_mask + (flat.shape[0] - 1), unchanged)
    flat = xp.take(xp.concat(pieces), source)
    others = tuple(s for k, s in enumerate(result.shape) if k != axis)
    return xp.moveaxis(xp.reshape(flat, (*others, n)), -1, axis)


def logsumexp(logs: Array, axis: int | tuple[int, ...], xp: Namespace) -> Array:
    """``log(sum(exp(logs)))`` along ``axis``; -inf where every entry is."""
    top = xp.max(logs, axis=axis, keepdims=True)
    shift = xp.where(top > -math.inf, top, 0.0)
    total = xp.sum(xp.exp(logs - shift), axis=axis, keepdims=True)
    result = xp.where(total > 0, xp.log(xp.where(total > 0, total, 1.0)) + shift, -math.inf)
    return xp.squeeze(result, axis=axis)
