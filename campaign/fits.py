"""Checks of `cp`, `tucker` and `nmf`: objective, constraints, history, restarts."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

import wtfarray as wtf
from campaign import oracle
from campaign.backends import to_numpy
from campaign.intervals import check_interval, largest_exponent
from campaign.objective import Objective
from campaign.problems import (
    TransportLoss,
    draw_data,
    draw_fit_options,
    draw_loss,
    draw_rank,
    draw_ranks,
    draw_shape,
    pick,
)
from campaign.trial import (
    HANGING,
    SLOW,
    Refused,
    TooLongError,
    Trial,
    same,
    time_limit,
    wtf_quietly,
)

SADDLE = 1e-3
"""Relative gain of a second fit that shows that the first had not arrived."""


def draw_parts(
    rng: np.random.Generator, shape: tuple[int, ...], groups: Any, dtype: str
) -> tuple[list[Any], Any]:
    """A loss for a fit, as plain numbers and as an object of the library."""
    if rng.random() < 0.85:
        part = draw_loss(rng, shape, groups, dtype, balanced=0.25)
        return [part], part.build()
    others = {"Frobenius": wtf.Frobenius(), "KullbackLeibler": wtf.KullbackLeibler()}
    name = pick(rng, tuple(others))
    if rng.random() < 0.4:
        return [name], others[name]
    first = draw_loss(rng, shape, groups, dtype, balanced=0.1)
    if rng.random() < 0.5 or len(shape) < 2:
        return [first, name], wtf.LossSum(first.build(), others[name])
    second = draw_loss(rng, shape, ((int(rng.integers(len(shape))),),), dtype, balanced=0.1)
    return [first, second], wtf.LossSum(first.build(), second.build())


def finite_blocks(trial: Trial, name: str, fit: Any, fixed: Any = ()) -> bool:
    """Factors are finite, not negative and satisfy their constraints."""
    blocks = [to_numpy(factor) for factor in fit.factors]
    head = fit.core if fit.core is not None else fit.weights
    if head is not None:
        blocks.append(to_numpy(head))
    for k, block in enumerate(blocks):
        if not np.isfinite(block).all() or (block < 0).any():
            trial.fail("not finite", f"{name}: block {k} is {block.tolist()}")
            return False
    if np.isnan(to_numpy(fit.dual)).any():
        trial.fail("not finite", f"{name}: NaN in the dual")
    for k, (block, constraint) in enumerate(zip(fit.factors, fit.constraints, strict=False)):
        if constraint is None or k in fixed:
            continue
        axis = {"rows": 1, "columns": 0, "all": None}[constraint]
        sums = to_numpy(block).sum(axis=axis)
        if not np.allclose(sums, 1.0, rtol=10 * trial.rounding, atol=0):
            trial.fail("constraint", f"{name}: {constraint} of factor {k} sum to {sums.tolist()}")
    return True


def check_history(trial: Trial, name: str, fit: Any, scale: float) -> None:
    """The objective does not increase, and everything is finite."""
    values = [record.objective for record in fit.history]
    if not all(map(math.isfinite, values)):
        trial.fail("not finite", f"{name}: history {values}")
        return
    if any(math.isnan(record.gap) for record in fit.history):
        trial.fail("not finite", f"{name}: NaN among the gaps of the history")
    rises = np.diff(values) if len(values) > 1 else np.zeros(1)
    worst = int(np.argmax(rises))
    allowed = trial.rounding * scale
    if rises[worst] > allowed:
        where = "the last record" if worst == len(rises) - 1 else f"record {worst + 1}"
        label = "history rises at its end" if worst == len(rises) - 1 else "history rises"
        trial.fail(
            f"{label} ({'' if fit.converged else 'not '}converged)",
            f"{name}: by {rises[worst]:.3g} to {values[worst + 1]!r} at {where} of {len(values)}, "
            f"rounding {allowed:.1e}, gap there {fit.history[worst + 1].gap:.3g}, "
            f"before {fit.history[worst].gap:.3g}",
        )


def expected_references(
    fit: Any, X: np.ndarray, options: dict[str, Any], *, sampled: bool
) -> tuple[float, ...]:
    """The mean mass of a sample for the block that carries the mass of the data, 1 for others."""
    blocks = range(len(fit.rho))
    fixed = {k % len(fit.factors) for k in options.get("fixed", ())}
    free = [k for k in blocks if fit.constraints[k] is None and k not in fixed]
    weighted = options.get("weights") is not None or len(fit.rho) > len(fit.factors)
    if not free or (weighted and fit.core is None):
        return (1.0,) * len(fit.rho)
    mass = X.astype(float).reshape(len(X), -1).sum(axis=1)
    weight = np.ones(len(X))
    if sampled and options.get("sample_weight") is not None:
        weight = np.asarray(options["sample_weight"], float)
    count = weight[mass > 0].sum() if sampled else 1.0
    s = float((weight * mass).sum() / count) if count > 0 else 1.0  # no sample counts
    if abs(s - 1.0) <= (1e-6 if X.dtype == np.float64 else 1e-3):
        s = 1.0
    return tuple(s if k == free[0] else 1.0 for k in blocks)


def check_fit(trial: Trial) -> None:
    """`cp`, `tucker` or `nmf`, whichever the kind names."""
    rng = trial.draw()
    model = trial.outcome.kind
    few = trial.library.few_shapes
    shape, groups = draw_shape(rng, few=few, least=2 if model == "nmf" else 1)
    parts, loss = draw_parts(rng, shape, groups, trial.dtype)
    moved = {k for p in parts if isinstance(p, TransportLoss) for g in p.groups for k in g}
    balanced = any(isinstance(p, TransportLoss) and p.balanced for p in parts)
    X = draw_data(rng, shape, groups, trial.dtype, normalised=0.9 if balanced else 0.5)
    rank: Any = draw_rank(rng, few=few)
    if model == "tucker":
        rank = draw_ranks(rng, len(shape), few=few, most=4 if len(shape) < 4 else 2)
    plain = balanced and rng.random() < 0.8
    options = draw_fit_options(
        rng, model, shape, rank, trial.dtype, sampled=0 not in moved, plain=plain, few=few
    )
    for name, value in {"X": X, "rank": rank, "loss": parts, **options}.items():
        trial.note(name, value)
    function = getattr(wtf, model)
    x = trial.library.array(X)
    keywords = {key: trial.convert(value) for key, value in options.items()}
    try:
        fit = trial.call(model, function, x, rank, loss, **keywords)
    except Refused as error:
        usual = ("balanced", "lam", "mass", "solver is 'dual'", "sample_weight", "fixed", "init")
        if not any(word in str(error) for word in usual):
            trial.fail("refused what has a solution", f"{model}: {error}")
        raise
    references = expected_references(fit, X, options, sampled=0 not in moved)
    if not np.allclose(references, fit.references, rtol=10 * trial.rounding, atol=0):
        trial.fail("references", f"{model}: {fit.references}, expected {references}")
    rho = tuple(map(float, fit.rho))
    objective = Objective(X, parts, rho, options.get("sample_weight"), fit.references)
    trial.note("fit", fit)
    if not finite_blocks(trial, model, fit, options.get("fixed", ())):
        return
    truth = objective.of(fit)
    trial.note("truth", truth)
    if math.isinf(truth.lower) and math.isfinite(fit.objective) and math.isinf(fit.gap):
        return  # a balanced problem that cannot be solved, and says so
    check_interval(
        trial,
        model,
        fit.objective,
        fit.gap,
        truth,
        converged=fit.converged,
        exponent=largest_exponent(parts),
    )
    check_history(trial, model, fit, max(truth.scale, objective.floor))
    size = max(abs(truth.upper), objective.floor)
    if fit.converged and fit.gap > 1.01e-3 * size + trial.rounding * truth.scale:
        trial.fail("gap", f"{model}: converged with gap {fit.gap:.3g} of {truth.upper!r}")
    if trial.outcome.failed:
        return
    if rng.random() < 0.1:
        again = wtf_quietly(function, x, rank, loss, **keywords)
        pairs = zip(again.factors, fit.factors, strict=True)
        if again.objective != fit.objective or not all(
            same(to_numpy(a), to_numpy(b)) for a, b in pairs
        ):
            trial.fail("not repeatable", f"{model}: {again.objective!r} after {fit.objective!r}")
    if fit.converged and rng.random() < 0.5:
        restart = function, x, rank, loss, keywords
        _check_restart(trial, restart, fit, objective, truth, size)


def _check_restart(
    trial: Trial,
    restart: tuple[Any, ...],
    fit: Any,
    objective: Objective,
    truth: oracle.Interval,
    size: float,
) -> None:
    """A fit that converged has nothing left to gain for one that starts there."""
    function, x, rank, loss, keywords = restart
    drop = ("init", "n_init", "tol", "max_iter", "rng", "solver")
    rest = {key: value for key, value in keywords.items() if key not in drop}
    begin = time.process_time()
    try:
        with time_limit(HANGING * trial.library.patience):
            second = wtf_quietly(function, x, rank, loss, init=fit, tol=1e-9, max_iter=300, **rest)
    except TooLongError:
        trial.outcome.slow = "a restart was given up"
        return
    except (ValueError, TypeError) as error:
        trial.fail("refused its own fit", f"restart: {error}")
        return
    if time.process_time() - begin > SLOW and second.converged:
        trial.outcome.slow = f"restart took {time.process_time() - begin:.1f} s of CPU"
    if not second.objective < truth.lower - 0.5 * SADDLE * size:
        return  # its own lower bound is as good: the oracle is asked about gains only
    there = objective.of(second)
    gain = (truth.lower - there.upper) / size if size > 0 else 0.0
    if gain > max(SADDLE, 10 * keywords.get("tol", 1e-6), trial.rounding * there.scale / size):
        trial.fail(
            "saddle",
            f"restart with tol=1e-9 gains {gain:.2e} ({fit.objective!r} to {second.objective!r}); "
            f"the fit said: {fit.message}",
        )
