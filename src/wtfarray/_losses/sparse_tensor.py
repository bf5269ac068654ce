"""
A Wasserstein loss of sparse data of which all modes are transported, solved on their support.

The iterates are ``log a`` on the support of X, a few numbers where g has one for every bin:
``log b = lam/(lam + eps) (log Y - log K^T a)``, ``a = X / K b``, and ``g = eps log b``.
"""

from __future__ import annotations

import math

from array_api_compat import array_namespace

from wtfarray._arrays.host import to_host
from wtfarray._arrays.samples import inner, per_sample, stack, unstack
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import solves_on_support
from wtfarray._losses.term import TermValue, tightened
from wtfarray._models.entropy import kl_divergence
from wtfarray._transport.anderson import Secants
from wtfarray._transport.potential import SATURATION, dual_of_potential, dual_product
from wtfarray._transport.problem import TransportProblem

CAUTION = 0.03
"""How far below the tolerance the estimated error has to be.

Here the model enters the map of which the secants are kept: those of earlier models are not exact,
and the estimate is too small by a factor of some tens.
"""


def is_sparse_tensor(problem: TransportProblem) -> bool:
    """Whether a problem is one sample with few positive entries."""
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
        # For every bin its place in the support, or the one after the last: a zero.
        places = xp.cumulative_sum(xp.astype(flat > 0, self._support.dtype)) - 1
        self._place = xp.where(flat > 0, places, self._support.shape[0])
        self._memory = max(1, min(memory, self._x.shape[1] // 2))
        self._at_level = problem
        self.state = xp.zeros_like(self._x)
        self.potential = xp.zeros_like(problem.data)
        self.drop_history()

    def set_level(self, level: float) -> None:
        """Go on with ``level`` times the smoothing; eps log a has the units of the cost."""
        eps = self.problem.kernel.eps * level
        self.state = self.state * (self._at_level.kernel.eps / eps)
        self._at_level = self.problem if level == 1.0 else self.problem.at_eps(eps)
        self.drop_history()

    def start_from(self, g: Array) -> None:
        """Start from a guess of g, stacked."""
        self.potential = g
        self.state = self._log_x - self._log_forth(g * (1.0 / self._at_level.kernel.eps))

    def drop_history(self) -> None:
        """Drop the secants."""
        kernel = self._at_level.kernel
        max_step = 3.0 * kernel.potential_range() / kernel.eps
        self._secants = Secants(self._memory, self._x, max_step)
        self._safe_back = self._safe_forth = False

    def evaluate(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """Iterate until the estimated error is below the tolerance."""
        xp = array_namespace(model)
        problem = self._at_level
        Y = stack(problem, model)
        mass = float(xp.sum(problem.mass))
        log_Y = self._log(Y)
        last, before, plain = None, math.inf, self.state
        log_a = self.state
        for n in range(1, max_iter + 1):
            log_a, h, log_Kb = self._cycle(log_a, log_Y)
            self.evaluations += 1
            residual = self._log_x - log_Kb - log_a
            rest = -self._x * xp.expm1(-residual)
            if last is not None:
                # Pairs of two different models would be no secants.
                same = xp.ones_like(residual[:, 0], dtype=xp.bool)
                change = last[1] - residual
                self._secants.add(log_a - last[0] - change, change, same)
            step = self._secants.step(residual)
            decrements = [inner(rest, step)[0], inner(rest, residual)[0]]
            numbers = xp.stack([xp.sum(xp.abs(rest)), *decrements])
            size, *decrements = to_host(numbers).tolist()
            worse = not size <= 3.0 * before
            error = problem.kernel.eps * max(abs(d) for d in decrements)
            done = n > 1 and error <= CAUTION * tolerance and size <= 0.1 * mass and not worse
            last, before = (log_a, residual), math.inf if worse else size
            if worse:
                self._secants.forget(xp.ones_like(residual[:, 0], dtype=xp.bool))
            self.state = plain if worse else log_a + step
            plain = log_a + residual
            if done or n == max_iter:
                break
            log_a = self.state
        self.potential = g = self._free(h)
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
        A lower bound of the loss, its gap, and the paper's u.

        The plan of g has the rows X, that of a and b the rows ``a K b``, and both send a row to the
        same places: so KL of their second marginals, q and ``Y exp(-g/lam)``, is at most that of
        the rows, a sum over the support.
        """
        xp = array_namespace(Y)
        problem = self._at_level
        log_a, h, log_Kb = self._cycle(self.state, self._log(Y))
        g = self._free(h)
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
        """From log a over log b = h to log K b on the support, with the best constant in each."""
        xp = array_namespace(log_Y)
        problem = self._at_level
        eps, lam = problem.kernel.eps, problem.lam
        damp = 1.0 if problem.conserves_mass else lam / (lam + eps)
        h = (log_Y - self._log_back(log_a, log_Y)) * damp
        log_Kb = self._log_forth(h)
        if not problem.conserves_mass:
            found = xp.sum(xp.exp(log_a + log_Kb))
            shift = (xp.log(xp.sum(problem.mass)) - xp.log(found)) * ((lam + eps) / eps)
            log_a, h, log_Kb = log_a + shift, h - damp * shift, log_Kb - damp * shift
        return log_a, h, log_Kb

    def _log_back(self, log_a: Array, log_Y: Array) -> Array:
        """``log K^T a``, a full sample."""
        xp = array_namespace(log_Y)
        kernel = self._at_level.kernel
        if not self._safe_back:
            top = xp.max(log_a)
            dense = self._scatter(xp.exp(log_a - top), 0.0, log_Y)
            back = kernel.apply_adjoint(dense)
            fine = back >= self._at_level.plain_range.threshold
            if bool(xp.all(fine | (log_Y == -math.inf))):
                return xp.log(xp.where(fine, back, 1.0)) + top
            self._safe_back = True
        back = kernel.log_apply_adjoint(self._scatter(log_a, -math.inf, log_Y))
        return xp.where(log_Y > -math.inf, back, 0.0)

    def _log_forth(self, h: Array) -> Array:
        """``log K exp(h)`` on the support."""
        xp = array_namespace(h)
        kernel = self._at_level.kernel
        if not self._safe_forth:
            top = xp.max(h)
            found = self._gather(kernel.apply(xp.exp(h - top)))
            if bool(xp.all(found >= self._at_level.plain_range.threshold)):
                return xp.log(found) + top
            self._safe_forth = True
        return self._gather(kernel.log_apply(h))

    def _scatter(self, values: Array, rest: float, like: Array) -> Array:
        xp = array_namespace(like)
        filled = xp.concat([values[0, :], xp.full_like(values[0, :1], rest)])
        return xp.reshape(xp.take(filled, self._place), tuple(like.shape))

    def _gather(self, full: Array) -> Array:
        xp = array_namespace(full)
        return xp.reshape(xp.take(xp.reshape(full, (-1,)), self._support), (1, -1))

    def _log(self, Y: Array) -> Array:
        """``log Y``, -inf where nothing can arrive."""
        xp = array_namespace(Y)
        live = (Y > 0) & self.problem.reachable
        return xp.where(live, xp.log(xp.where(live, Y, 1.0)), -math.inf)

    def _free(self, h: Array) -> Array:
        """The potential; where no mass can arrive, ``u = lam``."""
        problem = self._at_level
        g = h * problem.kernel.eps
        if problem.unreachable is None or problem.conserves_mass:
            return g
        return array_namespace(g).where(problem.unreachable, SATURATION * problem.lam, g)
