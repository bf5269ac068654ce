"""Checks of `wasserstein` and of the conjugate: values, gaps, gradients, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import wtfarray as wtf
from campaign import oracle
from campaign.backends import to_numpy
from campaign.intervals import check_interval, largest_exponent
from campaign.problems import (
    TransportLoss,
    draw_data,
    draw_loss,
    draw_shape,
    draw_target,
    pick,
    power,
)
from campaign.trial import Refused, Trial, same, wtf_quietly


def has_solution(X: np.ndarray, Y: np.ndarray, loss: TransportLoss) -> bool | None:
    """Whether the loss is finite; None if nobody can tell."""
    cost = oracle.total_cost(loss.costs)
    xs = oracle.stacked(X.astype(float), loss.groups)
    ys = oracle.stacked(Y.astype(float), loss.groups)
    answers: list[bool | None] = []
    for x, y in zip(xs, ys, strict=True):
        finite = math.isfinite(oracle.one_sample(x, y, cost, loss.eps, loss.lam).lower)
        if not loss.balanced:
            answers.append(finite)
            continue
        if abs(x.sum() - y.sum()) > 1e-6 * x.sum():
            answers.append(False if abs(x.sum() - y.sum()) > 1e-2 * x.sum() else None)
        else:
            answers.append(finite and oracle.feasible(x, y, np.asarray(cost, float)))
    if False in answers:
        return False
    return None if None in answers else True


def ratio_underflows(X: np.ndarray, Y: np.ndarray, loss: TransportLoss) -> bool:
    """Whether the mass of a sample of Y, relative to that of X, cannot be represented."""
    x, y = (oracle.stacked(a.astype(float), loss.groups).sum(axis=1) for a in (X, Y))
    return bool(np.any((x > 0) & (y < np.finfo(X.dtype).tiny * x)))


def check_wasserstein(trial: Trial) -> None:
    """`wasserstein`: value, gap, gradient, refusals."""
    rng = trial.draw()
    shape, groups = draw_shape(rng, few=trial.library.few_shapes)
    loss = draw_loss(rng, shape, groups, trial.dtype)
    X = draw_data(rng, shape, groups, trial.dtype)
    Y = draw_target(rng, X, loss)
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        options["tol"] = power(rng, -10, -1)
    options["max_iter"] = int(pick(rng, (1, 10, 100, 2000), (0.05, 0.1, 0.15, 0.7)))
    if rng.random() < 0.1:
        options["potential"] = rng.normal(size=shape).astype(trial.dtype)
    for name, value in {"X": X, "Y": Y, "loss": loss, **options}.items():
        trial.note(name, value)
    options = {key: trial.convert(value) for key, value in options.items()}
    x, y = trial.library.array(X), trial.library.array(Y)
    try:
        found = trial.call("wasserstein", wtf.wasserstein, x, y, loss.build(), **options)
    except Refused as error:
        answer = has_solution(X, Y, loss)
        subnormal = (Y > 0) & (np.finfo(Y.dtype).smallest_normal > Y)
        flushed = trial.library.flushes and bool(subnormal.any())
        if answer and not flushed and not ratio_underflows(X, Y, loss):
            trial.fail("refused what has a solution", f"wasserstein: {error}")
        elif answer is None:
            trial.outcome.undecided = "whether there is a solution"
        raise
    value, gradient = float(found.value), to_numpy(found.gradient)
    trial.note("result", (value, found.gap, found.converged, found.message))
    trial.note("gradient", gradient)
    truth = oracle.transport(X, Y, loss.costs, groups, loss.eps, loss.lam)
    trial.note("truth", truth)
    if loss.balanced and not loss.all_finite:
        answer = has_solution(X, Y, loss)
        if found.converged and answer is False:
            trial.fail("converged without a solution", f"wasserstein: {found.message}")
        if not answer:
            return
    exponent = largest_exponent([loss])
    if loss.balanced and not found.converged:  # the potential may be far from any solution
        potential = to_numpy(found.potential)
        finite = potential[np.isfinite(potential)]
        exponent = max(exponent, float(np.ptp(finite)) / loss.eps if finite.size else 0.0)
    check_interval(
        trial,
        "wasserstein",
        value,
        found.gap,
        truth,
        converged=found.converged,
        exponent=exponent,
    )
    _check_linear_programme(trial, X, Y, loss, value, found.gap)
    _check_gradient(trial, rng, X, Y, loss, value, gradient)
    if rng.random() < 0.1:
        again = wtf_quietly(wtf.wasserstein, x, y, loss.build(), **options)
        if float(again.value) != value or not same(to_numpy(again.gradient), gradient):
            trial.fail("not repeatable", f"wasserstein: {float(again.value)!r} after {value!r}")


def _check_linear_programme(
    trial: Trial, X: np.ndarray, Y: np.ndarray, loss: TransportLoss, value: float, gap: float
) -> None:
    """Bounds by POT, which know nothing of Sinkhorn."""
    if not (loss.balanced and loss.all_finite):
        return
    cost = oracle.total_cost(loss.costs)
    total = oracle.NOTHING
    xs, ys = (oracle.stacked(a.astype(float), loss.groups) for a in (X, Y))
    for x, y in zip(xs, ys, strict=True):
        if x.any():
            total += oracle.balanced_bounds(x, y, cost, loss.eps)
    tiny = max(trial.rounding, 1e-9) * total.scale  # the linear programme has its own rounding
    if value > total.upper + tiny or value + gap < total.lower - tiny:
        trial.fail("outside POT's bounds", f"wasserstein: {value!r} gap {gap:.3g}, {total}")


def _check_gradient(
    trial: Trial,
    rng: np.random.Generator,
    X: np.ndarray,
    Y: np.ndarray,
    loss: TransportLoss,
    value: float,
    gradient: np.ndarray,
) -> None:
    """``Phi(X, Y + d) >= value + <u, d>``: differences of the oracle on both sides bracket u."""
    if np.isnan(gradient).any():
        trial.fail("not finite", "wasserstein: NaN in the gradient")
        return
    if np.isposinf(gradient).any() and not loss.balanced:
        trial.fail("not finite", "wasserstein: +inf in the gradient")
    if (np.isneginf(gradient) & (Y > 0)).any():
        trial.fail("not finite", "wasserstein: -inf in the gradient where Y is positive")
    if rng.random() < 0.75 or not math.isfinite(value):
        return
    over = tuple(k for group in loss.groups for k in group)
    flat = np.where((Y > 0) & np.isfinite(gradient), gradient, 0.0)
    if np.max(np.abs(flat)) >= 0.3 * min(1.0, loss.lam) * float(np.finfo(trial.dtype).max):
        return  # the slope has no number in this dtype: see "Where values are clamped" in the docs
    for step in (0.3, 1e-2):
        direction = rng.uniform(-1, 1, Y.shape) * Y.astype(float)
        if loss.balanced:
            mass = Y.astype(float).sum(axis=over, keepdims=True)
            share = direction.sum(axis=over, keepdims=True) / np.where(mass > 0, mass, 1.0)
            direction = direction - share * Y
            if not loss.all_finite:
                return
        for sign in (1, -1):
            d = 0.5 * sign * step * direction
            there = oracle.transport(X, Y + d, loss.costs, loss.groups, loss.eps, loss.lam)
            slope = float(np.sum(flat * d))
            tiny = trial.rounding * (there.scale + float(np.sum(np.abs(flat * d))))
            if value + slope > there.upper + tiny:
                trial.fail(
                    "gradient",
                    f"wasserstein: value {value!r} + slope {slope!r} exceeds the loss {there} "
                    f"at a distance of {step}, rounding {tiny:.1e}",
                )
                return


def check_conjugate(trial: Trial) -> None:
    """`Wasserstein.conjugate`: value and gradient."""
    rng = trial.draw()
    shape, groups = draw_shape(rng, few=trial.library.few_shapes)
    loss = draw_loss(rng, shape, groups, trial.dtype)
    X = draw_data(rng, shape, groups, trial.dtype)
    U = rng.normal(size=shape) * power(rng, -3, 2)
    if not loss.balanced:
        U = np.minimum(U, loss.lam * (1 - power(rng, -5, -0.1)))
    U = U.astype(trial.dtype)
    for name, value in {"X": X, "U": U, "loss": loss}.items():
        trial.note(name, value)
    x, u = trial.library.array(X), trial.library.array(U)
    value, gradient = trial.call("conjugate", loss.build().conjugate, x, u)
    value, gradient = float(value), oracle.stacked(to_numpy(gradient), groups)
    true, slope, scale = oracle.conjugate(X, U, loss.costs, groups, loss.eps, loss.lam)
    trial.note("result", (value, true, scale))
    if not math.isfinite(value) or not np.isfinite(gradient).all():
        trial.fail("not finite", f"conjugate: value {value}, gradient {gradient.tolist()}")
        return
    if abs(value - true) > trial.rounding * scale:
        trial.fail("conjugate", f"value {value!r}, truth {true!r}, scale {scale:.3g}")
    finite = np.concatenate([cost[np.isfinite(cost)] for cost in loss.costs])
    g = U.astype(float) if loss.balanced else -loss.lam * np.log1p(-U.astype(float) / loss.lam)
    exponent = 1 + (np.abs(g).max() + len(loss.costs) * np.abs(finite).max()) / loss.eps
    if not loss.balanced:
        close = float(np.max(np.abs(U.astype(float)) / (loss.lam - U.astype(float))))
        exponent += close * (1 + loss.lam / loss.eps)
    allowed = trial.rounding * exponent * np.abs(slope)
    allowed += float(np.finfo(trial.dtype).tiny) * 1e3 * (1 + X.sum() + slope.max())
    if trial.rounding * exponent < 0.1 and (np.abs(gradient - slope) > allowed).any():
        at = np.unravel_index(np.argmax(np.abs(gradient - slope) - allowed), slope.shape)
        trial.fail("conjugate", f"gradient {gradient[at]!r} at {at}, truth {slope[at]!r}")
