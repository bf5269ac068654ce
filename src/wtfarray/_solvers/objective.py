"""The objective of a factorisation as a function of one vector, with its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.host import is_queued, to_host_together
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.shards import News
from wtfarray._arrays.sums import Sums
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import most_work
from wtfarray._models.entropy import Constraint, constrained_axes
from wtfarray._optimize.objective import Point
from wtfarray._solvers.packed import VectorLayout, blocks_and_totals, packed_gradient
from wtfarray._solvers.problem import FactorisationProblem, LossValue, is_ordinary
from wtfarray._solvers.sphere import from_sphere, pull_back, push_forward, to_sphere

STUCK_SHARE = 1e-3
"""Entries below this fraction of the mean of their group may be stuck near 0."""
RAISED_SHARE = 1e-2
"""Such entries are raised to at most this fraction of the mean."""


@compiled()
def _packed(blocks: list[Array]) -> Array:
    """The vector that represents some blocks."""
    xp = array_namespace(*blocks)
    return xp.concat([xp.reshape(to_sphere(block), (-1,)) for block in blocks])


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The objective at one point, in the variables of the spheres."""

    point: Point
    error: float
    """Estimated error of the value."""
    gap: float
    converged: bool
    """Whether the inner problems converged to the requested tolerance."""
    measured: NDArray[np.float64] | None = None
    """What the caller wanted to know of the gradient."""


Measure = Callable[[Array], Array | None]
"""Maps a gradient to an array, on the device, that is to be read with the value; or to None."""


class JointObjective:
    """The objective as a function of one vector, the free blocks in sphere variables."""

    def __init__(
        self,
        problem: FactorisationProblem,
        blocks: Sequence[Array],
        max_inner: int = 60,
        spent: float = 0.0,
    ) -> None:
        self.problem = problem
        self.max_inner = max_inner
        self.evaluations = 0
        self._work = problem.work
        """If other processes share the samples: the mean of the work of all of them."""
        self._most_work = problem.work + most_work(problem.entries) - spent
        """Of which ``spent`` was taken before, elsewhere."""
        self._blocks = list(blocks)
        self._shapes = tuple(tuple(blocks[k].shape) for k in problem.free)
        free = tuple(problem.constraints[k] for k in problem.free)
        self._layout = VectorLayout(problem.free, free, self._shapes)
        self._rho = self._layout.pack_weights(problem.rho, blocks[0])
        self._references = self._layout.pack_references(problem.references, blocks)
        fixed = [k for k in range(len(blocks)) if k not in problem.free]
        self.fixed_entropy = sum(problem.block_entropy(blocks, k) for k in fixed)
        """Entropy of the fixed blocks, included in every value."""
        self.offset = problem.offset
        """Constant by which the objective of the problem exceeds the values at this level."""
        self.sums = problem.shards.sums
        self._has_rows = self.sums.shared and 0 in problem.free
        self.shared = math.prod(self._shapes[0]) if self._has_rows else 0
        """Number of leading entries of the vector that are rows of this process alone."""
        self._news: News | None = None
        self._ordinary = False
        """Whether the last model was ordinary, and the next one is assumed to be."""

    @property
    def constant(self) -> float:
        """The part of every value that is neither a loss nor the entropy of a free block."""
        return self.fixed_entropy - self.offset

    def set_level(self, level: float) -> None:
        """Set the smoothing to ``level`` times eps."""
        self.problem.set_level(level)
        self.offset = level * self.problem.offset

    @property
    def is_exhausted(self) -> bool:
        """Whether a small problem has taken more work than is reasonable for its size."""
        return (self._work if self.sums.shared else self.problem.work) >= self._most_work

    def pack(self, blocks: Sequence[Array]) -> Array:
        """The vector that represents the free blocks."""
        return _packed([blocks[k] for k in self.problem.free])

    def blocks(self, x: Array) -> list[Array]:
        """All blocks, the free ones from a vector."""
        return self._blocks_and_totals(x)[0]

    def _blocks_and_totals(self, x: Array) -> tuple[list[Array], list[Array | None]]:
        """All blocks, and the sums of squares of those that are free: see `packed_gradient`."""
        blocks = list(self._blocks)
        if not self.sums.shared:
            free, totals = blocks_and_totals(x, layout=self._layout)
            for k, block in zip(self.problem.free, free, strict=True):
                blocks[k] = block
            return blocks, totals
        for k, p in zip(self.problem.free, self._split(x), strict=True):
            sums = self.problem.shards.block_sums(k)
            blocks[k] = from_sphere(p, self.problem.constraints[k], sums)
        return blocks, []

    def _split(self, x: Array) -> list[Array]:
        return self._layout.split(x)

    def evaluate(
        self,
        x: Array,
        tolerance: float,
        direction: Array | None = None,
        measure: Measure | None = None,
    ) -> Evaluation:
        """
        The value, with an estimated error below ``tolerance`` if possible, and the gradient.

        Where reading a number waits for the device, the model is first assumed to be as ordinary
        as the last one, which is checked with the numbers of the result. All these are read at
        once, and with them, for the caller, what ``measure`` finds of the gradient.
        """
        self.evaluations += 1
        with np.errstate(over="ignore", invalid="ignore"):
            blocks, totals = self._blocks_and_totals(x)
        arguments = (x, blocks, totals, tolerance, direction, measure)
        if self._ordinary and is_queued(x):
            states = self.problem.states()
            found = self._evaluated(*arguments, assumed_ordinary=True)
            if self._ordinary:
                return found
            self.problem.restore(states)
            self.problem.drop_history()
        return self._evaluated(*arguments, assumed_ordinary=False)

    def _evaluated(
        self,
        x: Array,
        blocks: list[Array],
        totals: list[Array | None],
        tolerance: float,
        direction: Array | None,
        measure: Measure | None,
        *,
        assumed_ordinary: bool,
    ) -> Evaluation:
        """The value and gradient; learns whether the model is ordinary."""
        losses = self.problem.evaluate(
            blocks, tolerance, self.max_inner, assumed_ordinary=assumed_ordinary
        )
        if losses is None:
            outside = Point(x, 0.0 * x, math.inf, math.inf, math.inf, math.inf)
            return Evaluation(outside, math.inf, math.inf, converged=False)
        with np.errstate(over="ignore", invalid="ignore"):
            # A gradient whose square overflows makes a point that is not finite, and is rejected.
            if self.sums.shared:
                return self._assembled_together(x, blocks, losses, direction)
            return self._assembled(x, blocks, totals, losses, direction, measure)

    def _assembled(
        self,
        x: Array,
        blocks: list[Array],
        totals: list[Array | None],
        losses: LossValue,
        direction: Array | None,
        measure: Measure | None,
    ) -> Evaluation:
        """The value and gradient in x, from those of the losses in the blocks."""
        gradient, numbers = packed_gradient(
            x,
            blocks,
            totals,
            losses.adjoints,
            direction,
            self._rho,
            self._references,
            layout=self._layout,
        )
        wanted = measure(gradient) if measure is not None and is_queued(x) else None
        on_device = [*numbers, losses.value, losses.gap]
        on_device += [a for a in (losses.extremes, wanted) if a is not None]
        norm, square, slope, entropy, value, gap, *others = to_host_together(on_device)
        value = float(value + losses.error + entropy + self.constant)
        point = Point(x, gradient, value, norm, square, slope)
        self._ordinary = losses.ordinary
        if losses.extremes is not None:
            smallest, largest = others.pop(0)
            self._ordinary = point.finite and is_ordinary(smallest, largest, x)
        measured = others[0] if others else None
        return Evaluation(point, losses.error, gap, losses.converged, measured)

    def _assembled_together(
        self, x: Array, blocks: list[Array], losses: LossValue, direction: Array | None
    ) -> Evaluation:
        """
        The same with the values and adjoints of other processes, in one message.

        The rows of the first factor belong to this process, and what they add to a sum is added
        over the processes. All other blocks are the same everywhere, and what they add is computed
        from them alone, so that every process finds the same bits.
        """
        xp = array_namespace(x)
        problem = self.problem
        adjoints = losses.adjoints
        parts, total = self._split(x), 0.0
        numbers = [
            float(losses.value),
            losses.error,
            float(losses.gap),
            float(not losses.converged),
            problem.work,
            1.0,
            *problem.shards.news(problem.evaluations),
        ]
        pulled = []
        if self._has_rows:
            entropy, gradient = problem.entropy(blocks, 0)
            gradient = adjoints[0] + gradient
            rows = pull_back(parts[0], blocks[0], gradient, problem.constraints[0], self.sums)
            pulled = [xp.reshape(rows, (-1,))]
            numbers += [float(entropy), *_square_and_slope(pulled[0], direction, 0)]
        others = [k for k in problem.free if k > 0]
        summed, numbers = self.sums.arrays([adjoints[k] for k in others], numbers)
        value, error, gap, unsolved, work, ranks, counted, interrupts, *of_rows = numbers
        self._work = work / ranks
        known = 0.0 if self._news is None else self._news.interrupts
        self._news = News(counted, known + interrupts)
        square = slope = norm = 0.0
        if self._has_rows:
            total, square, slope = of_rows
            norm = math.sqrt(square) if square >= 0 else square  # a bound on the largest entry
        value += error + self.constant
        offset = self.shared
        for k, p, adjoint in zip(others, parts[len(pulled) :], summed, strict=True):
            entropy, gradient = problem.entropy(blocks, k)
            gradient = pull_back(p, blocks[k], adjoint + gradient, problem.constraints[k])
            flat = xp.reshape(gradient, (-1,))
            more = _square_and_slope(flat, direction, offset)
            offset += flat.shape[0]
            square, slope, total = square + more[0], slope + more[1], total + float(entropy)
            norm = max(norm, float(xp.max(xp.abs(flat))))
            pulled.append(flat)
        return Evaluation(
            Point(x, xp.concat(pulled), value + total, norm, square, slope),
            error,
            gap,
            unsolved == 0,
        )

    def news(self) -> News | None:
        """
        What the processes have told each other since this was asked last.

        None if they have not evaluated the objective since, or if this process has all samples.
        """
        news, self._news = self._news, None
        return news

    def raise_interrupt(self) -> None:
        """Raise an interrupt of which the processes have told each other after the last step."""
        news = self.news()
        if news is not None and news.interrupts:
            raise KeyboardInterrupt

    def raised(self, point: Point) -> tuple[Array, float]:
        """
        The point with entries raised that are stuck near 0, and the predicted decrease.

        The gradient in p vanishes with p. An entry very close to 0 therefore hardly moves, even if
        the objective decreases in that direction. It is raised to the value at which its entropy
        balances the remaining gradient, within a bound.
        """
        xp = array_namespace(point.x)
        parts, gain = [], 0.0
        vectors = (self._split(vector) for vector in (point.x, point.gradient))
        for k, p, pulled in zip(self.problem.free, *vectors, strict=True):
            sums = self.problem.shards.block_sums(k)
            constraint, rho = self.problem.constraints[k], self.problem.rho[k]
            part, drop = _raised_block(p, pulled, rho, constraint, sums)
            gain += sums.numbers(float(drop))[0]
            parts.append(xp.reshape(part, (-1,)))
        return xp.concat(parts), gain

    def states(self) -> list[Array]:
        """The states of the inner problems."""
        return self.problem.states()

    def restore(self, states: Sequence[Array]) -> None:
        """Restore the states of the inner problems."""
        self.problem.restore(states)


@compiled(static=("constraint", "sums"))
def _raised_block(
    p: Array, pulled: Array, rho: float | Array, constraint: Constraint, sums: Sums
) -> tuple[Array, Array]:
    """The part p of a point with entries raised, and the predicted decrease, ()."""
    xp = array_namespace(p)
    block, slope = push_forward(p, pulled, constraint, sums)
    mean = sums.mean(block, constrained_axes(constraint, p.ndim))
    exponent = xp.clip(slope * (-1.0 / rho), 0.0, 40.0)
    goal = xp.minimum(block * xp.exp(exponent), RAISED_SHARE * mean)
    goal = xp.where((block < STUCK_SHARE * mean) & (goal > block), goal, block)
    factor = xp.sqrt(goal / xp.where(block > 0, block, 1.0))
    return p * factor, xp.sum((block - goal) * slope)


def _square_and_slope(gradient: Array, direction: Array | None, start: int) -> tuple[float, float]:
    """The square of a part of the gradient, and its product with that part of the direction."""
    xp = array_namespace(gradient)
    square = xp.vecdot(gradient, gradient)
    slope = 0.0 * square
    if direction is not None:
        slope = xp.vecdot(gradient, direction[start : start + gradient.shape[0]])
    return float(square), float(slope)
