"""
Stragglers: the few samples that need many times as many iterations as the others.

All samples are iterated together until their errors add up to little. Where a few samples make up
nearly all of the error, these are iterated on their own for a while, and the others rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.samples import filled_up, take_samples
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import separates_stragglers
from wtfarray._transport.iterate import Iterate


@dataclass(frozen=True)
class StragglerPolicy:
    """When samples are iterated on their own, and for how long."""

    check_every: int = 8
    """Iterations of all samples between two looks at who is late."""
    error_share: float = 0.03
    """The share of the error that the other samples may have, and to which stragglers go down."""
    max_share: float = 0.5
    """Of the samples; if more are late, all go on together."""
    max_padded_share: float = 0.6
    """The same after their number was filled up to a power of two."""
    max_iter: int = 400
    """Iterations of stragglers at a time."""
    max_iter_ratio: int = 4
    """But at most this many for each iteration that all samples may take."""


POLICY = StragglerPolicy()


class Splittable(Protocol):
    """A solver that can hand some of its samples to another one and take them back."""

    spent: int

    @property
    def sample_weights(self) -> Array | None:
        """Of the errors of the samples, (N,); ones when absent."""

    def iterates(
        self, Y: Array, tolerance: float = 0.0, max_iter: int | None = None
    ) -> Iterator[Iterate]:
        """The iterates for this Y, without end."""

    def split(self, samples: NDArray[np.intp]) -> Self:
        """A solver of some samples, with what is known of them."""

    def merge(self, other: Self, samples: NDArray[np.intp]) -> None:
        """Take over where some samples have got to without the others."""


class Stragglers:
    """Iterates late samples of a solver on their own; pauses after attempts that failed."""

    def __init__(self, policy: StragglerPolicy | None = None) -> None:
        self.policy = POLICY if policy is None else policy
        self._failures = 0
        """In a row."""
        self._pause = 0
        """Solves for which nobody is looked for."""

    def begin(self, Y: Array) -> bool:
        """Whether stragglers are looked for in the solve that begins."""
        looks = separates_stragglers(Y.shape[0], math.prod(Y.shape[1:])) and self._pause == 0
        self._pause = max(0, self._pause - 1)
        return looks

    def is_due(self, n: int) -> bool:
        """Whether to look for stragglers after n iterations."""
        return n % self.policy.check_every == 0

    def advance(
        self,
        solver: Splittable,
        Y: Array,
        errors: Array,
        tolerance: float,
        max_iter: int | None,
    ) -> bool:
        """
        Iterate the late samples on their own, if there are a few; what is learned of them is kept.

        ``errors`` are those of all samples, (N,). False if the late ones did not converge.
        """
        policy = self.policy
        limit = policy.max_iter
        if max_iter is not None:
            limit = min(limit, policy.max_iter_ratio * max_iter)
        samples = Y.shape[0]
        weights = solver.sample_weights
        known = np.ones(samples) if weights is None else to_host(weights)
        found = to_host(errors) * known
        goal = max(policy.error_share * float(np.sum(found)), 0.3 * tolerance)
        (late,) = np.nonzero(found > goal / samples)
        if not (math.isfinite(goal) and 0 < len(late) <= policy.max_share * samples):
            return True
        some = np.resize(late, filled_up(len(late)))
        if len(some) > policy.max_padded_share * samples:
            return True
        alone = solver.split(some)
        shorter = limit // policy.max_iter_ratio
        for point in alone.iterates(take_samples(Y, some), goal, shorter):
            left = to_host(point.decrement)[: len(late)] * known[late]
            done = float(np.sum(left)) <= goal
            if done or alone.spent + 1 >= limit:
                break
        solver.merge(alone, late)
        self._failures = 0 if done else self._failures + 1
        self._pause = 2**self._failures - 1
        return done
