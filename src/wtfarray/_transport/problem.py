"""The transport problem of given data: its conjugate in the free variable, and its certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from wtfarray._arrays.samples import inner, per_sample, slices_of, spread, take_samples
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import certificate_batch
from wtfarray._models.entropy import xlogx
from wtfarray._transport.certificate import Plan, mended_gap, rounded_gap, semi_unbalanced_gap
from wtfarray._transport.kernels import GibbsKernel, smallest_sum
from wtfarray._transport.potential import SATURATION, dual_of_potential, dual_product


@dataclass(frozen=True, eq=False, repr=False)
class Marginal:
    """The second marginal q of the plan of g, and what it takes to get the value from it."""

    q: Array
    lost: Array | None
    """The samples, (N,), in which digits were lost; None where none can be."""
    denominator: Array | None
    """``K f`` with the maximum of g taken off; None where ``top`` holds ``log K f``."""
    top: Array


@dataclass(frozen=True)
class PlainRange:
    """Where plain kernel products, without logarithms, keep their digits."""

    floor: float
    """Next to 0; nothing is divided by less."""
    threshold: float
    """K f below this may have lost digits to underflow."""
    positive: bool
    """Whether no entry of X is 0."""
    never_underflows: bool
    """Whether the products keep their digits for every g: nothing is checked."""

    @classmethod
    def of(cls, data: Array, mass: Array, kernel: GibbsKernel) -> PlainRange:
        """The range for data (N, m_1, ..., m_t) and their masses, (N,)."""
        xp = array_namespace(data)
        info = xp.finfo(data.dtype)
        bins = math.prod(data.shape[1:])
        # X / floor and its sums stay finite, and what is above the threshold does not feel floor.
        floor = 16.0 * max(float(info.smallest_normal), float(xp.max(mass)) / float(info.max))
        threshold = max(2.0 * floor / float(info.eps), smallest_sum(data.dtype, bins, xp))
        # The largest of f is 1, and of X / K f no less than the mean of X over the number of bins.
        least = min(1.0, float(xp.min(mass)) / bins**2)
        weakest = math.exp(-kernel.potential_range() / kernel.eps) if kernel.all_finite else 0.0
        return cls(floor, threshold, bool(xp.all(data > 0)), weakest * least >= threshold)


@dataclass(frozen=True, eq=False, repr=False)
class TransportProblem:
    """
    `Wasserstein` with its data: a stack X (N, m_1, ..., m_t) of N samples and their kernel.

    In the free variable g the semi-unbalanced conjugate is the balanced one: with
    ``f = exp(g/eps)`` it is ``eps <X, log K f> - eps E(X)``, and its gradient in g is the second
    marginal ``q = f * K^T (X / K f)`` of the plan ``a_i K_ij f_j``, ``a = X / K f`` (Prop. 4, 5).
    """

    data: Array
    kernel: GibbsKernel
    lam: float
    order: tuple[int, ...]
    mass: Array
    """<X, 1> of each sample, (N,)."""
    constant: Array
    """-eps E(X) of each sample, (N,)."""
    plain: PlainRange | None = None
    """Where plain kernel products may be used; None: in the log domain only."""

    @classmethod
    def of(
        cls, data: Array, kernel: GibbsKernel, lam: float, order: tuple[int, ...]
    ) -> TransportProblem:
        """Compute once what does not depend on g."""
        xp = array_namespace(data)
        mass = per_sample(data)
        constant = per_sample(xlogx(data, xp) - data) * (-kernel.eps)
        plain = PlainRange.of(data, mass, kernel)
        return cls(data, kernel, lam, order, mass, constant, plain)

    @cached_property
    def padding(self) -> Array | float:
        """Added to K f: 1 where X is 0, so that 0/0 and log 0 do not arise; the floor elsewhere."""
        xp = array_namespace(self.data)
        limits = self.plain_range
        if limits.positive:
            return limits.floor
        return xp.where(self.data > 0, limits.floor, xp.ones_like(self.data))

    @property
    def plain_range(self) -> PlainRange:
        """Where plain products may be used, of a problem that has such a range."""
        assert self.plain is not None
        return self.plain

    def at_eps(self, eps: float) -> TransportProblem:
        """The same problem with another smoothing."""
        return self.of(self.data, GibbsKernel.of(self.kernel.costs, eps), self.lam, self.order)

    def samples(self, some: slice) -> TransportProblem:
        """The same problem for some of its samples."""
        return self.of(self.data[some, ...], self.kernel, self.lam, self.order)

    def some_samples(self, some: NDArray[np.intp]) -> TransportProblem:
        """The same problem for some of its samples, by their numbers."""
        return self.of(take_samples(self.data, some), self.kernel, self.lam, self.order)

    @property
    def conserves_mass(self) -> bool:
        """Balanced transport is infinite between samples of different mass."""
        return math.isinf(self.lam)

    @property
    def damping(self) -> float:
        """The step of the plain iteration, in units of the logarithm of what is off."""
        eps, lam = self.kernel.eps, self.lam
        return eps if self.conserves_mass else eps * lam / (lam + eps)

    @cached_property
    def unreachable(self) -> Array | None:
        """Where, (N, ...) bool, no mass of a sample that has any can go; None: nowhere."""
        if self.kernel.all_finite:
            return None
        return ~self.kernel.reachable_from(self.data > 0) & spread(self.mass > 0, self.data)

    @cached_property
    def reachable(self) -> Array:
        """Where mass of X can go at a finite cost; bool, broadcasts against X."""
        filled = spread(self.mass > 0, self.data)
        return filled if self.unreachable is None else filled & ~self.unreachable

    def _masked(self, g: Array) -> Array:
        """-inf for g where no mass can go: it makes no difference to K f where X is positive."""
        return (
            g
            if self.unreachable is None
            else array_namespace(g).where(self.unreachable, -math.inf, g)
        )

    def conjugate(self, g: Array) -> tuple[Array, Array]:
        """
        ``Phi*(X, u(g))`` of each sample, (N,), and q, by plain products with one shift a sample.

        A sample in which this underflows gets the value NaN: use `safe_conjugate`. Nothing is moved
        to the host.
        """
        xp = array_namespace(g)
        logs, top = self._shifted(g)
        f = xp.exp(logs)
        del logs
        Kf, lost = self._denominator(f)
        value = inner(self.data, xp.log(Kf)) * self.kernel.eps + self.mass * top + self.constant
        Kf = self.data / Kf
        q = self.kernel.apply_adjoint(Kf)
        q *= f
        return xp.where(lost, math.nan, value), q

    def safe_conjugate(self, g: Array) -> tuple[Array, Array]:
        """The same for every g, -inf included, in the log domain."""
        xp = array_namespace(g)
        log_q, log_Kf = self._log_marginal(g)
        return self.value_of_logs(log_Kf), xp.exp(log_q)

    def marginal(self, g: Array, *, safe: bool) -> tuple[Marginal, Array]:
        """
        The second marginal of the plan of g with full relative accuracy, and its logarithm.

        g may be -inf.

        Without ``safe`` by plain products, which may lose digits: see `Marginal.lost`.
        """
        xp = array_namespace(g)
        if safe:
            log_q, log_Kf = self._log_marginal(g)
            return Marginal(xp.exp(log_q), None, None, log_Kf), log_q
        logs, top = self._shifted(g)
        ignored = None if self.plain_range.never_underflows else logs == -math.inf
        f = xp.exp(logs)
        del logs  # made anew below: the memory of an iteration is what limits a fit
        Kf, lost = self._denominator(f)
        back = self.kernel.apply_adjoint(self.data / Kf)
        if ignored is None:
            lost = ~(top > -math.inf)  # nothing is known of a sample that is ignored as a whole
            log_q = xp.log(back)
        else:
            fine = (back >= self.plain_range.threshold) | ignored | (spread(self.mass, g) == 0)
            lost = lost | ~xp.all(fine, axis=tuple(range(1, g.ndim)))
            log_q = xp.log(xp.where(back > 0, back, 1.0))
        log_q += self._shifted(g)[0]
        f *= back
        return Marginal(f, lost, Kf, top), log_q

    def value(self, marginal: Marginal) -> Array:
        """``Phi*(X, u(g))`` of each sample, (N,), from what `marginal` has computed already."""
        xp = array_namespace(marginal.q)
        if marginal.denominator is None:
            return self.value_of_logs(marginal.top)
        logs = inner(self.data, xp.log(marginal.denominator)) * self.kernel.eps
        return logs + self.mass * marginal.top + self.constant

    def value_of_logs(self, log_Kf: Array) -> Array:
        """``eps <X, log K f> - eps E(X)``; where X is 0, nothing need be in reach."""
        xp = array_namespace(log_Kf)
        finite = xp.where(self.data > 0, log_Kf, 0.0)
        return inner(self.data, finite) * self.kernel.eps + self.constant

    def _shifted(self, g: Array) -> tuple[Array, Array]:
        """``g/eps`` with its maximum over each sample taken off, and that maximum of g, (N,)."""
        xp = array_namespace(g)
        g = self._masked(g)
        top = xp.max(g, axis=tuple(range(1, g.ndim)), keepdims=True)
        logs = g - top
        logs *= 1.0 / self.kernel.eps
        return logs, xp.reshape(top, (-1,))

    def _denominator(self, f: Array) -> tuple[Array, Array]:
        """``K f``, safe to divide by, and the samples, (N,), in which it lost digits."""
        xp = array_namespace(f)
        Kf = self.kernel.apply(f)
        if self.plain_range.never_underflows:
            return Kf, self.mass < 0  # none
        Kf += self.padding
        return Kf, xp.min(Kf, axis=tuple(range(1, f.ndim))) < self.plain_range.threshold

    def _log_marginal(self, g: Array) -> tuple[Array, Array]:
        h = self._masked(g) * (1.0 / self.kernel.eps)
        log_Kf = self.kernel.log_apply(h)
        return h + self.kernel.log_apply_adjoint(self.log_scaling(log_Kf)), log_Kf

    def log_scaling(self, log_Kf: Array) -> Array:
        """``log a = log(X / K f)``, -inf where X is 0."""
        xp = array_namespace(log_Kf)
        positive = self.data > 0
        return xp.where(positive, xp.log(xp.where(positive, self.data, 1.0)) - log_Kf, -math.inf)

    def bounds(self, g: Array, Y: Array) -> tuple[Array, Array, Array]:
        """A lower bound and a duality gap of each sample, (N,) each, and the paper's u at g."""
        xp = array_namespace(Y)
        samples = self.data.shape[0]
        size = certificate_batch(samples, math.prod(self.data.shape))
        if size >= samples:
            return self._bounds(g, Y)
        slices = slices_of(samples, size)
        parts = [self.samples(s)._bounds(g[s, ...], Y[s, ...]) for s in slices]  # noqa: SLF001
        values, gaps, u = (xp.concat(arrays) for arrays in zip(*parts, strict=True))
        return values, gaps, u

    def _bounds(self, g: Array, Y: Array) -> tuple[Array, Array, Array]:
        xp = array_namespace(Y)
        if not self.conserves_mass:
            g = xp.where(self.reachable, g, SATURATION * self.lam)
        allowed = (Y > 0) | ~self.reachable
        masked = xp.where(allowed, g, -math.inf)
        values, q = self.safe_conjugate(masked)
        u = dual_of_potential(g, self.lam, xp)
        gap = self.gap(masked, q, Y)
        values = dual_product(g, Y, self.lam, self.kernel.flow) - values
        u = xp.where(allowed, u, -math.inf)
        if self.conserves_mass and self.unreachable is not None:
            u = xp.where(self.unreachable, math.inf, u)
        return values, gap, u

    def gap(self, g: Array, marginal: Array, model: Array) -> Array:
        """
        Bound ``Phi(X, Y) + Phi*(X, u) - <u, Y>`` from above, (N,).

        ``marginal`` is the second marginal q of the plan of g. Balanced, the plan is made feasible:
        rounded, or mended where costs are infinite.
        """
        if not self.conserves_mass:
            return semi_unbalanced_gap(self.lam, g, marginal, model)
        h = self._masked(g) * (1.0 / self.kernel.eps)
        log_a = self.log_scaling(self.kernel.log_apply(h))
        plan = Plan(self.kernel, log_a, h, self.data, marginal)
        return rounded_gap(plan, model) if self.kernel.all_finite else mended_gap(plan, g, model)
