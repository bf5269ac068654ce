"""Anderson acceleration of many small fixed-point problems at once, one per sample."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from array_api_compat import array_namespace, is_jax_namespace
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.samples import (
    inners,
    largest,
    merge_samples,
    per_sample,
    spread,
    take_samples,
)
from wtfarray._arrays.typing import Array


@dataclass(eq=False)
class Secants:
    """
    Multisecant (type II Anderson) steps for ``g <- g + r(g)``, ``r = target - phi(g)``.

    Keeps the last ``memory`` pairs (dg, dphi) of each of N samples. ``step`` returns
    ``r + sum_i c_i (dg_i - dphi_i)`` with ``c = argmin |r - sum_i c_i dphi_i|`` in a weighted norm.
    The pairs do not depend on the target, and stay exact secants when it moves.
    """

    memory: int
    weights: Array
    """Of the norm, (N, ...); as they stay, a new pair costs one row of the Gram matrix."""
    max_step: float
    """Of accelerated steps; or a hundred times the plain one, if that is longer."""
    moves: list[Array] = field(default_factory=list)
    """dg - dphi."""
    changes: list[Array] = field(default_factory=list)
    """dphi times the weights."""
    valid: Array | None = None
    """Which samples may use each pair, (N, pairs)."""
    gram: Array | None = None
    """Products of the changes, (N, pairs, pairs)."""

    @classmethod
    def new(cls, memory: int, weights: Array, max_step: float) -> Secants:
        """
        A memory without pairs.

        JAX compiles every operation for every new shape: there it begins with all pairs, which no
        sample may use.
        """
        xp = array_namespace(weights)
        if not is_jax_namespace(xp):
            return cls(memory, weights, max_step)
        none, numbers = xp.zeros_like(weights), xp.zeros_like(per_sample(weights))
        row = xp.stack([numbers] * memory, axis=1)
        pairs = [none] * memory
        gram = xp.stack([row] * memory, axis=2)
        return cls(memory, weights, max_step, list(pairs), list(pairs), row > 0, gram)

    def add(self, move: Array, dphi: Array, valid: Array) -> None:
        """Keep a pair, ``move = dg - dphi``, for the samples in ``valid``."""
        xp = array_namespace(dphi)
        if self.valid is not None and self.gram is not None and len(self.moves) == self.memory:
            del self.moves[0], self.changes[0]
            self.valid, self.gram = self.valid[:, 1:], self.gram[:, 1:, 1:]
        self.moves.append(move)
        self.changes.append(dphi * self.weights)
        row = inners(self.changes, dphi)
        if self.valid is None or self.gram is None:
            self.valid, self.gram = valid[:, None], row[:, None, :]
            return
        self.valid = xp.concat([self.valid, valid[:, None]], axis=1)
        wider = xp.concat([self.gram, row[:, :-1, None]], axis=2)
        self.gram = xp.concat([wider, row[:, None, :]], axis=1)

    def forget(self, samples: Array) -> None:
        """Drop all pairs of the given samples, (N,) bool."""
        if self.valid is not None:
            self.valid = self.valid & ~samples[:, None]

    def of_samples(self, samples: NDArray[np.intp]) -> Secants:
        """The pairs of some samples, by their numbers."""
        valid, gram = self.valid, self.gram
        return Secants(
            self.memory,
            take_samples(self.weights, samples),
            self.max_step,
            [take_samples(move, samples) for move in self.moves],
            [take_samples(change, samples) for change in self.changes],
            None if valid is None else take_samples(valid, samples),
            None if gram is None else take_samples(gram, samples),
        )

    def merge(self, other: Secants, samples: NDArray[np.intp]) -> None:
        """Take the pairs of some samples from another memory, which holds as many or more."""
        if self.valid is None or self.gram is None or other.valid is None or other.gram is None:
            return
        # Each sample has pairs of its own: those of two need not be of the same step.
        count = len(self.moves)
        for mine, theirs in ((self.moves, other.moves), (self.changes, other.changes)):
            for k in range(-count, 0):  # one at a time, for the memory
                mine[k] = merge_samples(mine[k], theirs[k], samples)
        self.valid = merge_samples(self.valid, other.valid[:, -count:], samples)
        self.gram = merge_samples(self.gram, other.gram[:, -count:, -count:], samples)

    def step(self, residual: Array) -> Array:
        """The accelerated step of every sample; the plain one where no pair is left."""
        if self.valid is None or self.gram is None:
            return residual + 0.0
        xp = array_namespace(residual)
        count, dtype = len(self.moves), residual.dtype
        on_diagonal = xp.eye(count, dtype=dtype, device=device_of(residual))[None, :, :] > 0
        square = xp.linalg.diagonal(self.gram)
        usable = self.valid & (square > float(xp.finfo(dtype).smallest_normal))
        scale = xp.where(usable, 1.0 / xp.sqrt(xp.where(usable, square, 1.0)), 0.0)
        right = inners(self.changes, residual) * scale
        # Unit diagonal, and a ridge that rounding in the Gram matrix asks for.
        gram = self.gram * scale[:, :, None] * scale[:, None, :]
        ridge = 1e-10 if dtype == xp.float64 else 1e-5
        gram = xp.where(on_diagonal, 1.0 + ridge, gram)
        shares = xp.linalg.solve(gram, right[:, :, None])[:, :, 0] * scale
        step = residual + 0.0
        for i, move in enumerate(self.moves):
            step += move * spread(shares[:, i], move)
        longest, plain = largest(step), largest(residual)
        sane = longest <= xp.maximum(100.0 * plain, self.max_step)
        return xp.where(spread(sane, step), step, residual)
