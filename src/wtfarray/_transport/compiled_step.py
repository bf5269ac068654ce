"""Sinkhorn iterations compiled by JAX as one loop, and a kernel that can be traced."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from wtfarray._arrays.compilation import compiler_options, register
from wtfarray._arrays.host import to_host
from wtfarray._arrays.typing import Array
from wtfarray._transport import sinkhorn
from wtfarray._transport.anderson import Secants, without
from wtfarray._transport.banded import BandedCost, BandedKernel
from wtfarray._transport.control_flow import ControlFlow, Result, State
from wtfarray._transport.double_products import DoubleProductsProblem
from wtfarray._transport.geometry import AxisKernel, DenseKernel
from wtfarray._transport.iterate import Iterate, Until
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.logarithms import smallest_sum, to_logs
from wtfarray._transport.problem import Marginal, PlainRange, TransportProblem
from wtfarray._transport.sinkhorn import SinkhornState, Totals
from wtfarray._transport.target import Target


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

    def _log_product(self, logs: Array, axes: tuple[AxisKernel, ...]) -> Array:
        for axis, kernel in enumerate(axes, start=1):
            logs = _log_apply_axis(logs, kernel, axis)
        return logs


def _log_apply_axis(logs: Array, kernel: AxisKernel, axis: int) -> Array:
    """Plain products of mantissas with separate scales; log-sum-exps if these underflow."""
    product, scale = kernel.product_of_logs(logs, axis)
    threshold = smallest_sum(product.dtype, kernel.terms, jnp)
    underflows = (product < threshold) & (scale > -math.inf)
    return lax.cond(
        jnp.any(underflows),
        lambda: kernel.log_sums(logs, axis, lax.map),
        lambda: to_logs(product, scale),
    )


def traceable(problem: TransportProblem) -> TransportProblem:
    """The same problem with a kernel that can be traced by ``jax.jit``."""
    kernel = problem.kernel
    known = (kernel.axes, kernel.eps, kernel.all_finite, kernel.potential_range())
    problem = replace(problem, kernel=CompiledKernel(*known))
    if isinstance(problem, DoubleProductsProblem) and problem.double is not None:
        return replace(problem, double=traceable(problem.double))
    return problem


register(PlainRange, static=("positive", "filled", "never_underflows"))
register(BandedCost, static=("bins",))
register(BandedKernel, static=("blocks",))
register(DenseKernel)
register(CompiledKernel, static=("all_finite",))
for kind in (TransportProblem, DoubleProductsProblem):
    # Other formulas hold for an infinite lam.
    register(kind, static=("order", "all_reachable", "source_lam"), special={"lam": math.inf})
register(Marginal)
register(Iterate)


def _fill_caches(problem: TransportProblem) -> None:
    """Compute what a problem caches now: what is created within a loop must not outlive it."""
    problem.reachable  # noqa: B018
    if problem.plain is not None:
        problem.padding  # noqa: B018
    if isinstance(problem, DoubleProductsProblem) and problem.double is not None:
        _fill_caches(problem.double)


class Carry(NamedTuple):
    """State of a run of iterations."""

    state: SinkhornState
    secants: Secants
    point: Iterate | None
    sums: Array
    """The `summary` of the last iterate."""
    n: Array


@functools.partial(
    jax.jit, static_argnums=(6,), donate_argnums=(3,), compiler_options=compiler_options()
)
def _run(
    problem: TransportProblem,
    target: Target,
    state: SinkhornState,
    secants: Secants,
    weights: Array | None,
    max_step: Array | float,
    safe: bool,  # noqa: FBT001
    until: Until,
) -> tuple[SinkhornState, Secants, Iterate, Array]:
    """Iterate until the totals are met, digits are lost, or there are as many as allowed."""

    def step(carry: Carry) -> Carry:
        state, secants, point = sinkhorn.sinkhorn_step(
            problem, target, carry.state, carry.secants, safe=safe, max_step=max_step
        )
        secants = without(secants, point.worse)
        return Carry(state, secants, point, sinkhorn.summary(point, weights), carry.n + 1)

    def unfinished(carry: Carry) -> Array:
        error, distance, lost = carry.sums[0], carry.sums[1], jnp.sum(carry.sums[2:])
        met = (error <= until.error) & (distance <= until.distance) & (carry.n >= until.least)
        return (carry.n == 0) | (~met & (lost == 0) & (carry.n < until.most))

    _fill_caches(problem)
    # The last iterate is part of the state of the loop, and needs a value before the first.
    begin = Carry(state, secants, None, problem.mass[:0], jnp.asarray(0))
    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(step, begin))
    begin = begin._replace(point=nothing.point, sums=nothing.sums)
    last = lax.while_loop(unfinished, step, begin)
    n = jnp.astype(last.n, last.sums.dtype)
    numbers = jnp.stack([last.sums[0], last.sums[1], jnp.sum(last.sums[2:]), n])
    assert last.point is not None
    return last.state, last.secants, last.point, numbers


def advance(
    problem: TransportProblem, *arguments: Any
) -> tuple[SinkhornState, Secants, Iterate, Totals]:
    """As `sinkhorn.advance`, in one loop compiled once for each shape and dtype."""
    state, secants, point, numbers = _run(problem.traceable, *arguments)
    error, distance, lost, iterations = to_host(numbers).tolist()
    # The secants of samples that grew worse are forgotten already.
    return (
        state,
        secants,
        point,
        Totals(error, distance, lost, worse=False, iterations=int(iterations)),
    )
