"""The inner problem as one loop compiled by JAX, without transfers to the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from wtfarray._arrays.samples import flat, per_sample
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import xlogx
from wtfarray._models.tensor import apply_to_mode
from wtfarray._transport import sinkhorn
from wtfarray._transport.anderson import Secants, new_secants, without
from wtfarray._transport.control_flow import ControlFlow, Result, State
from wtfarray._transport.inner_solver import CHECK_EVERY, gap_factor
from wtfarray._transport.iterate import Iterate, search_radius
from wtfarray._transport.kernels import GibbsKernel, from_logs, logsumexp, smallest_sum, to_logs
from wtfarray._transport.potential import dual_product
from wtfarray._transport.problem import Marginal, PlainRange, TransportProblem
from wtfarray._transport.sinkhorn import (
    SinkhornState,
    first_state,
    masked_target,
    memory_for,
    sinkhorn_step,
)

MEMORY = 8
"""Number of secants per sample."""


class CompiledControlFlow:
    """Branches and loops of JAX, decided on the device."""

    def decide(self, condition: Array) -> Array:
        """The condition itself, which stays on the device."""
        return condition

    def cond(
        self, condition: Any, if_true: Callable[[], Result], if_false: Callable[[], Result]
    ) -> Result:
        """The result of one of two functions; a Python bool is decided while tracing."""
        if isinstance(condition, bool):
            return if_true() if condition else if_false()
        chosen: Result = lax.cond(condition, if_true, if_false)
        return chosen

    def while_loop(
        self, cond_fun: Callable[[State], Array], step: Callable[[State], State], state: State
    ) -> State:
        """Apply ``step`` while ``cond_fun`` holds."""
        last: State = lax.while_loop(cond_fun, step, state)
        return last


@dataclass(frozen=True, eq=False, repr=False)
class CompiledKernel(GibbsKernel):
    """A kernel that decides on the device whether to compute in the log domain."""

    flow: ClassVar[ControlFlow] = CompiledControlFlow()

    known_range: float = 0.0
    """The range of potentials, computed before tracing: under ``jit`` costs cannot be read."""

    def potential_range(self) -> float:
        """A bound on how much a potential varies."""
        return self.known_range

    def _log_product(
        self, logs: Array, matrices: tuple[Array, ...], costs: tuple[Array, ...]
    ) -> Array:
        for axis, (matrix, cost) in enumerate(zip(matrices, costs, strict=True), start=1):
            logs = _log_apply_axis(logs, matrix, cost * (-1.0 / self.eps), axis)
        return logs


def _log_apply_axis(logs: Array, matrix: Array, exponents: Array, axis: int) -> Array:
    """Plain products with one scale per fibre; log-sum-exps if these underflow."""
    mantissa, scale = from_logs(logs, axis)
    product = apply_to_mode(mantissa, matrix, axis)
    threshold = smallest_sum(product.dtype, product.shape[axis], jnp)
    underflows = (product < threshold) & (scale > -math.inf)
    return lax.cond(
        jnp.any(underflows),
        lambda: _log_sum_exps(logs, exponents, axis),
        lambda: to_logs(product, scale),
    )


def _log_sum_exps(logs: Array, exponents: Array, axis: int) -> Array:
    """Log-sum-exps, one row of the cost at a time: no temporary is larger than the stack."""
    shape = (-1,) + (1,) * (logs.ndim - axis - 1)
    rows = lax.map(lambda row: logsumexp(logs + jnp.reshape(row, shape), axis, jnp), exponents)
    return jnp.moveaxis(rows, 0, axis)


def compiled_problem(
    data: Array,
    costs: tuple[Array, ...],
    eps: float,
    lam: float,
    order: tuple[int, ...],
    known_range: float,
    *,
    all_finite: bool,
) -> TransportProblem:
    """As `TransportProblem.of`, for evaluation in the log domain only."""
    matrices = tuple(jnp.exp(cost * (-1.0 / eps)) for cost in costs)
    constant = per_sample(xlogx(data, jnp) - data) * (-eps)
    kernel = CompiledKernel(costs, eps, matrices, all_finite, known_range)
    return TransportProblem(data, kernel, lam, order, per_sample(data), constant)


def traceable(problem: TransportProblem) -> TransportProblem:
    """The same problem with a kernel that can be traced by ``jax.jit``."""
    kernel = problem.kernel
    fields = (kernel.costs, kernel.eps, kernel.matrices, kernel.all_finite)
    return replace(problem, kernel=CompiledKernel(*fields, kernel.potential_range()))


def _register(cls: type, static: tuple[str, ...] = ()) -> None:
    """Let ``jax.jit`` take and return a dataclass; the ``static`` fields are compiled in."""
    arrays = [field.name for field in fields(cls) if field.name not in static]
    jax.tree_util.register_dataclass(cls, data_fields=arrays, meta_fields=list(static))


_register(PlainRange, ("positive", "never_underflows"))
_register(CompiledKernel, ("all_finite",))
_register(TransportProblem, ("lam", "order", "all_reachable"))
_register(Marginal)
_register(Iterate, ("error", "distance"))

advance = jax.jit(sinkhorn.advance, static_argnums=(6,))
"""`sinkhorn.advance`, compiled once for each shape, dtype and lam."""


class Carry(NamedTuple):
    """State of the loop."""

    state: SinkhornState
    secants: Secants
    n: Array
    values: Array
    """Lower bounds of the loss at the last iterate whose gap was computed, (N,)."""
    gap: Array
    limit: Array
    """The largest gap allowed."""
    check: Array
    """The gap is computed again once its estimate is below this."""


def solve_compiled(
    problem: TransportProblem, g: Array, Y: Array, tol: Array, max_iter: Array
) -> tuple[Array, Array]:
    """Iterate until the relative gap is at most ``tol``; returns g and the values, (N,)."""
    target = masked_target(problem, Y)
    memory = min(MEMORY, memory_for(math.prod(g.shape[1:])))
    radius, factor = search_radius(problem), gap_factor(problem)

    def advance(carry: Carry) -> Carry:
        state, secants, point = sinkhorn_step(
            problem, target, carry.state, carry.secants, safe=True, max_step=radius
        )
        secants = without(secants, point.worse)
        n, estimate = carry.n + 1, jnp.sum(point.gap_bound(factor))
        due = (estimate <= jnp.minimum(carry.limit, carry.check)) | (n % CHECK_EVERY == 0)
        due = due | (n == max_iter)
        values, gap, limit = lax.cond(
            due,
            lambda: _gap_at(problem, point, Y, tol),
            lambda: (carry.values, carry.gap, carry.limit),
        )
        later = estimate * jnp.where(gap < math.inf, jnp.minimum(0.5, (limit / gap) ** 2), 0.1)
        return Carry(state, secants, n, values, gap, limit, jnp.where(due, later, carry.check))

    def unfinished(carry: Carry) -> Array:
        return (carry.n == 0) | ((carry.gap > carry.limit) & (carry.n < max_iter))

    never = jnp.asarray(math.inf, dtype=g.dtype)
    first = Carry(
        first_state(problem, g),
        new_secants(memory, flat(Y), problem.damping),
        *(jnp.asarray(0), jnp.zeros_like(problem.mass), never, never, never),
    )
    carry = lax.while_loop(unfinished, advance, first)
    return carry.state.g, carry.values


def _gap_at(
    problem: TransportProblem, point: Iterate, Y: Array, tol: Array
) -> tuple[Array, Array, Array]:
    """
    Values, (N,), gap and the largest gap allowed at an iterate.

    As `TransportProblem.bounds`, but reuses the marginal of the iterate: a shift of g by c adds
    ``c <X, 1>`` to the conjugate.
    """
    values = dual_product(point.g, Y, problem.lam, problem.kernel.flow)
    values = values - problem.value(point.marginal) - problem.mass * point.shift
    allowed = jnp.where((Y > 0) | ~problem.reachable, point.g, -math.inf)
    gap = jnp.sum(problem.gap(allowed, point.marginal.q, Y))
    floor = jnp.sum(problem.mass) * problem.kernel.eps
    return values, gap, tol * jnp.maximum(jnp.abs(jnp.sum(values)), floor)
