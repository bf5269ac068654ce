"""The paper's solver: block coordinate descent, each block by its convex dual."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from array_api_compat import array_namespace

from wtfarray._arrays.typing import Array
from wtfarray._dispatch import keeps_history
from wtfarray._losses.protocol import BoundLoss
from wtfarray._models.models import Block
from wtfarray._optimize import OptimizeState, gradient_descent, lbfgs
from wtfarray._solvers.block_dual import block_dual
from wtfarray._solvers.objective import FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason

SOLVED_SHARE = 1e-3
"""The largest share of the objective that may be left to gain in a block."""
BLOCK_ITERATIONS = 1000
"""Of the minimisation of one block dual."""
CHECK_EVERY = 10
"""Iterations between two certificates: one costs more than an evaluation."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Where the descent stands after a block."""

    n_iter: int
    """Sweeps."""
    blocks: list[Array]
    objective: float
    """An upper bound."""
    gap: float
    """Of the last block."""
    evaluations: int


@dataclass(frozen=True, eq=False)
class Descent:
    """What the descent found."""

    blocks: list[Array]
    potential: Array
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
) -> Descent:
    """
    Minimise over one block after the other, from a point of known objective.

    A block is solved to a duality gap that is small against what a sweep gains; a step that would
    raise the objective is refused. ``report`` sees every sweep and ends the solve by returning
    True. The result says UNSOLVED if nothing was gained but blocks have a large gap.
    """
    blocks = list(blocks)
    scale = problem.scale
    precision, evaluations = 1e-3, 0
    for sweep in range(1, max_iter + 1):
        before, gap, solved = objective, 0.0, True
        for k in problem.free:
            allowed = precision * max(abs(objective), scale)
            found = _solve_block(problem, bound, weights, blocks, k, g, allowed)
            g, evaluations = found.g, evaluations + found.evaluations
            solved = solved and found.gap <= SOLVED_SHARE * max(abs(objective), scale)
            if found.objective <= objective and found.objective < math.inf:
                blocks[k], objective, gap = found.block, found.objective, found.gap
        gain = before - objective
        if report(Sweep(sweep, blocks, objective, gap, evaluations)):
            return Descent(blocks, g, StopReason.CALLBACK)
        if objective == math.inf:
            # Balanced, and X cannot be transported to any such model.
            return Descent(blocks, g, StopReason.UNSOLVED)
        magnitude = max(abs(objective), scale)
        if gain <= tol * magnitude and precision <= tol:
            return Descent(blocks, g, StopReason.TOLERANCE if solved else StopReason.UNSOLVED)
        if gain <= 10.0 * precision * magnitude:
            precision = max(0.1 * precision, min(0.1 * tol, precision))
    return Descent(blocks, g, StopReason.ITERATIONS)


@dataclass(frozen=True, eq=False)
class _Solved:
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
) -> _Solved:
    dual = block_dual(
        bound,
        stacked_block(problem, bound.order, blocks, k),
        problem.rho[k],
        problem.constraints[k],
        scales_samples=k == 0 and bound.order[0] == 0,
        weights=weights,
    )

    def certified(state: OptimizeState) -> bool:
        return state.n_iter % CHECK_EVERY == 0 and dual.certificate(state.x).gap <= allowed

    if not in_domain(*dual.safe_value_and_gradient(g)):
        g = dual.start()  # what was right for the last block is out of this one's domain
    minimise = lbfgs if keeps_history(math.prod(g.shape)) else gradient_descent
    found = minimise(
        dual.value_and_gradient,
        g,
        max_iter=BLOCK_ITERATIONS,
        gtol=0.0,
        stop=certified,
        safe_fun=dual.safe_value_and_gradient,
    )
    certificate = dual.certificate(found.x)
    others = sum(problem.block_entropy(blocks, j) for j in range(len(blocks)) if j != k)
    return _Solved(
        certificate.factor,
        found.x,
        certificate.upper + others,
        certificate.gap,
        found.n_evaluations,
    )


def in_domain(value: Array, gradient: Array) -> bool:
    """Whether a dual value and its gradient are small enough to begin with."""
    xp = array_namespace(gradient)
    size = float(xp.abs(value)) + float(xp.max(xp.abs(gradient)))
    return size < 0.1 * math.sqrt(float(xp.finfo(gradient.dtype).max))


def stacked_block(
    problem: FactorisationProblem, order: tuple[int, ...], blocks: Sequence[Array], k: int
) -> Block:
    """One block of the model, its tensor in the order of a bound loss."""
    block = problem.model.block(blocks, k)
    xp = array_namespace(*blocks)
    inverse = tuple(sorted(range(len(order)), key=lambda j: order[j]))

    def forward(a: Array) -> Array:
        return xp.permute_dims(xp.reshape(block.forward(a), problem.shape), order)

    def adjoint(dual: Array) -> Array:
        return block.adjoint(xp.reshape(xp.permute_dims(dual, inverse), block.model_shape))

    return Block(block.shape, tuple(problem.shape[j] for j in order), forward, adjoint)
