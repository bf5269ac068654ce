"""
Stragglers: the few samples that need many times as many iterations as the others.

All samples are iterated together until the sum of their errors is small. If a few samples account
for nearly all of the error, only these are iterated for a while.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from array_api_compat import is_jax_array
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.samples import take_samples
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import separates_stragglers, straggler_batch
from wtfarray._transport.iterate import Iterate, Until


@dataclass(frozen=True)
class StragglerPolicy:
    """When stragglers are iterated separately, and for how long."""

    check_every: int = 8
    """Iterations of all samples between two searches for stragglers."""
    error_share: float = 0.03
    """Largest share of the error in the other samples; stragglers are solved to it as well."""
    max_share: float = 0.5
    """Largest share of stragglers; if there are more, all samples are iterated together."""
    max_padded_share: float = 0.6
    """The same after their number is rounded up to a power of two."""
    max_iter: int = 400
    """Largest number of iterations of stragglers at a time."""
    max_iter_ratio: int = 4
    """And at most this many for each iteration that the caller allows for all samples."""


POLICY = StragglerPolicy()


class Splittable(Protocol):
    """A solver that can split off some of its samples and merge them again."""

    spent: int
    """Iterations so far, including those of stragglers."""

    @property
    def sample_weights(self) -> Array | None:
        """Weights of the samples in the total error, (N,); None for equal weights."""

    def iterates(
        self,
        Y: Array,
        tolerance: float = 0.0,
        max_iter: int | None = None,
        *,
        positive: bool | None = None,
        until: Until | None = None,
    ) -> Iterator[Iterate]:
        """An infinite sequence of iterates for this Y."""

    def split(
        self, samples: NDArray[np.intp], sums: Sums = ALONE, total: int | None = None
    ) -> Self:
        """A solver of the given samples, of ``total`` on all processes, with their history."""

    def merge(self, other: Self, samples: NDArray[np.intp]) -> None:
        """Take over the state and history of the given samples from ``other``."""


class Stragglers:
    """Iterates the stragglers of a solver separately; pauses after failed attempts."""

    def __init__(self, policy: StragglerPolicy | None = None) -> None:
        self.policy = POLICY if policy is None else policy
        self._failures = 0
        """Number of consecutive failed attempts."""
        self._pause = 0
        """Number of solves to come without a search for stragglers."""

    def begin(self, Y: Array, samples: int | None = None) -> bool:
        """Whether to search for stragglers in the solve that begins, of Y or more samples."""
        samples = Y.shape[0] if samples is None else samples
        searches = separates_stragglers(samples, math.prod(Y.shape[1:])) and self._pause == 0
        self._pause = max(0, self._pause - 1)
        return searches

    def is_due(self, n: int) -> bool:
        """Whether to search for stragglers after n iterations."""
        return n % self.policy.check_every == 0

    def until_due(self, n: int) -> int:
        """How many iterations after n the next search is due."""
        return self.policy.check_every - n % self.policy.check_every

    def advance(
        self,
        solver: Splittable,
        Y: Array,
        errors: Array,
        tolerance: float,
        max_iter: int | None,
        sums: Sums = ALONE,
        samples: int | None = None,
    ) -> bool:
        """
        Iterate the stragglers separately, if there are a few, and merge them into the solver.

        ``errors`` are those of all samples, (N,). Returns False if stragglers did not converge. If
        other processes hold more of the ``samples``, all of them take part, even if they have no
        stragglers: these iterate a sample that counts for nothing.
        """
        policy = self.policy
        limit = policy.max_iter
        if max_iter is not None:
            limit = min(limit, policy.max_iter_ratio * max_iter)
        samples = Y.shape[0] if samples is None else samples
        weights = solver.sample_weights
        factors = np.ones(Y.shape[0]) if weights is None else to_host(weights)
        weighted = to_host(errors) * factors
        (error,) = sums.numbers(float(np.sum(weighted)))
        goal = max(policy.error_share * error, 0.3 * tolerance)
        (late,) = np.nonzero(weighted > goal / samples)
        late = late[:0] if sums.silent else late
        before, count = sums.place(len(late))
        if not (math.isfinite(goal) and 0 < count <= policy.max_share * samples):
            return True
        bins, compiles = math.prod(Y.shape[1:]), is_jax_array(Y)
        filled = straggler_batch(count, bins, compiles=compiles)
        if filled > policy.max_padded_share * samples:
            return True
        if not sums.shared:
            padded = np.resize(late, filled)
            separate = solver.split(padded)
        else:
            # The first ones are repeated; of these, some are here.
            padded = np.concatenate([late, late[: max(0, filled - count - before)]])
            here = sums
            if not len(padded):
                padded, here = np.zeros(1, dtype=np.intp), sums.without_samples()
            separate = solver.split(padded, here, filled)
        until = Until(goal, most=limit)
        expected_iter = limit // policy.max_iter_ratio
        chosen = take_samples(Y, padded)
        for point in separate.iterates(chosen, goal, expected_iter, until=until):
            remaining = to_host(point.decrement)[: len(late)] * factors[late]
            (error,) = sums.numbers(float(np.sum(remaining)))
            done = error <= goal
            if done or separate.spent + point.iterations >= limit:
                break
        solver.merge(separate, late)
        self._failures = 0 if done else self._failures + 1
        self._pause = 2**self._failures - 1
        return done
