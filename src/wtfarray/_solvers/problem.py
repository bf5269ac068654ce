"""A factorisation problem: a model, its losses, entropies and constraints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.host import to_host
from wtfarray._arrays.masks import observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.typing import Array
from wtfarray._losses.empty_models import has_empty_sample
from wtfarray._losses.least import least_loss
from wtfarray._losses.term import Term, TermValue
from wtfarray._models.entropy import Constraint
from wtfarray._models.models import Model

CERTIFICATE_ITERATIONS = 500
"""Largest number of iterations of the inner problems for a certificate."""
ROUGH_ITERATIONS = 200
"""Iterations after which the objective is known well enough to set a tolerance on the gap."""


@dataclass(frozen=True, eq=False)
class LossValue:
    """The losses at some blocks, summed."""

    value: float | Array
    """A lower bound; an array () if it is still on the device."""
    error: float
    """Estimated error of the lower bound."""
    gap: float | Array
    """An array () if it is still on the device."""
    converged: bool
    """Whether the inner problems converged to the requested tolerance."""
    adjoints: list[Array]
    """The gradient in each block."""
    extremes: Array | None = None
    """The smallest and the largest entry of the model, (2,), of which nothing is known yet."""
    ordinary: bool = False
    """Whether the model is known to be ordinary: see `is_ordinary`."""


@dataclass(frozen=True, eq=False)
class FactorisationProblem:
    """
    ``min sum of losses(X, model(blocks)) + sum_k rho_k H(A_k|B_k)`` over the free blocks.

    The blocks are the factors in the order of the modes, then the core or the weights. Where
    entries are missing, the model is multiplied by the mask, a linear map like the model itself: a
    loss sees zeros there in X and Y, and its gradient there counts for nothing.
    """

    model: Model
    terms: list[Term]
    rho: tuple[float | Array, ...]
    """For each block a number, or an array that broadcasts against the block."""
    constraints: tuple[Constraint, ...]
    free: tuple[int, ...]
    shape: tuple[int, ...]
    """The shape of the data."""
    references: tuple[Array | None, ...] | None = None
    """The positive B_k of each block; None for ones, which make H(A|B) the entropy E(A)."""
    mask: Array | None = None
    """Bool, in the shape of the data: True where they were observed; None if everywhere."""
    shards: Shards = WHOLE
    """Which samples, the rows of the first factor, other processes hold."""
    units: tuple[float, ...] = ()
    """For each term the unit s of its data, as `unit_of` returns it; empty for ones."""

    @property
    def entries(self) -> int:
        """The number of entries of the data, on all processes."""
        return self.shards.total(self.shape[0]) * math.prod(self.shape[1:])

    def tensor(self, blocks: Sequence[Array]) -> Array:
        """The model tensor, in the shape of the data; 0 where entries are missing."""
        return _tensor(list(blocks), self.mask, self.model, shape=self.shape)

    def adjoints(self, dual: Array, blocks: Sequence[Array]) -> list[Array]:
        """The adjoints of all blocks, applied to a dual variable in the shape of the data."""
        return _adjoints(dual, list(blocks), self.mask, self.model)

    def entropy(self, blocks: Sequence[Array], k: int) -> tuple[Array, Array]:
        """``rho_k H(A_k|B_k) = <A_k, rho_k (log(A_k/B_k) - 1)>`` and its gradient in A_k."""
        reference = None if self.references is None else self.references[k]
        return entropy_and_gradient(blocks[k], self.rho[k], reference)

    def block_entropy(self, blocks: Sequence[Array], k: int) -> float:
        """``rho_k H(A_k|B_k)``, with the rows that other processes hold."""
        return self.shards.block_sums(k).numbers(float(self.entropy(blocks, k)[0]))[0]

    @property
    def scale(self) -> float:
        """A negligible error of the objective: eps times the mass."""
        return sum(term.scale for term in self.terms)

    @property
    def offset(self) -> float:
        """What the unit of the data adds to the objective: ``eps log(s) <X, 1>``, a constant."""
        return sum(t.scale * math.log(s) for t, s in zip(self.terms, self.units, strict=False))

    def least(self) -> float:
        """The smallest loss that any model could have."""
        return self.shards.sums.numbers(sum(map(least_loss, self.terms)))[0]

    def magnitude(self, value: float) -> float:
        """The size of an objective, with which its errors and decreases are compared."""
        return max(abs(value - self.offset), self.scale)

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the inner problems."""
        return sum(term.evaluations for term in self.terms)

    @property
    def work(self) -> float:
        """Time spent in the inner problems, as `Term.work`."""
        return sum(term.work for term in self.terms)

    def set_level(self, level: float) -> None:
        """Set the smoothing to ``level`` times eps."""
        for term in self.terms:
            term.set_level(level)

    def drop_history(self) -> None:
        """Drop everything but the states of the inner problems."""
        for term in self.terms:
            term.drop_history()

    def states(self) -> list[Array]:
        """The states of the inner problems."""
        return [term.state for term in self.terms]

    def restore(self, states: Sequence[Array]) -> None:
        """Restore the states of the inner problems."""
        for term, state in zip(self.terms, states, strict=True):
            term.state = state

    def evaluate(
        self,
        blocks: Sequence[Array],
        tolerance: float,
        max_iter: int,
        *,
        assumed_ordinary: bool = False,
    ) -> LossValue | None:
        """
        The losses, with an estimated error below ``tolerance`` if possible, and their adjoints.

        None where products would overflow, after a step much too long. With several processes
        also where the model of a sample is empty on one of them, and its loss infinite. If the
        model is ``assumed_ordinary``, nothing is read to find out: the caller has to check
        `LossValue.extremes` with `is_ordinary`, and that all numbers are finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            model, extremes = _tensor_and_extremes(
                list(blocks), self.mask, self.model, shape=self.shape
            )
        ordinary = assumed_ordinary
        if not assumed_ordinary:
            smallest, largest = to_host(extremes).tolist()
            outside = not largest <= _largest_entry(model)
            if self.shards.shared:
                outside = self.shards.sums.any(outside or self._has_empty_sample(model))
            if outside:
                return None
            ordinary = smallest > 0
        share = tolerance / len(self.terms)
        values = [
            term.evaluate(model, share, max_iter, ordinary=assumed_ordinary) for term in self.terms
        ]
        dual = reduce(add, (v.gradient for v in values))
        with np.errstate(over="ignore", invalid="ignore"):
            adjoints = self.adjoints(dual, blocks)
        return LossValue(
            reduce(add, (v.value for v in values)),
            sum(v.error for v in values),
            reduce(add, (v.gap for v in values)),
            all(v.converged for v in values),
            adjoints,
            extremes if assumed_ordinary else None,
            ordinary,
        )

    def _has_empty_sample(self, model: Array) -> bool:
        return any(has_empty_sample(term, model) for term in self.terms)

    def certify(
        self, blocks: Sequence[Array], share: float, iterations: int = CERTIFICATE_ITERATIONS
    ) -> TermValue:
        """The objective with a gap of at most the fraction ``share`` of it, if possible."""
        model = self.tensor(blocks)
        entropy = sum(self.block_entropy(blocks, k) for k in range(len(blocks)))
        few = min(ROUGH_ITERATIONS, iterations)
        total = math.inf
        if not (self.shards.shared and self.shards.sums.any(self._has_empty_sample(model))):
            rough = [term.evaluate(model, 0.1 * term.scale, few) for term in self.terms]
            total = float(sum(value.value + value.error for value in rough))
            (total,) = self.shards.sums.numbers(total)
        total += entropy
        allowed = share * self.magnitude(total) / len(self.terms)
        exact = [term.certify(model, allowed, iterations) for term in self.terms]
        gap, value = self.shards.sums.numbers(
            sum(value.gap for value in exact), sum(value.value for value in exact)
        )
        value += entropy
        converged = gap <= share * self.magnitude(value)
        gradient = observed(exact[0].gradient, self.mask)
        values = exact[0].values if len(exact) == 1 else None
        return TermValue(value, gap, gap, gradient, converged, values)


@compiled()
def entropy_and_gradient(
    block: Array, rho: float | Array, reference: Array | None
) -> tuple[Array, Array]:
    """``rho H(A|B) = <A, rho (log(A/B) - 1)>`` and its gradient in A."""
    xp = array_namespace(block)
    least = float(xp.finfo(block.dtype).smallest_normal)
    logs = xp.log(xp.maximum(block, least))
    if reference is not None:
        logs = logs - xp.log(reference)
    gradient = rho * logs
    excess = gradient - rho
    return xp.vecdot(xp.reshape(block, (-1,)), xp.reshape(excess, (-1,))), gradient


@compiled(static=("shape",))
def _tensor(
    blocks: list[Array], mask: Array | None, model: Model, *, shape: tuple[int, ...]
) -> Array:
    """The model tensor, in the shape of the data; 0 where entries are missing."""
    tensor = model.tensor(blocks)
    return observed(array_namespace(tensor).reshape(tensor, shape), mask)


@compiled(static=("shape",))
def _tensor_and_extremes(
    blocks: list[Array], mask: Array | None, model: Model, *, shape: tuple[int, ...]
) -> tuple[Array, Array]:
    """The model tensor, and its smallest and largest entry, (2,); ones if it has none."""
    tensor = _tensor(blocks, mask, model, shape=shape)
    xp = array_namespace(tensor)
    if not math.prod(shape):
        return tensor, xp.ones((2,), dtype=tensor.dtype, device=device_of(tensor))
    return tensor, xp.stack([xp.min(tensor), xp.max(tensor)])


def is_ordinary(smallest: float, largest: float, like: Array) -> bool:
    """Whether a model is positive everywhere, and no product with its entries overflows."""
    return smallest > 0 and largest <= _largest_entry(like)


def _largest_entry(like: Array) -> float:
    """The largest entry of a model; ``like`` is an array of its dtype."""
    return math.sqrt(float(array_namespace(like).finfo(like.dtype).max))


@compiled()
def _adjoints(dual: Array, blocks: list[Array], mask: Array | None, model: Model) -> list[Array]:
    """The adjoints of all blocks, applied to a dual variable in the shape of the data."""
    dual, shape = observed(dual, mask), model.shape(blocks)
    return model.adjoints(array_namespace(dual).reshape(dual, shape), blocks)
