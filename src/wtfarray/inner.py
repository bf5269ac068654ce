"""
The inner problem, for a fixed model Y: value and gradient of the loss in Y.

``Phi(X, Y) = max_g <u(g), Y> - Phi*(X, u(g))``, solved sample by sample by Anderson-accelerated
Sinkhorn iterations, warm-started and with its history kept from one Y to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from array_api_compat import array_namespace

from wtfarray._typing import Array
from wtfarray.anderson import Secants
from wtfarray.legendre import dual_of_free
from wtfarray.tensor import inner, per_sample, spread
from wtfarray.transport import Marginal, TransportProblem

FAR = 40.0
"""An empty sample has ``u = lam``; so it is to rounding at this multiple of lam in g."""


@dataclass(frozen=True, eq=False)
class Iterate:
    """One dual point of every sample."""

    g: Array
    marginal: Marginal
    shift: Array
    """Constant that was added to each sample of g after the marginal was computed, (N,)."""
    shrunk: Array
    """``Y exp(-g/lam)``: equal to the marginal at the solution."""
    ratio: Array
    """``log(shrunk / q)``, 0 where Y or the sample of X is."""
    step: Array
    """What will be added to g."""
    plain: Array
    """What Sinkhorn would add."""
    size: Array
    """L1 norm of shrunk - q a sample, (N,); inf where it has just grown."""

    def decrement(self) -> Array:
        """Estimate of what the value still lacks, (N,): the residual times the next step."""
        xp = array_namespace(self.g)
        rest = self.shrunk - self.marginal.q
        return xp.maximum(xp.abs(inner(rest, self.step)), xp.abs(inner(rest, self.plain)))

    def gap_bound(self, factor: float) -> Array:
        """
        Bound ``factor KL(q | shrunk)`` from above, (N,).

        An entry of KL(q|s) is ``s psi(d)``, ``d = log(q/s)``, ``psi(d) <= max(1, e^d) d^2 / 2``.
        """
        xp = array_namespace(self.g)
        larger = xp.maximum(self.marginal.q, self.shrunk)
        return inner(self.ratio * self.ratio, larger) * (0.5 * factor)


class Sinkhorn:
    """
    Solve ``g/lam + log q(g) = log Y`` in every sample, for one Y after the other.

    The plain step is ``eps lam / (lam + eps)`` times the residual of that equation (eps for
    infinite lam). Y enters only as the target, so that the secants survive a change of Y. A sample
    whose residual grows threefold goes back to its last plain step and forgets its secants.
    """

    def __init__(self, problem: TransportProblem, g: Array, memory: int = 12) -> None:
        self.problem = problem
        self.g = g
        """Where the next solve starts."""
        self.evaluations = 0
        eps, lam = problem.kernel.eps, problem.lam
        self._damp = eps if math.isinf(lam) else eps * lam / (lam + eps)
        # More pairs than unknowns would only fit the rounding.
        self._memory = max(1, min(memory, math.prod(g.shape[1:]) // 2))
        # Potentials vary no more than the cost, and lam times the logarithm of what is off.
        self._reach = 3.0 * problem.kernel.largest_cost() + (0.0 if math.isinf(lam) else 20.0 * lam)
        self._secants: Secants | None = None
        self._last: tuple[Array, Array] | None = None
        self._ahead: Array | None = None
        self._safe = False

    def iterates(self, Y: Array) -> Iterator[Iterate]:
        """The iterates for this Y, without end; `g` runs one step ahead of them."""
        xp = array_namespace(Y)
        problem, damp = self.problem, self._damp
        balanced = problem.conserves_mass
        filled = spread(problem.mass > 0, Y)
        live = (Y > 0) & filled
        # Zeros in Y and empty samples take extra passes: only where there are any.
        live = None if bool(xp.all(live)) else live
        log_Y = xp.log(Y if live is None else xp.where(live, Y, 1.0))
        if self._secants is None:
            self._secants = Secants(self._memory, Y, self._reach)
        secants = self._secants
        g = self.g
        if self._last is not None and g is self._ahead:
            # phi at the last g is known, whatever the target: a first step costs no evaluation.
            residual = log_Y * damp - self._last[1]
            if live is not None:
                residual = xp.where(live, residual, 0.0)
            g = self._last[0] + secants.step(residual)
        plain, size = g, None
        while True:
            if live is not None and not balanced:
                g = xp.where(filled, g, FAR * problem.lam)
            marginal = self._marginal(g, live, filled)
            shift, shrunk = 0.0 * problem.mass, Y
            if not balanced:
                shift, shrunk = self._translation(g, Y, live)
                g = g + spread(shift, g)
            ratio = log_Y - marginal.log_q - (0.0 if balanced else g * (1.0 / problem.lam))
            if live is not None:
                ratio = xp.where(live, ratio, 0.0)
            residual = ratio * damp
            phi = log_Y * damp - residual
            worse, size = self._growth(shrunk - marginal.q, size)
            if self._last is not None:
                secants.forget(worse)
                secants.add(g - self._last[0], phi - self._last[1], ~worse)
            self._last = (g, phi)
            step = secants.step(residual)
            self.g = self._ahead = xp.where(spread(worse, g), plain, g + step)
            plain = g + residual
            yield Iterate(g, marginal, shift, shrunk, ratio, step, residual, size)
            g = self.g
            del marginal, shrunk, ratio, residual, step, phi  # or two generations would be held

    def _marginal(self, g: Array, live: Array | None, filled: Array) -> Marginal:
        xp = array_namespace(g)
        self.evaluations += 1
        if live is not None:
            g = xp.where(live, g, xp.where(filled, -math.inf, 0.0 * g))
        marginal = self.problem.marginal(g, safe=self._safe)
        if marginal.lost is not None and bool(xp.any(marginal.lost)):
            self._safe = True
            marginal = self.problem.marginal(g, safe=True)
        return marginal

    def _translation(self, g: Array, Y: Array, live: Array | None) -> tuple[Array, Array]:
        """The best constant to add to g in each sample: it is known, for q does not feel it."""
        xp = array_namespace(g)
        lam, mass = self.problem.lam, self.problem.mass
        axes = tuple(range(1, g.ndim))
        if live is not None:
            g = xp.where(live, g, math.inf)
        low = xp.min(g, axis=axes, keepdims=True)
        low = xp.where(low < math.inf, low, 0.0)
        shrunk = Y * xp.exp((low - g) * (1.0 / lam))
        total = per_sample(shrunk)
        total = xp.where(mass > 0, total / xp.where(mass > 0, mass, 1.0), 1.0)
        shift = xp.log(total) * lam - xp.reshape(low, (-1,))
        return xp.where(mass > 0, shift, 0.0), shrunk / spread(total, shrunk)

    @staticmethod
    def _growth(rest: Array, before: Array | None) -> tuple[Array, Array]:
        """The samples whose residual grew threefold, and the residuals to compare with next."""
        xp = array_namespace(rest)
        size = per_sample(xp.abs(rest))
        if before is None:
            return size < 0, size
        worse = ~(size <= 3.0 * before)
        return worse, xp.where(worse, math.inf, size)

    def bounds(self, Y: Array, g: Array) -> tuple[Array, Array, Array]:
        """A lower bound and a duality gap of each sample, (N,) each, and the paper's u at g."""
        xp = array_namespace(Y)
        problem = self.problem
        empty = spread(problem.mass == 0, Y)
        if not problem.conserves_mass:
            g = xp.where(empty, FAR * problem.lam, g)
        allowed = (Y > 0) | empty
        masked = xp.where(allowed, g, -math.inf)
        values, q = problem.safe_conjugate(masked)
        u, _ = dual_of_free(g, problem.lam, xp)
        gap = problem.gap(masked, q, Y)
        return inner(u, Y) - values, gap, xp.where(allowed, u, -math.inf)


def solve_to_gap(
    solver: Sinkhorn, Y: Array, allowed: Callable[[float], float], max_iter: int
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
    points = solver.iterates(Y)
    for n in range(1, max_iter + 1):
        point = next(points)
        g, size = point.g, float(xp.sum(point.gap_bound(factor)))
        del point  # what it holds is not needed while the next one is computed
        if size <= min(limit, check) or n % 100 == 0 or n == max_iter:
            values, gaps, _ = solver.bounds(Y, g)
            gap, limit = float(xp.sum(gaps)), allowed(float(xp.sum(values)))
            if gap <= limit or n == max_iter:
                return g, n
            # The rounded gap falls like the root of the size: look again when it should do.
            check = size * min(0.5, (limit / gap) ** 2)
    raise AssertionError  # the iterates do not end
