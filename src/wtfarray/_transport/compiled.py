"""The inner problem as one loop that JAX compiles: no number is read back while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from wtfarray._arrays.samples import inner, per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import xlogx
from wtfarray._models.tensor import apply_to_mode
from wtfarray._transport.anderson import Secants
from wtfarray._transport.inner_solver import Iterate, translation
from wtfarray._transport.kernels import (
    GibbsKernel,
    State,
    _from_logs,
    _to_logs,
    logsumexp,
    smallest_sum,
)
from wtfarray._transport.potential import dual_of_free
from wtfarray._transport.problem import FAR, TransportProblem
from wtfarray._transport.sinkhorn import Sinkhorn

MEMORY = 8


@dataclass(frozen=True, eq=False, repr=False)
class CompiledKernel(GibbsKernel):
    """A kernel whose ways through the log domain are chosen on the device."""

    top: float = 0.0
    """What potentials vary by at most."""

    def _log_product(
        self, logs: Array, matrices: tuple[Array, ...], costs: tuple[Array, ...]
    ) -> Array:
        for axis, (matrix, cost) in enumerate(zip(matrices, costs, strict=True), start=1):
            logs = _log_apply_axis(logs, matrix, cost * (-1.0 / self.eps), axis)
        return logs

    def longest_way(self) -> float:
        """Known beforehand, for here it could not be read."""
        return self.top

    @staticmethod
    def repeat(
        goes_on: Callable[[State], Array], step: Callable[[State], State], state: State
    ) -> State:
        """As a loop on the device."""
        last: State = lax.while_loop(goes_on, step, state)
        return last


def _log_apply_axis(logs: Array, matrix: Array, exponents: Array, axis: int) -> Array:
    """Plain products with one scale a fibre; if digits were lost, log-sum-exps instead."""
    mantissa, scale = _from_logs(logs, axis)
    product = apply_to_mode(mantissa, matrix, axis)
    lost = (product < smallest_sum(product.dtype, product.shape[axis], jnp)) & (scale > -math.inf)
    return lax.cond(
        jnp.any(lost),
        lambda: _exact(logs, exponents, axis),
        lambda: _to_logs(product, scale),
    )


def _exact(logs: Array, exponents: Array, axis: int) -> Array:
    """Log-sum-exps, row after row of the cost: no temporary is larger than the stack."""
    shape = (-1,) + (1,) * (logs.ndim - axis - 1)
    rows = lax.map(lambda row: logsumexp(logs + jnp.reshape(row, shape), axis, jnp), exponents)
    return jnp.moveaxis(rows, 0, axis)


def compiled_problem(
    data: Array,
    costs: tuple[Array, ...],
    eps: float,
    lam: float,
    order: tuple[int, ...],
    top: float,
    *,
    is_open: bool,
) -> TransportProblem:
    """`TransportProblem.of`, for the log domain alone, in which nothing underflows."""
    matrices = tuple(jnp.exp(cost * (-1.0 / eps)) for cost in costs)
    constant = per_sample(xlogx(data, jnp) - data) * (-eps)
    kernel = CompiledKernel(costs, eps, matrices, is_open, top)
    unused = math.nan
    return TransportProblem(data, kernel, lam, order, per_sample(data), constant, unused, unused)


class Progress(NamedTuple):
    """What one iteration hands to the next."""

    ahead: Array
    """Where the next evaluation will be."""
    g: Array
    """Where the last one was, and what it found."""
    phi: Array
    plain: Array
    """The plain step from there."""
    size: Array
    pairs: tuple[list[Array], list[Array], Array, Array]
    """Of `Secants`."""
    n: Array
    values: Array
    """Lower bounds of the loss at the point that was last looked at, (N,)."""
    gap: Array
    limit: Array
    check: Array
    """Look again when the estimate is below this."""


class CompiledSinkhorn(Sinkhorn):
    """`Sinkhorn.iterates` and `solve_to_gap` together, as one loop on the device."""

    def run(self, Y: Array, tol: Array, max_iter: Array) -> tuple[Array, Array]:
        """Iterate until the gap is at most ``tol`` times the value; g and the values, (N,)."""
        problem = self.problem
        lam, mass = problem.lam, problem.mass
        filled, reached = spread(mass > 0, Y), problem.reached
        live = (Y > 0) & reached
        log_Y = jnp.log(jnp.where(live, Y, 1.0))
        floor = jnp.sum(mass) * problem.kernel.eps
        factor = problem.kernel.eps if problem.conserves_mass else lam

        def measure(point: Iterate) -> tuple[Array, Array, Array]:
            # As `bounds`, from what the point has already: a shift of g by c adds c <X, 1>.
            u = dual_of_free(point.g, lam, jnp)
            values = inner(u, Y) - problem.value(point.marginal) - mass * point.shift
            allowed = jnp.where((Y > 0) | ~reached, point.g, -math.inf)
            gap = jnp.sum(problem.gap(allowed, point.marginal.q, Y))
            return values, gap, tol * jnp.maximum(jnp.abs(jnp.sum(values)), floor)

        def advance(state: Progress) -> Progress:
            g = state.ahead
            masked = jnp.where(live, g, jnp.where(filled, -math.inf, 0.0))
            marginal, log_q = problem.marginal(masked, safe=True)
            shift, shrunk = 0.0 * mass, Y
            if not problem.conserves_mass:
                shift, shrunk = translation(problem, g, Y, live)
                g = jnp.where(reached, g + spread(shift, g), FAR * lam)
                log_q = log_q + g * (1.0 / lam)
            rest = shrunk - marginal.q
            phi = jnp.where(live, log_q * self._damp, 0.0)
            residual = self._residual(log_Y, phi, live)
            worse, size = self._growth(rest, state.size)
            moves, changes, valid, gram = state.pairs
            secants = Secants(self._memory, Y, self._reach, list(moves), list(changes), valid, gram)
            secants.forget(worse)
            change = phi - state.phi
            secants.add(g - state.g - change, change, ~worse & (state.n > 0))
            if not problem.kernel.is_open:
                secants.forget(size > mass)
            step = secants.step(residual)
            ratio, unused = residual * (1.0 / self._damp), 0.0 * mass
            point = Iterate(g, marginal, shift, ratio, rest, unused, size)
            n, estimate = state.n + 1, jnp.sum(point.gap_bound(factor))
            look = (estimate <= jnp.minimum(state.limit, state.check)) | (n % 100 == 0)
            look = look | (n == max_iter)
            values, gap, limit = lax.cond(
                look, lambda: measure(point), lambda: (state.values, state.gap, state.limit)
            )
            later = estimate * jnp.where(gap < math.inf, jnp.minimum(0.5, (limit / gap) ** 2), 0.1)
            return Progress(
                ahead=jnp.where(spread(worse, g), state.plain, g + step),
                g=g,
                phi=phi,
                plain=g + residual,
                size=size,
                pairs=(secants.moves, secants.changes, secants.valid, secants.gram),
                n=n,
                values=values,
                gap=gap,
                limit=limit,
                check=jnp.where(look, later, state.check),
            )

        def unfinished(state: Progress) -> Array:
            return (state.n == 0) | ((state.gap > state.limit) & (state.n < max_iter))

        last = lax.while_loop(unfinished, advance, self._first(Y))
        return last.g, last.values

    def _first(self, Y: Array) -> Progress:
        none, never = jnp.zeros_like(Y), jnp.asarray(math.inf, dtype=Y.dtype)
        numbers, count = jnp.zeros_like(self.problem.mass), range(self._memory)
        pairs = (
            [none for _ in count],
            [none for _ in count],
            jnp.stack([numbers > 0 for _ in count], axis=1),
            jnp.stack([jnp.stack([numbers for _ in count], axis=1) for _ in count], axis=2),
        )
        # Infinite limits: the first point is looked at, whatever its estimate.
        return Progress(
            *(self.g, self.g, none, self.g, numbers + math.inf, pairs),
            *(jnp.asarray(0), numbers, never, never, never),
        )
