"""The term of a Wasserstein loss, which solves the inner problem."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
from array_api_compat import is_numpy_array

from wtfarray._arrays.allocation import keep_freed_memory
from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.host import to_host, to_host_together
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample, stack, unstack, weighted
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import batch_size, fused_batch_size, may_use_exp
from wtfarray._losses.term import TermValue
from wtfarray._transport.feasibility import certified_gaps
from wtfarray._transport.inner_solver import fallback_solver, inner_solver, is_fused, solve_to_gap
from wtfarray._transport.iterate import InnerSolver, Iterate, Until
from wtfarray._transport.newton import Newton
from wtfarray._transport.potential import dual_of_potential, dual_product
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.processors import take_processors

SOLVE_WORK = 2.0
"""Work of a solve of a few small samples, beside that of its iterations."""
MOST_FAILURES = 3
"""After this many failures of Sinkhorn iterations a batch stays with Newton's method."""


class TransportTerm:
    """A Wasserstein loss; its inner problem is warm-started from call to call."""

    def __init__(
        self,
        problem: TransportProblem,
        shape: tuple[int, ...],
        weights: Array | None = None,
        batch: int | None = None,
        shards: Shards = WHOLE,
    ) -> None:
        self.problem = problem
        self.shape = shape
        self.weights = weights
        self._shards = shards
        keep_freed_memory()
        xp = array_namespace(problem.data)
        self.state = xp.zeros_like(problem.data)
        here, *bins = problem.data.shape
        per_row = math.prod(shape[1:]) // math.prod(bins)
        samples = shards.total(shape[0]) * per_row if shards.shared else here
        self._remembers = batch is None
        fused = not shards.shared and is_fused(problem, batch, newton_follows=True)
        if fused:
            take_processors()
        if batch is None and fused:
            batch = fused_batch_size(samples, samples * math.prod(bins))
        elif batch is None:
            batch = batch_size(
                samples,
                samples * math.prod(bins),
                max(axis.entries for axis in problem.kernel.axes),
                in_cache=is_numpy_array(problem.data),
            )
        self._batches, self._batch_count = shards.batches(per_row, here, batch)
        self._slices = [b.here for b in self._batches]
        self._order = sorted(range(len(self._batches)), key=lambda k: self._batches[k].turn)
        """The order in which the batches are solved."""
        mass = float(self._sum(problem.mass)) if here else 0.0
        masses = np.zeros(self._batch_count + 1)
        on_host = to_host(problem.mass)
        for b in self._batches:
            masses[b.index] = float(np.sum(on_host[b.here]))
        masses[-1] = mass
        *self._masses, mass = shards.sums.host(masses).tolist()
        self.scale = problem.kernel.eps * mass
        self._level = 1.0
        self._solvers: list[InnerSolver | None] = [None] * len(self._slices)
        self._failures = [0] * len(self._slices)
        """How often Sinkhorn iterations did not converge, for each batch."""
        self._latest: Array | None = None
        self._positive = False
        """Whether all entries of the last model are positive."""
        self._continues = False
        """Whether the state is where the solvers ended last."""
        self._evaluations = 0
        """Evaluations of the inner problem, summed over the samples."""
        self.work = 0.0

    @property
    def potential(self) -> Array:
        """The potential g, stacked."""
        return self.state

    @property
    def evaluations(self) -> int:
        """Evaluations of the inner problem, averaged over the samples."""
        samples: int = self.problem.data.shape[0]
        return math.ceil(self._evaluations / max(1, samples))

    def count_evaluations(self, evaluations: int, work: float) -> None:
        """Add evaluations of all samples that were made elsewhere, and the work of each."""
        self._evaluations += evaluations * self.problem.data.shape[0]
        self.work += evaluations * work

    def start_from(self, g: Array) -> None:
        """Warm-start the inner problem from a potential, stacked."""
        self.state = g

    def set_level(self, level: float) -> None:
        """Continue with ``level`` times eps; g has the units of the cost and is kept."""
        self._level = level
        self.drop_history()

    def drop_history(self) -> None:
        """Drop the solvers with their secants."""
        self._solvers = [None] * len(self._slices)
        self._failures = [0] * len(self._slices)

    def _solver(self, k: int) -> InnerSolver:
        """The solver of batch k, at the current level and potential."""
        solver = self._solvers[k]
        state = self.state if len(self._slices) == 1 else self.state[self._slices[k], ...]
        if solver is None:
            problem = self.problem
            if len(self._slices) > 1:
                problem = problem.samples(self._slices[k])
            if self._level != 1.0:
                problem = problem.at_eps(problem.kernel.eps * self._level)
            weights = None if self.weights is None else self.weights[self._slices[k]]
            solver = inner_solver(problem, state, weights, self._batches[k], newton_follows=True)
            if self._remembers:
                self._solvers[k] = solver
        solver.g = state
        solver.continues = self._continues
        return solver

    def has_empty_sample(self, model: Array) -> bool:
        """Whether the model of a sample with mass, of those on this process, has none."""
        xp = array_namespace(model)
        Y = stack(self.problem, model)
        self._positive = self._slices == [] or float(xp.min(Y)) > 0
        return not self._positive and bool(xp.any((self.problem.mass > 0) & ~(per_sample(Y) > 0)))

    def evaluate(
        self, model: Array, tolerance: float, max_iter: int, *, ordinary: bool = False
    ) -> TermValue:
        """
        Solve the inner problem until the estimated error is below the tolerance.

        With an ``ordinary`` model nothing is read but what decides when to stop. If other processes
        hold some of the samples, no model may have an empty sample on any of them: see
        `has_empty_sample`.
        """
        Y = stack(self.problem, model)
        if ordinary:
            self._positive = True
        elif self.has_empty_sample(model):
            # The loss of a sample whose model is empty is infinite; the state stays.
            return TermValue(math.inf, 0.0, math.inf, 0.0 * model, converged=False)
        self._begin()
        share = tolerance / self._batch_count
        parts = {
            k: self._evaluate(k, Y[self._slices[k], ...], share, max_iter, ordinary=ordinary)
            for k in self._order
        }
        return self._joined([parts[k] for k in range(len(parts))])

    def _begin(self) -> None:
        """Check whether the state is still where the solvers ended."""
        self._continues = self.state is self._latest
        self._latest = None

    def _evaluate(
        self, k: int, Y: Array, tolerance: float, max_iter: int, *, ordinary: bool
    ) -> _Part:
        xp = array_namespace(Y)
        solver = self._solver(k)
        before = solver.evaluations
        problem = solver.problem
        # The estimate holds near the solution only, and is too small after a predicted step.
        mass = self._masses[self._batches[k].index]
        distance = 0.1 * mass if mass > 0 else math.inf  # a batch of empty samples only
        until = Until(tolerance, distance, least=2, most=max_iter)
        points = solver.iterates(Y, tolerance, max_iter, positive=self._positive, until=until)
        point, error, done = self._iterate(k, points, until)
        evaluations = solver.evaluations - before
        self.work += SOLVE_WORK + evaluations * solver.work_per_evaluation
        other = None if done or math.isnan(error) else self._fallback(k, solver)
        if other is not None:
            solver = other
            points = solver.iterates(Y, tolerance, max_iter)
            point, error, done = self._iterate(k, points, until)
            evaluations += solver.evaluations
            self.work += solver.evaluations * solver.work_per_evaluation
        rough = may_use_exp(problem.lam, problem.kernel.eps, float(xp.finfo(Y.dtype).eps))
        u, values, gaps = _outcome(Y, problem, point, rough=rough, ordinary=ordinary)
        del point  # free its arrays
        return _Part(solver.g, u, values, gaps, error, done, evaluations * Y.shape[0])

    def _fallback(self, k: int, solver: InnerSolver) -> InnerSolver | None:
        """Newton's method for batch k, for once or, after several failures, for good."""
        if isinstance(solver, Newton):
            return None
        other = fallback_solver(solver)
        if other is not None:
            self._failures[k] += 1
            # The secants do not lead on from where the other solver ends.
            self._solvers[k] = other if self._failures[k] >= MOST_FAILURES else None
        return other

    def _iterate(
        self, k: int, points: Iterator[Iterate], until: Until
    ) -> tuple[Iterate, float, bool]:
        """The first iterate of a batch that meets the tolerance, or the last, and its error."""
        sums, n = self._batches[k].sums, 0
        while True:
            point = next(points)
            n += point.iterations
            done, error = False, 0.0
            if n >= min(until.least, until.most):
                error, distance = sums.numbers(point.error, point.distance)
                done = n >= until.least and error <= until.error and distance <= until.distance
            if done or n >= until.most or math.isnan(error):
                return point, point.error, done
            del point  # free its arrays before the next one is computed

    def certify(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """Solve the inner problem until its duality gap is below the tolerance."""
        Y = stack(self.problem, model)
        self._begin()
        share = tolerance / self._batch_count / self._largest_weight()
        parts: dict[int, _Part] = {}
        for k in self._order:
            parts[k] = self._certify(k, Y[self._slices[k], ...], share, max_iter)
        joined = self._joined([parts[k] for k in range(len(parts))])
        self._latest = None  # the solvers are one step ahead of this g
        value, gap = to_host_together([joined.value, joined.gap])
        values = [parts[k].values for k in range(len(parts))]
        return TermValue(
            value,
            gap,
            gap,
            joined.gradient,
            converged=gap <= tolerance,
            values=array_namespace(*values).concat(values) if values else None,
        )

    def _certify(self, k: int, Y: Array, share: float, max_iter: int) -> _Part:
        """Solve batch k until its gap is at most ``share``, at last by Newton's method."""
        solver = self._solver(k)
        found = _certified(solver, Y, share, max_iter)
        if isinstance(solver, Newton) or self._shards.shared:
            return found
        total = float(array_namespace(Y).sum(found.gaps))
        solver.g = found.g
        other = None if total <= share else fallback_solver(solver)
        if other is None:
            return found
        more = _certified(other, Y, share, max_iter)
        evaluations = found.evaluations + more.evaluations
        better = more if float(array_namespace(Y).sum(more.gaps)) < total else found
        return replace(better, evaluations=evaluations)

    def _joined(self, parts: list[_Part]) -> TermValue:
        """Combine the batches, and update the state; the sums are those over the samples here."""
        xp = array_namespace(self.state)
        if not parts:
            empty = unstack(self.problem, self.state, self.shape)
            return TermValue(0.0, 0.0, 0.0, empty, converged=True)
        one = len(parts) == 1
        self.state = self._latest = parts[0].g if one else xp.concat([part.g for part in parts])
        u = parts[0].u if one else xp.concat([part.u for part in parts])
        u = weighted(u, self.weights)  # where u is -inf, too
        value = reduce(add, (self._sum(part.values, k) for k, part in enumerate(parts)))
        gap = reduce(add, (self._sum(part.gaps, k) for k, part in enumerate(parts)))
        error = sum(part.error for part in parts)
        self._evaluations += sum(part.evaluations for part in parts)
        converged = all(part.converged for part in parts)
        return TermValue(value, error, gap, unstack(self.problem, u, self.shape), converged)

    def _sum(self, values: Array, k: int | None = None) -> Array:
        """The weighted sum over the samples, of all or of batch k."""
        weights = self.weights
        if weights is not None and k is not None:
            weights = weights[self._slices[k]]
        return array_namespace(values).sum(weighted(values, weights))

    def _largest_weight(self) -> float:
        """The largest weight of a sample, at least 1."""
        if self.weights is None:
            return 1.0
        xp, sums = array_namespace(self.weights), self._shards.sums
        here = float(xp.max(self.weights)) if self.weights.shape[0] else 0.0
        return max(1.0, sums.largest(here))


def _certified(solver: InnerSolver, Y: Array, share: float, max_iter: int) -> _Part:
    """A batch, solved until the duality gap is at most ``share``, if possible."""
    before = solver.evaluations
    g, _ = solve_to_gap(solver, Y, lambda _: share, max_iter)
    values, gaps, u = solver.problem.bounds(g, Y)
    gaps = certified_gaps(solver.problem, Y, gaps)
    evaluations = (solver.evaluations - before) * Y.shape[0]
    return _Part(g, u, values, gaps, 0.0, converged=True, evaluations=evaluations)


@compiled(static=("rough", "ordinary"))
def _outcome(
    Y: Array, problem: TransportProblem, point: Iterate, *, rough: bool, ordinary: bool
) -> tuple[Array, Array, Array]:
    """
    The dual variable, (N, ...), the values and estimated gaps, (N,), at the last iterate.

    ``rough`` says whether exp is accurate enough to replace expm1, see `may_use_exp`. In an
    ``ordinary`` case u does not overflow; where it does, it is not finite.
    """
    lam = problem.lam
    gaps = point.decrement if problem.conserves_mass else point.gap_bound(lam)
    conjugate = problem.value(point.marginal) + problem.mass * point.shift
    u = dual_of_potential(point.g, lam, array_namespace(Y), rough=rough, capped=not ordinary)
    if rough:
        mass = per_sample(point.marginal.q) if problem.relaxes_data else problem.mass
        # g has the best constant, with which <Y exp(-g/lam), 1> is the mass of the plan.
        return u, (per_sample(Y) - mass) * lam - conjugate, gaps
    product = inner(u, Y) if ordinary else dual_product(point.g, Y, lam, problem.kernel.flow)
    return u, product - conjugate, gaps


@dataclass(frozen=True, eq=False)
class _Part:
    """The result of one batch of samples, stacked."""

    g: Array
    u: Array
    values: Array
    gaps: Array
    error: float
    converged: bool
    evaluations: int
    """Of the inner problem, summed over the samples."""
