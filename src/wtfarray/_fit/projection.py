"""Projection of new samples onto fixed atoms: a convex problem in the sample factor."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import per_sample, take_samples
from wtfarray._arrays.sums import AgreedError, Sums
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import most_work
from wtfarray._fit.driver import FitSolution, solve
from wtfarray._fit.journal import Record
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.sample_groups import Group, groups_of_similar_loss, groups_of_similar_mass
from wtfarray._fit.specification import Specification
from wtfarray._fit.starts import feasible, kl_steps
from wtfarray._losses.loss_sum import losses_of
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint
from wtfarray._models.models import CPModel
from wtfarray._solvers.stop_reason import StopReason

MASS_FACTOR = 2.0
"""Warn if the mass of a sample differs from that of the model by more than this factor."""


@dataclass(frozen=True, eq=False)
class Projection:
    """The coefficients of new samples, with objective and duality gap."""

    coefficients: Array
    """(n, r)."""
    objective: float
    """Lower bound on ``Phi(X, Y) + rho E(coefficients)``."""
    gap: float
    converged: bool
    message: str
    stopped: bool
    n_iter: int
    history: list[Record]
    dual: Array
    mass_advice: str | None
    """Advice if some samples have a mass that the model cannot have."""


def project_samples(
    X: Array,
    atoms: Array,
    loss: Loss,
    *,
    constraint: Constraint,
    rho: float,
    tol: float,
    max_iter: int,
    progress: bool = False,
    mask: Array | None = None,
    reference: float = 1.0,
) -> Projection:
    """
    Project the samples of X, (n, ...), onto the atoms, (features, r).

    Where the mask is False, X is 0 and was not observed. The entropy of coefficients without
    constraint is relative to ``reference``.
    """
    xp = array_namespace(X)
    separable = constraint in (None, "rows") and not any(
        isinstance(part, Wasserstein) and math.isinf(part.lam) for part in losses_of(loss)
    )
    mass = to_host(per_sample(X))
    if not mass.any():
        return _project_empty(X, atoms, loss, constraint, rho, tol, max_iter, mask, reference)
    groups = groups_of_similar_mass(mass) if separable else [np.arange(X.shape[0])]
    options = SolverOptions(tol=tol, max_iter=max_iter, progress=progress)
    every: list[FitSolution] = []

    def solution_of(group: Group, start: Array | None, *, last: bool) -> FitSolution:
        part, seen = X, mask
        if len(group) < X.shape[0]:
            part = take_samples(X, group)
            seen = None if mask is None else take_samples(mask, group)
        spent = _work_of_others(X, part, every, last=last)
        every.append(
            _solve_group(part, seen, atoms, loss, constraint, rho, options, reference, spent, start)
        )
        return every[-1]

    found = _in_groups(groups, mass, solution_of, divides=separable)
    groups, final = [g for g, _ in found], [solution for _, solution in found]
    single = len(every) == 1
    worst = next((solution for solution in final if not solution.converged), final[0])
    rows = [solution.spec.in_units_of_data(solution.blocks)[0] for solution in final]
    coefficients, dual = rows[0], final[0].dual
    objective = sum(solution.objective for solution in final)
    gap = sum(solution.gap for solution in final)
    history = final[0].history
    if not single:
        back = np.argsort(np.concatenate(groups))
        coefficients = take_samples(xp.concat(rows), back)
        dual = take_samples(xp.concat([s.dual for s in final]), back)
        seconds = sum(solution.history[-1].time for solution in every)
        evaluations = sum(solution.history[-1].evaluations for solution in every)
        history = [Record(seconds, objective, gap, evaluations)]
    return Projection(
        coefficients=coefficients,
        objective=objective,
        gap=gap,
        converged=all(solution.converged for solution in final),
        message=worst.message,
        stopped=any(solution.reason.by_caller for solution in every),
        n_iter=sum(solution.n_iter for solution in every),
        history=history,
        dual=dual,
        mass_advice=mass_advice(mass, atoms) if constraint == "rows" and mask is None else None,
    )


def _in_groups(
    groups: list[Group],
    mass: NDArray[np.float64],
    solution_of: Callable[..., FitSolution],
    *,
    divides: bool,
) -> list[tuple[Group, FitSolution]]:
    """
    The groups with their solutions.

    If it ``divides``, a group of very different losses is divided, and each part is solved again.
    """
    found = []
    for number, group in enumerate(groups):
        last = number == len(groups) - 1
        solution = solution_of(group, None, last=last)
        parts = _parts_of_similar_loss(solution, mass[group]) if divides else []
        if len(parts) < 2:
            found.append((group, solution))
            continue
        for place, part in enumerate(parts, start=1):
            start = take_samples(solution.blocks[0], part)
            ends = last and place == len(parts)
            found.append((group[part], solution_of(group[part], start, last=ends)))
    return found


def project_together(
    sums: Sums,
    X: Array,
    atoms: Array,
    loss: Loss,
    *,
    constraint: Constraint,
    rho: float,
    tol: float,
    max_iter: int,
    progress: bool,
    mask: Array | None,
    reference: float = 1.0,
) -> Projection:
    """
    Project the samples of several processes, of which each holds some.

    The coefficients of one sample do not depend on those of another: each process projects its own,
    without messages. The sums of objectives and gaps, and whether all converged, are shared.
    """
    if constraint not in (None, "rows"):
        msg = (
            f"comm was given, but the first factor of the fit has the constraint {constraint!r}: "
            "expected None or 'rows', under which samples are projected one by one"
        )
        raise AgreedError(ValueError(msg))
    begin = time.perf_counter()
    if X.shape[0]:
        mine = project_samples(
            X,
            atoms,
            loss,
            constraint=constraint,
            rho=rho,
            tol=tol,
            max_iter=max_iter,
            progress=progress,
            mask=mask,
            reference=reference,
        )
    else:
        xp = array_namespace(X)
        rows = xp.zeros((0, atoms.shape[1]), dtype=X.dtype, device=device_of(X))
        mine = Projection(rows, 0.0, 0.0, True, "", False, 0, [], X, None)  # noqa: FBT003
    evaluations = mine.history[-1].evaluations if mine.history else 0
    objective, gap, stopped, unsolved, work, samples = sums.numbers(
        mine.objective,
        mine.gap,
        mine.stopped,
        not mine.converged,
        evaluations * X.shape[0],
        X.shape[0],
    )
    # The message of the first process that did not converge, if any.
    speaks = not mine.converged if unsolved else X.shape[0] > 0
    before, _ = sums.place(int(speaks))
    message = sums.text(mine.message if speaks and before == 0 else "")
    seconds = time.perf_counter() - begin
    return replace(
        mine,
        objective=objective,
        gap=gap,
        converged=unsolved == 0,
        message=message,
        stopped=stopped > 0,
        n_iter=int(sums.largest(mine.n_iter)),
        history=[Record(seconds, objective, gap, math.ceil(work / max(1.0, samples)))],
    )


def _project_empty(
    X: Array,
    atoms: Array,
    loss: Loss,
    constraint: Constraint,
    rho: float,
    tol: float,
    max_iter: int,
    mask: Array | None,
    reference: float,
) -> Projection:
    """Project samples that are all empty: beside one that is not, which is then left out again."""
    xp = array_namespace(X)
    other = xp.reshape(xp.mean(atoms, axis=1), (1, *X.shape[1:])) * reference
    if mask is not None:
        mask = xp.concat([mask, xp.ones_like(mask[:1, ...])])
    both, alone = (
        project_samples(
            samples,
            atoms,
            loss,
            constraint=constraint,
            rho=rho,
            tol=tol,
            max_iter=max_iter,
            mask=seen,
            reference=reference,
        )
        for samples, seen in ((xp.concat([X, other]), mask), (other, None))
    )
    objective, gap = both.objective - alone.objective, both.gap + alone.gap
    return replace(
        both,
        coefficients=both.coefficients[: X.shape[0], :],
        objective=objective,
        gap=gap,
        history=[replace(both.history[-1], objective=objective, gap=gap)],
        dual=both.dual[: X.shape[0], ...],
    )


def _solve_group(
    X: Array,
    mask: Array | None,
    atoms: Array,
    loss: Loss,
    constraint: Constraint,
    rho: float,
    options: SolverOptions,
    reference: float,
    spent: float,
    start: Array | None,
) -> FitSolution:
    """The coefficients of a group of samples, as a matrix model with fixed atoms."""
    xp = array_namespace(X)
    carrier = 0 if constraint is None else None
    unit = reference if constraint is None else 1.0
    model, constraints = CPModel(2, learns_weights=False, scale=unit), (constraint, None)
    shapes = ((X.shape[0], atoms.shape[1]), tuple(atoms.shape))
    blocks = [start, atoms]
    if start is None:
        ones = xp.ones(shapes[0], dtype=X.dtype, device=device_of(X))
        blocks = [feasible(ones, constraint), atoms]
        blocks = kl_steps(model, X, blocks, constraints, (0,), mask=mask)
    spec = Specification(
        kind="nmf",
        X=X,
        loss=loss,
        model=model,
        shapes=shapes,
        constraints=constraints,
        # Without the entropy of the atoms, a constant: tolerances are relative to the objective.
        rho=(rho, 0.0),
        free=(0,),
        sample_weight=None,
        mask=mask,
        unit=unit,
        carrier=carrier,
    )
    init = spec.in_units_of_data(blocks)
    return solve(spec, replace(options, init=init), np.random.default_rng(0), spent=spent)


def _parts_of_similar_loss(solution: FitSolution, mass: NDArray[np.float64]) -> list[Group]:
    """
    The groups into which the samples of a solution, of given masses, are to be divided.

    None if their losses are not known, or if there is no more time for them.
    """
    values, X = solution.values, solution.spec.X
    over = solution.reason.by_caller or solution.reason is StopReason.WORK
    if values is None or over or values.shape[0] % X.shape[0]:
        return []
    losses = to_host(values).reshape(X.shape[0], -1).sum(axis=1)
    (loss,) = solution.spec.losses
    assert isinstance(loss, Wasserstein)
    if not np.isfinite(losses).all():
        return []
    # No group may have empty samples only: they belong to that of the smallest losses.
    losses = np.where(mass > 0, losses, 0.0)
    return groups_of_similar_loss(losses, loss.eps * mass / solution.spec.unit)


def _work_of_others(X: Array, part: Array, every: list[FitSolution], *, last: bool) -> float:
    """
    The work that counts as spent before the samples ``part`` of X are projected.

    The groups of small data share the work that one group may take: each may take half of what
    those before it have left, and the last one all of it.
    """
    whole = most_work(math.prod(X.shape))
    if whole == math.inf:
        return 0.0
    left = max(0.0, whole - sum(solution.work for solution in every))
    return most_work(math.prod(part.shape)) - (left if last else 0.5 * left)


def mass_advice(mass: NDArray[np.float64], atoms: Array) -> str | None:
    """Advice on samples whose mass is far from that of every convex combination of the atoms."""
    possible = to_host(per_sample(atoms.mT))
    low, high = float(possible.min()), float(possible.max())
    off = (mass > 0) & ((mass > MASS_FACTOR * high) | (mass < low / MASS_FACTOR))
    if not off.any():
        return None
    i = int(np.argmax(off))
    span = f"{low:.3g}" if high - low <= 1e-2 * high else f"{low:.3g} to {high:.3g}"
    return (
        f"sample {i} of X has mass {mass[i]:.3g}, but with coefficients that sum to one the model "
        f"has mass {span}: scale new samples like the fitted ones, for example divide each by its "
        "sum"
    )
