"""One dual point of every sample, and what a solver of the inner problem offers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from array_api_compat import array_namespace

from wtfarray._arrays.samples import inner, per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._transport.problem import Marginal, TransportProblem


@dataclass(frozen=True, eq=False)
class Iterate:
    """A potential of every sample, and what is known there."""

    g: Array
    marginal: Marginal
    shift: Array
    """Constant that was added to each sample of g after the marginal was computed, (N,)."""
    log_ratio: Array
    """``log(Y exp(-g/lam) / q)``, 0 at the solution and where Y or the sample of X is 0."""
    gradient: Array
    """``Y exp(-g/lam) - q``, that of the dual value in g."""
    decrement: Array
    """Estimate of what the dual value still lacks, (N,): the gradient times the next step."""
    size: Array
    """L1 norm of the gradient, (N,); inf where it has just grown."""

    def gap_bound(self, factor: float) -> Array:
        """
        Bound ``factor KL(q | s)`` from above, (N,), ``s = Y exp(-g/lam)``.

        An entry of KL(q|s) is ``s psi(d)``, ``d = log(q/s)``, ``psi(d) <= max(1, e^d) d^2 / 2``.
        """
        xp = array_namespace(self.g)
        larger = xp.abs(self.gradient)  # q + |s - q| is no less than q and s
        larger += self.marginal.q
        larger *= self.log_ratio
        return inner(self.log_ratio, larger) * (0.5 * factor)


class InnerSolver(Protocol):
    """Solves the inner problem, for one model Y after the other."""

    problem: TransportProblem
    g: Array
    """Where the next solve starts."""
    continues: bool
    """Whether that is where the last solve ended."""
    evaluations: int

    def iterates(
        self, Y: Array, tolerance: float = 0.0, max_iter: int | None = None
    ) -> Iterator[Iterate]:
        """
        The iterates for this Y, without end; `g` is where to go on from the last one.

        ``tolerance`` and ``max_iter`` are the error that is wanted and the number of iterates that
        will be asked for, if they are known.
        """
        ...


def search_radius(problem: TransportProblem) -> float:
    """How far the solution may be: the range of potentials, and lam times a large log ratio."""
    lam = 0.0 if problem.conserves_mass else problem.lam
    return 3.0 * problem.kernel.potential_range() + 20.0 * lam


def translation(
    problem: TransportProblem, g: Array, Y: Array, live: Array | None
) -> tuple[Array, Array]:
    """
    The best constant to add to g in each sample, (N,), in closed form: q does not depend on it.

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
