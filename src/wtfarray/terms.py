"""The loss of a model tensor and its gradient, as an outer solver asks for them again and again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from array_api_compat import array_namespace

from wtfarray._host import to_host
from wtfarray._typing import Array
from wtfarray.inner import Sinkhorn
from wtfarray.legendre import dual_of_free
from wtfarray.losses import stack, unstack
from wtfarray.tensor import inner
from wtfarray.transport import TransportProblem


@dataclass(frozen=True, eq=False)
class TermValue:
    """What a term knows of ``Phi(X, Y)``."""

    value: float
    """A lower bound."""
    error: float
    """What the lower bound lacks, by estimate; the value plus this has no bias."""
    gradient: Array
    """In Y, of its shape: the dual variable u."""
    converged: bool


class TransportTerm:
    """A Wasserstein loss by its inner problem, warm-started from call to call."""

    def __init__(self, problem: TransportProblem, shape: tuple[int, ...]) -> None:
        self.problem = problem
        self.shape = shape
        self.solver = Sinkhorn(problem, array_namespace(problem.data).zeros_like(problem.data))

    def set_level(self, level: float) -> None:
        """Go on with ``level`` times the smoothing; g has the units of the cost and stays."""
        problem = self.problem if level == 1.0 else self.problem.at_eps(self.problem.kernel.eps * level)
        self.solver = Sinkhorn(problem, self.solver.g)

    def evaluate(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """Solve the inner problem until the estimated error is below the tolerance."""
        xp = array_namespace(model)
        Y = stack(self.problem, model)
        problem = self.solver.problem
        mass = float(xp.sum(problem.mass))
        for n, point in enumerate(self.solver.iterates(Y), start=1):
            error, size = to_host(xp.stack([xp.sum(point.decrement()), xp.sum(point.size)]))
            done = error <= tolerance and size <= 0.1 * mass
            if done or n == max_iter:
                break
        u, _ = dual_of_free(point.g, problem.lam, xp)
        values = inner(u, Y) - problem.value(point.marginal) - problem.mass * point.shift
        gradient = unstack(self.problem, u, self.shape)
        return TermValue(float(xp.sum(values)), error, gradient, done)
