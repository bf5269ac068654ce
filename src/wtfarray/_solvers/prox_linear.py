"""
Steps of all blocks at once for which the model is linearised and the loss is not.

Between bins that lie many eps apart the loss is all but piecewise linear. Its minima are at kinks,
where the slope on one side says nothing of the other and a method of gradients stalls. With a model
that is linear in all blocks together the problem is convex, kinks and all, and has a dual as the
problem of one block has (the prox-linear method: Lewis and Wright 2016). The dual value also tells
how much a step can gain at most, to first order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from array_api_compat import array_namespace

from wtfarray._arrays.samples import per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._losses.protocol import stack
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._models.entropy import conjugate_of_entropy
from wtfarray._models.models import Block
from wtfarray._optimize import OptimizeResult, lbfgs
from wtfarray._solvers.block_descent import in_domain, stacked_block
from wtfarray._solvers.envelope import KAPPA, evaluate_first, smallest_drop
from wtfarray._solvers.objective import Evaluation, JointObjective, Problem
from wtfarray._transport.potential import dual_of_free, shrinkage
from wtfarray._transport.problem import TransportProblem

SMALL = 2**16
"""Data of more entries are left to the joint solver: the dual would take long."""
EVALUATIONS = 300
"""Of the dual of one step at most: what is short of the minimum is no less a bound."""
FIRST, MORE, LAST = 0.25, 8.0, 1e6
"""The weight of the distance, in units of rho, once a step fails; how it grows, and how far."""
FACTOR = 1000.0
"""By which a step may change the mass of a sample; the linearised model says nothing beyond."""


@dataclass(frozen=True, eq=False)
class LinearisedDual:
    """
    The dual of ``min Phi(X, Y(A)) + sum_k rho_k E(A_k) + tau_k KL(A_k|B_k)``.

    ``Y(A) = sum_k L_k A_k - (n - 1) Y`` is the model of n blocks, linearised at the blocks B whose
    tensor is Y. Over g it is minus the minimum of ``Phi*(X, u(g)) + (n - 1) <u, Y> + sum_k (rho_k +
    tau_k) E*((tau_k log B_k - Xi_k(u)) / (rho_k + tau_k)) - sum_k tau_k <B_k, 1>``. This is convex
    in u; as u grows with g, no point but the minimum is stationary in g.
    """

    bound: TransportProblem
    maps: list[Block]
    """L_k with its adjoint Xi_k, of the free blocks, their tensors stacked."""
    centres: list[Array]
    """B_k."""
    model: Array
    """Y, stacked."""
    problem: Problem
    weights: Array | None
    distance: float
    """tau in units of rho."""

    @classmethod
    def of(
        cls, problem: Problem, term: TransportTerm, blocks: Sequence[Array], distance: float
    ) -> LinearisedDual:
        """Linearise the model at some blocks."""
        bound = term.problem
        maps = [stacked_block(problem, bound.order, blocks, k) for k in problem.free]
        model = stack(bound, problem.tensor(blocks))
        centres = [blocks[k] for k in problem.free]
        return cls(bound, maps, centres, model, problem, term.weights, distance)

    def value_and_gradient(self, g: Array) -> tuple[Array, Array]:
        """What is minimised, (), and its gradient; NaN where fast kernel products underflow."""
        return self._value_and_gradient(g, *self.bound.conjugate(g))

    def safe_value_and_gradient(self, g: Array) -> tuple[Array, Array]:
        """The same for every g, slower."""
        return self._value_and_gradient(g, *self.bound.safe_conjugate(g))

    def _value_and_gradient(self, g: Array, values: Array, marginal: Array) -> tuple[Array, Array]:
        xp = array_namespace(g)
        lam, n = self.bound.lam, len(self.maps)
        u, slope, outside = g, None, None
        if not math.isinf(lam):
            rho = min(self.problem.rho[k] for k in self.problem.free)
            shrunk, slope, outside = shrinkage(g, lam, rho, xp)
            u = -lam * shrunk
        u = self._weighted(u)
        entropies, factors = self._factors(u)
        model = -(n - 1.0) * self.model
        for block, factor in zip(self.maps, factors, strict=True):
            model = model + xp.reshape(block.forward(factor), tuple(model.shape))
        value = xp.sum(self._weighted(values)) + entropies + (n - 1.0) * xp.sum(u * self.model)
        if slope is not None:
            model = model * slope
            value = xp.where(outside, math.inf, value)
        return value, self._weighted(marginal - model)

    def _weighted(self, values: Array) -> Array:
        if self.weights is None:
            return values
        return values * (self.weights if values.ndim == 1 else spread(self.weights, values))

    def _factors(self, u: Array) -> tuple[Array, list[Array]]:
        """The part of the entropies and distances, (), and the blocks A(u)."""
        xp = array_namespace(u)
        least = float(xp.finfo(u.dtype).smallest_normal)
        total, factors = 0.0 * self.model[(0,) * u.ndim], []
        for k, block, centre in zip(self.problem.free, self.maps, self.centres, strict=True):
            rho = self.problem.rho[k]
            tau = self.distance * rho
            slope = -1.0 * block.adjoint(xp.reshape(u, block.model_shape))
            if tau > 0:
                slope = slope + tau * xp.log(xp.maximum(centre, least))
                total = total - tau * xp.sum(centre)
            value, factor = conjugate_of_entropy(
                slope * (1.0 / (rho + tau)), self.problem.constraints[k], xp
            )
            total = total + (rho + tau) * value
            factors.append(factor)
        return total, factors

    def factors(self, g: Array) -> list[Array]:
        """The free blocks that belong to g."""
        u = dual_of_free(g, self.bound.lam, array_namespace(g))
        return self._factors(self._weighted(u))[1]

    def solve(self, g: Array, tol: float) -> OptimizeResult | None:
        """Minimise from g on; None if g is out of the domain."""
        fun = self.value_and_gradient
        first = fun(g)
        if not math.isfinite(float(first[0])):
            fun = self.safe_value_and_gradient
            first = fun(g)
        if not in_domain(*first):
            return None
        return lbfgs(
            fun,
            g,
            max_evaluations=EVALUATIONS,
            gtol=0.0,
            ftol=tol,
            safe_fun=self.safe_value_and_gradient,
        )

    def is_like(self, blocks: Sequence[Array]) -> bool:
        """Whether the model of some blocks weighs what that at the centres does, within limits."""
        xp = array_namespace(self.model)
        model = stack(self.bound, self.problem.tensor(blocks))
        old, new = per_sample(self.model), per_sample(model)
        like = (new >= old / FACTOR) & (new <= old * FACTOR) & (new > 0)
        return bool(xp.all(like | (self.bound.mass == 0)))


def small_term(problem: Problem) -> TransportTerm | None:
    """The loss of a problem that is small and plain enough for `through_kinks`."""
    plain = all(isinstance(rho, float) for rho in problem.rho) and problem.references is None
    term = problem.terms[0]
    if not plain or len(problem.terms) > 1 or math.prod(problem.shape) > SMALL:
        return None
    return term if isinstance(term, TransportTerm) else None


def through_kinks(
    objective: JointObjective,
    term: TransportTerm,
    x: Array,
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Evaluation], bool],
) -> tuple[Evaluation, str]:
    """
    Go on by linearised steps from where the joint solver has ended.

    Returns the last point and why it is the last: "stationary" if to first order no step can gain
    ``tol``, "stuck" if none is found that does, "iterations", "reported" if ``report`` of a step
    returned True, or "unsolved" if the inner problems were not.
    """
    base = evaluate_first(objective, x, KAPPA * tol * term.scale)
    if not (base.converged and base.point.finite):
        return base, "unsolved"
    xp = array_namespace(x)
    smallest = float(xp.finfo(x.dtype).smallest_normal)
    g, distance, small_steps = term.free, 0.0, 0
    for _ in range(max_iter):
        if distance > LAST or small_steps == 3:
            return base, "stuck"
        least = smallest_drop(objective, base, tol)
        blocks = objective.blocks(base.point.x)
        dual = LinearisedDual.of(objective.problem, term, blocks, distance)
        found = dual.solve(g, 0.01 * tol)
        if found is None:
            distance = max(FIRST, MORE * distance)
            continue
        promised = base.point.value + found.value - objective.fixed_entropy
        term.charge(found.n_evaluations)
        if promised <= least:
            return base, "stationary" if distance == 0 else "stuck"
        for k, factor in zip(objective.problem.free, dual.factors(found.x), strict=True):
            blocks[k] = xp.maximum(factor, smallest)  # on the sphere 0 could never grow
        duals, gain = objective.duals(), -math.inf
        if dual.is_like(blocks):
            term.warm(found.x)
            new = objective.evaluate(objective.pack(blocks), KAPPA * least)
            if new.converged and new.point.finite:
                gain = base.point.value - new.point.value
        if gain >= 0.1 * promised:
            base, g = new, found.x
            small_steps = small_steps + 1 if gain < least else 0
            if gain >= 0.7 * promised:
                distance = distance / MORE if distance > FIRST else 0.0
            if report(base):
                return base, "reported"
        else:
            objective.restore(duals)
            distance = max(FIRST, MORE * distance)
    return base, "iterations"
