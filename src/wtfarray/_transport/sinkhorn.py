"""
Sinkhorn iterations with Anderson acceleration, for a sequence of models Y.

They solve ``g/lam + log q(g) = log Y`` in every sample, where q is the second marginal of the plan
of g. The plain step is ``eps lam / (lam + eps)`` times the residual of that equation (eps for
infinite lam). Y enters only as the target, so secants remain valid when Y changes. `sinkhorn_step`
is one iteration, a function of arrays alone: `Sinkhorn` repeats it in a Python loop, for JAX in the
compiled form of `compiled_step`, and `compiled` in a compiled loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import (
    flat,
    inner,
    merge_samples,
    one_norm,
    spread,
    take_samples,
    weighted,
)
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import sums_over_pairs
from wtfarray._transport.anderson import (
    RIDGE,
    Secants,
    accelerated,
    new_secants,
    predicted,
    reweighted,
    without,
)
from wtfarray._transport.double_products import with_double_products
from wtfarray._transport.iterate import (
    Iterate,
    Until,
    relaxed_translation,
    search_radius,
    translation,
)
from wtfarray._transport.potential import SATURATION
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.stragglers import Stragglers
from wtfarray._transport.target import Target, masked_target, needs_mask, plain_target

MEMORY = 12
"""Largest number of secants per sample."""
LONG_MEMORY = 24
"""The same for samples of many bins whose last solve was long; more memory saves iterations."""
LONG_SOLVE = 10
"""Number of iterations of a long solve."""
MANY_BINS = 256
"""Number of bins from which more secants pay: those of fewer bins are soon out of date."""
BINS_PER_SECANT = 8
"""Samples with fewer bins keep fewer secants, but six: theirs are soon out of date."""
STRAGGLER_RIDGE = 0.1
"""Of samples that are iterated separately: their secants mislead, and steps have to be shorter."""
PLAIN_WORK = 1.6
"""Work of an iteration of a few small samples without masks and logarithms."""
GROWTH = 3.0
"""A sample whose gradient grows by more than this factor returns to its last plain step."""


def memory_for(bins: int) -> int:
    """Number of secants of samples with the given number of bins."""
    # At most half as many as unknowns: more would only fit the rounding.
    return max(1, min(MEMORY, bins // 2, max(6, bins // BINS_PER_SECANT)))


class SinkhornState(NamedTuple):
    """What an iteration takes from the last one; stacks are (N, ...)."""

    ahead: Array
    """The potential at which the next iteration evaluates the marginal."""
    g: Array
    """The last potential."""
    rest: Array
    """``phi - g`` there, ``phi = damping (g/lam + log q)``; -g where not live."""
    size: Array
    """
    L1 norms of the last gradient, (N,); inf before the first iteration for a model.

    NaN in samples whose g and rest were never evaluated, or have lost digits: nothing is less or
    greater than that, so that the next gradient has not grown, and makes no pair.
    """


def first_state(problem: TransportProblem, g: Array) -> SinkhornState:
    """The state before the first iteration."""
    xp = array_namespace(g)
    return SinkhornState(g, g, xp.zeros_like(g), xp.full_like(problem.mass, math.nan))


def sinkhorn_step(
    problem: TransportProblem,
    target: Target,
    state: SinkhornState,
    secants: Secants,
    *,
    safe: bool,
    max_step: Array | float,
) -> tuple[SinkhornState, Secants, Iterate]:
    """
    One iteration: evaluate the marginal at g, store a secant, and find the next potential.

    The marginal is computed by plain products or, if ``safe``, in the log domain. Accelerated steps
    are at most ``max_step`` long. A sample whose gradient has grown (`Iterate.worse`) returns to
    its last plain step; its secants are to be forgotten before the next iteration. The rings of
    ``secants`` are written in place if possible.
    """
    xp = array_namespace(state.ahead)
    damping, live, g = problem.damping, target.live, state.ahead
    masked = target.masked(problem, g)
    marginal, logs, offset = problem.marginal(masked, safe=safe, masked=live is not None)
    if problem.conserves_mass:
        scaled_Y, shift = target.Y, 0.0 * problem.mass
    else:
        if problem.relaxes_data:
            shift, scaled_Y, q = relaxed_translation(problem, g, marginal.q, target.Y, live)
            marginal = problem.translated(marginal, q, shift)
        else:
            shift, scaled_Y = translation(problem, g, target.Y, live)
        g = g + spread(shift, g)
        if live is not None:
            g = xp.where(problem.reachable, g, SATURATION * problem.lam)
        offset = offset + shift
        if problem.relaxes_data:
            shift = 0.0 * shift  # the marginal is that of the translated g
    # phi = damping (g/lam + log q), and log q = (g - shift) / eps + log K^T a.
    rest = logs - spread(offset * (problem.exponent / problem.kernel.eps), g)
    rest *= damping
    if live is not None:
        rest = xp.where(live, rest, -g)
    gradient = scaled_Y - marginal.q
    size = one_norm(gradient)
    limit = GROWTH * state.size
    reliable, worse = size <= limit, size > limit
    if marginal.lost is not None:
        reliable = reliable & ~marginal.lost
    if not problem.kernel.all_finite:
        # With infinite costs g may diverge: no secants while most mass is in the wrong place.
        far = size > problem.mass
        secants = without(secants, far)
        reliable = reliable & ~far
    move = state.rest - rest  # dg - dphi
    change = g - state.g
    change -= move
    plain = target.scaled_logs - rest
    residual = plain - g
    secants, extra = accelerated(
        secants, flat(move), flat(change), flat(residual), reliable, worse, max_step
    )
    first = inner(gradient, residual)
    decrement = xp.maximum(xp.abs(first), xp.abs(first + inner(gradient, extra)))
    plain += xp.reshape(extra, tuple(g.shape))
    size = xp.where(worse, math.inf, size)
    point = Iterate(g, marginal, shift, residual, damping, gradient, decrement, size, worse)
    if marginal.lost is not None:
        size = xp.where(marginal.lost, math.nan, size)
    return SinkhornState(plain, g, rest, size), secants, point


def predicted_potential(
    target: Target, state: SinkhornState, secants: Secants, max_step: Array | float
) -> Array:
    """The next potential for a new target: phi at the last g is known, whatever the target."""
    xp = array_namespace(state.g)
    plain = target.scaled_logs - state.rest
    residual = plain - state.g
    if target.live is not None:
        residual = xp.where(target.live, residual, 0.0)
        plain = residual + state.g
    extra = predicted(secants, flat(residual), max_step)
    return plain + xp.reshape(extra, tuple(state.g.shape))


def summary(point: Iterate, weights: Array | None) -> Array:
    """Total error and distance, and how many samples lost digits unless that is impossible."""
    xp = array_namespace(point.g)
    totals = [weighted(point.decrement, weights), point.size]
    if point.marginal.lost is not None:
        totals.append(xp.astype(point.marginal.lost, point.size.dtype))
    return xp.sum(xp.stack(totals), axis=1)


class Totals(NamedTuple):
    """What the host knows of a run of iterations: the `summary` of the last, and their number."""

    error: float
    distance: float
    lost: float
    """Samples that lost digits; the run has then ended, and is to be repeated."""
    worse: bool
    """Whether the secants of samples that grew worse are still to be forgotten."""
    iterations: int


def advance(
    problem: TransportProblem,
    target: Target,
    state: SinkhornState,
    secants: Secants,
    weights: Array | None,
    max_step: Array | float,
    safe: bool,  # noqa: FBT001
    until: Until,
) -> tuple[SinkhornState, Secants, Iterate, Totals]:
    """
    Some iterations by `sinkhorn_step`, at most those that ``until`` allows, and their totals.

    Here it is one, or two if nothing is to be decided after the first: every decision waits for the
    device. `compiled_step.advance` makes them all. If one of two has lost digits, both are to be
    repeated.
    """
    iterations, lost_before = 0, None
    while True:
        state, secants, point = sinkhorn_step(
            problem, target, state, secants, safe=safe, max_step=max_step
        )
        iterations += 1
        lost = point.marginal.lost
        if lost is not None and lost_before is not None:
            point = replace(point, marginal=replace(point.marginal, lost=lost | lost_before))
        if iterations >= min(2, until.least, until.most):
            error, distance, *lost = to_host(summary(point, weights)).tolist()
            # The size of a sample that grew worse is inf.
            worse = not math.isfinite(distance)
            totals = Totals(error, distance, sum(lost), worse, iterations)
            return state, secants, point, totals
        lost_before = lost
        del point  # free its arrays before the next one is computed


Advance = Callable[..., tuple[SinkhornState, Secants, Iterate, Totals]]
"""The type of `advance` and of its compiled form."""


@compiled(static=("memory", "masked", "continues"), donated=("secants",))
def prepared(
    Y: Array,
    problem: TransportProblem,
    g: Array,
    state: SinkhornState,
    secants: Secants | None,
    max_step: Array | float,
    ridge: float,
    *,
    memory: int,
    masked: bool,
    continues: bool,
) -> tuple[Target, SinkhornState, Secants]:
    """
    The target of a new model, the state before its first iteration, and the secants.

    The iteration starts from g or, if it ``continues`` the last one, from where the secants lead.
    """
    target = masked_target(problem, Y) if masked else plain_target(problem, Y)
    if secants is None:
        secants = new_secants(memory, flat(Y), problem.damping, ridge)
    else:
        secants = reweighted(secants, flat(Y), problem.damping)
        if continues:
            g = predicted_potential(target, state, secants, max_step)
    return target, state._replace(ahead=g, size=state.size + math.inf), secants


class Sinkhorn:
    """Solves the inner problem by `sinkhorn_step`; late samples are iterated on their own."""

    def __init__(
        self,
        problem: TransportProblem,
        g: Array,
        memory: int | None = None,
        weights: Array | None = None,
        advance: Advance = advance,
        sums: Sums = ALONE,
        samples: int | None = None,
    ) -> None:
        self.problem = problem
        self.sample_weights = weights
        self.sums = sums
        self.samples = g.shape[0] if samples is None else samples
        """Number of samples, with those on other processes."""
        self.g = g
        """Where the next solve starts."""
        self.continues = False
        """Whether that is where the last solve ended."""
        self.evaluations = 0
        self.patience = math.inf
        self.spent = 0
        """Iterations so far, with those of samples on their own."""
        bins = math.prod(g.shape[1:])
        self._memory = memory or memory_for(bins)
        self._long_memory = LONG_MEMORY if memory is None and bins >= MANY_BINS else 0
        self._length = 0
        """Number of iterations of the last solve."""
        self._state = first_state(problem, g)
        self._secants: Secants | None = None
        self._ridge = RIDGE
        self._radius = search_radius(problem)
        self._stragglers = Stragglers()
        self._double: TransportProblem | None = None
        """The problem with products in float64, if those in float32 have lost digits."""
        self._safe = False
        """Whether plain products have lost digits: then in the log domain from there on."""
        self._advance = advance

    @property
    def work_per_evaluation(self) -> float:
        """The time of an evaluation of a few small samples, see `InnerSolver`."""
        # Measured: 0.1 ms, 0.15 ms with masks; in the log domain 0.05 ms more, and 0.1 ms for
        # 10,000 pairs of bins if it sums over these.
        work = PLAIN_WORK if self.problem.all_reachable else 1.5 * PLAIN_WORK
        if self._safe:
            work += 0.5 * PLAIN_WORK
            samples, bins = self.g.shape[0], math.prod(self.g.shape[1:])
            if sums_over_pairs(samples, bins):
                work += 1e-4 * PLAIN_WORK * samples * bins**2
        return work

    def iterates(
        self,
        Y: Array,
        tolerance: float = 0.0,
        max_iter: int | None = None,
        *,
        positive: bool | None = None,
        until: Until | None = None,
    ) -> Iterator[Iterate]:
        """The iterates for this Y, without end; `g` runs one step ahead of them."""
        problem = self.problem
        if self._length > LONG_SOLVE and self._memory < self._long_memory:
            self._memory, self._secants = self._long_memory, None
        target, self._state, self._secants = prepared(
            Y,
            problem,
            self.g,
            self._state,
            self._secants,
            self._radius,
            self._ridge,
            memory=self._memory,
            masked=needs_mask(problem, Y, positive=positive),
            continues=self.continues,
        )
        separates = self._stragglers.begin(Y, self.samples)
        n = 0
        while True:
            point = self._next(target, self._part(until, n, separates=separates))
            n += point.iterations
            self._length = n
            yield point
            self.spent += point.iterations
            if separates and self._stragglers.is_due(n):
                separates = self._stragglers.advance(
                    self, Y, point.decrement, tolerance, max_iter, self.sums, self.samples
                )
            del point

    def _part(self, until: Until | None, n: int, *, separates: bool) -> Until:
        """The iterations after n that may follow each other without a look at the iterates."""
        if until is None or self.sums.shared:
            # Processes that share the samples decide together, after every iteration.
            return Until()
        most = max(1, until.most - n)
        if separates:
            most = min(most, self._stragglers.until_due(n))
        return until._replace(least=max(1, until.least - n), most=most)

    def _next(self, target: Target, until: Until) -> Iterate:
        """The next iterate; once plain products lose digits in float64, or in the log domain."""
        while True:
            ahead, size = self._state.ahead, self._state.size
            self._state, self._secants, point, totals = self._advance(
                self._double or self.problem,
                target,
                self._state,
                self._secants,
                self.sample_weights,
                self._radius,
                self._safe,
                until,
            )
            self.evaluations += totals.iterations
            if totals.worse:
                self._secants = without(self._secants, point.worse)
            if not totals.lost > 0:  # nor for NaN
                self.g = self._state.ahead
                return replace(
                    point,
                    error=totals.error,
                    distance=totals.distance,
                    iterations=totals.iterations,
                )
            self._double = None if self._double else with_double_products(self.problem)
            self._safe = self._double is None
            xp = array_namespace(size)
            size = xp.where(xp.isnan(self._state.size), math.nan, size)
            self._state = self._state._replace(ahead=ahead, size=size)

    def split(
        self, samples: NDArray[np.intp], sums: Sums = ALONE, total: int | None = None
    ) -> Sinkhorn:
        """A solver of some samples, of ``total`` on all processes, with what is known of them."""
        weights = self.sample_weights
        solver = Sinkhorn(
            self.problem.some_samples(samples),
            take_samples(self.g, samples),
            self._memory,
            None if weights is None else take_samples(weights, samples),
            self._advance,
            sums,
            total,
        )
        solver._safe = self._safe
        if self._double is not None:
            solver._double = with_double_products(solver.problem)
        solver._ridge = STRAGGLER_RIDGE
        solver._state = SinkhornState(*(take_samples(stack, samples) for stack in self._state))
        return solver

    def merge(self, other: Sinkhorn, samples: NDArray[np.intp]) -> None:
        """Take over where some samples have got to without the others."""
        self.spent += other.spent
        self.evaluations += math.ceil(other.evaluations * len(samples) / self.g.shape[0])
        pairs = zip(self._state, other._state, strict=True)
        self._state = SinkhornState(*(merge_samples(old, new, samples) for old, new in pairs))
        self.g = self._state.ahead
        if self._secants is not None:
            late = np.zeros(self.g.shape[0], dtype=bool)
            late[samples] = True
            xp = array_namespace(self.g)
            self._secants = without(self._secants, xp.asarray(late, device=device_of(self.g)))
