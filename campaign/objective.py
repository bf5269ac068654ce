"""The objective of a fit, evaluated apart from the library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from campaign import oracle
from campaign.backends import to_numpy
from campaign.problems import TransportLoss


@dataclass
class Objective:
    """The objective of a fit, evaluated apart from the library."""

    X: np.ndarray
    parts: list[Any]
    """A `TransportLoss` each, or the name of another loss."""
    rho: tuple[float, ...]
    sample_weight: np.ndarray | None = None
    references: tuple[float, ...] = ()
    """What the entropy of each block is relative to; empty for ones."""

    def loss(self, Y: np.ndarray) -> oracle.Interval:
        """The loss of a model tensor."""
        total = oracle.NOTHING
        X, weights = self.X.astype(oracle.LONG), self.sample_weight
        for part in self.parts:
            if isinstance(part, TransportLoss):
                total += oracle.transport(
                    X, Y, part.costs, part.groups, part.eps, part.lam, weights
                )
                continue
            w = np.ones(len(X)) if weights is None else weights.astype(float)
            x, y = X.reshape(len(X), -1), Y.reshape(len(X), -1)
            if part == "Frobenius":
                value = float(np.sum(w[:, None] * (x - y) ** 2)) / 2
                size = float(np.sum(w[:, None] * (x**2 + y**2)))
            else:
                terms = [float(oracle.kullback_leibler(a, b)) for a, b in zip(x, y, strict=True)]
                value = float(np.sum(np.where(w > 0, w, 0) * np.where(w > 0, terms, 0)))
                logs = np.abs(np.log(np.where(x > 0, x, 1))) + np.abs(np.log(np.where(y > 0, y, 1)))
                size = float(np.sum(w[:, None] * (x * (logs + 1) + y)))
            total += oracle.Interval(value, value, size)
        return total

    def entropies(self, blocks: list[np.ndarray]) -> oracle.Interval:
        """``sum rho <A, log(A / s) - 1>``."""
        total = oracle.NOTHING
        references = self.references or (1.0,) * len(self.rho)
        for rho, s, block in zip(self.rho, references, blocks, strict=True):
            a = np.asarray(block, oracle.LONG) / s
            value = rho * s * oracle.entropy(a)
            size = s * float(np.sum(a * (np.abs(np.log(np.where(a > 0, a, 1))) + 1)))
            total += oracle.Interval(value, value, rho * size)
        return total

    def of(self, fit: Any) -> oracle.Interval:
        """The objective of a fit, from its factors."""
        factors = [to_numpy(factor) for factor in fit.factors]
        core = None if fit.core is None else to_numpy(fit.core)
        weights = None if fit.weights is None else to_numpy(fit.weights)
        Y = oracle.model(factors, core, weights).reshape(self.X.shape)
        blocks = [*factors]
        if core is not None:
            blocks.append(core)
        elif len(self.rho) > len(factors) and weights is not None:
            blocks.append(weights / weights.sum())
        return self.loss(Y) + self.entropies(blocks)

    @property
    def floor(self) -> float:
        """What stands in for an objective that happens to be close to zero."""
        eps = min((p.eps for p in self.parts if isinstance(p, TransportLoss)), default=0.0)
        return float(eps * self.X.astype(float).sum())
