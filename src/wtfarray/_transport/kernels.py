"""
Gibbs kernels ``K = exp(-C / eps)``: plain and log-domain application, axis by axis.

What a kernel does along one axis is up to the geometry of the axis: see `geometry` and `banded`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import filled_up
from wtfarray._arrays.typing import Array, Namespace
from wtfarray._dispatch import sums_over_pairs
from wtfarray._transport.banded import axis_kernel, geometry_of
from wtfarray._transport.control_flow import ControlFlow, HostControlFlow
from wtfarray._transport.geometry import AxisKernel
from wtfarray._transport.logarithms import from_logs, logsumexp, smallest_sum, to_logs

RECOMPUTED_ENTRIES = 2**18
"""Log-sum-exps of entries that underflow run over this many terms at once, or over a stack's."""


@dataclass(frozen=True, eq=False, repr=False)
class GibbsKernel:
    """
    The kernel of a cost that is a sum over axes.

    It acts on stacks (N, m_1, ..., m_t) of N samples; ``axes[k - 1]`` is the kernel of axis k. One
    application to dense axes takes ``N m (m_1 + ... + m_t)`` multiplications for samples of m bins,
    instead of ``N m^2`` with the full cost matrix.
    """

    axes: tuple[AxisKernel, ...]
    eps: float
    all_finite: bool
    """Whether every cost is finite: mass can be transported between any two bins."""

    flow: ClassVar[ControlFlow] = HostControlFlow()
    """How branches and loops that depend on the data are executed."""

    @classmethod
    def of(cls, costs: Sequence[Any], eps: float) -> GibbsKernel:
        """The kernel of one cost per axis: matrices (m_k, m_k), or structured costs."""
        return cls(tuple(axis_kernel(cost, eps) for cost in costs), eps, are_finite(costs))

    def at_eps(self, eps: float) -> GibbsKernel:
        """The kernel of the same costs with another eps."""
        kernel = GibbsKernel(tuple(axis_kernel(c, eps) for c in self.costs), eps, self.all_finite)
        # What has been read of the costs holds for every eps; reading waits for the device.
        known = ("_potential_range", "_spacing", "_typical_spacing")
        vars(kernel).update({name: vars(self)[name] for name in known if name in vars(self)})
        return kernel

    @property
    def costs(self) -> tuple[Any, ...]:
        """The cost of each axis."""
        return tuple(axis.cost for axis in self.axes)

    def apply(self, stack: Array) -> Array:
        """``K F`` for every sample F, by plain products."""
        return _apply(stack, self._forward)

    def apply_adjoint(self, stack: Array) -> Array:
        """``K^T F`` for every sample F, by plain products."""
        return _apply(stack, self._adjoint)

    def log_apply(self, logs: Array) -> Array:
        """``log(K exp(logs))``, accurate to rounding; entries may be ``-inf``."""
        return self._log_product(logs, self._forward)

    def log_apply_adjoint(self, logs: Array) -> Array:
        """``log(K^T exp(logs))``, accurate to rounding; entries may be ``-inf``."""
        return self._log_product(logs, self._adjoint)

    def __post_init__(self) -> None:
        """Fill the cache now: arrays created under ``jax.jit`` must not outlive the trace."""
        self._forward  # noqa: B018

    @cached_property
    def _forward(self) -> tuple[AxisKernel, ...]:
        """The kernels of the axes, in the memory layout that suits the products."""
        *others, last = self.axes
        return (*others, last.for_last_axis())

    @property
    def _adjoint(self) -> tuple[AxisKernel, ...]:
        """The kernels of K^T."""
        return tuple(axis.adjoint for axis in self.axes)

    def _log_product(self, logs: Array, axes: tuple[AxisKernel, ...]) -> Array:
        if logs.shape[0] == 0:  # a process without samples
            return logs
        if sums_over_pairs(logs.shape[0], math.prod(logs.shape[1:])):
            return _log_apply_dense(logs, dense([a.cost for a in axes]) * (-1.0 / self.eps))
        return _log_apply(logs, axes)

    def potential_range(self) -> float:
        """A bound on the range of a potential: see the function `potential_range`."""
        return self._potential_range

    @cached_property
    def _potential_range(self) -> float:
        return potential_range(self.costs)

    def longest_path(self) -> int:
        """A bound on the number of finite costs that connect two bins of one component."""
        return math.prod(geometry_of(cost).longest_path for cost in self.costs)

    def spacing(self) -> float:
        """The largest cost, over bins and axes, from a bin to its nearest neighbour."""
        return self._spacing

    @cached_property
    def _spacing(self) -> float:
        return max(geometry_of(cost).spacing() for cost in self.costs)

    def typical_spacing(self) -> float:
        """The same with the median over bins, which a few outliers do not change."""
        return self._typical_spacing

    @cached_property
    def _typical_spacing(self) -> float:
        return max(geometry_of(cost).typical_spacing() for cost in self.costs)

    def can_reach(self, targets: Array) -> Array:
        """Bins from which some of the ``targets`` can be reached; broadcasts against them."""
        return _any_along(targets, self.axes, all_finite=self.all_finite)

    def reachable_from(self, sources: Array) -> Array:
        """Bins that can be reached from some of the ``sources``; broadcasts against them."""
        return _any_along(sources, self._adjoint, all_finite=self.all_finite)

    def product_cost(self, sources: Array, targets: Array) -> Array:
        """``<C, a b^T>`` of each sample, (N,), for finite costs."""
        xp = array_namespace(sources)
        total = xp.zeros_like(xp.reshape(sources, (sources.shape[0], -1))[:, 0])
        for axis, cost in enumerate(self.costs, start=1):
            others = tuple(k for k in range(1, sources.ndim) if k != axis)
            a, b = (xp.sum(s, axis=others) if others else s for s in (sources, targets))
            total = total + xp.sum(a * xp.matmul(b, geometry_of(cost).to_dense().mT), axis=1)
        return total


def _apply(stack: Array, axes: tuple[AxisKernel, ...]) -> Array:
    """Apply the kernel of every axis, starting with the last, which needs no batched product."""
    for axis in range(len(axes), 0, -1):
        stack = axes[axis - 1].apply(stack, axis)
    return stack


def are_finite(costs: Sequence[Any]) -> bool:
    """Whether every cost is finite."""
    return all(geometry_of(cost).all_finite for cost in costs)


def potential_range(costs: Sequence[Any]) -> float:
    """Bound: the largest finite cost, times the longest path if some are inf, over all axes."""
    all_finite, total = are_finite(costs), 0.0
    for cost in costs:
        geometry = geometry_of(cost)
        largest = float(geometry.largest)
        total += largest if all_finite else largest * float(geometry.longest_path)
    return total


def _any_along(mask: Array, axes: tuple[AxisKernel, ...], *, all_finite: bool) -> Array:
    """Whether any bin of ``mask`` is at a finite cost; (N, 1, ..., 1) if all costs are finite."""
    xp = array_namespace(mask)
    if all_finite:
        return xp.any(mask, axis=tuple(range(1, mask.ndim)), keepdims=True)
    for axis, kernel in enumerate(axes, start=1):
        mask = kernel.reaches(mask, axis)
    return mask


def _log_apply(logs: Array, axes: tuple[AxisKernel, ...]) -> Array:
    """
    Apply the kernel one axis at a time, by plain products of mantissas with separate scales.

    Entries that underflow nevertheless are recomputed by log-sum-exps.
    """
    xp = array_namespace(logs)
    exact: Array | None = logs
    mantissa, scale = from_logs(logs, 1)
    for axis, kernel in enumerate(axes, start=1):
        product, top = kernel.scaled_product(mantissa, scale, exact, axis)
        accurate = product >= smallest_sum(product.dtype, kernel.terms, xp)
        underflows = ~accurate & (top > -math.inf)
        if bool(xp.any(underflows)):
            previous = to_logs(mantissa, scale) if exact is None else exact
            exact = xp.where(accurate, xp.log(xp.where(accurate, product, 1.0)) + top, -math.inf)
            exact = _recompute(exact, underflows, previous, kernel, axis, xp)
            mantissa, scale = from_logs(exact, min(axis + 1, len(axes)))
        else:
            exact, mantissa, scale = None, product, top
    return to_logs(mantissa, scale) if exact is None else exact


def _log_apply_dense(logs: Array, exponents: Array) -> Array:
    """The same by log-sum-exps over all pairs of bins, which is faster for small samples."""
    xp = array_namespace(logs)
    flat = xp.reshape(logs, (logs.shape[0], -1))
    return xp.reshape(logsumexp(flat[:, None, :] + exponents[None, :, :], 2, xp), logs.shape)


def dense(costs: Sequence[Any]) -> Array:
    """The full cost matrix, (m, m), of a cost that is a sum over axes."""
    first, *others = (geometry_of(cost).to_dense() for cost in costs)
    xp = array_namespace(first)
    total = first
    for cost in others:
        size = total.shape[0] * cost.shape[0]
        total = xp.reshape(total[:, None, :, None] + cost[None, :, None, :], (size, size))
    return total


def _recompute(
    result: Array, mask: Array, logs: Array, kernel: AxisKernel, axis: int, xp: Namespace
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
    chunk = max(1, max(flat.shape[0], RECOMPUTED_ENTRIES) // kernel.terms)
    for start in range(0, count, chunk):
        batch = entries[start : min(start + chunk, count + padding)]
        pieces.append(logsumexp(kernel.log_terms(fibres, batch), 1, xp))
    # Not every library can assign to masked entries: take old and new ones by index instead.
    rank_in_mask = xp.cumulative_sum(xp.astype(flat_mask, entries.dtype))
    unchanged = xp.cumulative_sum(xp.ones_like(rank_in_mask)) - 1
    source = xp.where(flat_mask, rank_in_mask + (flat.shape[0] - 1), unchanged)
    flat = xp.take(xp.concat(pieces), source)
    others = tuple(s for k, s in enumerate(result.shape) if k != axis)
    return xp.moveaxis(xp.reshape(flat, (*others, n)), -1, axis)
