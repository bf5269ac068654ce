"""Checks of projections: bounds, minimum, and whether a sample depends on the others."""

from __future__ import annotations

from typing import Any

import numpy as np

import wtfarray as wtf
from campaign import oracle
from campaign.backends import to_numpy
from campaign.fits import SADDLE, check_history, finite_blocks
from campaign.intervals import check_interval, largest_exponent
from campaign.objective import Objective
from campaign.problems import (
    TransportLoss,
    draw_data,
    draw_loss,
    draw_rank,
    draw_ranks,
    draw_shape,
    pick,
    power,
)
from campaign.trial import Trial, same, wtf_quietly


def check_projection(trial: Trial) -> None:
    """`projection`: convex, sample by sample the same as together."""
    rng = trial.draw()
    model = pick(rng, ("nmf", "cp", "tucker"), (0.6, 0.2, 0.2))
    shape, groups = draw_shape(rng, few=trial.library.few_shapes, sampled=True)
    part = draw_loss(rng, shape, groups, trial.dtype, balanced=0.15)
    loss = part.build()
    X = draw_data(rng, shape, groups, trial.dtype, normalised=0.9 if part.balanced else 0.5)
    few = trial.library.few_shapes
    rank: Any = draw_rank(rng, few=few)
    if model == "tucker":
        rank = draw_ranks(rng, len(shape), few=few)
    options: dict[str, Any] = {"rho": power(rng, -5, 0), "rng": int(rng.integers(1000))}
    options["max_iter"] = int(pick(rng, (2, 20), (0.7, 0.3)))
    new = draw_data(rng, shape, groups, trial.dtype, normalised=0.9 if part.balanced else 0.5)
    keywords: dict[str, Any] = {}
    if rng.random() < 0.3:
        keywords = {"tol": power(rng, -9, -4), "max_iter": int(pick(rng, (2, 50, 1000)))}
    notes = {"X": X, "new": new, "rank": rank, "loss": part, **options, "projection": keywords}
    for name, value in notes.items():
        trial.note(name, value)
    function = getattr(wtf, model)
    x = trial.library.array(X)
    fit = trial.call(model, function, x, rank, loss, **options)
    trial.outcome.unconverged = False  # of the projection alone
    array = trial.library.array(new)
    found = trial.call("projection", fit.projection, array, **keywords)
    trial.note("found", found)
    trial.note("coefficients", found.factors[0])
    if not finite_blocks(trial, "projection", found, range(1, 9)):
        return
    objective = Objective(new, [part], tuple(map(float, fit.rho)), references=fit.references)
    truth = objective.of(found)
    trial.note("truth", truth)
    check_interval(
        trial,
        "projection",
        found.objective,
        found.gap,
        truth,
        converged=found.converged,
        exponent=largest_exponent([part]),
    )
    check_history(trial, "projection", found, max(truth.scale, objective.floor))
    if not found.converged or trial.outcome.failed:
        return
    _check_minimum(trial, found, new, part)
    if (
        keywords
        or part.balanced
        or found.constraints[0] not in (None, "rows")
        or rng.random() < 0.5
    ):
        return
    coefficients = to_numpy(wtf_quietly(fit.project, array))
    if not same(coefficients, to_numpy(found.factors[0])):
        trial.fail("project", "its coefficients are not those of projection")
    _check_alone(trial, fit, found, new, part)


def _atoms(fit: Any) -> np.ndarray:
    """The model of unit coefficients, (r, ...)."""
    factors = [to_numpy(factor) for factor in fit.factors]
    core = None if fit.core is None else to_numpy(fit.core)
    weights = None if fit.weights is None else to_numpy(fit.weights)
    return oracle.model([np.eye(factors[0].shape[1]), *factors[1:]], core, weights)


def _sample_objective(
    x: np.ndarray, a: np.ndarray, atoms: np.ndarray, part: TransportLoss, fit: Any
) -> oracle.Interval:
    """The objective of one index of the first mode, with coefficients a (r,)."""
    Y = np.tensordot(np.asarray(a, oracle.LONG), atoms, axes=(0, 0)).reshape(1, *x.shape)
    total = oracle.transport(x[None], Y, part.costs, part.groups, part.eps, part.lam)
    s = fit.references[0]
    value = float(fit.rho[0]) * s * oracle.entropy(np.asarray(a, oracle.LONG) / s)
    return total + oracle.Interval(value, value, abs(value))


def _check_minimum(trial: Trial, found: Any, new: np.ndarray, part: TransportLoss) -> None:
    """No step towards what the gradient asks for decreases the objective of a sample much."""
    constraint = found.constraints[0]
    if constraint not in (None, "rows") or part.balanced:
        return
    atoms, coefficients = _atoms(found), to_numpy(found.factors[0])
    atoms = atoms.reshape(len(atoms), *new.shape[1:])
    cost = oracle.total_cost(part.costs)
    inner = [tuple(k - 1 for k in group) for group in part.groups]
    whole = max(abs(found.objective), part.eps * float(new.sum()))
    for i in range(min(len(new), 3)):
        a = coefficients[i].astype(oracle.LONG)
        Y = np.tensordot(a, atoms, axes=(0, 0))
        rows = oracle.stacked(new[i].astype(oracle.LONG), inner)
        targets = oracle.stacked(Y, inner)
        basis = [oracle.stacked(atom, inner) for atom in atoms]
        slope = np.zeros(len(atoms), oracle.LONG)
        for j, (x, y) in enumerate(zip(rows, targets, strict=True)):
            _, u = oracle.value_and_gradient(x, y, cost, part.eps, part.lam)
            for r, atom in enumerate(basis):
                slope[r] += np.sum(np.where(atom[j] > 0, u, 0) * atom[j])
        if not np.isfinite(slope).all():
            return
        wanted = -slope / float(found.rho[0])
        if constraint == "rows":
            wanted = np.exp(wanted - wanted.max())
            wanted = wanted / wanted.sum()
        else:
            wanted = np.exp(np.minimum(wanted, 200)) * found.references[0]
        here = _sample_objective(new[i], a, atoms, part, found)
        for step in (1.0, 0.3, 0.1, 1e-2, 1e-3):
            there = _sample_objective(new[i], (1 - step) * a + step * wanted, atoms, part, found)
            gain = here.lower - there.upper
            if gain > max(SADDLE * whole, trial.rounding * here.scale):
                trial.fail(
                    "not the minimum",
                    f"projection: sample {i} can gain {gain:.3g} of {whole:.3g} "
                    f"(its own value is {here.upper:.6g}); {found.message}",
                )
                return


def _check_alone(trial: Trial, fit: Any, found: Any, new: np.ndarray, part: TransportLoss) -> None:
    """A sample's coefficients do not depend on the other samples."""
    atoms, together = _atoms(fit), to_numpy(found.factors[0])
    atoms = atoms.reshape(len(atoms), *new.shape[1:])
    for i in range(min(len(new), 3)):
        if not new[i].any():
            continue
        one = trial.call("projection", fit.projection, trial.library.array(new[i : i + 1]))
        if not one.converged:
            continue
        alone = _sample_objective(new[i], to_numpy(one.factors[0])[0], atoms, part, fit)
        joint = _sample_objective(new[i], together[i], atoms, part, fit)
        size = max(abs(alone.upper), part.eps * float(new[i].sum()))
        off = max(joint.lower - alone.upper, alone.lower - joint.upper)
        if off > max(SADDLE * size, trial.rounding * joint.scale):
            trial.fail(
                "depends on the batch",
                f"projection of sample {i}: objective {joint.upper!r} together, {alone.upper!r} "
                f"alone; coefficients {together[i].tolist()} and "
                f"{to_numpy(one.factors[0])[0].tolist()}",
            )
            return
