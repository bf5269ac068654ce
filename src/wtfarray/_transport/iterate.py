"""One iterate of the inner problem, and the interface of its solvers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample, spread
from wtfarray._arrays.sums import Sums
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import largest_exponent
from wtfarray._transport.potential import dual_product
from wtfarray._transport.problem import Marginal, TransportProblem


@dataclass(frozen=True, eq=False)
class Iterate:
    """A potential of every sample, (N, ...), with its marginal, gradient and error estimate."""

    g: Array
    marginal: Marginal
    shift: Array
    """Constant added to each sample of g after the marginal was computed, (N,)."""
    residual: Array
    """``unit log(Y exp(-g/lam) / q)``, 0 at the solution and where Y or the sample of X is 0."""
    unit: float
    """The `damping` of the problem, which makes the residual the plain Sinkhorn step."""
    gradient: Array
    """``Y exp(-g/lam) - q``, the gradient of the dual value in g."""
    decrement: Array
    """Estimated error of the dual value, (N,): the gradient times the next step."""
    size: Array
    """L1 norm of the gradient, (N,); inf in samples where it has just grown."""
    worse: Array | None = None
    """Samples, (N,) bool, whose gradient has grown so much that they return to a plain step."""
    error: float = math.inf
    """The decrement, summed over the samples here with their weights, on the host."""
    distance: float = math.inf
    """The L1 norm of the gradient of all samples here, on the host."""
    iterations: int = 1
    """How many iterations led here from the iterate before."""

    def gap_bound(self, factor: float) -> Array:
        """
        Bound ``factor KL(q | s)`` from above, (N,), ``s = Y exp(-g/lam)``.

        An entry of KL(q|s) is ``s psi(d)``, ``d = log(q/s)``, ``psi(d) <= max(1, e^d) d^2 / 2``.
        """
        return _gap_bounds(self.residual, self.gradient, self.marginal.q, factor, self.unit)


@compiled()
def _gap_bounds(residual: Array, gradient: Array, q: Array, factor: float, unit: float) -> Array:
    weights = array_namespace(residual).abs(gradient)  # q + |s - q| >= max(q, s)
    weights += q
    weights *= residual
    return inner(residual, weights) * (0.5 * factor / unit**2)


def dual_values(problem: TransportProblem, point: Iterate, Y: Array) -> Array:
    """Lower bounds of the loss at an iterate, (N,), from the marginal that it knows."""
    values = dual_product(point.g, Y, problem.lam, problem.kernel.flow)
    return values - problem.value(point.marginal) - problem.mass * point.shift


class Until(NamedTuple):
    """When a run of iterations ends: totals that are met, or a number of iterations."""

    error: float = math.inf
    """The total error, with the weights of the samples."""
    distance: float = math.inf
    """The L1 norm of the gradient of all samples."""
    least: int = 1
    """The totals of earlier iterations do not count."""
    most: int = 1


class InnerSolver(Protocol):
    """A solver of the inner problem, for a sequence of models Y."""

    problem: TransportProblem
    g: Array
    """The start of the next solve."""
    continues: bool
    """Whether g is where the last solve ended."""
    sample_weights: Array | None
    """Weights of the samples in the total error, (N,); None for equal weights."""
    patience: float
    """Iterations without a smaller gap after which the solver has failed; may be inf."""
    sums: Sums
    """Over the samples, some of which other processes may hold."""

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the marginal so far."""

    @property
    def work_per_evaluation(self) -> float:
        """Work of an evaluation of a few small samples: its time in units of 60 us on NumPy."""

    def iterates(
        self,
        Y: Array,
        tolerance: float = 0.0,
        max_iter: int | None = None,
        *,
        positive: bool | None = None,
        until: Until | None = None,
    ) -> Iterator[Iterate]:
        """
        An infinite sequence of iterates for this Y; `g` is the warm start after the last one.

        ``tolerance`` is the error that the caller wants, ``max_iter`` the largest number of
        iterations that it will take, ``positive`` whether all of Y is positive, if these are known.
        A caller that does not need the iterates before a certain one says by ``until`` which that
        is; the solver may then leave out some of them, see `Iterate.iterations`.
        """
        ...


def search_radius(problem: TransportProblem) -> float:
    """Bound on the distance to the solution: potential range plus lam times a large log ratio."""
    lam = 0.0 if problem.conserves_mass else problem.lam
    potential_range = problem.kernel.potential_range()
    if not problem.kernel.all_finite:
        # Transport between two bins may have to go through many others.
        potential_range *= problem.kernel.longest_path()
    return 3.0 * potential_range + 20.0 * lam


def translation(
    problem: TransportProblem, g: Array, Y: Array, live: Array | None
) -> tuple[Array, Array]:
    """
    The optimal constant to add to g in each sample, (N,), in closed form: q is invariant.

    Also returns ``Y exp(-g/lam)`` of the translated g, 0 where not ``live``.
    """
    xp = array_namespace(g)
    lam, mass = problem.lam, problem.mass
    if live is not None:
        g = xp.where(live, g, math.inf)
    lowest = xp.min(g, axis=tuple(range(1, g.ndim)), keepdims=True)
    if live is not None:
        lowest = xp.where(lowest < math.inf, lowest, 0.0)
    scaled_Y = lowest - g
    scaled_Y *= 1.0 / lam
    scaled_Y = xp.exp(scaled_Y)
    scaled_Y *= Y
    total = per_sample(scaled_Y)
    if problem.all_reachable:
        total = total / mass
    else:
        total = xp.where(mass > 0, total / xp.where(mass > 0, mass, 1.0), 1.0)
    shift = xp.log(total) * lam - xp.reshape(lowest, (-1,))
    scaled_Y /= spread(total, scaled_Y)
    return shift if problem.all_reachable else xp.where(mass > 0, shift, 0.0), scaled_Y


def translation_of_logs(
    problem: TransportProblem, g: Array, Y: Array, live: Array
) -> tuple[Array, Array]:
    """The same as `translation`, also where Y is so small at the lowest g that it underflows."""
    xp = array_namespace(g)
    lam, mass = problem.lam, problem.mass
    logs = xp.where(live, xp.log(xp.where(live, Y, 1.0)) - g * (1.0 / lam), -math.inf)
    top = xp.max(logs, axis=tuple(range(1, g.ndim)), keepdims=True)
    top = xp.where(top > -math.inf, top, 0.0)
    scaled_Y = xp.exp(logs - top)
    total, some = per_sample(scaled_Y), mass > 0
    ratio = xp.where(some & (total > 0), total / xp.where(some, mass, 1.0), 1.0)
    shift = (xp.log(ratio) + xp.reshape(top, (-1,))) * lam
    return xp.where(some, shift, 0.0), scaled_Y / spread(ratio, scaled_Y)


def relaxed_translation(
    problem: TransportProblem, g: Array, q: Array, Y: Array, live: Array | None
) -> tuple[Array, Array, Array]:
    """
    As `translation` if the first marginal is relaxed; also returns q of the translated g.

    A constant c multiplies q by ``exp(c / (s + eps))`` and ``Y exp(-g/lam)`` by ``exp(-c/lam)``; at
    the best one their masses are equal.
    """
    xp = array_namespace(g)
    lam, s = problem.lam, problem.source_lam + problem.kernel.eps
    if live is not None:
        g = xp.where(live, g, math.inf)
    lowest = xp.min(g, axis=tuple(range(1, g.ndim)), keepdims=True)
    lowest = xp.where(lowest < math.inf, lowest, 0.0)
    scaled_Y = xp.exp((lowest - g) * (1.0 / lam)) * Y
    total, mass = per_sample(scaled_Y), per_sample(q)
    usable = (total > 0) & (mass > 0)
    total, log_mass = xp.where(usable, total, 1.0), xp.log(xp.where(usable, mass, 1.0))
    low = xp.reshape(lowest, (-1,))
    shift = (xp.log(total) - log_mass - low * (1.0 / lam)) * (1.0 / (1.0 / s + 1.0 / lam))
    # Far from the solution the common mass may be too large for a number; any constant will do.
    most = (0.5 * largest_exponent(g.dtype, xp) - log_mass) * s
    shift = xp.where(usable, xp.minimum(shift, most), 0.0)
    common = xp.where(usable, xp.exp(log_mass + shift * (1.0 / s)), 0.0)  # the mass of both
    scaled_Y = scaled_Y / spread(total, Y) * spread(common, Y)
    return shift, scaled_Y, q * spread(xp.exp(shift * (1.0 / s)), q)
