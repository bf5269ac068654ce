"""The mean mass of a sample: the unit of the block that carries the mass of the data."""

from __future__ import annotations

import numpy as np

from wtfarray._arrays.host import to_host
from wtfarray._arrays.samples import mass_tolerance, per_sample
from wtfarray._arrays.shards import Shards
from wtfarray._arrays.stored import Summary, like
from wtfarray._arrays.typing import Array
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein


def sample_mass(
    X: Array, sample_weight: Array | None, shards: Shards, summary: Summary | None, *, sampled: bool
) -> float:
    """
    The mean mass of the samples of X that are not empty; exactly 1 if they are normalised.

    Samples count with their weights: one of weight 2 counts as two, one of weight 0 as none. If the
    first mode does not index samples, X is one sample.

    Parameters
    ----------
    X : array (n, ...)
        The data, or those of this process; 0 where they are missing.
    sample_weight : array (n,), optional
        Weights of the samples in the loss.
    shards : Shards
        Which samples other processes hold.
    summary : Summary, optional
        What a pass over data that are read in chunks has found.
    sampled : bool
        Whether the first mode indexes samples.
    """
    mass = to_host(per_sample(X)) if summary is None else summary.mass
    weight = np.ones_like(mass) if sample_weight is None else to_host(sample_weight)
    if not sampled:
        weight = np.ones_like(mass)
    total, count = shards.sums.numbers(
        float(np.sum(weight * mass)), float(np.sum(weight[mass > 0]))
    )
    mean = total / count if sampled and count > 0 else total
    near = abs(mean - 1.0) <= mass_tolerance(like(X))
    return 1.0 if near or not mean > 0 else mean


def unit_of(loss: Loss, mass: float) -> float:
    """
    The unit s in ``Phi(s X, s Y) = s (Phi(X, Y) + eps log(s) <X, 1>)``; 1 for other losses.

    This is how an entropic transport loss depends on the unit of the data: by a constant, which is
    no part of what a tolerance is compared with.
    """
    return mass if isinstance(loss, Wasserstein) and not loss.debias else 1.0
