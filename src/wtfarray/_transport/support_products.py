"""
Products of a separable kernel between all bins and the support of one sparse sample.

The support is a tree: the bins of the first axis that occur, below each of them those of the second
axis that occur with it, and so on. A product follows the tree, axis by axis, and leaves out what is
zero or not needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import follows_support
from wtfarray._transport.geometry import DenseKernel
from wtfarray._transport.kernels import GibbsKernel


@dataclass(frozen=True, eq=False)
class _Layout:
    """One axis of the tree: ``parents`` nodes with at most ``width`` children each."""

    bins: NDArray[np.intp]
    """The bin of every child, (parents, width); 0 where there is none."""
    exists: NDArray[np.bool_]
    """Whether there is a child, (parents, width)."""

    @property
    def children(self) -> NDArray[np.intp]:
        """Where in ``bins``, flattened, each child is."""
        return np.flatnonzero(self.exists)

    @property
    def places(self) -> NDArray[np.intp]:
        """The number of each child, (parents, width); 0 where there is none."""
        places: NDArray[np.intp] = np.cumsum(self.exists.ravel()).reshape(self.exists.shape) - 1
        return np.where(self.exists, places, 0)


def tree_of(support: NDArray[Any], shape: tuple[int, ...]) -> list[_Layout]:
    """The axes of the tree of a support, given by sorted flat indices into an array of a shape."""
    layouts, parents = [], np.zeros(1, dtype=np.intp)
    for axis in range(len(shape)):
        nodes = np.unique(support // math.prod(shape[axis + 1 :]))
        parent = np.searchsorted(parents, nodes // shape[axis])
        counts = np.bincount(parent, minlength=parents.size)
        column = np.arange(nodes.size) - np.repeat(np.cumsum(counts) - counts, counts)
        bins = np.zeros((parents.size, int(counts.max())), dtype=np.intp)
        exists = np.zeros(bins.shape, dtype=bool)
        bins[parent, column] = nodes % shape[axis]
        exists[parent, column] = True
        layouts.append(_Layout(bins, exists))
        parents = nodes
    return layouts


@dataclass(frozen=True, eq=False)
class _Axis:
    """One axis of the tree, with the rows of its kernel matrix that the children need."""

    rows: Array
    """``K[bin of the child, :]``, (parents, width, n); 0 where there is no child."""
    children: Array
    """See `_Layout.children`."""
    places: Array
    """See `_Layout.places`."""

    def descend(self, values: Array) -> Array:
        """From (parents, n, rest) to (children, rest): the product at the bins of the children."""
        xp = array_namespace(values)
        product = xp.matmul(self.rows, values)
        flat = xp.reshape(product, (-1, values.shape[2]))
        if flat.shape[0] == self.children.shape[0]:
            return flat
        return xp.take(flat, self.children, axis=0)

    def ascend(self, values: Array) -> Array:
        """From (children, rest) to (parents, n, rest): the adjoint of `descend`."""
        xp = array_namespace(values)
        parents, width, _ = self.rows.shape
        if parents * width != values.shape[0]:
            values = xp.take(values, xp.reshape(self.places, (-1,)), axis=0)
        return xp.matmul(self.rows.mT, xp.reshape(values, (parents, width, -1)))


@dataclass(frozen=True, eq=False)
class SupportProducts:
    """The kernel of one sample on all bins (1, m_1, ..., m_t), restricted to s bins on one side."""

    axes: tuple[_Axis, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls, kernel: GibbsKernel, support: NDArray[Any], shape: tuple[int, ...]
    ) -> SupportProducts | None:
        """The products for sorted flat indices of a support; None if they would not save time."""
        matrices = [axis.matrix for axis in kernel.axes if isinstance(axis, DenseKernel)]
        if len(matrices) < len(shape):
            return None
        layouts = tree_of(support, shape)
        rests = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        rows = [layout.bins.size * n for layout, n in zip(layouts, shape, strict=True)]
        work = sum(size * rest for size, rest in zip(rows, rests, strict=True))
        entries = math.prod(shape)
        if not follows_support(work, sum(rows), entries * sum(shape), entries):
            return None
        return cls(tuple(map(_axis, layouts, matrices)), shape)

    def apply(self, stack: Array) -> Array:
        """``K F`` on the support, (1, s), for F on all bins, (1, m_1, ..., m_t)."""
        xp = array_namespace(stack)
        values = stack
        for axis, n in zip(self.axes, self.shape, strict=True):
            values = axis.descend(xp.reshape(values, (axis.rows.shape[0], n, -1)))
        return xp.reshape(values, (1, -1))

    def apply_adjoint(self, values: Array) -> Array:
        """``K^T a`` on all bins, (1, m_1, ..., m_t), for a on the support, (1, s)."""
        xp = array_namespace(values)
        values = xp.reshape(values, (-1, 1))
        for axis in self.axes[::-1]:
            values = axis.ascend(values)
            values = xp.reshape(values, (values.shape[0], -1))
        return xp.reshape(values, (1, *self.shape))


def _axis(layout: _Layout, matrix: Array) -> _Axis:
    """The rows of a kernel matrix for one axis of the tree."""
    xp = array_namespace(matrix)
    device = device_of(matrix)
    rows = xp.take(matrix, xp.asarray(layout.bins.ravel(), device=device), axis=0)
    rows = xp.reshape(rows, (*layout.bins.shape, -1))
    exists = xp.asarray(layout.exists, device=device)[:, :, None]
    return _Axis(
        xp.where(exists, rows, 0.0),
        xp.asarray(layout.children, device=device),
        xp.asarray(layout.places, device=device),
    )
