"""Which samples and entries a rank scan leaves out."""

from __future__ import annotations

import math
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.validation import positive_number


def left_out_samples(
    samples: int, held_out: object, rng: np.random.Generator, *, sampled: bool
) -> list[NDArray[np.intp]]:
    """The indices of the left-out samples, one array per fold."""
    if held_out is None:
        return []
    if not sampled:
        msg = f"held_out is {held_out!r}, but the loss transports the first mode: expected None"
        raise ValueError(msg)
    order = rng.permutation(samples)
    if isinstance(held_out, Integral) and not isinstance(held_out, bool):
        if not 2 <= int(held_out) <= samples:
            msg = f"held_out is {held_out}: expected 2 to {samples} folds, or a fraction below 1"
            raise ValueError(msg)
        return np.array_split(order, int(held_out))
    fraction = positive_number("held_out", held_out)
    count = max(1, round(fraction * samples))
    if fraction >= 1 or count >= samples:
        msg = (
            f"held_out is {held_out} of {samples} samples: expected an integer number of folds, or "
            f"a fraction that leaves samples to fit"
        )
        raise ValueError(msg)
    return [order[:count]]


def left_out_blocks(
    shape: tuple[int, ...], fraction: object, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """True in one block of every sample, which has about this fraction of its entries."""
    share = positive_number("held_out_entries", fraction)
    if share >= 1 or math.prod(shape[1:]) < 2:
        msg = (
            f"held_out_entries is {fraction} of samples of shape {shape[1:]}: expected a fraction "
            f"below one, of several entries"
        )
        raise ValueError(msg)
    edges = [max(1, round(n * share ** (1 / (len(shape) - 1)))) for n in shape[1:]]
    found = np.zeros(shape, dtype=bool)
    for i in range(shape[0]):
        starts = [int(rng.integers(n - m + 1)) for n, m in zip(shape[1:], edges, strict=True)]
        box = tuple(slice(s, s + m) for s, m in zip(starts, edges, strict=True))
        found[i][box] = True
    return found
