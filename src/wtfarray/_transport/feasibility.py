"""Models with an infinite loss: wrong masses, or bins that no mass can reach."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import mass_tolerance, per_sample, spread, unstack
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import refuse_where
from wtfarray._dispatch import checks_flow
from wtfarray._models.entropy import xlogx
from wtfarray._transport.banded import BandedCost, geometry_of
from wtfarray._transport.components import Components, components_of
from wtfarray._transport.kernels import dense
from wtfarray._transport.max_flow import Bottleneck, bottleneck
from wtfarray._transport.problem import TransportProblem


def feasible_target(problem: TransportProblem, Y: Array, shape: tuple[int, ...]) -> Array:
    """
    Return a stacked Y at which the loss is finite; refuse any other.

    For balanced transport Y is scaled to the masses of X, from which it may differ by rounding.
    ``shape`` is that of the data, to name entries in messages.
    """
    xp = array_namespace(Y)
    wrong = wrong_mass(problem, Y)
    if bool(xp.any(wrong)):
        i = int(xp.argmax(xp.astype(wrong, xp.int64)))
        expected = "a positive mass, not so small that their ratio underflows"
        if problem.conserves_mass:
            expected = "the same mass, or a loss with finite lam"
        msg = (
            f"Y has mass {float(per_sample(Y)[i])} in sample {i}, where X has mass "
            f"{float(problem.mass[i])}: expected {expected}"
        )
        raise ValueError(msg)
    bad = stranded(problem, Y)
    if not problem.relaxes_data and bool(xp.any(bad)):
        data, bad = (unstack(problem, stacked, shape) for stacked in (problem.data, bad))
        refuse_where(bad, "X", data, "a finite cost to some bin where Y is positive")
    if not problem.conserves_mass or problem.unreachable is None:
        return of_equal_mass(problem, Y)
    bad = problem.unreachable & (Y > 0)
    if bool(xp.any(bad)):
        stacked, bad = (unstack(problem, array, shape) for array in (Y, bad))
        expected = "0 where no mass of X can arrive at a finite cost, or a loss with finite lam"
        refuse_where(bad, "Y", stacked, expected)
    components = components_of(problem.kernel.costs)
    if components is not None:
        _refuse_component_mass(problem, Y, components)
    Y = of_equal_mass(problem, Y, components)
    (*others, cost) = problem.kernel.costs
    if not others and isinstance(cost, BandedCost):
        _refuse_long_moves(problem, Y, cost.reach)
    elif checks_flow(Y.shape[0], math.prod(Y.shape[1:])):
        _refuse_bottlenecks(problem, Y)
    return Y


def _refuse_bottlenecks(problem: TransportProblem, Y: Array) -> None:
    """Refuse a Y to which infinite costs leave no balanced transport, by more than rounding."""
    cost = to_host(dense(problem.kernel.costs))
    leftover = negligible_share(Y)
    for sample, found in enumerate(_bottlenecks(to_host(problem.data), to_host(Y), cost, leftover)):
        if found is None:
            continue
        shape = tuple(Y.shape[1:])
        where = [tuple(int(k) for k in np.unravel_index(i, shape)) for i in found.sources[:3]]
        more = " and others" if len(found.sources) > 3 else ""
        msg = (
            f"Y cannot be reached from X at a finite cost in sample {sample}: the bins "
            f"{', '.join(map(str, where))}{more} of X have mass {found.supply:.6g}, and all bins "
            f"that they can reach have mass {found.demand:.6g} in Y: expected a Y that can be "
            "reached, or a loss with finite lam"
        )
        raise ValueError(msg)


def negligible_share(Y: Array) -> float:
    """The share of the mass of a sample that may fail to arrive before its Y is refused."""
    return 10.0 * mass_tolerance(Y)


def certified_gaps(problem: TransportProblem, Y: Array, gaps: Array) -> Array:
    """
    The gaps of a stacked model, (N,), inf where infinite costs leave no balanced transport to it.

    Where exponents are large, as for a small eps in float32, the plan alone does not show that.
    """
    if not problem.conserves_mass or problem.kernel.all_finite:
        return gaps
    if not checks_flow(Y.shape[0], math.prod(Y.shape[1:])):
        return gaps
    xp = array_namespace(Y)
    data, Y, cost = problem.data, of_equal_mass(problem, Y), dense(problem.kernel.costs)
    leftover = 64.0 * float(xp.finfo(Y.dtype).eps)
    infinite = are_bottlenecked(to_host(data), to_host(Y), to_host(cost), leftover)
    return xp.where(xp.asarray(infinite, device=device_of(gaps)), math.inf, gaps)


def are_bottlenecked(
    data: NDArray[Any], Y: NDArray[Any], cost: NDArray[Any], leftover: float
) -> NDArray[np.bool_]:
    """Samples, (N,), to whose Y infinite costs leave no balanced transport; all on the host."""
    return np.asarray([found is not None for found in _bottlenecks(data, Y, cost, leftover)])


def _bottlenecks(
    data: NDArray[Any], Y: NDArray[Any], cost: NDArray[Any], leftover: float
) -> Iterator[Bottleneck | None]:
    """
    A bottleneck of each sample, if more than a share ``leftover`` of its mass cannot arrive.

    ``cost`` is that of all bins.
    """
    allowed = np.isfinite(cost)
    for x, y in zip(data, Y, strict=True):
        yield bottleneck(x.ravel(), y.ravel(), allowed, leftover * float(x.sum()))


def _refuse_long_moves(problem: TransportProblem, Y: Array, reach: int) -> None:
    """
    Refuse a Y to which mass of X would have to move farther than the reach along a single axis.

    Mass moves least far if it keeps its order: it suffices that up to each bin X has no more mass
    than Y has up to the bin ``reach`` further on, and the same with X and Y exchanged.
    """
    xp = array_namespace(Y)
    bins: int = Y.shape[1]
    before, after = (xp.cumulative_sum(stack, axis=1) for stack in (problem.data, Y))
    further = xp.asarray(np.minimum(np.arange(bins) + reach, bins - 1), device=device_of(Y))
    allowed = spread(problem.mass * negligible_share(Y), Y)
    for one, other, names in ((before, after, ("X", "Y")), (after, before, ("Y", "X"))):
        within = xp.take(other, further, axis=1)
        wrong = one > within + allowed
        if bool(xp.any(wrong)):
            first = int(xp.argmax(xp.astype(xp.reshape(wrong, (-1,)), xp.int64)))
            sample, bin_ = divmod(first, bins)
            msg = (
                f"Y cannot be reached from X at a finite cost in sample {sample}: {names[0]} has "
                f"mass {float(one[sample, bin_]):.6g} up to bin {bin_}, and {names[1]} has mass "
                f"{float(within[sample, bin_]):.6g} up to the bin {reach} further on: expected a Y "
                "that can be reached, a larger reach, or a loss with finite lam"
            )
            raise ValueError(msg)


def _refuse_component_mass(problem: TransportProblem, Y: Array, components: Components) -> None:
    """Refuse a Y whose masses on the connected components differ from those of X."""
    xp = array_namespace(Y)
    wrong = wrong_component_mass(problem, Y, components)
    if not bool(xp.any(wrong)):
        return
    mass, found = components.masses(problem.data, Y)
    sample, component = divmod(int(xp.argmax(xp.astype(wrong, xp.int64))), wrong.shape[1])
    msg = (
        f"Y has mass {float(found[sample, component])} in sample {sample} on the connected "
        f"component of bin {components.first_target(component)}, where X has mass "
        f"{float(mass[sample, component])}, and costs between components are infinite: "
        "expected the same mass, or a loss with finite lam"
    )
    raise ValueError(msg)


def refuse_other_mass(mass: Array, found: Array, constraints: str, first: int = 0) -> None:
    """
    Refuse constraints under which the masses ``found`` of a model, (N,), are not those of X.

    ``first`` is the index of its first sample.
    """
    xp = array_namespace(mass)
    error = xp.abs(found - mass)
    if bool(xp.all(error <= mass_tolerance(mass) * xp.max(mass))):
        return
    worst = int(xp.argmax(error))
    msg = (
        f"{constraints} and the loss is balanced (lam = inf), but sample {first + worst} of X has "
        f"mass {float(mass[worst])} and a model under these constraints {float(found[worst])}: "
        "expected constraints that conserve mass (normalise the samples, rows of their factor, "
        "columns of the others), or a finite lam"
    )
    raise ValueError(msg)


def refuse_unreachable(problem: TransportProblem) -> None:
    """Refuse balanced transport to a model if some of its bins are unreachable from X."""
    if not problem.conserves_mass or problem.unreachable is None:
        return
    if components_of(problem.kernel.costs) is not None:
        msg = (
            "loss is balanced (lam = inf) and its infinite costs separate the bins into connected "
            "components, on each of which a model would need the mass of X: expected finite costs "
            "that connect all bins, or a finite lam"
        )
        raise ValueError(msg)
    expected = "mass of its sample that can reach this bin at a finite cost, or a finite lam"
    refuse_where(problem.unreachable, "X, transported modes last,", problem.data, expected)


def refuse_infinite(problem: TransportProblem, values: Array) -> None:
    """Refuse a Y at which the dual values, (N,), prove that the loss is infinite."""
    xp = array_namespace(values)
    infinite = is_infinite(problem, values)
    if bool(xp.any(infinite)):
        sample = int(xp.argmax(xp.astype(infinite, xp.int64)))
        msg = (
            f"Y cannot be reached from X at a finite cost in sample {sample}, where the loss is "
            "infinite: expected a Y that can, or a loss with finite lam"
        )
        raise ValueError(msg)


def wrong_mass(problem: TransportProblem, Y: Array) -> Array:
    """Samples, (N,) bool, whose mass makes the loss infinite."""
    mass, found = problem.mass, per_sample(Y)
    if not problem.conserves_mass:
        info = array_namespace(mass).finfo(mass.dtype)
        least = mass * (float(info.smallest_normal) / float(info.eps))
        return (mass > 0) & ~((found > 0) & (found >= least))
    return _differ(found, mass)


def wrong_component_mass(problem: TransportProblem, Y: Array, components: Components) -> Array:
    """Samples and components, (N, components) bool, whose mass makes a balanced loss infinite."""
    mass, found = components.masses(problem.data, Y)
    return _differ(found, mass)


def _differ(found: Array, mass: Array) -> Array:
    """Whether masses differ by more than rounding, entry by entry."""
    return array_namespace(mass).abs(found - mass) > mass_tolerance(mass) * mass


def is_infinite(problem: TransportProblem, values: Array) -> Array:
    """Samples, (N,) bool, whose lower bounds exceed every finite value of a balanced loss."""
    xp = array_namespace(values)
    # <C, P> is at most the largest cost times the mass; E(P) is largest if one entry holds all.
    largest = sum(geometry_of(cost).largest for cost in problem.kernel.costs)
    mass = problem.mass
    return values > mass * largest + (xlogx(mass, xp) - mass) * problem.kernel.eps


def stranded(problem: TransportProblem, Y: Array) -> Array:
    """Bins, (N, ...) bool, with mass of X that can reach no bin of Y at a finite cost."""
    return (problem.data > 0) & ~problem.kernel.can_reach(Y > 0)


def of_equal_mass(
    problem: TransportProblem, Y: Array, components: Components | None = None
) -> Array:
    """For balanced transport, scale Y to the mass of X, in each component if there are several."""
    if not problem.conserves_mass:
        return Y
    xp = array_namespace(Y)
    mass, found = problem.mass, per_sample(Y)
    if components is not None:
        mass, found = components.masses(problem.data, Y)
    ratio = xp.where(found > 0, mass / xp.where(found > 0, found, 1.0), 0.0)
    return Y * (spread(ratio, Y) if components is None else components.spread(ratio, Y))
