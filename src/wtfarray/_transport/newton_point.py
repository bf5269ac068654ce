"""
A point of Newton's method: value, gradient and step of the dual, by the plan of every sample.

The Hessian of a sample is formed from its plan, (m, m), and factorised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

from wtfarray._arrays.compilation import argument, compiled
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import slices_of
from wtfarray._arrays.typing import Array
from wtfarray._transport.iterate import translation_of_logs
from wtfarray._transport.logarithms import logsumexp
from wtfarray._transport.potential import SATURATION, dual_product
from wtfarray._transport.problem import TransportProblem

LIGHT_SHARE = 1e-6
"""Bins with less than this share of the mass take Sinkhorn steps, in logarithms."""


@argument()
@dataclass(frozen=True, eq=False)
class NewtonPoint:
    """A dual point of every sample and its Newton step; stacks are (N, m), values (N,)."""

    g: Array
    logs: Array
    """``log K f``."""
    q: Array
    gradient: Array
    """``Y exp(-g/lam) - q``, the gradient of the value."""
    value: Array
    size: Array
    """L1 norm of the gradient."""
    step: Array
    light: Array
    """Bins with too little mass for Newton's method, bool."""
    length: Array
    """Maximum norm of the step."""
    decrement: Array
    """Twice the gain of the step in the quadratic model, the squared Newton decrement."""

    def where(self, samples: Array, other: NewtonPoint) -> NewtonPoint:
        """Replace this point by the ``other`` one in the given samples, (N,) bool."""
        xp = array_namespace(samples)
        stacked = samples[:, None]
        pairs = ((getattr(other, f.name), getattr(self, f.name)) for f in fields(self))
        return NewtonPoint(
            *(xp.where(samples if new.ndim == 1 else stacked, new, old) for new, old in pairs)
        )


class NewtonConstants(NamedTuple):
    """What does not change from one point to the next; stacks are (N, m)."""

    data: Array
    root_data: Array
    """The root of X."""
    reachable: Array
    exponents: Array
    """``-C / eps``, (m, m)."""
    identity: Array
    """(1, m, m)."""
    off_diagonal: Array
    """``1 / eps``, 0 on the diagonal, (1, m, m)."""
    radius: float
    """Bound on the distance to the solution."""


@compiled(static=("batch",))
def newton_point(
    g: Array,
    Y: Array,
    live: Array,
    problem: TransportProblem,
    constants: NewtonConstants,
    *,
    batch: int,
) -> NewtonPoint:
    """Value, gradient and Newton step at g plus the optimal constant, ``batch`` samples at once."""
    xp = array_namespace(g)
    lam = problem.lam
    scaled_Y = xp.where(live, Y, 0.0)
    if not problem.conserves_mass:
        shift, scaled_Y = translation_of_logs(problem, g, Y, live)
        g = xp.where(constants.reachable, g + shift[:, None], SATURATION * lam)
    stacks = (g, scaled_Y, live, constants.data, constants.root_data)
    slices = slices_of(g.shape[0], batch)
    if len(slices) == 1:
        parts = _plan(problem, constants, *stacks)
    else:
        lists = [
            _plan(problem, constants, *(stack[some, :] for stack in stacks)) for some in slices
        ]
        parts = tuple(xp.concat(list(arrays)) for arrays in zip(*lists, strict=True))
    log_Kf, q, gradient, step, light = parts
    conjugate = problem.value_of_logs(xp.reshape(log_Kf, tuple(problem.data.shape)))
    value = dual_product(g, Y, lam, problem.kernel.flow) - conjugate
    size = xp.sum(xp.abs(gradient), axis=1)
    length = xp.max(xp.abs(step), axis=1)
    decrement = xp.abs(xp.sum(gradient * step, axis=1))
    return NewtonPoint(g, log_Kf, q, gradient, value, size, step, light, length, decrement)


def _plan(
    problem: TransportProblem,
    constants: NewtonConstants,
    g: Array,
    scaled_Y: Array,
    live: Array,
    data: Array,
    root: Array,
) -> tuple[Array, ...]:
    """``log K f``, the marginal q, the gradient, the Newton step and the light bins."""
    xp = array_namespace(g)
    h = xp.where(live, g * (1.0 / problem.kernel.eps), -math.inf)
    logs = h[:, None, :] + constants.exponents[None, :, :]
    top = xp.max(logs, axis=2, keepdims=True)
    top = xp.where(top > -math.inf, top, 0.0)
    plan = xp.exp(logs - top)
    total = xp.sum(plan, axis=2, keepdims=True)
    positive = total > 0
    total = xp.where(positive, total, 1.0)
    log_Kf = xp.where(positive, xp.log(total) + top, -math.inf)[:, :, 0]
    plan = plan * (root[:, :, None] / total)
    q = xp.matmul(plan.mT, root[:, :, None])[:, :, 0]
    gradient = xp.where(live, scaled_Y - q, 0.0)
    mass = xp.sum(data, axis=1, keepdims=True)
    light = xp.maximum(scaled_Y, q) <= LIGHT_SHARE * mass
    return (
        log_Kf,
        q,
        gradient,
        _step(problem, constants, plan, scaled_Y, gradient, live & ~light),
        light,
    )


def _step(
    problem: TransportProblem,
    constants: NewtonConstants,
    plan: Array,
    scaled_Y: Array,
    gradient: Array,
    heavy: Array,
) -> Array:
    """The Newton step of the heavy bins; ``plan`` is the plan divided by the root of X."""
    xp = array_namespace(plan)
    info = xp.finfo(plan.dtype)
    # Rows of the Hessian of the conjugate sum to 0: the diagonal without cancellation.
    off_diagonal = xp.matmul(plan.mT, plan) * constants.off_diagonal
    diagonal = xp.sum(off_diagonal, axis=2) + xp.abs(gradient) * (1.0 / constants.radius)
    if not problem.conserves_mass:
        diagonal = diagonal + scaled_Y * (1.0 / problem.lam)
    usable = heavy & (diagonal > float(info.smallest_normal) / float(info.eps))
    root = xp.where(usable, xp.sqrt(xp.where(usable, diagonal, 1.0)), 0.0)
    scale = xp.where(usable, 1.0 / xp.where(usable, root, 1.0), 0.0)
    matrix = constants.identity * (1.0 + 10.0 * float(info.eps))
    matrix = matrix - off_diagonal * scale[:, :, None] * scale[:, None, :]
    if problem.conserves_mass:
        # The value is invariant to constants: make the step orthogonal to them.
        norm = xp.sqrt(xp.sum(root * root, axis=1, keepdims=True))
        constant = root / xp.where(norm > 0, norm, 1.0)
        matrix = matrix + constant[:, :, None] * constant[:, None, :]
    solution = xp.linalg.solve(matrix, (gradient * scale)[:, :, None])
    return solution[:, :, 0] * scale


@compiled(array=1, static=("batch",))
def log_ratio_at(
    point: NewtonPoint,
    log_Y: Array,
    live: Array,
    problem: TransportProblem,
    constants: NewtonConstants,
    *,
    batch: int,
) -> Array:
    """``log(Y exp(-g/lam) / q)``, 0 where not live, also if q underflows."""
    xp = array_namespace(log_Y)
    shape = tuple(problem.data.shape)
    log_a = xp.reshape(problem.log_scaling(xp.reshape(point.logs, shape)), tuple(log_Y.shape))
    parts = [
        logsumexp(log_a[some, :, None] + constants.exponents[None, :, :], 1, xp)
        for some in slices_of(log_a.shape[0], batch)
    ]
    back = parts[0] if len(parts) == 1 else xp.concat(parts)
    log_mass = back + point.g * (1.0 / problem.damping)  # 1/eps + 1/lam
    return xp.where(live, log_Y - log_mass, 0.0)
