"""A fit with a checkpoint, in a process of its own: ``python -m campaign.checkpointed_fit ...``."""

# ruff: noqa: T201
from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np

import wtfarray as wtf
from campaign.backends import set_fused_entries

RANK = 3


def data(seed: int) -> np.ndarray:
    """Twelve histograms of 16 bins."""
    rng = np.random.default_rng(seed)
    X = rng.gamma(0.5, size=(12, 16)) + 1e-3
    return X / X.sum(axis=1, keepdims=True)


def loss(seed: int) -> wtf.Wasserstein:
    """Of a smoothing with which a fit takes a hundred steps or so."""
    rng = np.random.default_rng([seed, 1])
    return wtf.Wasserstein(wtf.grid_cost(16), 10 ** rng.uniform(-2.5, -1), 10 ** rng.uniform(0, 1))


def fit(seed: int, checkpoint: str | None, pause: float = 0.0, announce: bool = False):  # noqa: FBT001, FBT002
    """Fit slowly enough to be interrupted, and say when the first step is done."""

    def callback(_: wtf.FitState) -> None:
        if announce:
            print("step", flush=True)
        time.sleep(pause)

    return wtf.nmf(
        data(seed),
        RANK,
        loss(seed),
        rng=seed,
        tol=1e-9,
        max_iter=200,
        rho=1e-2,
        checkpoint=checkpoint,
        callback=callback,
    )


def main() -> None:
    """Fit, then print what came out as JSON."""
    seed, path, pause = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    set_fused_entries(int(sys.argv[4]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = fit(seed, None if path == "-" else path, pause, announce=True)
    answer = {
        "objective": found.objective,
        "gap": found.gap,
        "converged": found.converged,
        "stopped": found.stopped,
        "message": found.message,
        "factors": [np.asarray(factor).tolist() for factor in found.factors],
        "warnings": [str(warning.message) for warning in caught],
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
