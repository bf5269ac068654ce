"""Where the transport problem has no finite solution: masses that differ, bins out of reach."""

from __future__ import annotations

from array_api_compat import array_namespace

from wtfarray._arrays.samples import per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._models.entropy import xlogx
from wtfarray._transport.components import Islands
from wtfarray._transport.problem import TransportProblem


def wrong_mass(problem: TransportProblem, Y: Array) -> Array:
    """The samples, (N,) bool, whose mass makes the loss infinite."""
    mass, found = problem.mass, per_sample(Y)
    if not problem.conserves_mass:
        return (mass > 0) & ~(found > 0)
    return _differ(found, mass)


def wrong_islands(problem: TransportProblem, Y: Array, islands: Islands) -> Array:
    """The samples and islands, (N, islands) bool, whose mass makes a balanced loss infinite."""
    mass, found = islands.masses(problem.data, Y)
    return _differ(found, mass)


def _differ(found: Array, mass: Array) -> Array:
    """Where masses differ by more than rounding."""
    xp = array_namespace(mass)
    tolerance = 1e-6 if mass.dtype == xp.float64 else 1e-3
    return xp.abs(found - mass) > tolerance * mass


def impossible(problem: TransportProblem, values: Array) -> Array:
    """The samples, (N,) bool, with lower bounds that no finite balanced loss can have."""
    xp = array_namespace(values)
    # <C, P> is at most the largest cost, and E(P) largest if all of P is in one place.
    largest = sum(xp.max(xp.where(xp.isfinite(c), c, 0.0)) for c in problem.kernel.costs)
    mass = problem.mass
    return values > mass * largest + (xlogx(mass, xp) - mass) * problem.kernel.eps


def stranded(problem: TransportProblem, Y: Array) -> Array:
    """Where, (N, ...) bool, mass of X has no way of finite cost to any of Y."""
    return (problem.data > 0) & ~problem.kernel.reaches(Y > 0)


def of_equal_mass(problem: TransportProblem, Y: Array, islands: Islands | None = None) -> Array:
    """Balanced: remove from Y what its mass still differs by from that of X, on every island."""
    if not problem.conserves_mass:
        return Y
    xp = array_namespace(Y)
    mass, found = problem.mass, per_sample(Y)
    if islands is not None:
        mass, found = islands.masses(problem.data, Y)
    ratio = xp.where(found > 0, mass / xp.where(found > 0, found, 1.0), 0.0)
    return Y * (spread(ratio, Y) if islands is None else islands.spread(ratio, Y))
