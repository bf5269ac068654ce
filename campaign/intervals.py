"""Whether a value and its gap agree with the interval of the oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from campaign import oracle
from campaign.problems import TransportLoss
from campaign.trial import Trial


def largest_exponent(losses: Sequence[Any]) -> float:
    """The size of the exponents of the plans: the largest finite cost in units of eps."""
    sizes = [
        sum(np.max(np.abs(cost[np.isfinite(cost)])) for cost in loss.costs) / loss.eps
        for loss in losses
        if isinstance(loss, TransportLoss)
    ]
    return float(max(sizes, default=0.0))


def gap_rounding(trial: Trial, gap: float, exponent: float) -> float:
    """The rounding of a gap: a divergence of exponentials, each off by that of its exponent."""
    return max(100.0, exponent) * trial.rounding * abs(gap) if math.isfinite(gap) else 0.0


def check_interval(
    trial: Trial,
    name: str,
    value: float,
    gap: float,
    truth: oracle.Interval,
    *,
    converged: bool,
    exponent: float = 0.0,
) -> None:
    """The true value has to be between `value` and `value + gap`."""
    tiny = trial.rounding * truth.scale
    state = "converged" if converged else "not converged"
    if math.isnan(value) or math.isnan(gap) or math.isinf(value):
        trial.fail("not finite", f"{name}: value {value}, gap {gap} ({state})")
        return
    if math.isinf(gap) and converged:
        trial.fail("not finite", f"{name}: gap {gap}, and converged")
    if gap < -tiny:
        trial.fail("negative gap", f"{name}: gap {gap} ({state})")
    words = (
        f"{name}: value {value!r} gap {gap:.3g} ({state}), truth in [{truth.lower!r}, "
        f"{truth.upper!r}], rounding {tiny:.1e}"
    )
    if value > truth.upper + tiny:
        off = (value - truth.upper) / max(truth.scale, 1e-300)
        trial.fail(f"value above the truth ({state})", f"{words}; {off:.1e} of the terms")
    elif value + max(gap, 0.0) < truth.lower - tiny - gap_rounding(trial, gap, exponent):
        off = (truth.lower - value - gap) / max(truth.scale, 1e-300)
        trial.fail(f"value and gap below the truth ({state})", f"{words}; {off:.1e} of the terms")
    elif not truth.decided:
        trial.outcome.undecided = f"{name}: the oracle did not converge"
