"""The transport problem of given data: its conjugate as a function of g, and its duality gap."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.host import is_queued, to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample, slices_of, spread, take_samples
from wtfarray._arrays.typing import Array, Namespace
from wtfarray._dispatch import certificate_batch
from wtfarray._models.entropy import largest_exponent, xlogx
from wtfarray._transport.certificate import Plan, corrected_gap, rounded_gap, semi_unbalanced_gap
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.logarithms import smallest_sum
from wtfarray._transport.potential import (
    SATURATION,
    dual_of_potential,
    dual_product,
    is_infinite,
)


@dataclass(frozen=True, eq=False, repr=False)
class Marginal:
    """The second marginal q of the plan of g, with intermediates for the value of the conjugate."""

    q: Array
    lost: Array | None
    """Samples, (N,) bool, in which digits were lost; None if that is impossible."""
    denominator: Array | None
    """``K f`` for g minus its maximum; None if ``top`` holds ``log K f``."""
    top: Array
    """The maximum of g in each sample, (N,); or ``log K f``, (N, ...)."""


class Bounds(NamedTuple):
    """Bounds of the loss at a potential, sample by sample, and the kernel products they took."""

    values: Array
    """Dual values, (N,)."""
    gaps: Array
    """Duality gaps, (N,)."""
    u: Array
    """The dual variable, (N, ...)."""
    log_Kf: Array  # noqa: N815
    """``log K f``, (N, ...), f = 0 where Y is 0 and a sample of X is not empty."""
    log_adjoint: Array
    """``log K^T (X / K f)``, (N, ...)."""


@dataclass(frozen=True)
class PlainRange:
    """Limits within which plain kernel products, without logarithms, are accurate."""

    floor: float
    """A number close to 0; denominators are at least this."""
    threshold: float
    """K f below this may have lost digits to underflow."""
    positive: bool
    """Whether all entries of X are positive."""
    filled: bool
    """Whether no sample of X is empty."""
    never_underflows: bool
    """Whether the products are accurate for every g, so that no check is needed."""

    @classmethod
    def of(cls, data: Array, mass: Array, kernel: GibbsKernel) -> PlainRange:
        """The limits for data (N, m_1, ..., m_t) and their masses, (N,)."""
        xp = array_namespace(data)
        info = xp.finfo(data.dtype)
        bins = math.prod(data.shape[1:])
        # X / floor and its sums are finite; adding floor does not change values above threshold.
        lightest = heaviest = smallest = 1.0
        if data.shape[0]:  # a process may hold no samples
            lightest, heaviest, smallest = to_host(_extremes(data, mass)).tolist()
        floor = 16.0 * max(float(info.smallest_normal), heaviest / float(info.max))
        threshold = max(2.0 * floor / float(info.eps), smallest_sum(data.dtype, bins, xp))
        # The maximum of f is 1, and that of X / K f is at least the mean of X divided by bins.
        least = min(1.0, lightest / bins**2)
        weakest = math.exp(-kernel.potential_range() / kernel.eps) if kernel.all_finite else 0.0
        never_underflows = weakest * least >= threshold
        return cls(floor, threshold, smallest > 0, lightest > 0, never_underflows)


@compiled()
def _extremes(data: Array, mass: Array) -> Array:
    """The smallest and the largest mass, and the smallest entry of the data, (3,)."""
    xp = array_namespace(data)
    return xp.stack([xp.min(mass), xp.max(mass), xp.min(data)])


@compiled()
def _mass_and_constant(data: Array, eps: float) -> tuple[Array, Array]:
    """``<X, 1>`` and ``-eps E(X)`` of each sample, (N,)."""
    constant = per_sample(xlogx(data, array_namespace(data)) - data) * (-eps)
    return per_sample(data), constant


@dataclass(frozen=True, eq=False, repr=False)
class TransportProblem:
    """
    `Wasserstein` with its data: a stack X (N, m_1, ..., m_t) of N samples and their kernel.

    As a function of the potential g the semi-unbalanced conjugate is the balanced one: with
    ``f = exp(g/eps)`` it is ``eps <X, log K f> - eps E(X)``, and its gradient in g is the second
    marginal ``q = f * K^T (X / K f)`` of the plan ``a_i K_ij f_j``, ``a = X / K f`` (Prop. 4, 5).

    If the first marginal is relaxed as well, at a price of s = ``source_lam``, then with ``k = s /
    (s + eps)`` the plan has ``a = (X / K f)^k``, and the conjugate is ``(s + eps) <X^k, (K
    f)^(1-k)> - s <X, 1>``, in which the inner product is the mass of the plan.
    """

    data: Array
    kernel: GibbsKernel
    lam: float
    order: tuple[int, ...]
    """The modes of the data, in the order in which they are stacked."""
    mass: Array
    """<X, 1> of each sample, (N,)."""
    constant: Array
    """-eps E(X) of each sample, (N,)."""
    plain: PlainRange | None = None
    """Limits of plain kernel products; None to compute in the log domain only."""
    all_reachable: bool = False
    """Whether it is known that mass of X reaches every bin of every sample."""
    missing: Array | None = None
    """Bins, (N, ...) bool, that were not observed, where X is 0; None if all were."""
    source_lam: float = math.inf
    """Penalty of the first marginal."""

    @classmethod
    def of(
        cls,
        data: Array,
        kernel: GibbsKernel,
        lam: float,
        order: tuple[int, ...],
        missing: Array | None = None,
        source_lam: float = math.inf,
    ) -> TransportProblem:
        """Precompute the quantities that do not depend on g."""
        mass, constant = _mass_and_constant(data, kernel.eps)
        plain = PlainRange.of(data, mass, kernel)
        all_reachable = kernel.all_finite and missing is None and plain.filled
        return cls(
            data, kernel, lam, order, mass, constant, plain, all_reachable, missing, source_lam
        )

    @cached_property
    def padding(self) -> Array | float:
        """Added to K f: 1 where X is 0, to avoid 0/0 and log 0; the floor elsewhere."""
        xp = array_namespace(self.data)
        limits = self.plain_range
        if limits.positive:
            return limits.floor
        return xp.where(self.data > 0, limits.floor, xp.ones_like(self.data))

    @property
    def plain_range(self) -> PlainRange:
        """The limits of plain products, for a problem that has them."""
        assert self.plain is not None
        return self.plain

    def at_eps(self, eps: float) -> TransportProblem:
        """The same problem with another eps."""
        kernel = self.kernel.at_eps(eps)
        return self.of(self.data, kernel, self.lam, self.order, self.missing, self.source_lam)

    def samples(self, batch: slice) -> TransportProblem:
        """The same problem for a slice of the samples."""
        missing = None if self.missing is None else self.missing[batch, ...]
        data = self.data[batch, ...]
        return self.of(data, self.kernel, self.lam, self.order, missing, self.source_lam)

    def some_samples(self, indices: NDArray[np.intp]) -> TransportProblem:
        """The same problem for the samples with the given indices."""
        missing = None if self.missing is None else take_samples(self.missing, indices)
        data = take_samples(self.data, indices)
        return self.of(data, self.kernel, self.lam, self.order, missing, self.source_lam)

    @property
    def conserves_mass(self) -> bool:
        """Whether the transport is balanced: the loss of samples of different mass is infinite."""
        return is_infinite(self.lam)

    @property
    def relaxes_data(self) -> bool:
        """Whether mass of X may stay behind, at a price."""
        return not math.isinf(self.source_lam)

    @property
    def exponent(self) -> float:
        """``k = s / (s + eps)``, 1 if the first marginal is exact."""
        s = self.source_lam
        return s / (s + self.kernel.eps) if self.relaxes_data else 1.0

    @property
    def damping(self) -> float:
        """Step size of the Sinkhorn iteration: ``1 / (1/eps + 1/lam)``."""
        eps, lam = self.kernel.eps, self.lam
        return eps if self.conserves_mass else eps * lam / (lam + eps)

    @cached_property
    def traceable(self) -> TransportProblem:
        """The same problem in the form that ``jax.jit`` takes."""
        # By name: that module imports this one, and is needed only if JAX is used.
        module = importlib.import_module("wtfarray._transport.compiled_step")
        problem: TransportProblem = module.traceable(self)
        return problem

    @cached_property
    def unreachable(self) -> Array | None:
        """
        Bins that a non-empty sample cannot reach, (N, ...) bool; None if there are none.

        There are none if all costs are finite and all bins were observed: a bin that was not
        observed does not exist for its sample, and no mass arrives there.
        """
        if self.kernel.all_finite and self.missing is None:
            return None
        filled = spread(self.mass > 0, self.data)
        if self.kernel.all_finite:
            return self.missing & filled
        bins = ~self.kernel.reachable_from(self.data > 0)
        return (bins if self.missing is None else bins | self.missing) & filled

    @cached_property
    def reachable(self) -> Array:
        """Bins that mass of X can reach at a finite cost; bool, broadcasts against X."""
        filled = spread(self.mass > 0, self.data)
        return filled if self.unreachable is None else filled & ~self.unreachable

    def _masked(self, g: Array) -> Array:
        """g, -inf at unreachable bins, which does not change K f where X is positive."""
        return (
            g
            if self.unreachable is None
            else array_namespace(g).where(self.unreachable, -math.inf, g)
        )

    @compiled(array=1)
    def conjugate(self, g: Array) -> tuple[Array, Array]:
        """
        ``Phi*(X, u(g))`` of each sample, (N,), and q, by plain products with one shift per sample.

        A sample in which this underflows gets the value NaN: use `safe_conjugate`. Nothing is
        copied to the host.
        """
        xp = array_namespace(g)
        logs, top = self._shifted(g)
        f = xp.exp(logs)
        del logs
        Kf, lost = self._denominator(f)
        if self.relaxes_data:
            q = f * self.kernel.apply_adjoint((self.data / Kf) ** self.exponent)
            q, too_large = self._rescaled(q, top)
            logs = xp.log(Kf) + spread(xp.where(too_large, 0.0, top * (1.0 / self.kernel.eps)), Kf)
            value = xp.where(too_large, math.inf, self.value_of_logs(logs))
            return value if lost is None else xp.where(lost, math.nan, value), q
        value = inner(self.data, xp.log(Kf)) * self.kernel.eps + self.mass * top + self.constant
        Kf = self.data / Kf
        q = self.kernel.apply_adjoint(Kf)
        q *= f
        return value if lost is None else xp.where(lost, math.nan, value), q

    def _rescaled(self, q: Array, top: Array) -> tuple[Array, Array]:
        """
        The marginal q of g from that of ``g - top``, and where, (N,), it is too large for that.

        It is multiplied by ``exp(top / (s + eps))``.
        """
        xp = array_namespace(q)
        exponent = top * (1.0 / (self.source_lam + self.kernel.eps))
        limit = 0.5 * largest_exponent(q.dtype, xp)
        return q * spread(xp.exp(xp.minimum(exponent, limit)), q), exponent > limit

    @compiled(array=1)
    def safe_conjugate(self, g: Array) -> tuple[Array, Array]:
        """As `conjugate`, in the log domain: accurate for every g, -inf included."""
        h, centre = self._centred(g)
        log_Kf = self.kernel.log_apply(h)
        log_adjoint = self.kernel.log_apply_adjoint(self.log_scaling(log_Kf))
        value = self.value_of_logs(log_Kf) + self.mass * centre
        return value, self._exp(h + log_adjoint, array_namespace(g))

    def _exp(self, log_q: Array, xp: Namespace) -> Array:
        """The marginal q, at most the mass of X unless that is relaxed."""
        if self.relaxes_data:
            return xp.exp(xp.minimum(log_q, 0.5 * largest_exponent(log_q.dtype, xp)))
        # In float32, rounding of exponents of 1e7 would make it overflow.
        most = xp.log(xp.where(self.mass > 0, self.mass, 1.0))
        return xp.exp(xp.minimum(log_q, spread(most, log_q)))

    def marginal(
        self, g: Array, *, safe: bool, masked: bool = True
    ) -> tuple[Marginal, Array, Array]:
        """
        The second marginal q of the plan of g with full relative accuracy, and ``log K^T a``.

        The logarithm is returned up to a constant per sample, (N,), which is to be subtracted from
        it after a multiplication by ``exponent / eps``. Entries of g may be -inf if ``masked``.
        Without ``safe``, plain products are used, which may lose digits: see `Marginal.lost`.
        """
        xp = array_namespace(g)
        if safe:
            logs, log_Kf = self._log_adjoint(g)
            q = self._exp(self._masked(g) * (1.0 / self.kernel.eps) + logs, xp)
            return Marginal(q, None, None, log_Kf), logs, 0.0 * self.mass
        logs, top = self._shifted(g, masked=masked)
        f = xp.exp(logs)
        Kf, lost = self._denominator(f)
        scaling = self.data / Kf
        if self.relaxes_data:
            scaling = scaling**self.exponent
        back = self.kernel.apply_adjoint(scaling)
        if lost is None:
            # Samples in which all of g is -inf.
            lost = ~(top > -math.inf) if masked else None
        else:
            # Where g is -inf, and in empty samples, nothing is needed.
            needed = back
            if masked or not self.all_reachable:
                ignored = (logs == -math.inf) | (spread(self.mass, g) == 0)
                needed = xp.where(ignored, math.inf, back)
            least = xp.min(needed, axis=tuple(range(1, g.ndim)))
            lost = lost | (least < self.plain_range.threshold)
            back = xp.maximum(back, xp.full_like(back[:1, ...], self.plain_range.floor))
        f *= back
        if self.relaxes_data:
            f, _ = self._rescaled(f, top)
        return Marginal(f, lost, Kf, top), xp.log(back), top

    def translated(self, marginal: Marginal, q: Array, shift: Array) -> Marginal:
        """The marginal of ``g + shift``, (N,), from that of g and its new q."""
        if marginal.denominator is None:
            shift = spread(shift * (1.0 / self.kernel.eps), q)
        return replace(marginal, q=q, top=marginal.top + shift)

    def value(self, marginal: Marginal) -> Array:
        """``Phi*(X, u(g))`` of each sample, (N,), from a result of `marginal`."""
        xp = array_namespace(marginal.q)
        if marginal.denominator is None:
            return self.value_of_logs(marginal.top)
        denominator = marginal.denominator
        if self.relaxes_data:
            # Not from the mass of q, times s: for a large s that loses digits.
            logs = xp.astype(xp.log(denominator), self.data.dtype)
            return self.value_of_logs(logs + spread(marginal.top * (1.0 / self.kernel.eps), logs))
        data = xp.astype(self.data, denominator.dtype, copy=False)
        logs = inner(data, xp.log(denominator))
        logs = xp.astype(logs, self.data.dtype, copy=False) * self.kernel.eps
        return logs + self.mass * marginal.top + self.constant

    def value_of_logs(self, log_Kf: Array) -> Array:
        """
        ``eps <X, log K f> - eps E(X)``, (N,); where X is 0, log K f may be -inf.

        If the first marginal is relaxed, ``(s + eps) <X^k, (K f)^(1-k)> - s <X, 1>``.
        """
        xp = array_namespace(log_Kf)
        finite = xp.where(self.data > 0, log_Kf, 0.0)
        if self.relaxes_data:
            # X^k (K f)^(1-k) = X exp(w); written with expm1 for large s.
            logs = xp.log(xp.where(self.data > 0, self.data, 1.0))
            total = self.source_lam + self.kernel.eps
            w = (finite - logs) * (self.kernel.eps / total)
            return inner(self.data, xp.expm1(w)) * total + self.mass * self.kernel.eps
        return inner(self.data, finite) * self.kernel.eps + self.constant

    def _shifted(self, g: Array, *, masked: bool = True) -> tuple[Array, Array]:
        """
        ``(g - top) / eps`` and ``top``, (N,), the maximum of g in each sample.

        Entries of g may be -inf if ``masked``.
        """
        xp = array_namespace(g)
        g = self._masked(g)
        top = shift = xp.max(g, axis=tuple(range(1, g.ndim)), keepdims=True)
        if masked or self.unreachable is not None:
            # If nothing of X can arrive: -inf, for which `_denominator` finds lost digits, or NaN.
            finds = self.relaxes_data and not self.plain_range.never_underflows
            shift = xp.where(top > -math.inf, top, 0.0 if finds else math.nan)
        logs = g - shift
        logs *= 1.0 / self.kernel.eps
        return logs, xp.reshape(top, (-1,))

    def _centred(self, g: Array) -> tuple[Array, Array]:
        """
        ``(g - c) / eps`` and ``c``, (N,), the number nearest to 0 between the least and largest g.

        The plan does not depend on c, unless the first marginal is relaxed. Without it, the
        exponents, and with them their rounding, do not grow if all of g does.
        """
        xp = array_namespace(g)
        g, axes = self._masked(g), tuple(range(1, g.ndim))
        if self.relaxes_data:
            return g * (1.0 / self.kernel.eps), 0.0 * self.mass
        lowest = xp.min(xp.where(g > -math.inf, g, math.inf), axis=axes)
        above = xp.where(lowest < math.inf, xp.maximum(lowest, 0.0), 0.0)
        highest = xp.max(g, axis=axes)
        below = xp.where(highest > -math.inf, xp.minimum(highest, 0.0), 0.0)
        centre = above + below
        return (g - spread(centre, g)) * (1.0 / self.kernel.eps), centre

    def _denominator(self, f: Array) -> tuple[Array, Array | None]:
        """``K f``, positive, and the samples, (N,) bool, that lost digits; None if impossible."""
        xp = array_namespace(f)
        Kf = self.kernel.apply(f)
        if self.plain_range.never_underflows:
            return Kf, None
        Kf += self.padding
        return Kf, xp.min(Kf, axis=tuple(range(1, f.ndim))) < self.plain_range.threshold

    def _log_adjoint(self, g: Array) -> tuple[Array, Array]:
        """``log K^T a``, ``a = X / K f``, and ``log K f``."""
        log_Kf = self.kernel.log_apply(self._masked(g) * (1.0 / self.kernel.eps))
        return self.kernel.log_apply_adjoint(self.log_scaling(log_Kf)), log_Kf

    def log_scaling(self, log_Kf: Array) -> Array:
        """``log a``, ``a = X / K f`` or its power; -inf where X is 0, or nothing leaves."""
        xp = array_namespace(log_Kf)
        positive = self.data > 0
        logs = xp.log(xp.where(positive, self.data, 1.0)) - log_Kf
        if self.relaxes_data:
            # Mass that can reach no bin of the model at a finite cost stays behind.
            positive = positive & (log_Kf > -math.inf)
            logs = logs * self.exponent
        return xp.where(positive, logs, -math.inf)

    def bounds(self, g: Array, Y: Array) -> tuple[Array, Array, Array]:
        """Dual value and duality gap of each sample, (N,) each, and the dual variable u at g."""
        return self.bounds_with_logs(g, Y)[:3]

    def bounds_with_logs(self, g: Array, Y: Array) -> Bounds:
        """As `bounds`, with the kernel products that they took."""
        xp = array_namespace(Y)
        samples = self.data.shape[0]
        size = certificate_batch(samples, math.prod(self.data.shape), queued=is_queued(Y))
        if size >= samples:
            return self._bounds(g, Y)
        slices = slices_of(samples, size)
        parts = [self.samples(s)._bounds(g[s, ...], Y[s, ...]) for s in slices]  # noqa: SLF001
        return Bounds(*(xp.concat(arrays) for arrays in zip(*parts, strict=True)))

    @compiled(array=1)
    def _bounds(self, g: Array, Y: Array) -> Bounds:
        xp = array_namespace(Y)
        if not self.conserves_mass:
            g = xp.where(self.reachable, g, SATURATION * self.lam)
        allowed = (Y > 0) | ~self.reachable
        masked = xp.where(allowed, g, -math.inf)
        h, centre = self._centred(masked)
        log_Kf = self.kernel.log_apply(h)
        log_a = self.log_scaling(log_Kf)
        log_adjoint = self.kernel.log_apply_adjoint(log_a)
        marginal = self._exp(h + log_adjoint, xp)
        # Balanced, a constant in g adds nothing to the value; without it fewer digits are lost.
        balanced = self.conserves_mass
        finite = xp.where(Y > 0, g - spread(centre, g) if balanced else g, 0.0)
        values = dual_product(finite, Y, self.lam, self.kernel.flow)
        if balanced:
            values = values - self.value_of_logs(log_Kf)
        shift = spread(centre * (1.0 / self.kernel.eps), h)
        log_Kf, log_a, log_adjoint = log_Kf + shift, log_a - shift, log_adjoint - shift
        if not balanced:
            values = values - self.value_of_logs(log_Kf)
        u = dual_of_potential(g, self.lam, xp)
        gap = self.gap(masked, marginal, Y, log_a)
        u = xp.where(allowed, u, -math.inf)
        if self.conserves_mass and self.unreachable is not None:
            u = xp.where(self.unreachable, math.inf, u)
        return Bounds(values, gap, u, log_Kf, log_adjoint)

    def gap(self, g: Array, marginal: Array, model: Array, log_a: Array | None = None) -> Array:
        """
        Bound ``Phi(X, Y) + Phi*(X, u) - <u, Y>`` from above, (N,).

        ``marginal`` is the second marginal q of the plan of g, and ``log_a`` the logarithm of its
        scaling ``X / K f``, if known. For balanced transport the plan is made feasible: by rounding
        or, if some costs are infinite, by a correction on its support.
        """
        if not self.conserves_mass:
            return semi_unbalanced_gap(self.lam, g, marginal, model, self._centred(g)[0])
        h = self._masked(g) * (1.0 / self.kernel.eps)
        if log_a is None:
            log_a = self.log_scaling(self.kernel.log_apply(h))
        plan = Plan(self.kernel, log_a, h, self.data, marginal)
        return rounded_gap(plan, model) if self.kernel.all_finite else corrected_gap(plan, g, model)
