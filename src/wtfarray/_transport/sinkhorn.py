"""
Sinkhorn iterations with Anderson acceleration, for a sequence of models Y.

They solve ``g/lam + log q(g) = log Y`` in every sample, where q is the second marginal of the plan
of g. The plain step is ``eps lam / (lam + eps)`` times the residual of that equation (eps for
infinite lam). Y enters only as the target, so secants remain valid when Y changes. `sinkhorn_step`
is one iteration; `Sinkhorn` repeats it in a Python loop, `compiled` in a loop compiled by JAX.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from wtfarray._arrays.samples import inner, merge_samples, per_sample, spread, take_samples
from wtfarray._arrays.typing import Array
from wtfarray._transport.anderson import Secants
from wtfarray._transport.iterate import Iterate, search_radius, translation
from wtfarray._transport.potential import SATURATION
from wtfarray._transport.problem import Marginal, TransportProblem
from wtfarray._transport.stragglers import Stragglers

MEMORY = 12
"""Number of secants per sample."""
GROWTH = 3.0
"""A sample whose gradient grows by more than this factor returns to its last plain step."""


@dataclass(frozen=True, eq=False)
class Target:
    """The model Y for which the inner problem is solved."""

    Y: Array
    log_Y: Array  # noqa: N815
    """0 where not live."""
    live: Array | None
    """Bins, (N, ...) bool, where Y is positive and that mass of X can reach; None: all bins."""

    @classmethod
    def of(cls, problem: TransportProblem, Y: Array) -> Target:
        """The target; ``live`` is None if possible, because masks take extra passes over memory."""
        xp = array_namespace(Y)
        live = (Y > 0) & problem.reachable
        if bool(xp.all(live)):
            return cls(Y, xp.log(Y), None)
        return cls(Y, xp.log(xp.where(live, Y, 1.0)), live)

    def residual(self, phi: Array, damping: float) -> Array:
        """The plain step: what is added to g; ``damping`` is that of the problem."""
        residual = self.log_Y * damping - phi
        return (
            residual if self.live is None else array_namespace(phi).where(self.live, residual, 0.0)
        )


@dataclass(eq=False)
class History:
    """Earlier iterates, for acceleration and to detect divergence."""

    secants: Secants
    last: tuple[Array, Array] | None = None
    """The last g and ``phi(g) = damping (g/lam + log q)``."""
    size: Array | None = None
    """L1 norms of the last gradient, (N,); None before the first iterate for a model."""
    evaluated: Array | None = None
    """Whether, (), ``last`` holds an evaluated point; None means that it does."""


def sinkhorn_step(
    problem: TransportProblem,
    target: Target,
    g: Array,
    history: History,
    marginal_of: Callable[[Array], tuple[Marginal, Array]],
) -> tuple[Iterate, Array]:
    """
    One iteration: evaluate the marginal at g, learn a secant, and find the next potential.

    ``marginal_of`` is `TransportProblem.marginal`, by plain products or in the log domain. Returns
    the iterate and the next potential; the history moves on.
    """
    xp = array_namespace(g)
    damping, live, flow = problem.damping, target.live, problem.kernel.flow
    masked = g
    if live is not None:
        filled = spread(problem.mass > 0, g)
        masked = xp.where(live, g, xp.where(filled, -math.inf, 0.0 * g))
    marginal, log_q = marginal_of(masked)
    del masked
    shift, scaled_Y = 0.0 * problem.mass, target.Y
    if not problem.conserves_mass:
        shift, scaled_Y = translation(problem, g, target.Y, live)
        g = g + spread(shift, g)
        if live is not None:
            g = xp.where(problem.reachable, g, SATURATION * problem.lam)
        log_q = log_q + g * (1.0 / problem.lam)
    gradient = scaled_Y - marginal.q
    del scaled_Y
    phi = log_q * damping
    if live is not None:
        phi = xp.where(live, phi, 0.0)
    del log_q
    worse, size = _growth(gradient, history.size)
    any_worse = False if history.last is None else flow.decide(xp.any(worse))
    back = _learn(problem, target, history, g, phi, worse, any_worse)
    if not problem.kernel.all_finite:
        # With infinite costs g may diverge: no secants while most mass is in the wrong place.
        history.secants.forget(size > problem.mass)
    history.last, history.size, history.evaluated = (g, phi), size, None
    residual = target.residual(phi, damping)
    del phi
    step = history.secants.step(residual)
    decrement = xp.maximum(xp.abs(inner(gradient, step)), xp.abs(inner(gradient, residual)))
    residual *= 1.0 / damping
    step += g
    following = flow.cond(any_worse, lambda: xp.where(spread(worse, g), back, step), lambda: step)
    return Iterate(g, marginal, shift, residual, gradient, decrement, size), following


def _growth(gradient: Array, before: Array | None) -> tuple[Array, Array]:
    """Samples whose gradient grew, (N,) bool, and the norms to compare the next ones with."""
    xp = array_namespace(gradient)
    size = per_sample(xp.abs(gradient))
    if before is None:
        return size < 0, size
    worse = ~(size <= GROWTH * before)
    return worse, xp.where(worse, math.inf, size)


def _learn(
    problem: TransportProblem,
    target: Target,
    history: History,
    g: Array,
    phi: Array,
    worse: Array,
    any_worse: object,
) -> Array:
    """Store the last step as a secant; return the plain step in its place if some sample grew."""
    if history.last is None:
        return g
    move, change = history.last
    history.last = None
    back = problem.kernel.flow.cond(
        any_worse, lambda: move + target.residual(change, problem.damping), lambda: g
    )
    # In place, because memory limits the size of a fit.
    move = g - move
    change = phi - change
    move -= change
    valid = ~worse if history.evaluated is None else ~worse & history.evaluated
    history.secants.forget(worse)
    history.secants.add(move, change, valid)
    return back


class Sinkhorn:
    """Solves the inner problem by `sinkhorn_step`; late samples are iterated on their own."""

    def __init__(
        self,
        problem: TransportProblem,
        g: Array,
        memory: int = MEMORY,
        weights: Array | None = None,
    ) -> None:
        self.problem = problem
        self.sample_weights = weights
        self.g = g
        """Where the next solve starts."""
        self.continues = False
        """Whether that is where the last solve ended."""
        self.evaluations = 0
        self.patience = math.inf
        self.spent = 0
        """Iterations so far, with those of samples on their own."""
        # More pairs than unknowns would only fit the rounding.
        self._memory = max(1, min(memory, math.prod(g.shape[1:]) // 2))
        self._history: History | None = None
        self._stragglers = Stragglers()
        self._safe = False
        """Whether plain products have lost digits: then in the log domain from there on."""

    def iterates(
        self, Y: Array, tolerance: float = 0.0, max_iter: int | None = None
    ) -> Iterator[Iterate]:
        """The iterates for this Y, without end; `g` runs one step ahead of them."""
        target = Target.of(self.problem, Y)
        history = self._history
        if history is None:
            secants = Secants.new(self._memory, Y, search_radius(self.problem))
            history = self._history = History(secants)
        history.size = None
        g = self.g
        if history.last is not None and self.continues:
            # phi at the last g is known, whatever the target: a first step costs no evaluation.
            last_g, phi = history.last
            g = last_g + history.secants.step(target.residual(phi, self.problem.damping))
            del last_g, phi
        separates = self._stragglers.begin(Y)
        for n in itertools.count(1):
            point, self.g = sinkhorn_step(self.problem, target, g, history, self._marginal)
            decrement = point.decrement
            yield point
            del point  # or two generations would be held
            self.spent += 1
            if separates and self._stragglers.is_due(n):
                separates = self._stragglers.advance(self, Y, decrement, tolerance, max_iter)
            g = self.g

    def _marginal(self, g: Array) -> tuple[Marginal, Array]:
        """By plain products, until these lose digits."""
        self.evaluations += 1
        marginal, log_q = self.problem.marginal(g, safe=self._safe)
        if marginal.lost is not None and bool(array_namespace(g).any(marginal.lost)):
            self._safe = True
            return self.problem.marginal(g, safe=True)
        return marginal, log_q

    def split(self, samples: NDArray[np.intp]) -> Sinkhorn:
        """A solver of some samples, with what is known of them."""
        weights = self.sample_weights
        solver = Sinkhorn(
            self.problem.some_samples(samples),
            take_samples(self.g, samples),
            self._memory,
            None if weights is None else take_samples(weights, samples),
        )
        solver._safe = self._safe
        if self._history is not None and self._history.last is not None:
            g, phi = (take_samples(stack, samples) for stack in self._history.last)
            solver._history = History(self._history.secants.of_samples(samples), (g, phi))
        return solver

    def merge(self, other: Sinkhorn, samples: NDArray[np.intp]) -> None:
        """Take over where some samples have got to without the others."""
        self.spent += other.spent
        self.evaluations += math.ceil(other.evaluations * len(samples) / self.g.shape[0])
        self.g = merge_samples(self.g, other.g, samples)
        mine, theirs = self._history, other._history
        if mine is None or theirs is None:
            return
        if mine.last is not None and theirs.last is not None:
            g, phi = (
                merge_samples(old, new, samples)
                for old, new in zip(mine.last, theirs.last, strict=True)
            )
            mine.last = g, phi
        mine.secants.merge(theirs.secants, samples)
