"""The paper's solver: block coordinate descent, with the convex dual of each block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from wtfarray._arrays.masks import observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import keeps_history, most_work
from wtfarray._losses.protocol import BoundLoss
from wtfarray._models.models import Block
from wtfarray._optimize import OptimizeResult, OptimizeState
from wtfarray._optimize.accelerated import shared_gradient_descent
from wtfarray._optimize.lbfgs import shared_lbfgs
from wtfarray._solvers.block_dual import block_dual
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason

SOLVED_SHARE = 1e-3
"""A block counts as solved if its gap is at most this fraction of the objective."""
BLOCK_ITERATIONS = 1000
"""Largest number of iterations for one block dual."""
CHECK_EVERY = 10
"""Iterations between two certificates, each of which costs more than an evaluation."""
WORK_PER_EVALUATION = 2.0
"""
Work of an evaluation of the dual of a small block, see `Term.work`.

It takes the time of about five units. Fits that converge take up to 20,000 evaluations: with five,
some would end before they have.
"""
LEAST_EVALUATIONS = 10.0
"""Evaluations that every block may take, also when the work of a small fit is used up."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """The state of the descent after a sweep."""

    n_iter: int
    """Number of sweeps."""
    blocks: list[Array]
    objective: float
    """Upper bound on the objective."""
    gap: float
    """Duality gap of the last block that was updated."""
    evaluations: int


@dataclass(frozen=True, eq=False)
class Descent:
    """The result of the descent."""

    blocks: list[Array]
    potential: Array
    objective: float
    """Upper bound on the objective."""
    n_iter: int
    """Number of sweeps."""
    evaluations: int
    reason: StopReason


def descend(
    problem: FactorisationProblem,
    bound: BoundLoss,
    weights: Array | None,
    blocks: Sequence[Array],
    g: Array,
    objective: float,
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Sweep], bool],
    n_iter: int = 0,
    evaluations: int = 0,
    spent: float = 0.0,
) -> Descent:
    """
    Minimise over one block after the other, from a point whose objective is known.

    Each block is solved to a duality gap that is small compared with the decrease of a sweep. An
    update that would increase the objective is rejected. ``report`` is called after every sweep and
    ends the descent by returning True. The reason is UNSOLVED if the objective no longer decreases
    but some block has a large gap.

    A descent that continues another counts on from its ``n_iter`` and ``evaluations``; ``spent`` is
    the work of the inner problems that came between them.
    """
    blocks, sweep, precision = list(blocks), n_iter, 1e-3
    most = (most_work(problem.entries) - spent) / WORK_PER_EVALUATION

    def ended(reason: StopReason) -> Descent:
        return Descent(blocks, g, objective, sweep, evaluations, reason)

    for sweep in range(n_iter + 1, n_iter + max_iter + 1):
        before, gap, solved = objective, 0.0, True
        for k in problem.free:
            allowed = precision * problem.magnitude(objective)
            limit = max(LEAST_EVALUATIONS, most - evaluations)
            found = _solve_block(problem, bound, weights, blocks, k, g, allowed, limit)
            g, evaluations = found.g, evaluations + found.evaluations
            solved = solved and found.gap <= SOLVED_SHARE * problem.magnitude(objective)
            if found.objective <= objective and found.objective < math.inf:
                blocks[k], objective, gap = found.block, found.objective, found.gap
        gain = before - objective
        if report(Sweep(sweep, blocks, objective, gap, evaluations)):
            return ended(StopReason.CALLBACK)
        if objective == math.inf:
            # Balanced, and no feasible model can be reached from X.
            return ended(StopReason.UNSOLVED)
        magnitude = problem.magnitude(objective)
        if gain <= tol * magnitude and precision <= tol:
            return ended(StopReason.TOLERANCE if solved else StopReason.UNSOLVED)
        if evaluations >= most:
            return ended(StopReason.WORK)
        if gain <= 10.0 * precision * magnitude:
            precision = max(0.1 * precision, min(0.1 * tol, precision))
    return ended(StopReason.ITERATIONS)


@dataclass(frozen=True, eq=False)
class _BlockSolution:
    block: Array
    g: Array
    objective: float
    gap: float
    evaluations: int


def _solve_block(
    problem: FactorisationProblem,
    bound: BoundLoss,
    weights: Array | None,
    blocks: list[Array],
    k: int,
    g: Array,
    allowed: float,
    limit: float,
) -> _BlockSolution:
    dual = block_dual(
        bound,
        stacked_block(problem, bound.order, blocks, k),
        problem.rho[k],
        problem.constraints[k],
        scales_samples=k == 0 and bound.order[0] == 0,
        weights=weights,
        sums=problem.shards.sums,
        is_common=k != 0,
    )
    sums = problem.shards.sums

    def certified(state: OptimizeState) -> bool:
        return state.n_iter % CHECK_EVERY == 0 and dual.certificate(state.x).gap <= allowed

    if not sums.all(in_domain(*dual.safe_value_and_gradient(g))):
        g = dual.start()  # the potential of the last block is outside the domain of this one
    minimise: Callable[..., OptimizeResult] = shared_gradient_descent
    if keeps_history(problem.entries):
        most = None if limit == math.inf else math.ceil(limit)
        minimise = partial(shared_lbfgs, max_evaluations=most)
    found = minimise(
        dual.value_and_gradient,
        g,
        sums,
        max_iter=BLOCK_ITERATIONS,
        gtol=0.0,
        stop=certified,
        safe_fun=dual.safe_value_and_gradient,
    )
    certificate = dual.certificate(found.x)
    others = sum(problem.block_entropy(blocks, j) for j in range(len(blocks)) if j != k)
    return _BlockSolution(
        certificate.factor,
        found.x,
        certificate.upper + others,
        certificate.gap,
        found.n_evaluations,
    )


def in_domain(value: Array, gradient: Array) -> bool:
    """Whether a dual value and its gradient are far enough from overflow to start from."""
    xp = array_namespace(gradient)
    size = float(xp.abs(value)) + float(xp.max(xp.abs(gradient)))
    return size < 0.1 * math.sqrt(float(xp.finfo(gradient.dtype).max))


def stacked_block(
    problem: FactorisationProblem, order: tuple[int, ...], blocks: Sequence[Array], k: int
) -> Block:
    """
    The model as a function of one block, with the modes in the order of a bound loss.

    Like the model of the problem, it is 0 where entries are missing.
    """
    block = problem.model.block(blocks, k)
    xp = array_namespace(*blocks)
    inverse = tuple(sorted(range(len(order)), key=lambda j: order[j]))

    def forward(a: Array) -> Array:
        tensor = observed(xp.reshape(block.forward(a), problem.shape), problem.mask)
        return xp.permute_dims(tensor, order)

    def adjoint(dual: Array) -> Array:
        dual = observed(xp.permute_dims(dual, inverse), problem.mask)
        return block.adjoint(xp.reshape(dual, block.model_shape))

    return Block(block.shape, tuple(problem.shape[j] for j in order), forward, adjoint)
