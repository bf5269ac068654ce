"""Connected components of bins: costs between two components are infinite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array
from wtfarray._models.tensor import apply_to_mode
from wtfarray._transport.banded import geometry_of


@dataclass(frozen=True)
class Components:
    """
    The components of a cost that is a sum over axes: products of one component per axis.

    Costs need not be symmetric, so a bin as a source of mass and the same bin as a target may
    belong to different components. Unreachable targets form components without sources.
    """

    sources: tuple[tuple[int, ...], ...]
    """For each axis, the component of each bin as a source of mass."""
    targets: tuple[tuple[int, ...], ...]
    """For each axis, the component of each bin as a target."""

    def masses(self, sources: Array, targets: Array) -> tuple[Array, Array]:
        """Masses of two stacks on each component: (N, components) each."""
        pairs = ((sources, self.sources), (targets, self.targets))
        found, expected = (_apply(stack, self._members(labels, stack)) for stack, labels in pairs)
        return found, expected

    def spread(self, numbers: Array, targets: Array) -> Array:
        """Broadcast one number per component, (N, components), to its targets, (N, ...)."""
        members = self._members(self.targets, targets)
        numbers = array_namespace(numbers).reshape(numbers, (-1, *self._counts))
        spread = _apply(numbers, [matrix.mT for matrix in members])
        return array_namespace(numbers).reshape(spread, targets.shape)

    def first_target(self, component: int) -> tuple[int, ...]:
        """The index, one number per axis, of the first target of a component."""
        labels = np.unravel_index(component, self._counts)
        return tuple(t.index(k) for t, k in zip(self.targets, labels, strict=True))

    @property
    def _counts(self) -> tuple[int, ...]:
        """Number of components of each axis."""
        pairs = zip(self.sources, self.targets, strict=True)
        return tuple(1 + max(*sources, *targets) for sources, targets in pairs)

    def _members(self, labels: tuple[tuple[int, ...], ...], like: Array) -> list[Array]:
        """Indicator matrices of the components of each axis: (components, m_k), zeros and ones."""
        xp, kind = array_namespace(like), {"dtype": like.dtype, "device": device_of(like)}
        tables = (np.equal.outer(range(n), b) for n, b in zip(self._counts, labels, strict=True))
        return [xp.asarray(table.astype(np.float64), **kind) for table in tables]


def _apply(stack: Array, matrices: list[Array]) -> Array:
    """Multiply every axis by its matrix, and flatten each sample."""
    for axis, matrix in enumerate(matrices, start=1):
        stack = apply_to_mode(stack, matrix, axis)
    return array_namespace(stack).reshape(stack, (stack.shape[0], -1))


def components_of(costs: Sequence[Any]) -> Components | None:
    """The components of the finite costs; None if there is only one."""
    labels = [geometry_of(cost).components() for cost in costs]
    if all(not sources.any() and not targets.any() for sources, targets in labels):
        return None
    sources, targets = (tuple(tuple(pair[k].tolist()) for pair in labels) for k in (0, 1))
    return Components(sources, targets)
