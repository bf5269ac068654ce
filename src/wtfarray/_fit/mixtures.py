"""Mixtures of known atoms: the convex problem of their coefficients, and its certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import stack, unstack
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import or_float64
from wtfarray._fit.driver import CERTIFIED_GAP, solve
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.projection import project_samples
from wtfarray._fit.specification import Specification
from wtfarray._fit.starts import feasible, kl_steps, random_blocks
from wtfarray._losses.kullback_leibler import KullbackLeibler
from wtfarray._losses.loss_sum import losses_of
from wtfarray._losses.protocol import Loss
from wtfarray._losses.selection import terms_of
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint, kl_divergence, xlogx
from wtfarray._models.models import CPModel, PartlyKnownModel
from wtfarray._transport.feasibility import stranded
from wtfarray._transport.logarithms import logsumexp

CERTIFICATE_ITERATIONS = 500
"""Largest number of inner iterations for the gradient of each summand of a loss."""
BLURRED_SHARE = 1e-3
"""Mass that atoms have everywhere while others are looked for where they have none."""
RESIDUAL_STEPS = 50
"""Kullback-Leibler steps on what known atoms leave, from which extra atoms start."""


@dataclass(frozen=True, eq=False)
class Found:
    """The solution of `Mixtures`."""

    coefficients: Array
    """(n, k + extra)."""
    extra: Array
    """The learned atoms, (features, extra)."""
    objective: float
    gap: float
    converged: bool
    message: str
    n_iter: int


@dataclass(frozen=True, eq=False)
class Mixtures:
    """Samples X, (n, ...), to be explained by atoms, (features, k)."""

    X: Array
    atoms: Array
    loss: Loss
    constraint: Constraint
    rho: float
    mask: Array | None

    def out_of_reach(self) -> Array:
        """Bins, of the shape of X, with mass of X that no combination of the atoms explains."""
        xp = array_namespace(self.X)
        total = xp.reshape(xp.sum(self.atoms, axis=1), (1, *self.X.shape[1:]))
        model = xp.broadcast_to(total, self.X.shape)
        found = xp.zeros_like(model > 0)
        for part in losses_of(self.loss):
            if isinstance(part, KullbackLeibler):
                found = found | ((self.X > 0) & ~(model > 0))
            elif isinstance(part, Wasserstein) and math.isinf(part.source_lam):
                bound = part.bind(self.X, self.mask)
                if not bound.kernel.all_finite:
                    bad = stranded(bound, stack(bound, model))
                    found = found | unstack(bound, bad, tuple(self.X.shape))
        return found

    def unmix(self, options: SolverOptions, *, blurred: bool = False) -> Found:
        """
        The coefficients of the known atoms, certified.

        With ``blurred`` atoms, which have some mass everywhere, all of X is within their reach.
        """
        if blurred:
            flat = BLURRED_SHARE / self.atoms.shape[0]
            return replace(self, atoms=self.atoms * (1.0 - BLURRED_SHARE) + flat).unmix(options)
        found = project_samples(
            self.X,
            self.atoms,
            self.loss,
            constraint=self.constraint,
            rho=self.rho,
            tol=options.tol,
            max_iter=options.max_iter,
            progress=options.progress,
            mask=self.mask,
        )
        gap = found.gap + self._optimality_gap(found.coefficients, found.dual)
        scale = max(abs(found.objective), self._scale)
        converged, message = found.converged, found.message
        if converged and gap > CERTIFIED_GAP * scale:
            converged = False
            message += (
                f"; the objective is proven to be within {gap:.1e} of its minimum, relatively "
                f"{gap / scale:.1e}, above {CERTIFIED_GAP:g}: decrease `tol` or increase "
                f"`rho`{or_float64(self.X)}"
            )
        return Found(
            found.coefficients,
            self.atoms[:, :0],
            found.objective,
            gap,
            converged,
            message,
            found.n_iter,
        )

    def unmix_with_extra(
        self, first: Found, extra: int, options: SolverOptions, rng: np.random.Generator
    ) -> Found:
        """The coefficients of known and learned atoms; they start from what is left of X."""
        xp = array_namespace(self.X)
        samples = xp.reshape(self.X, (self.X.shape[0], -1))
        seen = None if self.mask is None else xp.reshape(self.mask, samples.shape)
        left = xp.maximum(samples - xp.matmul(first.coefficients, self.atoms.mT), 0.0)
        left = left if seen is None else xp.where(seen, left, 0.0)
        shapes = ((samples.shape[0], extra), (samples.shape[1], extra))
        drawn = random_blocks(shapes, rng, samples)
        drawn[1] = feasible(drawn[1], "columns")
        separate = CPModel(2, learns_weights=False)
        share, atoms = kl_steps(
            separate, left, drawn, (None, "columns"), (0, 1), RESIDUAL_STEPS, mask=seen
        )
        model = PartlyKnownModel(self.atoms)
        start = [xp.concat([first.coefficients, share], axis=1), atoms]
        constraints: tuple[Constraint, ...] = (self.constraint, "columns")
        spec = Specification(
            kind="nmf",
            X=self.X,
            loss=self.loss,
            model=model,
            shapes=tuple(tuple(block.shape) for block in start),
            constraints=constraints,
            rho=(self.rho, self.rho),
            free=(0, 1),
            sample_weight=None,
            mask=self.mask,
        )
        found = solve(spec, replace(options, init=start), rng)
        return Found(
            found.blocks[0],
            found.blocks[1],
            found.objective,
            found.gap,
            found.converged,
            found.message,
            first.n_iter + found.n_iter,
        )

    @property
    def _scale(self) -> float:
        """The unit of errors of the objective: eps times the mass."""
        mass = float(array_namespace(self.X).sum(self.X))
        parts = losses_of(self.loss)
        return mass * sum(part.eps for part in parts if isinstance(part, Wasserstein))

    def _optimality_gap(self, coefficients: Array, dual: Array) -> float:
        """
        Bound on what is lost by the coefficients, beside the gap of the loss itself.

        The loss is convex, and ``u`` its gradient: it is at least ``Phi(Y) + <u, Y' - Y>`` at every
        other model Y'. The minimum of that bound plus ``rho E`` is known in closed form. It is
        below the objective by ``rho KL(C | C*)`` with its minimiser C*: ``exp(-Xi(u)/rho)``, or the
        softmax in each row. This is of second order in the error of the gradient, divided by rho.
        Where the mass of the best model is known, so is another bound, of first order.
        """
        xp = array_namespace(self.X)
        if len(losses_of(self.loss)) > 1:
            dual = self._gradient(coefficients)
        u = xp.reshape(dual, (self.X.shape[0], -1))
        if self.mask is not None:
            u = xp.where(xp.reshape(self.mask, u.shape), u, 0.0)
        possible = xp.sum(self.atoms, axis=1) > 0
        u = xp.where(possible[None, :], u, 0.0)  # no model has mass there
        if not bool(xp.all(xp.isfinite(u))):
            return math.inf
        xi = xp.matmul(u, self.atoms)
        logs = xi * (-1.0 / self.rho)
        if self.constraint == "rows":
            logs = logs - logsumexp(logs, 1, xp)[:, None]
        best = xp.exp(xp.minimum(logs, 0.5 * math.log(float(xp.finfo(logs.dtype).max))))
        filled = (coefficients > 0) & ~(best > 0)  # underflow: the other form has no cancellation
        a = xp.where(filled, coefficients, 1.0)
        entries = xp.where(
            filled,
            a * (xp.log(a) - logs - 1.0),
            kl_divergence(xp.where(filled, 0.0, coefficients), best, xp),
        )
        gaps = xp.sum(entries, axis=1) * self.rho
        if self._largest_mass < math.inf:
            gaps = xp.minimum(gaps, self._first_order_gaps(coefficients, xi))
        return float(xp.sum(gaps))

    @property
    def _largest_mass(self) -> float:
        """
        A bound on the observed mass of the best model of a sample of mass one; inf if unknown.

        A multiple s of a model changes a semi-unbalanced loss by ``lam (s M - log s)``, where M is
        its mass: the best one has ``lam (M - 1) = -rho <c, log c>``, at most ``rho k / e``.
        """
        if self.constraint == "rows":
            return 1.0
        loss, count = self.loss, float(self.atoms.shape[1])
        if not isinstance(loss, Wasserstein):
            return math.inf
        if not math.isinf(loss.source_lam):
            return math.inf
        return 1.0 + self.rho * count / (math.e * loss.lam)

    def _first_order_gaps(self, coefficients: Array, xi: Array) -> Array:
        """``max <xi, C - C'> + rho (E(C) - E(C'))`` over models C' of bounded mass, (n,)."""
        xp = array_namespace(xi)
        count = xi.shape[1]
        if self.mask is None:
            lowest = xp.min(xi, axis=1)
        else:  # per unit of observed mass; an atom of which nothing was observed changes nothing
            seen = xp.astype(xp.reshape(self.mask, (self.X.shape[0], -1)), self.atoms.dtype)
            mass = xp.matmul(seen, self.atoms)
            lowest = xp.min(xp.where(mass > 0, xi / xp.where(mass > 0, mass, 1.0), 0.0), axis=1)
        if self.constraint == "rows":
            least_entropy = -math.log(count) - 1.0
        else:
            lowest, least_entropy = xp.minimum(lowest, xp.zeros_like(lowest)), -float(count)
        change = xp.sum(xi * coefficients, axis=1) - lowest * self._largest_mass
        entropy = xp.sum(xlogx(coefficients, xp) - coefficients, axis=1)
        return change + (entropy - least_entropy) * self.rho

    def _gradient(self, coefficients: Array) -> Array:
        """The gradient of a sum of losses in the model, of the shape of X."""
        xp = array_namespace(self.X)
        losses = losses_of(self.loss)
        model = xp.reshape(xp.matmul(coefficients, self.atoms.mT), self.X.shape)
        terms = terms_of(losses, self.X, None, None, self.mask)
        allowed = 1e-2 * CERTIFIED_GAP * max(self._scale, sum(term.scale for term in terms))
        found = [term.certify(model, allowed, CERTIFICATE_ITERATIONS).gradient for term in terms]
        total = found[0]
        for other in found[1:]:
            total = total + other
        return total
