"""
Leaving saddle points: a perturbed restart before a fit is said to have converged.

Where entries of two blocks are 0, the objective may fall only if both grow, to second order. On the
spheres of `sphere` that is of fourth order, and L-BFGS stays on a plateau for hundreds of steps
that each gain less than the tolerance. From a perturbed point, and with a smaller tolerance, it
finds the way down in a few dozen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace
from array_api_compat import device as device_of

from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import Constraint, constrained_axes
from wtfarray._solvers import envelope
from wtfarray._solvers.envelope import evaluate_until_solved, minimise, smallest_drop
from wtfarray._solvers.objective import Evaluation, JointObjective
from wtfarray._solvers.stop_reason import StopReason


@dataclass(frozen=True)
class EscapeSettings:
    """How a fit is restarted from a perturbed point."""

    amplitude: float = 0.2
    """Size of the perturbation, relative to an entry or, if larger, to the mean of its group."""
    tol: float = 1e-9
    """Tolerance of the steps from the perturbed point."""
    max_iter: int = 80
    """Largest number of steps from the perturbed point."""
    worthwhile: float = 3e-4
    """The smallest relative decrease for which the lower point is accepted."""


SETTINGS = EscapeSettings()


def escaped(
    objective: JointObjective,
    x: Array,
    *,
    tol: float,
    report: Callable[[Evaluation], bool],
) -> tuple[Array, StopReason] | None:
    """
    A lower point than x, found from a perturbed one, and the reason to stop; None if none is found.

    ``report`` sees the steps that are below x, and ends the search by returning True.
    """
    inner_error = envelope.SETTINGS.inner_error
    scale = objective.problem.scale
    base = evaluate_until_solved(objective, x, inner_error * tol * scale)
    if not (base.converged and base.point.finite):
        return None
    states = objective.states()
    below = base.point.value - smallest_drop(objective, base, max(tol, SETTINGS.worthwhile))
    rng = np.random.default_rng(0)
    blocks = objective.blocks(x)
    for k in objective.problem.free:
        constraint = objective.problem.constraints[k]
        blocks[k] = perturbed(blocks[k], constraint, rng, objective.problem.shards, k)
    found = minimise(
        objective,
        objective.pack(blocks),
        (1.0,),
        tol=SETTINGS.tol,
        max_iter=SETTINGS.max_iter,
        report=lambda progress, _: (
            progress.current.point.value < below and report(progress.current)
        ),
    )
    after = evaluate_until_solved(objective, found.x, inner_error * tol * scale)
    if after.converged and after.point.finite and after.point.value < below:
        return found.x, found.reason
    objective.restore(states)
    return None


def perturbed(
    block: Array,
    constraint: Constraint,
    rng: np.random.Generator,
    shards: Shards = WHOLE,
    k: int = 0,
) -> Array:
    """A block of positive entries near a given one, block k, in the same constraint set."""
    xp = array_namespace(block)
    kind = {"dtype": block.dtype, "device": device_of(block)}
    size, shape = SETTINGS.amplitude, tuple(block.shape)
    axes, sums = constrained_axes(constraint, block.ndim), shards.block_sums(k)
    mean = sums.mean(block, axes)
    factor = xp.asarray(shards.uniform(rng, 1.0 - size, 1.0 + size, shape, k), **kind)
    least = xp.asarray(shards.uniform(rng, 0.0, size, shape, k), **kind) * mean
    block = xp.maximum(block * factor, least)
    return block if axes is None else block / sums.over(block, axes)
