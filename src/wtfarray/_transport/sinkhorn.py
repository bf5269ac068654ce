"""Sinkhorn iterations with Anderson acceleration, for one model after the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.samples import (
    filled_up,
    inner,
    merge_samples,
    per_sample,
    spread,
    take_samples,
)
from wtfarray._arrays.typing import Array
from wtfarray._transport.anderson import Secants
from wtfarray._transport.inner_solver import ALLOWANCE, Iterate, reach, translation
from wtfarray._transport.problem import FAR, Marginal, TransportProblem

MANY, SHORT = 32, 256
"""Of so many samples, of no more bins, the last few go on alone; it takes memory."""
PATIENCE = 8
"""Iterations until these are looked for, again and again."""
LEFT = 0.03
"""The share of the error that the others may have, and to which they bring theirs down."""


class Sinkhorn:
    """
    Solve ``g/lam + log q(g) = log Y`` in every sample, for one Y after the other.

    The plain step is ``eps lam / (lam + eps)`` times the residual of that equation (eps for
    infinite lam). Y enters only as the target, so that the secants survive a change of Y. A sample
    whose residual grows threefold goes back to its last plain step and forgets its secants.
    """

    def __init__(
        self,
        problem: TransportProblem,
        g: Array,
        memory: int = 12,
        weights: Array | None = None,
    ) -> None:
        self.problem = problem
        self._weights = weights
        """Of the errors of the samples, (N,); ones when absent."""
        self.g = g
        """Where the next solve starts."""
        self.goes_on = False
        """Whether that is where the last solve ended."""
        self.evaluations = 0
        self._damp = problem.damping
        # More pairs than unknowns would only fit the rounding.
        self._memory = max(1, min(memory, math.prod(g.shape[1:]) // 2))
        self._reach = reach(problem)
        self._secants: Secants | None = None
        self._last: tuple[Array, Array] | None = None
        self._safe = False
        self.spent = 0
        """Iterations so far, with those of samples that went on alone."""
        self._failures = self._waits = 0
        """How often these came to no end, and for how many solves none are sent on for it."""

    def iterates(
        self, Y: Array, tolerance: float = 0.0, max_iter: int = ALLOWANCE
    ) -> Iterator[Iterate]:
        """The iterates for this Y, without end; `g` runs one step ahead of them."""
        xp = array_namespace(Y)
        problem, damp = self.problem, self._damp
        balanced = problem.conserves_mass
        live = (Y > 0) & problem.reached
        # Zeros in Y and bins that no mass can reach take extra passes: only where there are any.
        live = None if bool(xp.all(live)) else live
        log_Y = xp.log(Y if live is None else xp.where(live, Y, 1.0))
        if self._secants is None:
            self._secants = Secants(self._memory, Y, self._reach)
        secants = self._secants
        g = self.g
        if self._last is not None and self.goes_on:
            # phi at the last g is known, whatever the target: a first step costs no evaluation.
            g = self._last[0] + secants.step(self._residual(log_Y, self._last[1], live))
        size = None
        hurries = Y.shape[0] >= MANY and math.prod(Y.shape[1:]) <= SHORT and self._waits == 0
        self._waits = max(0, self._waits - 1)
        for n in itertools.count(1):
            marginal, log_q = self._marginal(g, live)
            shift, shrunk = 0.0 * problem.mass, Y
            if not balanced:
                shift, shrunk = translation(problem, g, Y, live)
                g = g + spread(shift, g)
                if live is not None:
                    g = xp.where(problem.reached, g, FAR * problem.lam)
                self.g = g
                log_q = log_q + g * (1.0 / problem.lam)
            rest = shrunk - marginal.q
            del shrunk
            phi = log_q * damp
            if live is not None:
                phi = xp.where(live, phi, 0.0)
            del log_q
            worse, size = self._growth(rest, size)
            back = self._learn(g, phi, worse, log_Y, live)
            if not problem.kernel.is_open:
                # Where ways are forbidden g may run away: no secants while most mass is astray.
                secants.forget(size > problem.mass)
            self._last = (g, phi)
            residual = self._residual(log_Y, phi, live)
            del phi
            step = secants.step(residual)
            decrement = xp.maximum(xp.abs(inner(rest, step)), xp.abs(inner(rest, residual)))
            residual *= 1.0 / damp
            step += g
            self.g = step if back is None else xp.where(spread(worse, g), back, step)
            yield Iterate(g, marginal, shift, residual, rest, decrement, size)
            del marginal, rest, residual, step, back  # or two generations would be held
            self.spent += 1
            if hurries and n % PATIENCE == 0:
                hurries = self._hurry(Y, decrement, tolerance, min(ALLOWANCE, 4 * max_iter))
            g = self.g

    def _hurry(self, Y: Array, errors: Array, tolerance: float, allowance: int) -> bool:
        """
        Let the samples that make up nearly all of the error, if they are few, go on alone.

        The others need not wait for them, and what is learned of them is kept. False if they came
        to no end.
        """
        samples = Y.shape[0]
        weights = np.ones(samples) if self._weights is None else to_host(self._weights)
        found = to_host(errors) * weights
        goal = max(LEFT * float(np.sum(found)), 0.3 * tolerance)
        (late,) = np.nonzero(found > goal / samples)
        if not (math.isfinite(goal) and 0 < len(late) <= samples // 2):
            return True
        some = np.resize(late, filled_up(len(late)))
        if len(some) > 0.6 * samples:
            return True
        solver = self._of_samples(some)
        for point in solver.iterates(take_samples(Y, some), goal, allowance // 4):
            left = to_host(point.decrement)[: len(late)] * weights[late]
            done = float(np.sum(left)) <= goal
            if done or solver.spent + 1 >= allowance:
                break
        self._merge(solver, late)
        self._failures = 0 if done else self._failures + 1
        self._waits = 2**self._failures - 1
        return done

    def _of_samples(self, some: NDArray[np.intp]) -> Sinkhorn:
        """A solver of some samples, with what is known of them."""
        weights = None if self._weights is None else take_samples(self._weights, some)
        problem = self.problem.some_samples(some)
        solver = Sinkhorn(problem, take_samples(self.g, some), self._memory, weights)
        solver._safe = self._safe
        if self._last is not None and self._secants is not None:
            g, phi = self._last
            solver._last = take_samples(g, some), take_samples(phi, some)
            solver._secants = self._secants.of_samples(some)
        return solver

    def _merge(self, solver: Sinkhorn, late: NDArray[np.intp]) -> None:
        """Take over where some samples have got to without the others."""
        self.spent += solver.spent
        self.evaluations += math.ceil(solver.evaluations * len(late) / self.g.shape[0])
        self.g = merge_samples(self.g, solver.g, late)
        if self._last is not None and solver._last is not None:
            (g, phi), (new_g, new_phi) = self._last, solver._last
            self._last = merge_samples(g, new_g, late), merge_samples(phi, new_phi, late)
        if self._secants is not None and solver._secants is not None:
            self._secants.merge(solver._secants, late)

    def _learn(
        self, g: Array, phi: Array, worse: Array, log_Y: Array, live: Array | None
    ) -> Array | None:
        """Keep the last step as a pair; the plain step instead, if some sample is worse for it."""
        if self._last is None or self._secants is None:
            return None
        back = None
        move, change = self._last
        self._last = None
        if bool(array_namespace(g).any(worse)):
            back = move + self._residual(log_Y, change, live)
        # One array after the other: the memory of an iteration is what limits a fit.
        move = g - move
        change = phi - change
        move -= change
        self._secants.forget(worse)
        self._secants.add(move, change, ~worse)
        return back

    def _residual(self, log_Y: Array, phi: Array, live: Array | None) -> Array:
        """What the plain iteration adds to g."""
        residual = log_Y * self._damp - phi
        return residual if live is None else array_namespace(phi).where(live, residual, 0.0)

    def _marginal(self, g: Array, live: Array | None) -> tuple[Marginal, Array]:
        xp = array_namespace(g)
        self.evaluations += 1
        if live is not None:
            filled = spread(self.problem.mass > 0, g)
            g = xp.where(live, g, xp.where(filled, -math.inf, 0.0 * g))
        marginal, log_q = self.problem.marginal(g, safe=self._safe)
        if marginal.lost is not None and bool(xp.any(marginal.lost)):
            self._safe = True
            return self.problem.marginal(g, safe=True)
        return marginal, log_q

    @staticmethod
    def _growth(rest: Array, before: Array | None) -> tuple[Array, Array]:
        """The samples whose residual grew threefold, and the residuals to compare with next."""
        xp = array_namespace(rest)
        size = per_sample(xp.abs(rest))
        if before is None:
            return size < 0, size
        worse = ~(size <= 3.0 * before)
        return worse, xp.where(worse, math.inf, size)
