"""Where the transport problem has no finite solution: masses that differ, bins out of reach."""

from __future__ import annotations

from array_api_compat import array_namespace

from wtfarray._arrays.samples import mass_tolerance, per_sample, spread, unstack
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import refuse_where
from wtfarray._models.entropy import xlogx
from wtfarray._transport.components import Components, components_of
from wtfarray._transport.problem import TransportProblem


def feasible_target(problem: TransportProblem, Y: Array, shape: tuple[int, ...]) -> Array:
    """
    Y, stacked, if the loss is finite there; refuse it otherwise.

    Balanced, Y is brought to the masses of X, from which it may differ by rounding. ``shape`` is
    that of the data, to name entries in messages.
    """
    xp = array_namespace(Y)
    wrong = wrong_mass(problem, Y)
    if bool(xp.any(wrong)):
        i = int(xp.argmax(xp.astype(wrong, xp.int64)))
        expected = "a positive mass"
        if problem.conserves_mass:
            expected = "the same mass, or a loss with finite lam"
        msg = (
            f"Y weighs {float(per_sample(Y)[i])} in sample {i}, where X weighs "
            f"{float(problem.mass[i])}: expected {expected}"
        )
        raise ValueError(msg)
    lost = stranded(problem, Y)
    if bool(xp.any(lost)):
        data, lost = (unstack(problem, stacked, shape) for stacked in (problem.data, lost))
        refuse_where(lost, "X", data, "a finite cost to some bin where Y is positive")
    if not problem.conserves_mass or problem.unreachable is None:
        return of_equal_mass(problem, Y)
    lost = problem.unreachable & (Y > 0)
    if bool(xp.any(lost)):
        stacked, lost = (unstack(problem, array, shape) for array in (Y, lost))
        expected = "0 where no mass of X can arrive at a finite cost, or a loss with finite lam"
        refuse_where(lost, "Y", stacked, expected)
    components = components_of(problem.kernel.costs)
    if components is not None:
        _refuse_component_mass(problem, Y, components)
    return of_equal_mass(problem, Y, components)


def _refuse_component_mass(problem: TransportProblem, Y: Array, components: Components) -> None:
    """Refuse a Y whose connected components do not weigh what those of X do."""
    xp = array_namespace(Y)
    wrong = wrong_component_mass(problem, Y, components)
    if not bool(xp.any(wrong)):
        return
    mass, found = components.masses(problem.data, Y)
    sample, component = divmod(int(xp.argmax(xp.astype(wrong, xp.int64))), wrong.shape[1])
    msg = (
        f"Y weighs {float(found[sample, component])} in sample {sample} on the connected component "
        f"of bin {components.first_target(component)}, where X weighs "
        f"{float(mass[sample, component])}, and costs between components are infinite: "
        "expected the same mass, or a loss with finite lam"
    )
    raise ValueError(msg)


def refuse_other_mass(mass: Array, found: Array, constraints: str) -> None:
    """Refuse constraints, in words, under which samples of a model do not weigh what X does."""
    xp = array_namespace(mass)
    off = xp.abs(found - mass)
    if bool(xp.all(off <= mass_tolerance(mass) * xp.max(mass))):
        return
    worst = int(xp.argmax(off))
    msg = (
        f"{constraints} and the loss is balanced (lam = inf), but sample {worst} of X weighs "
        f"{float(mass[worst])} and a model under these constraints {float(found[worst])}: expected "
        "constraints that conserve mass (normalise the samples, rows of their factor, columns of "
        "the others), or a finite lam"
    )
    raise ValueError(msg)


def refuse_unreachable(problem: TransportProblem) -> None:
    """Refuse balanced transport of a model if infinite costs keep mass from some of its bins."""
    if not problem.conserves_mass or problem.unreachable is None:
        return
    if components_of(problem.kernel.costs) is not None:
        msg = (
            "loss is balanced (lam = inf) and its infinite costs separate the bins into connected "
            "components, on each of which a model would have to weigh what X does: expected finite "
            "costs that connect all bins, or a finite lam"
        )
        raise ValueError(msg)
    expected = "mass at a finite cost from every bin of its sample, or a finite lam"
    refuse_where(problem.unreachable, "X, its transported modes last,", problem.data, expected)


def refuse_infinite(problem: TransportProblem, values: Array) -> None:
    """Refuse a Y that the dual values, (N,), show to be out of reach."""
    xp = array_namespace(values)
    lost = is_infinite(problem, values)
    if bool(xp.any(lost)):
        sample = int(xp.argmax(xp.astype(lost, xp.int64)))
        msg = (
            f"Y cannot be reached from X at a finite cost in sample {sample}, where the loss is "
            "infinite: expected a Y that can, or a loss with finite lam"
        )
        raise ValueError(msg)


def wrong_mass(problem: TransportProblem, Y: Array) -> Array:
    """The samples, (N,) bool, whose mass makes the loss infinite."""
    mass, found = problem.mass, per_sample(Y)
    if not problem.conserves_mass:
        return (mass > 0) & ~(found > 0)
    return _differ(found, mass)


def wrong_component_mass(problem: TransportProblem, Y: Array, components: Components) -> Array:
    """Samples and components, (N, components) bool, whose mass makes a balanced loss infinite."""
    mass, found = components.masses(problem.data, Y)
    return _differ(found, mass)


def _differ(found: Array, mass: Array) -> Array:
    """Where masses differ by more than rounding."""
    return array_namespace(mass).abs(found - mass) > mass_tolerance(mass) * mass


def is_infinite(problem: TransportProblem, values: Array) -> Array:
    """The samples, (N,) bool, with lower bounds that no finite balanced loss can have."""
    xp = array_namespace(values)
    # <C, P> is at most the largest cost, and E(P) largest if all of P is in one place.
    largest = sum(xp.max(xp.where(xp.isfinite(c), c, 0.0)) for c in problem.kernel.costs)
    mass = problem.mass
    return values > mass * largest + (xlogx(mass, xp) - mass) * problem.kernel.eps


def stranded(problem: TransportProblem, Y: Array) -> Array:
    """Bins, (N, ...) bool, from which mass of X can reach no bin of Y at a finite cost."""
    return (problem.data > 0) & ~problem.kernel.can_reach(Y > 0)


def of_equal_mass(
    problem: TransportProblem, Y: Array, components: Components | None = None
) -> Array:
    """Balanced: scale Y to the mass of X, in every component; it differs by rounding at most."""
    if not problem.conserves_mass:
        return Y
    xp = array_namespace(Y)
    mass, found = problem.mass, per_sample(Y)
    if components is not None:
        mass, found = components.masses(problem.data, Y)
    ratio = xp.where(found > 0, mass / xp.where(found > 0, found, 1.0), 0.0)
    return Y * (spread(ratio, Y) if components is None else components.spread(ratio, Y))
