"""
The inner problem, for a fixed model Y: value and gradient of the loss in Y.

``Phi(X, Y) = max_g <u(g), Y> - Phi*(X, u(g))``, solved sample by sample by Anderson-accelerated
Sinkhorn iterations, warm-started and with its history kept from one Y to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from array_api_compat import array_namespace

from wtfarray._arrays.samples import (
    inner,
    per_sample,
    spread,
)
from wtfarray._arrays.typing import Array
from wtfarray._transport.problem import Marginal, TransportProblem

ALLOWANCE = 400
"""Iterations they may take for it, and no more than four for each that all samples may take."""


@dataclass(frozen=True, eq=False)
class Iterate:
    """One dual point of every sample."""

    g: Array
    marginal: Marginal
    shift: Array
    """Constant that was added to each sample of g after the marginal was computed, (N,)."""
    ratio: Array
    """``log(Y exp(-g/lam) / q)``, 0 at the solution and where Y or the sample of X is 0."""
    rest: Array
    """``Y exp(-g/lam) - q``."""
    decrement: Array
    """Estimate of what the value still lacks, (N,): the residual times the next step."""
    size: Array
    """L1 norm of ``Y exp(-g/lam) - q`` a sample, (N,); inf where it has just grown."""

    def gap_bound(self, factor: float) -> Array:
        """
        Bound ``factor KL(q | s)`` from above, (N,), ``s = Y exp(-g/lam)``.

        An entry of KL(q|s) is ``s psi(d)``, ``d = log(q/s)``, ``psi(d) <= max(1, e^d) d^2 / 2``.
        """
        xp = array_namespace(self.g)
        larger = xp.abs(self.rest)  # q + |s - q| is no less than q and s
        larger += self.marginal.q
        larger *= self.ratio
        return inner(self.ratio, larger) * (0.5 * factor)


class InnerSolver(Protocol):
    """What solves the inner problem, for one Y after the other."""

    problem: TransportProblem
    g: Array
    """Where the next solve starts."""
    goes_on: bool
    """Whether that is where the last solve ended."""
    evaluations: int

    def iterates(
        self, Y: Array, tolerance: float = 0.0, max_iter: int = ALLOWANCE
    ) -> Iterator[Iterate]:
        """
        The iterates for this Y, without end; `g` is where to go on from the last one.

        The error that is looked for and how many iterates will be asked for, if that is known.
        """
        ...


def reach(problem: TransportProblem) -> float:
    """How far the solution may be: as potentials vary, and lam times the log of what is off."""
    lam = 0.0 if problem.conserves_mass else problem.lam
    return 3.0 * problem.kernel.longest_way() + 20.0 * lam


def translation(
    problem: TransportProblem, g: Array, Y: Array, live: Array | None
) -> tuple[Array, Array]:
    """
    The best constant to add to g in each sample, (N,): it is known, for q does not feel it.

    Also ``Y exp(-g/lam)`` after that, 0 where not ``live``.
    """
    xp = array_namespace(g)
    lam, mass = problem.lam, problem.mass
    axes = tuple(range(1, g.ndim))
    if live is not None:
        g = xp.where(live, g, math.inf)
    low = xp.min(g, axis=axes, keepdims=True)
    low = xp.where(low < math.inf, low, 0.0)
    shrunk = Y * xp.exp((low - g) * (1.0 / lam))
    total = per_sample(shrunk)
    total = xp.where(mass > 0, total / xp.where(mass > 0, mass, 1.0), 1.0)
    shift = xp.log(total) * lam - xp.reshape(low, (-1,))
    shrunk /= spread(total, shrunk)
    return xp.where(mass > 0, shift, 0.0), shrunk


def solve_to_gap(
    solver: InnerSolver, Y: Array, allowed: Callable[[float], float], max_iter: int
) -> tuple[Array, int]:
    """
    Iterate until the duality gap is at most ``allowed(value)``.

    Returns g and the number of iterations.
    """
    xp = array_namespace(Y)
    problem = solver.problem
    # Balanced: eps KL(q|Y), the order of the value's error; the rounded gap is larger.
    factor = problem.kernel.eps if problem.conserves_mass else problem.lam
    limit, check = math.inf, math.inf
    points = solver.iterates(Y, max_iter=max_iter)
    for n in range(1, max_iter + 1):
        point = next(points)
        g, size = point.g, float(xp.sum(point.gap_bound(factor)))
        del point  # what it holds is not needed while the next one is computed
        if size <= min(limit, check) or n % 100 == 0 or n == max_iter:
            values, gaps, _ = problem.bounds(g, Y)
            gap, limit = float(xp.sum(gaps)), allowed(float(xp.sum(values)))
            if gap <= limit or n == max_iter:
                return g, n
            # The rounded gap falls like the root of the size: look again when it should do.
            check = size * (min(0.5, (limit / gap) ** 2) if gap < math.inf else 0.1)
    raise AssertionError  # the iterates do not end
