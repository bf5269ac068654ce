"""
Prox-linear steps: the model is linearised in all blocks at once, the loss is kept.

If the cost between neighbouring bins is many times eps, the loss is nearly piecewise linear. Its
minima are at kinks, where the gradient on one side does not predict the other side and gradient
methods stall. With the model linearised in all blocks jointly, the problem is convex, including the
kinks, and has a dual like that of one block (the prox-linear method: Lewis and Wright 2016). The
dual value also bounds the decrease of a step, to first order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from array_api_compat import device as device_of

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import per_sample, spread, stack
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import follows_with_prox_linear, forms_linear_maps
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._models.entropy import conjugate_of_entropy
from wtfarray._models.models import Block
from wtfarray._optimize import OptimizeResult, OptimizeState, lbfgs
from wtfarray._solvers import envelope
from wtfarray._solvers.block_descent import in_domain, stacked_block
from wtfarray._solvers.envelope import evaluate_until_solved, minimise, smallest_drop
from wtfarray._solvers.objective import Evaluation, JointObjective
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason
from wtfarray._transport.potential import dual_of_potential, shrinkage
from wtfarray._transport.problem import TransportProblem


@dataclass(frozen=True)
class ProxLinearSettings:
    """Constants of the prox-linear method."""

    evaluations: int = 300
    """Largest number of evaluations of the dual of one step; any dual point gives a bound."""
    steady_steps: int = 10
    """The dual of a step is solved if the decrease that it predicts has not changed by more than"""
    steady_share: float = 2e-3
    """this share in this number of iterations."""
    first_distance: float = 0.25
    """Weight of the proximal term after the first failed step, in units of rho."""
    distance_growth: float = 8.0
    """Factor by which the weight grows after a failure and shrinks after a success."""
    last_distance: float = 1e6
    """The method stops if the weight exceeds this."""
    mass_ratio: float = 1000.0
    """Largest factor by which a step may change the mass of a sample."""
    small_steps: int = 3
    """Stop after this number of consecutive steps with a decrease below the tolerance."""
    total_evaluations: int = 30_000
    """Evaluations of the loss, in all rounds, after which the method gives up."""
    rounds: int = 5
    """Largest number of alternations between prox-linear steps and L-BFGS."""
    finest_tol: float = 1e-8
    """Smallest tolerance: at a kink, the objective is hardly known more accurately."""


SETTINGS = ProxLinearSettings()


@dataclass(frozen=True, eq=False)
class LinearisedDual:
    """
    The dual of ``min Phi(X, Y(A)) + sum_k rho_k E(A_k) + tau_k KL(A_k|B_k)``.

    ``Y(A) = sum_k L_k A_k - (n - 1) Y`` is the model of n blocks, linearised at the blocks B whose
    tensor is Y. The minimum is minus that over g of ``Phi*(X, u(g)) + (n - 1) <u, Y> + sum_k (rho_k
    + tau_k) E*((tau_k log B_k - Xi_k(u)) / (rho_k + tau_k)) - sum_k tau_k <B_k, 1>``. This is
    convex in u, and u is increasing in g, so the minimum is the only stationary point in g.
    """

    bound: TransportProblem
    maps: list[Block]
    """L_k with its adjoint Xi_k for each free block, with stacked model tensors."""
    matrix: Array | None
    """All L_k side by side, if they are small: (entries of Y, entries of all free blocks)."""
    centres: list[Array]
    """B_k."""
    model: Array
    """Y, stacked."""
    problem: FactorisationProblem
    weights: Array | None
    distance: float
    """The weight tau of the proximal term, in units of rho."""

    @classmethod
    def of(
        cls,
        problem: FactorisationProblem,
        term: TransportTerm,
        blocks: Sequence[Array],
        distance: float,
    ) -> LinearisedDual:
        """Linearise the model at ``blocks``."""
        bound = term.problem
        maps = [stacked_block(problem, bound.order, blocks, k) for k in problem.free]
        model = stack(bound, problem.tensor(blocks))
        centres = [blocks[k] for k in problem.free]
        matrix = _matrix_of(maps, centres)
        return cls(bound, maps, matrix, centres, model, problem, term.weights, distance)

    @property
    def work_per_evaluation(self) -> float:
        """Work of an evaluation of a few small samples, see `InnerSolver`."""
        return 1.0 + len(self.maps)

    def value_and_gradient(self, g: Array) -> tuple[Array, Array]:
        """The dual objective, (), and its gradient; NaN where fast kernel products underflow."""
        return self._value_and_gradient(g, *self.bound.conjugate(g))

    def safe_value_and_gradient(self, g: Array) -> tuple[Array, Array]:
        """The same without underflow, slower."""
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
        model = self._forward(factors) - (n - 1.0) * self.model
        value = xp.sum(self._weighted(values)) + entropies + (n - 1.0) * xp.sum(u * self.model)
        if slope is not None:
            model = model * slope
            value = xp.where(outside, math.inf, value)
        return value, self._weighted(marginal - model)

    def _weighted(self, values: Array) -> Array:
        if self.weights is None:
            return values
        return values * (self.weights if values.ndim == 1 else spread(self.weights, values))

    def _forward(self, factors: list[Array]) -> Array:
        """``sum_k L_k A_k``, stacked."""
        xp = array_namespace(self.model)
        shape = tuple(self.model.shape)
        if self.matrix is not None:
            flat = xp.concat([xp.reshape(factor, (-1,)) for factor in factors])
            return xp.reshape(xp.matmul(self.matrix, flat), shape)
        parts = [
            xp.reshape(block.forward(factor), shape)
            for block, factor in zip(self.maps, factors, strict=True)
        ]
        return sum(parts[1:], parts[0])

    def _adjoints(self, u: Array) -> list[Array]:
        """``Xi_k u`` of every free block."""
        xp = array_namespace(u)
        if self.matrix is None:
            return [block.adjoint(xp.reshape(u, block.model_shape)) for block in self.maps]
        flat = xp.matmul(xp.reshape(u, (-1,)), self.matrix)
        parts, start = [], 0
        for centre in self.centres:
            size = math.prod(centre.shape)
            parts.append(xp.reshape(flat[start : start + size], tuple(centre.shape)))
            start += size
        return parts

    def _factors(self, u: Array) -> tuple[Array, list[Array]]:
        """The entropies and proximal terms of the dual, (), and the blocks A(u)."""
        xp = array_namespace(u)
        least = float(xp.finfo(u.dtype).smallest_normal)
        total, factors = 0.0 * self.model[(0,) * u.ndim], []
        for k, xi, centre in zip(self.problem.free, self._adjoints(u), self.centres, strict=True):
            rho = self.problem.rho[k]
            tau = self.distance * rho
            slope = -1.0 * xi
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
        """The primal free blocks for the dual point g."""
        u = dual_of_potential(g, self.bound.lam, array_namespace(g))
        return self._factors(self._weighted(u))[1]

    def solve(self, g: Array, tol: float, base: float, least: float) -> OptimizeResult | None:
        """
        Minimise from g; None if g is outside the domain.

        ``base`` is the objective at the centres without its fixed entropies. Their sum with a dual
        value bounds the decrease of a step. It need not be known better than to a share of itself,
        and not at all if it is below ``least``.
        """
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
            max_evaluations=SETTINGS.evaluations,
            gtol=0.0,
            ftol=tol,
            stop=_Sufficient(base, least),
            safe_fun=self.safe_value_and_gradient,
        )

    def has_similar_mass(self, blocks: Sequence[Array]) -> bool:
        """Whether each sample of the model has the mass it has at the centres, within a factor."""
        xp = array_namespace(self.model)
        model = stack(self.bound, self.problem.tensor(blocks))
        old, new = per_sample(self.model), per_sample(model)
        ratio = SETTINGS.mass_ratio
        similar = (new >= old / ratio) & (new <= old * ratio) & (new > 0)
        return bool(xp.all(similar | (self.bound.mass == 0)))


def _matrix_of(maps: Sequence[Block], centres: Sequence[Array]) -> Array | None:
    """The linear maps side by side, column by column; None if this takes more than it saves."""
    xp = array_namespace(*centres)
    entries = math.prod(maps[0].model_shape)
    sizes = [math.prod(centre.shape) for centre in centres]
    if not forms_linear_maps(entries, sum(sizes)):
        return None
    columns = []
    for block, centre, size in zip(maps, centres, sizes, strict=True):
        units = xp.eye(size, dtype=centre.dtype, device=device_of(centre))
        for i in range(size):
            unit = xp.reshape(units[i, :], tuple(centre.shape))
            columns.append(xp.reshape(block.forward(unit), (-1,)))
    return xp.stack(columns, axis=1)


class _Sufficient:
    """Whether the dual of a step is solved well enough for the decrease that it predicts."""

    def __init__(self, base: float, least: float) -> None:
        self._base = base
        self._least = least
        self._values: list[float] = []

    def __call__(self, state: OptimizeState) -> bool:
        predicted = self._base + state.value
        if predicted <= self._least:
            return True  # the dual decreases, and with it the bound
        before = self._values
        before.append(state.value)
        if len(before) <= SETTINGS.steady_steps:
            return False
        drop = before[-1 - SETTINGS.steady_steps] - state.value
        return drop <= SETTINGS.steady_share * predicted


@dataclass(frozen=True, eq=False)
class ProxLinearResult:
    """The result of prox-linear steps."""

    best: Evaluation
    reason: StopReason
    accepted: int
    """Number of accepted steps."""


def prox_linear_term(problem: FactorisationProblem) -> TransportTerm | None:
    """The term of the problem if prox-linear steps support it, else None."""
    plain = all(isinstance(rho, float) for rho in problem.rho) and problem.references is None
    small = follows_with_prox_linear(problem.entries)
    if not plain or not small or len(problem.terms) != 1:
        return None
    term = problem.terms[0]
    return term if isinstance(term, TransportTerm) else None


def prox_linear_steps(
    objective: JointObjective,
    term: TransportTerm,
    x: Array,
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Evaluation], bool],
    max_evaluations: float = math.inf,
) -> ProxLinearResult:
    """
    Continue with prox-linear steps from the last point of L-BFGS.

    The reason is STATIONARY if, to first order, no step can decrease the objective by ``tol``,
    STUCK if no such step is found, UNSOLVED if the inner problems did not converge, and WORK if the
    term has been evaluated ``max_evaluations`` times or the work of a small problem is used up.
    """
    inner_error = envelope.SETTINGS.inner_error
    xp = array_namespace(x)
    rough = objective.evaluate(x, 0.02 * term.scale)
    rounding = 10.0 * float(xp.finfo(x.dtype).eps) * abs(rough.point.value)
    base = evaluate_until_solved(objective, x, max(inner_error * tol * term.scale, rounding))
    if not (base.converged and base.point.finite):
        return ProxLinearResult(base, StopReason.UNSOLVED, 0)
    smallest = float(xp.finfo(x.dtype).smallest_normal)
    g, distance, small_steps, accepted = term.potential, 0.0, 0, 0
    for _ in range(max_iter):
        if distance > SETTINGS.last_distance or small_steps == SETTINGS.small_steps:
            return ProxLinearResult(base, StopReason.STUCK, accepted)
        if term.evaluations >= max_evaluations or objective.is_exhausted:
            return ProxLinearResult(base, StopReason.WORK, accepted)
        least = smallest_drop(objective, base, tol)
        blocks = objective.blocks(base.point.x)
        dual = LinearisedDual.of(objective.problem, term, blocks, distance)
        found = dual.solve(g, 0.01 * tol, base.point.value - objective.constant, least)
        if found is None:
            distance = _increased(distance)
            continue
        predicted = base.point.value + found.value - objective.constant
        term.count_evaluations(found.n_evaluations, dual.work_per_evaluation)
        if predicted <= least:
            reason = StopReason.STATIONARY if distance == 0 else StopReason.STUCK
            return ProxLinearResult(base, reason, accepted)
        for k, factor in zip(objective.problem.free, dual.factors(found.x), strict=True):
            blocks[k] = xp.maximum(factor, smallest)  # in sphere variables a zero remains zero
        states, gain = objective.states(), -math.inf
        if dual.has_similar_mass(blocks):
            term.start_from(found.x)
            new = objective.evaluate(objective.pack(blocks), inner_error * least)
            if new.converged and new.point.finite:
                gain = base.point.value - new.point.value
        if not gain >= 0.1 * predicted:
            objective.restore(states)
            distance = _increased(distance, far_off=gain < -predicted)
            continue
        base, g, accepted = new, found.x, accepted + 1
        small_steps = small_steps + 1 if gain < least else 0
        if gain >= 0.7 * predicted:
            distance = _decreased(distance)
        if report(base):
            return ProxLinearResult(base, StopReason.CALLBACK, accepted)
    return ProxLinearResult(base, StopReason.ITERATIONS, accepted)


def _increased(distance: float, *, far_off: bool = False) -> float:
    """
    The weight of the proximal term after a failed step.

    ``far_off`` says that it increased the objective by more than it should have decreased it.
    """
    growth = SETTINGS.distance_growth
    return max(SETTINGS.first_distance, growth * distance) * (growth if far_off else 1.0)


def _decreased(distance: float) -> float:
    """The weight of the proximal term after a step with the predicted decrease."""
    if distance > SETTINGS.first_distance:
        return distance / SETTINGS.distance_growth
    return 0.0


def alternate(
    objective: JointObjective,
    term: TransportTerm,
    x: Array,
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Evaluation], bool],
) -> tuple[Array, StopReason]:
    """Alternate prox-linear steps and L-BFGS until neither decreases the objective."""
    xp = array_namespace(x)
    tol = max(tol, SETTINGS.finest_tol, 10.0 * float(xp.finfo(x.dtype).eps))
    left, reason = max_iter, StopReason.ITERATIONS
    most = term.evaluations + SETTINGS.total_evaluations
    for _ in range(SETTINGS.rounds):
        steps = prox_linear_steps(
            objective, term, x, tol=tol, max_iter=left, report=report, max_evaluations=most
        )
        best, reason, left = steps.best, steps.reason, left - steps.accepted
        x = best.point.x
        if reason is not StopReason.STUCK:
            break
        states = objective.states()
        plain = minimise(
            objective,
            x,
            (1.0,),
            tol=tol,
            max_iter=left,
            report=lambda progress, _: report(progress.current),
        )
        x, reason, left = plain.x, plain.reason, left - plain.accepted
        least = smallest_drop(objective, best, tol)
        after = evaluate_until_solved(objective, x, envelope.SETTINGS.inner_error * least)
        if not after.converged or best.point.value - after.point.value <= least:
            objective.restore(states)
            ended_early = reason.by_caller or reason is StopReason.WORK
            return best.point.x, reason if ended_early else StopReason.STUCK
        if reason.by_caller or reason is StopReason.ITERATIONS:
            break
    return x, reason
