"""
A Wasserstein loss of sparse data, all modes of which are transported, solved on their support.

The iterates are ``log a`` on the support of X, which has far fewer entries than the potential g:
``log b = lam/(lam + eps) (log Y - log K^T a)``, ``a = X / K b``, and ``g = eps log b``.
"""

from __future__ import annotations

import math

import numpy as np

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample, stack, unstack
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import solves_on_support
from wtfarray._losses.term import TermValue, tightened
from wtfarray._models.entropy import kl_divergence
from wtfarray._transport.anderson import accelerated, new_secants, predicted, without
from wtfarray._transport.potential import SATURATION, dual_of_potential, dual_product
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.support_products import SupportProducts

ERROR_SAFETY = 0.03
"""Factor of the tolerance that the estimated error has to reach.

The fixed-point map depends on the model, so secants of earlier models are not exact, and the
estimate is too small by a factor of some tens.
"""


RIDGE = 3e-6
"""Of the Gram matrices of secants: one long sample, whose secants are accurate."""


def is_sparse_tensor(problem: TransportProblem) -> bool:
    """Whether a problem has one sample, with few positive entries."""
    xp = array_namespace(problem.data)
    if problem.data.shape[0] != 1:
        return False
    share = float(xp.mean(xp.astype(problem.data > 0, problem.data.dtype)))
    return solves_on_support(problem.data.shape[0], share)


class SparseTensorTerm:
    """A Wasserstein loss of sparse data; its state is ``log a`` on the support, (1, s)."""

    def __init__(self, problem: TransportProblem, shape: tuple[int, ...], memory: int = 30) -> None:
        xp = array_namespace(problem.data)
        self.problem = problem
        self.shape = shape
        self.evaluations = 0
        self.scale = problem.kernel.eps * float(xp.sum(problem.mass))
        flat = xp.reshape(problem.data, (-1,))
        (self._support,) = xp.nonzero(flat > 0)
        self._x = xp.reshape(xp.take(flat, self._support), (1, -1))
        self._log_x = xp.log(self._x)
        # For every bin its index in the support, or the size of the support if X is 0 there.
        places = xp.cumulative_sum(xp.astype(flat > 0, self._support.dtype)) - 1
        self._place = xp.where(flat > 0, places, self._support.shape[0])
        self._memory = max(1, min(memory, self._x.shape[1] // 2))
        self._at_level = problem
        self.state = xp.zeros_like(self._x)
        self.potential = xp.zeros_like(problem.data)
        self.drop_history()

    @property
    def work(self) -> float:
        """Time spent so far, in evaluations."""
        return self.evaluations

    def set_level(self, level: float) -> None:
        """Continue with ``level`` times eps; eps log a has the units of the cost and is kept."""
        eps = self.problem.kernel.eps * level
        self.state = self.state * (self._at_level.kernel.eps / eps)
        self._at_level = self.problem if level == 1.0 else self.problem.at_eps(eps)
        self.drop_history()

    def start_from(self, g: Array) -> None:
        """Start from a potential g, stacked."""
        self.potential = g
        self.state = self._log_x - self._log_apply(g * (1.0 / self._at_level.kernel.eps))

    def drop_history(self) -> None:
        """Drop the secants."""
        kernel = self._at_level.kernel
        self._max_step = 3.0 * kernel.potential_range() / kernel.eps
        self._secants = new_secants(self._memory, self._x, 1.0, RIDGE)
        self._safe_adjoint = self._safe_apply = False
        shape = tuple(self.problem.data.shape[1:])
        self._products = SupportProducts.of(kernel, to_host(self._support).astype(np.intp), shape)

    def evaluate(
        self,
        model: Array,
        tolerance: float,
        max_iter: int,
        *,
        ordinary: bool = False,  # noqa: ARG002
    ) -> TermValue:
        """Iterate until the estimated error is below the tolerance."""
        xp = array_namespace(model)
        problem = self._at_level
        Y = stack(problem, model)
        mass = float(xp.sum(problem.mass))
        log_Y = self._log(Y)
        last, previous_size, plain = None, math.inf, self.state
        always = problem.mass == problem.mass
        log_a = self.state
        for n in range(1, max_iter + 1):
            log_a, h, log_Kb = self._cycle(log_a, log_Y)
            self.evaluations += 1
            residual = self._log_x - log_Kb - log_a
            marginal_error = -self._x * xp.expm1(-residual)
            if last is None:
                # A pair within one call only: differences of two models would not be secants.
                step = residual + predicted(self._secants, residual, self._max_step)
            else:
                change = last[1] - residual
                self._secants, extra = accelerated(
                    self._secants,
                    log_a - last[0] - change,
                    change,
                    residual,
                    always,
                    ~always,
                    self._max_step,
                )
                step = residual + extra
            decrements = [inner(marginal_error, step)[0], inner(marginal_error, residual)[0]]
            numbers = xp.stack([xp.sum(xp.abs(marginal_error)), *decrements])
            size, *decrements = to_host(numbers).tolist()
            worse = not size <= 3.0 * previous_size
            error = problem.kernel.eps * max(abs(d) for d in decrements)
            done = n > 1 and error <= ERROR_SAFETY * tolerance and size <= 0.1 * mass and not worse
            last, previous_size = (log_a, residual), math.inf if worse else size
            if worse:
                self._secants = without(self._secants, always)
            self.state = plain if worse else log_a + step
            plain = log_a + residual
            if done or n == max_iter:
                break
            log_a = self.state
        self.potential = g = self._potential(h)
        u = dual_of_potential(g, problem.lam, xp)
        value = self._value(g, Y, log_Kb)
        gradient = unstack(problem, u, self.shape)
        return TermValue(float(value[0]), error, error, gradient, done)

    def certify(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """Solve the inner problem until its duality gap is below the tolerance."""
        problem = self._at_level
        Y = stack(problem, model)

        def attempt(error: float, iterations: int) -> tuple[TermValue, float, float, int]:
            before = self.evaluations
            found = self.evaluate(model, error, iterations)
            value, gap, u = self._bounds(Y)
            gradient = unstack(problem, u, self.shape)
            result = TermValue(value, gap, gap, gradient, gap <= tolerance)
            return result, gap, found.error, self.evaluations - before

        return tightened(attempt, tolerance, max_iter)

    def _bounds(self, Y: Array) -> tuple[float, float, Array]:
        """
        The dual value, its gap, and the dual variable u.

        The plan of g has the row sums X, that of a and b the row sums ``a K b``; divided by these,
        their rows are equal. So KL of their second marginals, q and ``Y exp(-g/lam)``, is at most
        that of their first marginals, a sum over the support.
        """
        xp = array_namespace(Y)
        problem = self._at_level
        log_a, h, log_Kb = self._cycle(self.state, self._log(Y))
        g = self._potential(h)
        if problem.conserves_mass:
            value, gap, u = problem.bounds(g, Y)
        else:
            u = dual_of_potential(g, problem.lam, xp)
            value = self._value(g, Y, log_Kb)
            u = xp.where((Y > 0) | ~problem.reachable, u, -math.inf)
            gap = per_sample(kl_divergence(self._x, xp.exp(log_a + log_Kb), xp))
            gap = gap * problem.lam
        return float(value[0]), float(gap[0]), u

    def _value(self, g: Array, Y: Array, log_Kb: Array) -> Array:
        """``<u, Y> - Phi*(X, u)``, (1,)."""
        problem = self._at_level
        finite = array_namespace(Y).where(Y > 0, g, 0.0)
        product = dual_product(finite, Y, problem.lam, problem.kernel.flow)
        return product - inner(self._x, log_Kb) * problem.kernel.eps - problem.constant

    def _cycle(self, log_a: Array, log_Y: Array) -> tuple[Array, Array, Array]:
        """One iteration: log a plus the optimal constant, h = log b, and log K b on the support."""
        xp = array_namespace(log_Y)
        problem = self._at_level
        eps, lam = problem.kernel.eps, problem.lam
        damp = 1.0 if problem.conserves_mass else lam / (lam + eps)
        h = (log_Y - self._log_apply_adjoint(log_a, log_Y)) * damp
        log_Kb = self._log_apply(h)
        if not problem.conserves_mass:
            found = xp.sum(xp.exp(log_a + log_Kb))
            shift = (xp.log(xp.sum(problem.mass)) - xp.log(found)) * ((lam + eps) / eps)
            log_a, h, log_Kb = log_a + shift, h - damp * shift, log_Kb - damp * shift
        return log_a, h, log_Kb

    def _log_apply_adjoint(self, log_a: Array, log_Y: Array) -> Array:
        """``log K^T a`` on all bins, (1, ...)."""
        xp = array_namespace(log_Y)
        kernel = self._at_level.kernel
        if not self._safe_adjoint:
            top = xp.max(log_a)
            product = self._apply_adjoint(xp.exp(log_a - top), log_Y)
            accurate = product >= self._at_level.plain_range.threshold
            if bool(xp.all(accurate | (log_Y == -math.inf))):
                return xp.log(xp.where(accurate, product, 1.0)) + top
            self._safe_adjoint = True
        product = kernel.log_apply_adjoint(self._scatter(log_a, -math.inf, log_Y))
        return xp.where(log_Y > -math.inf, product, 0.0)

    def _log_apply(self, h: Array) -> Array:
        """``log K exp(h)`` on the support, (1, s)."""
        xp = array_namespace(h)
        kernel = self._at_level.kernel
        if not self._safe_apply:
            top = xp.max(h)
            product = self._apply(xp.exp(h - top))
            if bool(xp.all(product >= self._at_level.plain_range.threshold)):
                return xp.log(product) + top
            self._safe_apply = True
        return self._gather(kernel.log_apply(h))

    def _apply_adjoint(self, a: Array, like: Array) -> Array:
        """``K^T a`` on all bins, (1, ...), of a on the support, (1, s), by plain products."""
        if self._products is not None:
            return self._products.apply_adjoint(a)
        return self._at_level.kernel.apply_adjoint(self._scatter(a, 0.0, like))

    def _apply(self, b: Array) -> Array:
        """``K b`` on the support, (1, s), of b on all bins, (1, ...), by plain products."""
        if self._products is not None:
            return self._products.apply(b)
        return self._gather(self._at_level.kernel.apply(b))

    def _scatter(self, values: Array, default: float, like: Array) -> Array:
        """Values on the support, (1, s), as an array on all bins; ``default`` elsewhere."""
        xp = array_namespace(like)
        filled = xp.concat([values[0, :], xp.full_like(values[0, :1], default)])
        return xp.reshape(xp.take(filled, self._place), tuple(like.shape))

    def _gather(self, full: Array) -> Array:
        """The values on the support, (1, s)."""
        xp = array_namespace(full)
        return xp.reshape(xp.take(xp.reshape(full, (-1,)), self._support), (1, -1))

    def _log(self, Y: Array) -> Array:
        """``log Y``, -inf where Y is 0 or no mass of X can arrive."""
        xp = array_namespace(Y)
        live = (Y > 0) & self.problem.reachable
        return xp.where(live, xp.log(xp.where(live, Y, 1.0)), -math.inf)

    def _potential(self, h: Array) -> Array:
        """The potential ``g = eps h``; with ``u = lam`` at unreachable bins."""
        problem = self._at_level
        g = h * problem.kernel.eps
        if problem.unreachable is None or problem.conserves_mass:
            return g
        return array_namespace(g).where(problem.unreachable, SATURATION * problem.lam, g)
