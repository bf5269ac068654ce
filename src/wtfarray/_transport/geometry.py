"""
Geometries of one axis: the cost between its bins, and the Gibbs kernel of that cost.

`Geometry` is a cost, `AxisKernel` its kernel for one eps, which acts along one axis of a stack.
Solvers see neither: `GibbsKernel` in `kernels` combines the kernels of all axes. Here are dense
costs; `banded` holds regular axes with a limited reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import keeps_both_layouts
from wtfarray._models.tensor import apply_to_mode
from wtfarray._transport.logarithms import from_logs, logsumexp, to_logs

Labels = tuple[NDArray[np.intp], NDArray[np.intp]]
"""The connected components of the bins of an axis: as sources of mass, and as targets."""


class Geometry(Protocol):
    """The cost between the bins of one axis; ``inf`` forbids transport between two bins."""

    @property
    def all_finite(self) -> bool:
        """Whether mass can be transported between any two bins."""

    @property
    def largest(self) -> Array:
        """The largest finite cost, ()."""

    @property
    def longest_path(self) -> int:
        """A bound on the number of finite costs that connect two bins of one component."""

    def mean(self) -> float:
        """The mean of the finite costs."""

    def spacing(self) -> float:
        """The largest cost from a bin to its nearest neighbour."""

    def typical_spacing(self) -> float:
        """The median, over bins, of the cost to the nearest neighbour: `spacing` on a grid."""

    def components(self) -> Labels:
        """The connected components of the bins."""

    def to_dense(self) -> Array:
        """The cost matrix, (n, n)."""

    def kernel(self, eps: Any) -> AxisKernel:
        """The kernel ``exp(-C/eps)``."""


class AxisKernel(Protocol):
    """
    The Gibbs kernel K of one axis, which acts on all fibres of a stack along that axis.

    Products in the log domain are taken of mantissas, with a separate scale for each group of bins
    so that mantissas are at most 1. Where a product underflows nevertheless, single entries are
    recomputed as log-sum-exps.
    """

    @property
    def cost(self) -> Any:
        """The cost as `Wasserstein` holds it."""

    @property
    def adjoint(self) -> AxisKernel:
        """The kernel of the transposed cost."""

    @property
    def terms(self) -> int:
        """The largest number of bins from which mass can arrive at one bin."""

    @property
    def entries(self) -> int:
        """The number of entries of the matrices that an application reads."""

    def for_last_axis(self) -> AxisKernel:
        """The same kernel in the memory layout that suits the last axis of a stack."""

    def apply(self, stack: Array, axis: int) -> Array:
        """``K f`` of every fibre f, by plain products."""

    def scaled_product(
        self, mantissa: Array, scale: Array, logs: Array | None, axis: int
    ) -> tuple[Array, Array]:
        """
        Mantissa and scale of ``K f``, from those of every fibre f.

        ``logs`` are the logarithms of f where mantissas may have underflowed, else None.
        """

    def product_of_logs(self, logs: Array, axis: int) -> tuple[Array, Array]:
        """The same from the logarithms of f, without a decision on the host."""

    def log_terms(self, fibres: Array, entries: Array) -> Array:
        """The logarithms whose sums are some entries of ``K f``: (F, n) and (E,) to (E, terms)."""

    def log_sums(self, logs: Array, axis: int, mapped: Callable[..., Array]) -> Array:
        """``log K f`` by log-sum-exps; ``mapped(function, items)`` is a loop over bins."""

    def reaches(self, mask: Array, axis: int) -> Array:
        """Whether some bin of ``mask``, bool, is at a finite cost, for every bin of the axis."""


@dataclass(frozen=True, eq=False, repr=False)
class DenseGeometry:
    """A cost matrix, (n, n)."""

    cost: Array

    @property
    def all_finite(self) -> bool:
        """Whether mass can be transported between any two bins."""
        return bool(_all_finite(self.cost))

    @property
    def largest(self) -> Array:
        """The largest finite cost, ()."""
        return _largest_finite(self.cost)

    @property
    def longest_path(self) -> int:
        """A bound on the number of finite costs that connect two bins: through all others."""
        bins: int = self.cost.shape[0]
        return bins

    def mean(self) -> float:
        """The mean of the finite costs."""
        count, total = to_host(_count_and_sum(self.cost)).tolist()
        return float(total / count)

    def spacing(self) -> float:
        """The largest cost from a bin to its nearest neighbour."""
        return float(self._nearest().max(initial=0.0))

    def typical_spacing(self) -> float:
        """The median of the costs from a bin to its nearest neighbour."""
        nearest = np.sort(self._nearest())
        # Of an even number the larger of both, a cost that occurs.
        return float(nearest[nearest.size // 2]) if nearest.size else 0.0

    def _nearest(self) -> NDArray[Any]:
        """The finite costs from a bin to its nearest neighbour."""
        cost = to_host(self.cost)
        others = np.where(np.isfinite(cost) & ~np.eye(len(cost), dtype=bool), cost, math.inf)
        nearest = others.min(axis=1)
        finite: NDArray[Any] = nearest[np.isfinite(nearest)]
        return finite

    def components(self) -> Labels:
        """The connected components of the bins, by breadth-first search."""
        finite = np.isfinite(to_host(self.cost))
        rows, columns = (np.full(n, -1, dtype=np.intp) for n in finite.shape)
        count = 0
        for first in range(rows.size):
            if rows[first] >= 0:
                continue
            rows[first], frontier = count, np.asarray([first])
            while frontier.size:
                reached = finite[frontier].any(axis=0) & (columns < 0)
                columns[reached] = count
                frontier = np.flatnonzero(finite[:, reached].any(axis=1) & (rows < 0))
                rows[frontier] = count
            count += 1
        columns[columns < 0] = count
        return rows, columns

    def to_dense(self) -> Array:
        """The cost matrix itself."""
        return self.cost

    def kernel(self, eps: Any) -> DenseKernel:
        """The matrix ``exp(-C/eps)``."""
        return DenseKernel(self.cost, eps, _gibbs(self.cost, eps))


@dataclass(frozen=True, eq=False, repr=False)
class DenseKernel:
    """A kernel matrix, (n, n): ``n`` multiplications per bin."""

    cost: Array
    eps: Any
    """A number; under ``jax.jit`` it may be traced."""
    matrix: Array

    @property
    def adjoint(self) -> DenseKernel:
        """The transposed matrix."""
        return DenseKernel(self.cost.mT, self.eps, self.matrix.mT)

    @property
    def terms(self) -> int:
        """The number of bins."""
        bins: int = self.cost.shape[0]
        return bins

    @property
    def entries(self) -> int:
        """The number of entries of the matrix."""
        return self.terms**2

    def for_last_axis(self) -> DenseKernel:
        """
        The last axis is multiplied from the right by the transpose of its matrix.

        If that is small, it is stored in C order, for which BLAS is one and a half times as fast.
        """
        if not keeps_both_layouts(self.matrix.shape[0]):
            return self
        return replace(self, matrix=_transposed_layout(self.matrix))

    def apply(self, stack: Array, axis: int) -> Array:
        """``K f`` of every fibre f, by plain products."""
        return apply_to_mode(stack, self.matrix, axis)

    def scaled_product(
        self, mantissa: Array, scale: Array, logs: Array | None, axis: int
    ) -> tuple[Array, Array]:
        """Mantissa and scale of ``K f``, with one scale per fibre."""
        del logs  # what underflows is found, and recomputed from them
        fibres, top = _one_scale_per_fibre(mantissa, scale, axis)
        return apply_to_mode(fibres, self.matrix, axis), top

    def product_of_logs(self, logs: Array, axis: int) -> tuple[Array, Array]:
        """The same from the logarithms of f, without a decision on the host."""
        mantissa, scale = from_logs(logs, axis)
        return apply_to_mode(mantissa, self.matrix, axis), scale

    def log_terms(self, fibres: Array, entries: Array) -> Array:
        """The logarithms whose sums are some entries of ``K f``: (F, n) and (E,) to (E, n)."""
        xp, n = array_namespace(fibres), self.terms
        exponents = xp.take(self.cost, entries % n, axis=0) * (-1.0 / self.eps)
        return xp.take(fibres, entries // n, axis=0) + exponents

    def log_sums(self, logs: Array, axis: int, mapped: Callable[..., Array]) -> Array:
        """Log-sum-exps, one row of the cost at a time: no temporary is larger than the stack."""
        xp = array_namespace(logs)
        shape = (-1,) + (1,) * (logs.ndim - axis - 1)
        rows = mapped(
            lambda row: logsumexp(logs + xp.reshape(row, shape), axis, xp),
            self.cost * (-1.0 / self.eps),
        )
        return xp.moveaxis(rows, 0, axis)

    def reaches(self, mask: Array, axis: int) -> Array:
        """Whether some bin of ``mask``, bool, is at a finite cost, for every bin of the axis."""
        xp = array_namespace(mask)
        finite = xp.astype(xp.isfinite(self.cost), self.cost.dtype)
        return apply_to_mode(xp.astype(mask, finite.dtype), finite, axis) > 0


@compiled()
def _all_finite(cost: Array) -> Array:
    xp = array_namespace(cost)
    return xp.all(xp.isfinite(cost))


@compiled()
def _largest_finite(cost: Array) -> Array:
    xp = array_namespace(cost)
    return xp.max(xp.where(xp.isfinite(cost), cost, 0.0))


@compiled()
def _count_and_sum(cost: Array) -> Array:
    """The number of finite costs and their sum, (2,)."""
    xp = array_namespace(cost)
    finite = xp.isfinite(cost)
    count = xp.sum(xp.astype(finite, cost.dtype))
    return xp.stack([count, xp.sum(xp.where(finite, cost, 0.0))])


@compiled()
def _gibbs(cost: Array, eps: Any) -> Array:
    """``exp(-C/eps)``."""
    return array_namespace(cost).exp(cost * (-1.0 / eps))


@compiled()
def _transposed_layout(matrix: Array) -> Array:
    """The same matrix, in memory column by column."""
    xp = array_namespace(matrix)
    return xp.reshape(xp.reshape(matrix.mT, (-1,)), matrix.shape).mT


def _one_scale_per_fibre(mantissa: Array, scale: Array, axis: int) -> tuple[Array, Array]:
    """Make the scale constant along one axis, and the maximum of the mantissa 1 in each fibre."""
    xp = array_namespace(mantissa)
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
