"""
Leaving saddle points: restarts before a fit is said to have converged.

Where entries of two blocks are 0, the objective may fall only if both grow, to second order. On the
spheres of `sphere` that is of fourth order, and L-BFGS stays on a plateau for hundreds of steps
that each gain less than the tolerance. From a perturbed point, and with a smaller tolerance, it
finds the way down in a few dozen, rarely in some hundred.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import Constraint, constrained_axes
from wtfarray._solvers import envelope
from wtfarray._solvers.envelope import evaluate_until_solved, smallest_drop
from wtfarray._solvers.objective import Evaluation, JointObjective
from wtfarray._solvers.stop_reason import StopReason


@dataclass(frozen=True)
class EscapeSettings:
    """How a fit is restarted from a perturbed point."""

    amplitude: float = 0.2
    """Size of the perturbation, relative to an entry or, if larger, to the mean of its group."""
    tol: float = 1e-9
    """Tolerance of the steps from the perturbed point."""
    max_iter: int = 400
    """Largest number of steps from the perturbed point."""
    least: int = 10
    """Number of steps that are taken however little they gain, to learn the curvature."""
    worthwhile: float = 1e-4
    """The smallest relative decrease for which the lower point is accepted."""
    attempts: int = 20
    """Largest number of restarts; another follows only if the last one found a lower point."""


SETTINGS = EscapeSettings()


class Descend(Protocol):
    """The descent of a fit, ``descend`` of `joint`, for one problem."""

    def __call__(
        self,
        x: Array,
        levels: tuple[float, ...],
        *,
        tol: float,
        max_iter: int,
        report: Callable[[Evaluation, float, object], bool],
        least: int,
    ) -> tuple[object, Array, StopReason]:
        """What L-BFGS found, the last point, and the reason to stop."""
        ...


def escaped(
    objective: JointObjective,
    x: Array,
    *,
    tol: float,
    descend: Descend,
    report: Callable[[Evaluation], bool],
    attempt: int = 0,
) -> tuple[Array, StopReason] | None:
    """
    A point lower than x and the reason to stop; None if none is found.

    It is looked for with a smaller tolerance, from x itself and then from a perturbed point,
    another one in every ``attempt``. ``report`` sees the lower point: on the way there, values may
    be inaccurate. It ends the solve by returning True.
    """
    gain = max(tol, SETTINGS.worthwhile)
    rough = objective.evaluate(x, 0.02 * objective.problem.scale)
    error = envelope.SETTINGS.inner_error * smallest_drop(objective, rough, gain)
    base = evaluate_until_solved(objective, x, error)
    if not base.point.finite:
        return None
    states = objective.states()
    below = base.point.value - _unknown(base) - smallest_drop(objective, base, gain)
    for start in (x, _perturbed_point(objective, x, attempt)):
        _, found, reason = descend(
            start,
            (1.0,),
            tol=SETTINGS.tol,
            max_iter=SETTINGS.max_iter,
            report=lambda *_: False,
            least=SETTINGS.least,
        )
        after = evaluate_until_solved(objective, found, error)
        if after.point.finite and after.point.value + _unknown(after) < below:
            return found, StopReason.CALLBACK if report(after) else reason
        objective.restore(states)
    return None


def _unknown(current: Evaluation) -> float:
    """The error of a value, if the inner problems could not be solved as accurately as wanted."""
    return 0.0 if current.converged else current.error


def _perturbed_point(objective: JointObjective, x: Array, attempt: int) -> Array:
    """The point with all free blocks perturbed."""
    rng = np.random.default_rng(attempt)
    blocks, problem = objective.blocks(x), objective.problem
    for k in problem.free:
        blocks[k] = perturbed(blocks[k], problem.constraints[k], rng, problem.shards, k)
    return objective.pack(blocks)


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
