"""
The free blocks in one vector of sphere variables, and the gradient in it.

What is done entry by entry is done once for the whole vector, not for one block after the other:
on small blocks the time is that of starting an operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from array_api_compat import device as device_of

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import Constraint
from wtfarray._solvers.problem import entropy_and_gradient
from wtfarray._solvers.sphere import normalised, scaled_tangent


@dataclass(frozen=True)
class VectorLayout:
    """How the free blocks lie in one vector, in sphere variables."""

    free: tuple[int, ...]
    constraints: tuple[Constraint, ...]
    """Of the free blocks."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the free blocks."""

    def split(self, x: Array) -> list[Array]:
        """The parts of a vector that belong to the free blocks, in their shapes."""
        xp = array_namespace(x)
        parts, start = [], 0
        for shape in self.shapes:
            size = math.prod(shape)
            parts.append(xp.reshape(x[start : start + size], shape))
            start += size
        return parts

    def pack(self, arrays: Sequence[Array]) -> Array:
        """One vector of the entries of those of the arrays, one for each block, that are free."""
        xp = array_namespace(*arrays)
        return xp.concat([xp.reshape(arrays[k], (-1,)) for k in self.free])

    def pack_weights(self, rho: Sequence[float | Array], like: Array) -> float | Array:
        """
        The weight of the entropy of every entry: a number if it is the same for all.

        ``rho`` has a number for each block, or an array that broadcasts against the block.
        """
        numbers = [rho[k] for k in self.free]
        if all(isinstance(r, float) and r == numbers[0] for r in numbers):
            return numbers[0]
        xp, kind = array_namespace(like), {"dtype": like.dtype, "device": device_of(like)}
        parts = (
            xp.broadcast_to(xp.asarray(r, **kind), shape)
            for r, shape in zip(numbers, self.shapes, strict=True)
        )
        return xp.concat([xp.reshape(part, (-1,)) for part in parts])

    def pack_references(
        self, references: Sequence[Array | None] | None, blocks: Sequence[Array]
    ) -> Array | None:
        """The references of the entropies, ones where a block has none; None if all have none."""
        if references is None or all(references[k] is None for k in self.free):
            return None
        xp = array_namespace(*blocks)
        known = zip(references, blocks, strict=True)
        return self.pack(
            [xp.ones_like(b) if r is None else xp.broadcast_to(r, b.shape) for r, b in known]
        )


@compiled(static=("layout",))
def blocks_and_totals(x: Array, *, layout: VectorLayout) -> tuple[list[Array], list[Array | None]]:
    """The free blocks from a vector, and the sums of its squares in every group."""
    pairs = zip(layout.split(x * x), layout.constraints, strict=True)
    blocks, totals = zip(*(normalised(squares, c) for squares, c in pairs), strict=True)
    return list(blocks), list(totals)


@compiled(static=("layout",))
def packed_gradient(
    x: Array,
    blocks: list[Array],
    totals: list[Array | None],
    adjoints: list[Array],
    direction: Array | None,
    rho: float | Array,
    references: Array | None,
    *,
    layout: VectorLayout,
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """
    The gradient in x, from that of the losses in the blocks.

    And, () each: its largest entry, its square, its product with the direction, and the entropy of
    the free blocks. ``totals`` are those of `blocks_and_totals`; ``rho`` and ``references`` are
    packed.
    """
    xp = array_namespace(x)
    packed = layout.pack(blocks)
    entropy, gradient = entropy_and_gradient(packed, rho, references)
    # Envelope theorem: at the inner solution, u is the gradient in the model tensor.
    gradient = gradient + layout.pack(adjoints)
    parts = zip(
        layout.split(gradient),
        layout.split(packed * gradient),
        totals,
        layout.constraints,
        strict=True,
    )
    tangents = [xp.reshape(scaled_tangent(*part), (-1,)) for part in parts]
    gradient = (2.0 * x) * xp.concat(tangents)
    square = xp.vecdot(gradient, gradient)
    slope = 0.0 * square if direction is None else xp.vecdot(gradient, direction)
    norm = xp.max(xp.abs(gradient))
    return gradient, (norm, square, slope, entropy)
