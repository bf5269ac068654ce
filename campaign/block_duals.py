"""Checks of the duals of single blocks: both bounds of the certificate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import wtfarray as wtf
from campaign import oracle
from campaign.backends import to_numpy
from campaign.intervals import gap_rounding, largest_exponent
from campaign.problems import (
    CONSTRAINTS,
    TransportLoss,
    draw_block,
    draw_data,
    draw_loss,
    draw_rank,
    draw_ranks,
    draw_shape,
    pick,
    power,
)
from campaign.trial import Trial


def check_block(trial: Trial) -> None:
    """`cp_dual` and `tucker_dual`: what the certificate says of a block."""
    rng = trial.draw()
    cp = trial.outcome.kind == "cp_dual"
    shape, groups = draw_shape(rng, few=trial.library.few_shapes)
    loss = draw_loss(rng, shape, groups, trial.dtype)
    X = draw_data(rng, shape, groups, trial.dtype, normalised=0.9 if loss.balanced else 0.5)
    few = trial.library.few_shapes
    rank = draw_rank(rng, few=few)
    ranks = (rank,) * len(shape) if cp else draw_ranks(rng, len(shape), few=few)
    sampled = 0 not in {k for group in groups for k in group}
    usual = ("rows" if sampled else "columns", *("columns" for _ in shape[1:]))
    constraints = [c if rng.random() < 0.7 else pick(rng, CONSTRAINTS) for c in usual]
    factors = [
        draw_block(rng, (n, r), c, trial.dtype)
        for n, r, c in zip(shape, ranks, constraints, strict=True)
    ]
    core = weights = None
    named = "weights" if cp else "core"
    block: Any = named if rng.random() < 0.2 else int(rng.integers(len(shape)))
    if not cp:
        core = draw_block(rng, ranks, pick(rng, (None, "all")), trial.dtype)
    elif rng.random() < 0.3 or block == "weights":
        weights = draw_block(rng, (rank,), "all", trial.dtype)
    if isinstance(block, str):
        constraint = pick(rng, (None, "all"))
    else:
        constraint = None if block == 0 and rng.random() < 0.4 else constraints[block]
    rho = power(rng, -4, 0)
    notes = {"X": X, "factors": factors, "core": core, "weights": weights, "block": block}
    for name, value in {**notes, "loss": loss, "rho": rho, "constraint": constraint}.items():
        trial.note(name, value)
    x, blocks = trial.library.array(X), trial.convert(factors)
    if cp:
        given = None if weights is None or block == "weights" else trial.convert(weights)
        dual = trial.call(
            "cp_dual",
            wtf.cp_dual,
            x,
            blocks,
            block,
            loss.build(),
            rho=rho,
            constraint=constraint,
            weights=given,
        )
    else:
        dual = trial.call(
            "tucker_dual",
            wtf.tucker_dual,
            x,
            trial.convert(core),
            blocks,
            block,
            loss.build(),
            rho=rho,
            constraint=constraint,
        )
    iterations = int(pick(rng, (3, 200)))
    result = trial.call(
        "lbfgs",
        wtf.lbfgs,
        dual.value_and_gradient,
        dual.start(),
        max_iter=iterations,
        safe_fun=dual.safe_value_and_gradient,
    )
    trial.outcome.unconverged = not result.converged
    g = to_numpy(result.x)
    certificate = trial.call("certificate", dual.certificate, result.x)
    trial.note("certificate", certificate)
    if np.isnan(g).any():
        trial.fail("not finite", "lbfgs: NaN in x")
        return
    _check_certificate(
        trial, certificate, g, X, loss, factors, core, weights, block, rho, constraint
    )


def _check_certificate(
    trial: Trial,
    certificate: Any,
    g: np.ndarray,
    X: np.ndarray,
    loss: TransportLoss,
    factors: Any,
    core: Any,
    weights: Any,
    block: Any,
    rho: float,
    constraint: str | None,
) -> None:
    """Both bounds, by the dual and the primal objective evaluated apart from the library."""
    moved = [k for group in loss.groups for k in group]
    order = [*(k for k in range(X.ndim) if k not in moved), *moved]
    u = oracle.dual_of_potential(g.astype(oracle.LONG), loss.lam)
    U = np.transpose(u.reshape([X.shape[k] for k in order]), np.argsort(order))
    if block == "weights":
        weights = np.ones(factors[0].shape[1])
    factor = to_numpy(certificate.factor)
    if not np.isfinite(factor).all() or (factor < 0).any():
        trial.fail("not finite", f"certificate: factor {factor.tolist()}")
        return
    numbers = (certificate.lower, certificate.upper, certificate.gap)
    if any(map(math.isnan, numbers)):
        trial.fail("not finite", f"certificate: lower, upper, gap = {numbers}")
        return
    Y = oracle.with_block(factors, core, weights, block, factor)
    truth = oracle.transport(X, Y, loss.costs, loss.groups, loss.eps, loss.lam)
    value = rho * oracle.entropy(factor)
    size = rho * float(np.sum(factor * (np.abs(np.log(np.where(factor > 0, factor, 1))) + 1)))
    truth = truth + oracle.Interval(value, value, size)
    trial.note("objective of the factor", truth)
    with np.errstate(all="ignore"):
        xi = oracle.adjoint(U, factors, core, weights, block)
        conjugate, _, scale = oracle.conjugate(X, U, loss.costs, loss.groups, loss.eps, loss.lam)
        ends = oracle.entropy_conjugate(-xi / rho, constraint)
    lower = -conjugate - rho * ends
    trial.note("dual value", lower)
    scale += float(np.sum(np.abs(U) * Y)) + abs(rho * ends) + truth.scale
    tiny = trial.rounding * scale
    rounding_of_gap = gap_rounding(trial, certificate.gap, largest_exponent([loss]))
    words = f"lower {certificate.lower!r}, upper {certificate.upper!r}, rounding {tiny:.1e}"
    if certificate.lower > truth.upper + tiny:
        trial.fail("certificate: lower above a value", f"{words}; the factor's value is {truth}")
    elif math.isfinite(lower) and certificate.lower > lower + tiny:
        trial.fail("certificate: lower above the dual value", f"{words}; it is {lower!r}")
    if certificate.upper < truth.lower - tiny - rounding_of_gap:
        trial.fail("certificate: upper below the value", f"{words}; the factor's value is {truth}")
    elif not truth.decided:
        trial.outcome.undecided = "certificate: the oracle did not converge"
