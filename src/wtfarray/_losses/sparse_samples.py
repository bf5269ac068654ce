"""
A Wasserstein loss of many sparse samples along one mode, solved on their supports.

A fibre of a sparse tensor has few positive entries, its points, so ``log a`` is a few numbers per
sample. Newton's method finds them in a few steps, where fixed-point iterations are slow. An empty
sample, as most are, costs ``lam <Y, 1>``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample, spread, stack, unstack
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import solves_on_sample_supports
from wtfarray._losses.term import TermValue, tightened
from wtfarray._transport.banded import geometry_of
from wtfarray._transport.logarithms import logsumexp
from wtfarray._transport.potential import dual_of_potential, dual_product
from wtfarray._transport.problem import TransportProblem

NEWTON_RADIUS = 2.0
"""Newton steps are taken in samples where ``|log(x / G 1)|`` is at most this."""


def has_sparse_samples(problem: TransportProblem, sums: Sums = ALONE) -> bool:
    """
    Whether a problem has many samples of few points each, semi-unbalanced along one mode.

    It also needs lam >= eps: zeros of Y are replaced by the smallest normal number, which would
    otherwise change the result.
    """
    if problem.conserves_mass or len(problem.kernel.costs) != 1:
        return False
    if problem.data.shape[0] == 1 and not sums.shared:
        return False
    if problem.lam < problem.kernel.eps or not problem.kernel.all_finite:
        return False
    points = (to_host(problem.data) > 0).sum(1)
    if sums.shared and not sums.all(bool(points.any())):
        return False  # a process has no points
    samples, filled, total = sums.numbers(points.size, (points > 0).sum(), points.sum())
    return solves_on_sample_supports(
        samples=int(samples),
        filled=int(filled),
        points=int(total),
        most_points=int(sums.largest(points.max(initial=0))),
        entries=int(samples) * problem.data.shape[1],
    )


@dataclass(frozen=True, eq=False)
class _State:
    """The iterate of all F filled samples, with s points each, and what is derived from it."""

    log_a: Array
    """(F, s)."""
    log_s: Array
    """``log K^T a``, (F, m)."""
    share: Array
    """Fraction of each bin of the second marginal that comes from each point, (F, s, m)."""
    q: Array
    """Second marginal of the plan, (F, m)."""
    first: Array
    """First marginal of the plan, (F, s)."""
    value: Array
    """The dual value divided by eps, up to terms that do not depend on a, (F,)."""

    def where(self, better: Array, other: _State) -> _State:
        """Take the ``other`` state in the samples that are not ``better``, (F,) bool."""
        xp = array_namespace(better)
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__annotations__)
        return _State(*(xp.where(spread(better, mine), mine, theirs) for mine, theirs in pairs))


class SparseSamplesTerm:
    """
    A Wasserstein loss of sparse samples; its state is ``log a`` on their points, (F, s).

    With ``k = lam/(lam + eps)`` the optimal b for a is ``(Y/K^T a)^k``. The dual value becomes
    ``<eps log a, x> - (lam + eps) <q, 1>``, ``q = Y^k (K^T a)^(1-k)``. In ``eps log a`` it is
    concave, with gradient ``x - G 1`` for the plan G and Hessian ``-(diag(G 1) - k G diag(1/q)
    G^T)/eps``.
    """

    def __init__(
        self, problem: TransportProblem, shape: tuple[int, ...], sums: Sums = ALONE
    ) -> None:
        self._sums = sums
        xp = array_namespace(problem.data)
        kind = {"dtype": problem.data.dtype, "device": device_of(problem.data)}
        self.problem = problem
        self.shape = shape
        self.evaluations = 0
        (mass,) = sums.numbers(float(xp.sum(problem.mass)))
        self.scale = problem.kernel.eps * mass
        data = to_host(problem.data)
        filled = np.flatnonzero((data > 0).any(1))
        points = np.argsort(data[filled] <= 0, axis=1, kind="stable")
        points = points[:, : int((data > 0).sum(1).max())]
        x = np.take_along_axis(data[filled], points, 1)
        self._x = xp.asarray(x, **kind)
        self._log_x = xp.asarray(np.log(np.where(x > 0, x, 1.0)), **kind)
        self._real = self._x > 0
        self._mass = xp.sum(self._x, axis=1)
        (self._total_mass,) = sums.numbers(float(xp.sum(self._mass)))
        self._cost = xp.asarray(
            to_host(geometry_of(problem.kernel.costs[0]).to_dense())[points], **kind
        )
        # For every sample its index among the filled ones, or their number F if it is empty.
        place = np.full(data.shape[0], filled.size)
        place[filled] = np.arange(filled.size)
        self._filled = xp.asarray(filled, device=device_of(problem.data))
        self._place = xp.asarray(place, device=device_of(problem.data))
        self.state = xp.zeros_like(self._x)
        self.potential = xp.zeros_like(problem.data)
        self._eps = problem.kernel.eps
        self.set_level(1.0)

    @property
    def work(self) -> float:
        """Time spent so far, in evaluations."""
        return self.evaluations

    def set_level(self, level: float) -> None:
        """Continue with ``level`` times eps; eps log a has the units of the cost and is kept."""
        xp = array_namespace(self._x)
        before, self._eps = self._eps, self.problem.kernel.eps * level
        self.state = self.state * (before / self._eps)
        filled = TransportProblem.of(
            xp.take(self.problem.data, self._filled, axis=0),
            self.problem.kernel,
            self.problem.lam,
            self.problem.order,
        )
        self._filled_problem = filled if level == 1.0 else filled.at_eps(self._eps)
        self._log_K = self._cost * (-1.0 / self._eps)

    def start_from(self, g: Array) -> None:
        """Start from a potential g, stacked."""
        xp = array_namespace(g)
        self.potential = g
        h = xp.take(g, self._filled, axis=0) * (1.0 / self._eps)
        self.state = self._log_x - logsumexp(self._log_K + h[:, None, :], 2, xp)

    def drop_history(self) -> None:
        """No effect: the state is all that is kept."""

    def evaluate(
        self,
        model: Array,
        tolerance: float,
        max_iter: int,
        *,
        ordinary: bool = False,  # noqa: ARG002
    ) -> TermValue:
        """Newton steps until the estimated error is below the tolerance."""
        xp = array_namespace(model)
        Y, h, error, _, done = self._solve(model, tolerance, max_iter)
        g = h * self._eps
        u = dual_of_potential(g, self.problem.lam, xp)
        filled_Y = xp.take(Y, self._filled, axis=0)
        log_Kb = logsumexp(self._log_K + h[:, None, :], 2, xp)
        conjugate = inner(self._x, log_Kb) * self._eps + self._filled_problem.constant
        product = dual_product(g, filled_Y, self.problem.lam, self.problem.kernel.flow)
        values = product - conjugate
        return self._value(Y, u, values, error, error, g, converged=done)

    def certify(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """Newton steps until the duality gap is below the tolerance."""
        xp = array_namespace(model)

        def attempt(error: float, iterations: int) -> tuple[TermValue, float, float, int]:
            before = self.evaluations
            Y, h, _, found, _ = self._solve(model, error, iterations)
            filled_Y = xp.take(Y, self._filled, axis=0)
            values, gaps, u = self._filled_problem.bounds(h * self._eps, filled_Y)
            here = float(xp.sum(gaps))
            # The evaluations may differ between processes; all have to go on, or none.
            gap, used, ranks = self._sums.numbers(here, self.evaluations - before, 1.0)
            result = self._value(
                Y, u, values, here, here, h * self._eps, converged=gap <= tolerance
            )
            return result, gap, found, math.ceil(used / ranks)

        return tightened(attempt, tolerance, max_iter)

    def _value(
        self,
        Y: Array,
        u: Array,
        values: Array,
        error: float,
        gap: float,
        g: Array,
        *,
        converged: bool,
    ) -> TermValue:
        """Add the empty samples to the results of the filled ones."""
        xp = array_namespace(Y)
        lam = self.problem.lam
        # Not the difference of two sums: lam multiplies its rounding.
        empty = xp.sum(xp.where(self.problem.mass > 0, 0.0, per_sample(Y)))
        last = xp.full((1, u.shape[1]), lam, dtype=u.dtype, device=device_of(u))
        u = xp.take(xp.concat([u, last]), self._place, axis=0)
        self.potential = xp.take(xp.concat([g, xp.zeros_like(last)]), self._place, axis=0)
        value = float(xp.sum(values)) + lam * float(empty)
        return TermValue(value, error, gap, unstack(self.problem, u, self.shape), converged)

    def _solve(
        self, model: Array, tolerance: float, max_iter: int
    ) -> tuple[Array, Array, float, float, bool]:
        """
        The stacked model, log b of the filled samples, and the error, here and on all processes.

        Also returns whether it converged.
        """
        xp = array_namespace(model)
        Y = stack(self.problem, model)
        least = float(xp.finfo(Y.dtype).smallest_normal)
        log_Y = xp.log(xp.maximum(xp.take(Y, self._filled, axis=0), least))
        k = self.problem.lam / (self.problem.lam + self._eps)
        state = self._state(self.state, log_Y, k)
        for n in range(1, max_iter + 1):
            plain = xp.where(self._real, self._log_x - xp.log(xp.maximum(state.first, least)), 0.0)
            residual = self._x - xp.where(self._real, state.first, 0.0)
            near = xp.max(xp.abs(plain), axis=1) <= NEWTON_RADIUS
            step = xp.where(near[:, None], self._newton(state, residual, k), plain)
            gain = inner(residual, step)
            sums = [xp.sum(xp.abs(gain)), xp.sum(xp.abs(residual))]
            here, size = to_host(xp.stack(sums)).tolist()
            here *= self._eps
            error, size = self._sums.numbers(here, size)
            done = error <= tolerance and size <= 0.1 * self._total_mass
            if done or n == max_iter:
                break
            state = self._search(state, step, gain, plain, log_Y, k)
        self.state = state.log_a
        return Y, (log_Y - state.log_s) * k, here, error, done

    def _state(self, log_a: Array, log_Y: Array, k: float) -> _State:
        """The state at log a plus the optimal constant in each sample."""
        xp = array_namespace(log_Y)
        self.evaluations += 1
        logs = xp.where(self._real[:, :, None], log_a[:, :, None] + self._log_K, -math.inf)
        top = xp.max(logs, axis=1, keepdims=True)
        parts = xp.exp(logs - top)
        total = xp.sum(parts, axis=1, keepdims=True)
        log_S = (top + xp.log(total))[:, 0, :]
        log_q = log_Y * k + log_S * (1.0 - k)
        log_q = log_q - logsumexp(log_q, 1, xp)[:, None] + xp.log(self._mass)[:, None]
        shift = log_q[:, :1] - log_Y[:, :1] * k - log_S[:, :1] * (1.0 - k)
        shift = shift * ((self.problem.lam + self._eps) / self._eps)
        log_a = xp.where(self._real, log_a + shift, 0.0)
        q = xp.exp(log_q)
        share = parts / total
        first = xp.sum(share * q[:, None, :], axis=2)
        return _State(log_a, log_S + shift, share, q, first, inner(self._x, log_a))

    def _newton(self, state: _State, residual: Array, k: float) -> Array:
        """The Newton step, (F, s); ``residual`` is x minus the first marginal."""
        xp = array_namespace(residual)
        plan = state.share * state.q[:, None, :]
        size = residual.shape[1]
        eye = xp.eye(size, dtype=residual.dtype, device=device_of(residual))[None, ...]
        # If a marginal underflows the step is not used, but the matrix must be regular.
        info = xp.finfo(residual.dtype)
        least = float(info.smallest_normal) / float(info.eps) ** 2
        usable = self._real & (state.first > least * self._mass[:, None])
        diagonal = xp.where(usable, state.first, self._mass[:, None])
        hessian = eye * diagonal[:, :, None] - k * xp.matmul(plan, state.share.mT)
        # A small ridge, because rounding could make the matrix singular.
        ridge = 10.0 * float(info.eps)
        hessian = hessian + eye * (ridge * diagonal)[:, :, None]
        return xp.linalg.solve(hessian, residual[:, :, None])[:, :, 0]

    def _search(
        self, base: _State, step: Array, gain: Array, plain: Array, log_Y: Array, k: float
    ) -> _State:
        """Backtracking line search; samples without success take the plain Sinkhorn step."""
        xp = array_namespace(step)
        tiny = 100.0 * float(xp.finfo(step.dtype).eps)
        noise = tiny * inner(self._x, xp.abs(base.log_a))
        t = 1.0
        best, searching = base, self._mass > 0
        for _ in range(4):
            new = self._state(base.log_a + t * step, log_Y, k)
            accepted = searching & (new.value >= base.value + 1e-4 * t * gain - noise)
            best = new.where(accepted, best)
            searching = searching & ~accepted
            if not bool(xp.any(searching)):
                return best
            t *= 0.25
        return self._state(base.log_a + plain, log_Y, k).where(searching, best)
