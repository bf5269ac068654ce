"""The certificate of balanced transport where some ways are forbidden: a plan mended on its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from array_api_compat import array_namespace

from wtfarray._arrays.samples import inner, largest, per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._transport.kernels import GibbsKernel

MOST = 500
"""Steps of conjugate gradients."""


@dataclass(frozen=True, eq=False, repr=False)
class Mending:
    """
    A plan ``G = diag(a) K diag(exp(h))`` with the rows x and the columns q, to be mended.

    Rounding a plan sends what is left over from anywhere to anywhere, which may be forbidden. Here
    ``P_ij = G_ij (1 + b_j - c_i)``, ``c = G b / x``: the rows stay and the columns become ``q +
    L b``, ``L = diag(q) - G^T diag(1/x) G``. By conjugate gradients they become Y. If no factor is
    negative P is feasible, and its gap ``eps KL(P|G)`` is at most ``eps <b, L b>``, because ``t log
    t - t + 1 <= (t - 1)^2``.
    """

    kernel: GibbsKernel
    log_a: Array
    h: Array
    x: Array
    q: Array

    def gap(self, g: Array, Y: Array) -> Array:
        """
        The gap of each sample, (N,), inf where no feasible P was found.

        What is left of ``Y - q - L b`` counts as rounding of Y up to that of the plan's exponents,
        and costs ``|g|`` there.
        """
        xp = array_namespace(Y)
        mass = per_sample(self.x)
        missing = Y - self.q
        rounding = self._rounding()
        b = self._conjugate_gradients(missing, rounding, mass * rounding)
        b, log_c = self._means(b)
        # No factor is negative if b is 0 at least and c at most 1, which a smaller b always is.
        most = xp.exp(xp.minimum(xp.max(log_c, axis=tuple(range(1, Y.ndim))), 50.0))
        b = b / spread(xp.maximum(most * (1.0 + 4.0 * float(xp.finfo(Y.dtype).eps)), 1.0), b)
        change = self._laplacian(b)
        rest = missing - change
        price = xp.where(Y > 0, g, 0.0)
        price = price - spread(inner(price, Y) / xp.where(mass > 0, mass, 1.0), price)
        gap = inner(b, change) * self.kernel.eps + inner(xp.abs(price), xp.abs(rest))
        feasible = per_sample(xp.abs(rest)) <= 16.0 * mass * rounding
        return xp.where(feasible, xp.maximum(gap, 0.0), math.inf)

    def _rounding(self) -> Array:
        """Of an entry of the plan, relative to it, (N,): that of its exponents."""
        xp = array_namespace(self.h)
        logs = (self.h, self.log_a)
        exponents = sum(largest(xp.where(log > -math.inf, log, 0.0)) for log in logs)
        # Those of a solution; where there is none they grow and grow.
        most = 4.0 * self.kernel.longest_way() / self.kernel.eps
        return (xp.minimum(exponents, most) + 16.0) * float(xp.finfo(self.h.dtype).eps)

    def _means(self, b: Array) -> tuple[Array, Array]:
        """``b`` less its minimum, and the logarithm of the means ``c`` of that."""
        xp = array_namespace(b)
        some = self.q > 0
        low = xp.min(xp.where(some, b, math.inf), axis=tuple(range(1, b.ndim)), keepdims=True)
        b = xp.where(some, b - low, 0.0)
        log_b = xp.where(b > 0, xp.log(xp.where(b > 0, b, 1.0)), -math.inf)
        log_x = xp.log(xp.where(self.x > 0, self.x, 1.0))
        return b, self.log_a + self.kernel.log_apply(self.h + log_b) - log_x

    def _laplacian(self, b: Array) -> Array:
        """``L b``."""
        b, log_c = self._means(b)
        xp = array_namespace(b)
        return self.q * b - xp.exp(self.h + self.kernel.log_apply_adjoint(self.log_a + log_c))

    def _conjugate_gradients(self, missing: Array, rounding: Array, tolerance: Array) -> Array:
        """Solve ``L b = missing``, sample by sample, until what is left is below the tolerance."""
        xp = array_namespace(missing)
        some = self.q > 0
        inverse = xp.where(some, 1.0 / xp.where(some, self.q, 1.0), 0.0)

        def unfinished(b: Array, rest: Array) -> Array:
            # The iterates grow: where one is this large, no feasible plan is near.
            return (per_sample(xp.abs(rest)) > tolerance) & (largest(b) <= 2.0)

        def goes_on(state: tuple[Array, ...]) -> Array:
            return xp.any(state[4]) & (state[5] < MOST)

        def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
            b, rest, way, square, moves, n = state
            change = self._laplacian(way)
            curvature = inner(way, change)
            # Between parts of the plan that nothing joins L is flat, but for rounding.
            moves = moves & (curvature > rounding * inner(way, self.q * way))
            length = spread(xp.where(moves, square / xp.where(moves, curvature, 1.0), 0.0), b)
            b, rest = b + length * way, rest - length * change
            before, square = square, inner(rest, inverse * rest)
            ratio = xp.where(before > 0, square / xp.where(before > 0, before, 1.0), 0.0)
            way = inverse * rest + spread(ratio, b) * way
            return b, rest, way, square, moves & unfinished(b, rest), n + 1

        b, way = xp.zeros_like(missing), inverse * missing
        start = (b, missing, way, inner(missing, way), unfinished(b, missing), 0.0 * tolerance[0])
        return self.kernel.repeat(goes_on, step, start)[0]
