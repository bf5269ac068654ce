"""
Regular axes with a limited reach: a banded cost, one number per distance, that is never formed.

The axis is divided into blocks of at least the reach. Mass moves within a block or to one of its
neighbours, and the kernel is the same everywhere: one application is three products of all blocks
with two fixed matrices, the second of which is used once more transposed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array, Namespace
from wtfarray._dispatch import band_blocks
from wtfarray._transport.geometry import AxisKernel, DenseGeometry, Geometry, Labels
from wtfarray._transport.logarithms import from_logs, logsumexp, to_logs


@dataclass(frozen=True, eq=False)
class BandedCost:
    """
    The cost of a regular axis between bins within reach; `grid_cost` makes it if given ``reach``.

    The cost from bin i to bin j is ``steps[|i - j|]``, and infinite beyond the last step. It takes
    the place of an (n, n) matrix in `Wasserstein`, and neither this nor its kernel is formed: a
    kernel application takes about ``3 w`` multiplications per bin for a reach of w bins.

    Parameters
    ----------
    steps : array (w + 1,)
        The cost at the distances 0, 1, ..., w, in bins; w is less than ``bins - 1``.
    bins : int
        The number of bins, n.

    Examples
    --------
    >>> import wtfarray as wtf
    >>> (cost,) = wtf.grid_cost(4, scale=None, reach=1.0)
    >>> cost
    BandedCost(4 bins, reach of 1)
    >>> cost.to_dense()
    array([[ 0.,  1., inf, inf],
           [ 1.,  0.,  1., inf],
           [inf,  1.,  0.,  1.],
           [inf, inf,  1.,  0.]])
    """

    steps: Array
    bins: int

    def __repr__(self) -> str:
        """Number of bins, and the reach in bins."""
        return f"BandedCost({self.bins} bins, reach of {self.reach})"

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix that is not formed, (n, n)."""
        return self.bins, self.bins

    @property
    def reach(self) -> int:
        """The largest distance of transport, in bins."""
        return int(self.steps.shape[0]) - 1

    @property
    def all_finite(self) -> bool:
        """Whether mass can be transported between any two bins."""
        return self.reach >= self.bins - 1

    @property
    def largest(self) -> Array:
        """The largest finite cost, ()."""
        return array_namespace(self.steps).max(self.steps)

    @property
    def longest_path(self) -> int:
        """A bound on the number of finite costs that connect two bins, to and fro."""
        return 2 * -(-self.bins // max(1, self.reach)) + 1

    def mean(self) -> float:
        """The mean of the finite costs."""
        xp = array_namespace(self.steps)
        pairs = 2.0 * (self.bins - np.arange(self.reach + 1))
        pairs[0] = self.bins
        weights = xp.asarray(pairs, dtype=self.steps.dtype, device=device_of(self.steps))
        return float(xp.sum(self.steps * weights)) / float(pairs.sum())

    def spacing(self) -> float:
        """The cost from a bin to its neighbour."""
        return float(self.steps[1]) if self.reach else 0.0

    def typical_spacing(self) -> float:
        """The same: the axis is regular."""
        return self.spacing()

    def components(self) -> Labels:
        """The connected components of the bins: all bins, or each bin on its own."""
        labels = np.arange(self.bins) * (self.reach == 0)
        return labels, labels

    def to_dense(self) -> Array:
        """The cost matrix, (n, n), with inf beyond the reach."""
        return _toeplitz(self.steps, self.bins, self.bins, 0, math.inf)

    def kernel(self, eps: Any) -> BandedKernel:
        """The two matrices that act on blocks of bins."""
        xp = array_namespace(self.steps)
        exponents = self.steps * (-1.0 / eps)
        blocks = band_blocks(self.bins, self.reach)
        size = -(-self.bins // blocks)
        weights = xp.exp(exponents)
        within = _toeplitz(weights, size, size, 0, 0.0)
        across = _toeplitz(weights, size, size, size, 0.0) if blocks > 1 else None
        both = xp.concat([xp.flip(exponents[1:]), exponents])
        return BandedKernel(self, blocks, both, within, across)


def _toeplitz(steps: Array, rows: int, columns: int, ahead: int, beyond: float) -> Array:
    """The matrix ``steps[|ahead + i - j|]``, ``beyond`` the last step."""
    xp = array_namespace(steps)
    distance = np.abs(ahead + np.subtract.outer(np.arange(rows), np.arange(columns)))
    distance = np.minimum(distance, steps.shape[0])
    padded = xp.concat([steps, xp.full_like(steps[:1], beyond)])
    index = xp.asarray(distance.reshape(-1), device=device_of(steps))
    return xp.reshape(xp.take(padded, index), (rows, columns))


@dataclass(frozen=True, eq=False, repr=False)
class BandedKernel:
    """
    The kernel of a `BandedCost`, on blocks of b bins: ``3 b`` multiplications per bin.

    Block k of ``K f`` is ``within f_k + across f_{k-1} + across^T f_{k+1}``.
    """

    cost: BandedCost
    blocks: int
    exponents: Array
    """-C/eps at the distances -w, ..., w, (2 w + 1,)."""
    within: Array
    """The kernel between the bins of a block, (b, b)."""
    across: Array | None = field(default=None)
    """The kernel from a block to the next, (b, b); None for a single block."""

    @property
    def adjoint(self) -> BandedKernel:
        """The kernel itself, which is symmetric."""
        return self

    @property
    def terms(self) -> int:
        """The number of bins within reach."""
        return 2 * self.cost.reach + 1

    @property
    def entries(self) -> int:
        """The number of entries of the two matrices."""
        size: int = self.within.shape[0]
        return 2 * size**2

    def for_last_axis(self) -> BandedKernel:
        """The kernel itself: all products are taken along the last axis."""
        return self

    def apply(self, stack: Array, axis: int) -> Array:
        """``K f`` of every fibre f, by plain products."""
        xp = array_namespace(stack)
        blocks = self._to_blocks(stack, axis, 0.0)
        product = xp.matmul(blocks, self.within)
        if self.across is not None:
            product = product + _moved(xp.matmul(blocks, self.across.mT), 1, 0.0, xp)
            product = product + _moved(xp.matmul(blocks, self.across), -1, 0.0, xp)
        return self._from_blocks(product, axis)

    def scaled_product(
        self, mantissa: Array, scale: Array, logs: Array | None, axis: int
    ) -> tuple[Array, Array]:
        """Mantissa and scale of ``K f``, with one scale per block."""
        return self.product_of_logs(to_logs(mantissa, scale) if logs is None else logs, axis)

    def product_of_logs(self, logs: Array, axis: int) -> tuple[Array, Array]:
        """
        The same from the logarithms of f.

        Each block has its own scale, and the three products are brought to the largest of theirs.
        The scale is -inf at bins which no mass can reach.
        """
        xp = array_namespace(logs)
        blocks = self._to_blocks(logs, axis, -math.inf)
        mantissa, scale = from_logs(blocks, -1)
        product, top = xp.matmul(mantissa, self.within), scale
        if self.across is not None:
            before, after = (_moved(scale, step, -math.inf, xp) for step in (1, -1))
            top = xp.maximum(xp.maximum(before, scale), after)
            largest = xp.where(top > -math.inf, top, 0.0)
            below = _moved(xp.matmul(mantissa, self.across.mT), 1, 0.0, xp)
            above = _moved(xp.matmul(mantissa, self.across), -1, 0.0, xp)
            product = product * xp.exp(scale - largest)
            product = product + below * xp.exp(before - largest) + above * xp.exp(after - largest)
        top = self._from_blocks(xp.broadcast_to(top, product.shape), axis)
        top = xp.where(self.reaches(logs > -math.inf, axis), top, -math.inf)
        return self._from_blocks(product, axis), top

    def log_terms(self, fibres: Array, entries: Array) -> Array:
        """The logarithms whose sums are some entries of ``K f``: (F, n) and (E,) to (E, terms)."""
        xp, n, reach = array_namespace(fibres), self.cost.bins, self.cost.reach
        padded = _padded(fibres, reach, -math.inf, xp)
        first = (entries // n) * padded.shape[1] + entries % n
        window = xp.arange(self.terms, dtype=entries.dtype, device=device_of(entries))
        index = xp.reshape(first[:, None] + window[None, :], (-1,))
        found = xp.take(xp.reshape(padded, (-1,)), index)
        return xp.reshape(found, (-1, self.terms)) + self.exponents[None, :]

    def log_sums(self, logs: Array, axis: int, mapped: Callable[..., Array]) -> Array:
        """Log-sum-exps, one bin of all fibres at a time."""
        xp = array_namespace(logs)
        padded = _padded(xp.moveaxis(logs, axis, -1), self.cost.reach, -math.inf, xp)
        device = device_of(logs)
        window = xp.arange(self.terms, device=device)
        bins = mapped(
            lambda i: logsumexp(xp.take(padded, window + i, axis=-1) + self.exponents, -1, xp),
            xp.arange(self.cost.bins, device=device),
        )
        return xp.moveaxis(bins, 0, axis)

    def reaches(self, mask: Array, axis: int) -> Array:
        """Whether some bin of ``mask``, bool, is within reach, for every bin of the axis."""
        xp, n, reach = array_namespace(mask), self.cost.bins, self.cost.reach
        moved = xp.moveaxis(mask, axis, -1)
        if moved.shape[-1] == 1:
            moved = xp.broadcast_to(moved, (*moved.shape[:-1], n))
        count = xp.cumulative_sum(xp.astype(moved, xp.int64), axis=-1, include_initial=True)
        bins = np.arange(n)
        after, before = (
            xp.take(count, xp.asarray(index, device=device_of(mask)), axis=-1)
            for index in (np.minimum(bins + reach + 1, n), np.maximum(bins - reach, 0))
        )
        return xp.moveaxis(after > before, -1, axis)

    def _to_blocks(self, stack: Array, axis: int, padding: float) -> Array:
        """The axis moved to the end and divided into blocks: (..., n) to (..., blocks, b)."""
        xp = array_namespace(stack)
        stack = xp.moveaxis(stack, axis, -1)
        others, size = tuple(stack.shape[:-1]), self.within.shape[0]
        missing = self.blocks * size - self.cost.bins
        if missing:
            kind = {"dtype": stack.dtype, "device": device_of(stack)}
            stack = xp.concat([stack, xp.full((*others, missing), padding, **kind)], axis=-1)
        return xp.reshape(stack, (*others, self.blocks, size))

    def _from_blocks(self, blocks: Array, axis: int) -> Array:
        """The inverse of `_to_blocks`."""
        xp = array_namespace(blocks)
        stack = xp.reshape(blocks, (*blocks.shape[:-2], -1))
        return xp.moveaxis(stack[..., : self.cost.bins], -1, axis)


def _moved(blocks: Array, step: int, padding: float, xp: Namespace) -> Array:
    """Blocks (..., blocks, b) moved by one, to the next or from it; ``padding`` at the end."""
    edge = xp.full_like(blocks[..., :1, :], padding)
    pair = [edge, blocks[..., :-1, :]] if step > 0 else [blocks[..., 1:, :], edge]
    return xp.concat(pair, axis=-2)


def _padded(fibres: Array, width: int, padding: float, xp: Namespace) -> Array:
    """Fibres (..., n) with ``width`` more entries at both ends."""
    kind = {"dtype": fibres.dtype, "device": device_of(fibres)}
    edge = xp.full((*fibres.shape[:-1], width), padding, **kind)
    return xp.concat([edge, fibres, edge], axis=-1)


def geometry_of(cost: Array | BandedCost) -> Geometry:
    """The geometry of an axis, from its cost as `Wasserstein` holds it."""
    return cost if isinstance(cost, BandedCost) else DenseGeometry(cost)


def map_cost(function: Callable[[Array], Array], cost: Array | BandedCost) -> Any:
    """Apply a function of arrays, such as a change of dtype, to the numbers of a cost."""
    if isinstance(cost, BandedCost):
        return BandedCost(function(cost.steps), cost.bins)
    return function(cost)


def numbers_of(cost: Array | BandedCost) -> Array:
    """The array that holds the numbers of a cost."""
    return cost.steps if isinstance(cost, BandedCost) else cost


def axis_kernel(cost: Array | BandedCost, eps: Any) -> AxisKernel:
    """The kernel of one axis."""
    return geometry_of(cost).kernel(eps)
