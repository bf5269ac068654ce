"""
The term of a debiased Wasserstein loss: a plain term and a symmetric problem.

``D(x, y) = min_p Phi(x, y exp(p/lam)) - lam <y, exp(p/lam) - 1> + eps/2 <mu, K mu> - OT(x, x)/2``,
``mu = exp(p/eps)``: the plain term is evaluated at ``y exp(p/lam)``, and p is the potential of the
transport of the marginal ``q = y exp(-h/lam)``, ``h = g - p``, to itself. If balanced, ``y exp(p/
lam)`` and q are y, and the second summand is ``-<p, y>``.
"""

from __future__ import annotations

import math
from typing import Protocol

from wtfarray._arrays.host import to_host_together
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample, spread, stack, unstack, weighted
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._losses.empty_models import has_empty_sample
from wtfarray._losses.term import Term, TermValue
from wtfarray._models.entropy import kl_divergence
from wtfarray._transport.debiased import arriving, debiased_bounds, shifted_model
from wtfarray._transport.potential import dual_of_potential, potential_of_dual
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.symmetric import (
    SelfTransport,
    self_transport,
    solve_symmetric,
)

PLAIN_SHARE = 0.6
"""Share of the tolerance for the plain term."""
SYMMETRIC_SHARE = 0.2
"""Share of the tolerance for the symmetric problem, with q held."""
LAG_SHARE = 0.3
"""Error of p at the q of the plain term, as a share of the tolerance, above which p follows it."""
CERTIFIED_SHARE = 0.01
"""Share of the tolerance of a certificate for the symmetric problem."""
LARGEST_ERROR = 2e-3
"""
Largest tolerance, in units of eps times the mass.

The debiased loss is 3 to 30 times smaller than the plain one, for which a larger error would do.
"""
MAX_ROUNDS = 20
"""Largest number of alternations between the two problems; one or two are usual."""
CURVATURE = 0.75
"""The expected error of p as a part of its bound: see `DebiasedTerm.evaluate`."""


class PlainTerm(Term, Protocol):
    """A term of the loss that is not debiased."""

    problem: TransportProblem
    shape: tuple[int, ...]


class DebiasedTerm:
    """
    A debiased Wasserstein loss.

    Parameters
    ----------
    plain : PlainTerm
        The loss that is not debiased. If the first marginal is relaxed, that of `debiased_problem`.
    weights : array (N,), optional
        The weights of the samples, those of the plain term.
    sums : Sums
        Over the samples of all processes: both problems are solved in lockstep.
    own : SelfTransport, optional
        The transport of X to itself if the first marginal is relaxed, of `debiased_problem`.
    scale : float, optional
        ``eps`` times the mass of X, if that is not the scale of the plain term.
    """

    def __init__(
        self,
        plain: PlainTerm,
        weights: Array | None = None,
        sums: Sums = ALONE,
        own: SelfTransport | None = None,
        scale: float | None = None,
    ) -> None:
        self.problem = plain.problem
        self.shape = plain.shape
        self.weights = weights
        self.symmetric_applications = 0
        """Applications of the kernel in the symmetric problem."""
        self._plain = plain
        self._sums = sums
        self._p = array_namespace(self.problem.data).zeros_like(self.problem.data)
        self._h = 0.0 * self._p
        """``g - p`` of the last model, from which q of the next one is predicted."""
        self._product: tuple[Array, Array] | None = None
        """A potential p, and ``log K mu`` there."""
        self._at_level = self.problem
        self._own = own
        self._keeps_own = own is not None
        """Whether the data of the plain term are not X, so that it is for one eps only."""
        self._scale = plain.scale if scale is None else scale

    @property
    def state(self) -> Array:
        """The state of the plain term, p and h in one vector."""
        xp = array_namespace(self._p)
        parts = (self._plain.state, self._p, self._h)
        return xp.concat([xp.reshape(part, (-1,)) for part in parts])

    @state.setter
    def state(self, state: Array) -> None:
        xp = array_namespace(state)
        shape, size = tuple(self._p.shape), math.prod(self._p.shape)
        plain = tuple(self._plain.state.shape)
        start = math.prod(plain)
        self._plain.state = xp.reshape(state[:start], plain)
        self._p = xp.reshape(state[start : start + size], shape)
        self._h = xp.reshape(state[start + size :], shape)

    @property
    def potential(self) -> Array:
        """The potential g of the plain term, stacked."""
        return self._plain.potential

    def start_from(self, g: Array) -> None:
        """Warm-start the plain term from a potential, stacked."""
        self._plain.start_from(g)
        self._h = 0.0 * self._p

    @property
    def evaluations(self) -> int:
        """Evaluations of the inner problem of the plain term."""
        return self._plain.evaluations

    @property
    def work(self) -> float:
        """Time spent in the plain term, as `Term.work`."""
        return self._plain.work

    @property
    def scale(self) -> float:
        """``eps`` times the mass."""
        return self._scale

    def set_level(self, level: float) -> None:
        """Continue with ``level`` times eps; potentials have the units of the cost and are kept."""
        self._plain.set_level(level)
        eps = self.problem.kernel.eps * level
        if eps != self._at_level.kernel.eps:
            self._at_level = self.problem if level == 1.0 else self.problem.at_eps(eps)
            self._own = self._own if self._keeps_own else None
        self._product = None

    def drop_history(self) -> None:
        """Drop everything but the state."""
        self._plain.drop_history()
        self._product = None

    def evaluate(
        self,
        model: Array,
        tolerance: float,
        max_iter: int,
        *,
        ordinary: bool = False,  # noqa: ARG002
    ) -> TermValue:
        """
        Solve both problems until the estimated error is below the tolerance.

        The value is a minimum over p: it is too large by a part of ``eps KL(q|r)``, from a half to
        one if K is positive definite.
        """
        problem, lam = self._at_level, self.problem.lam
        Y = stack(problem, model)
        level = problem.kernel.eps / self.problem.kernel.eps
        tolerance = min(tolerance, LARGEST_ERROR * self.scale * level)
        for _ in range(MAX_ROUNDS):
            q = arriving(problem, Y, self._h)
            total, log_r = self._solve_symmetric(q, SYMMETRIC_SHARE * tolerance)
            plain, p = shifted_model(Y, self._p, lam)
            plain = unstack(problem, plain, self.shape)
            outside = TermValue(math.inf, 0.0, math.inf, 0.0 * model, converged=False)
            if self._sums.any(has_empty_sample(self._plain, plain)):
                return outside
            found = self._plain.evaluate(plain, PLAIN_SHARE * tolerance, max_iter)
            plain_value, plain_gap = to_host_together([found.value, found.gap])
            if self._sums.any(not math.isfinite(plain_value)):
                return outside
            self._h = self._potential_of(found.gradient) - p
            q = arriving(problem, Y, self._h)
            lag = self._error(q, log_r)
            lag_of_all, unsolved = self._sums.numbers(lag, not found.converged)
            if lag_of_all <= LAG_SHARE * tolerance or unsolved:
                break
        value = plain_value + self._sum(self._self_part(Y, total)) - (1.0 + CURVATURE) * lag
        gradient = self._gradient(dual_of_potential(self._h, lam, array_namespace(Y)))
        converged = found.converged and lag_of_all <= LAG_SHARE * tolerance
        return TermValue(value, found.error + lag, plain_gap + lag, gradient, converged)

    def certify(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """
        Solve both problems until the gap is below the tolerance.

        It is a bound if the kernels are positive definite: see `debiased_bounds`.
        """
        problem, lam = self._at_level, self.problem.lam
        xp = array_namespace(model)
        Y = stack(problem, model)
        largest = 1.0
        if self.weights is not None:
            here = float(xp.max(self.weights)) if self.weights.shape[0] else 0.0
            largest = max(1.0, self._sums.largest(here))
        for _ in range(MAX_ROUNDS):
            q = arriving(problem, Y, self._h)
            self._solve_symmetric(q, CERTIFIED_SHARE * tolerance / largest)
            plain, p = shifted_model(Y, self._p, lam)
            plain = unstack(problem, plain, self.shape)
            found = self._plain.certify(plain, 0.5 * tolerance, max_iter)
            g = self._potential_of(found.gradient)
            own, value, gap, u = self._own_transport(), 0.0, 0.0, Y
            if Y.shape[0]:  # a process may have no samples
                bounds = debiased_bounds(problem, own, g, Y, self._p).bounds
                value, gap, u = self._sum(bounds.values), self._sum(bounds.gaps), bounds.u
            self._h = g - p
            gap_of_all, unsolved = self._sums.numbers(gap, not found.converged)
            if gap_of_all <= tolerance or unsolved or problem.conserves_mass:
                break
        return TermValue(value, gap, gap, self._gradient(u), gap_of_all <= tolerance)

    def _solve_symmetric(self, q: Array, tolerance: float) -> tuple[Array, Array]:
        """Update p for the marginal q; returns ``<r, 1>``, (N,), and log r, -inf where q is 0."""
        xp = array_namespace(q)
        kernel = self._at_level.kernel
        known = self._product
        found = solve_symmetric(
            kernel,
            q,
            self._p,
            tolerance,
            known=known[1] if known is not None and known[0] is self._p else None,
            safe=False,
            weights=self.weights,
            sums=self._sums,
        )
        self.symmetric_applications += int(found.applications)
        self._p = found.p
        self._product = (found.p, found.log_product)
        log_r = xp.where(q > 0, found.log_marginal(kernel.eps), -math.inf)
        return per_sample(xp.exp(log_r)), log_r

    def _error(self, q: Array, log_r: Array) -> float:
        """``eps KL(q|r)``, which bounds the error of p, summed over the samples."""
        divergence = kl_divergence(q, array_namespace(q).exp(log_r), array_namespace(q))
        return self._sum(per_sample(divergence)) * self._at_level.kernel.eps

    def _self_part(self, Y: Array, total: Array) -> Array:
        """What the loss adds to the plain one at ``Y exp(p/lam)``, (N,); ``total`` is <r, 1>."""
        eps, lam = self._at_level.kernel.eps, self.problem.lam
        own = self._own_transport()
        # <Y, lam (exp(p/lam) - 1)>, with the change of variables of the dual variable.
        product = inner(dual_of_potential(-1.0 * self._p, lam, array_namespace(Y)), Y)
        return total * (0.5 * eps) + product + own.lower + 0.5 * own.gap

    def _own_transport(self) -> SelfTransport:
        """The transport of X to itself, at the current level."""
        if self._own is None:
            self._own = self_transport(self._at_level.kernel, self._at_level.data, self._sums)
        return self._own

    def _potential_of(self, gradient: Array) -> Array:
        """The potential g, stacked, from the gradient of the plain term, finite everywhere."""
        xp = array_namespace(gradient)
        lam = self.problem.lam
        u = stack(self.problem, gradient)
        if self.weights is not None:
            weights = spread(self.weights, u)
            u = xp.where(weights > 0, u / xp.where(weights > 0, weights, 1.0), 0.0)
        u = xp.where(xp.isfinite(u), u, 0.0)
        if math.isinf(lam):
            return u
        # At bins that no mass can reach u is lam, to rounding.
        most = lam * (1.0 - float(xp.finfo(u.dtype).eps))
        return potential_of_dual(xp.minimum(u, most), lam, xp)

    def _gradient(self, u: Array) -> Array:
        """The gradient in the shape of the model, with the weights of the samples."""
        return unstack(self.problem, weighted(u, self.weights), self.shape)

    def _sum(self, values: Array) -> float:
        """The weighted sum over the samples."""
        return float(array_namespace(values).sum(weighted(values, self.weights)))
