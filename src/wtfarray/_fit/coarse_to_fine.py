"""Coarser grids: a first fit where a bin is two bins wide costs a small part of the real one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.typing import Array
from wtfarray._fit.specification import Setup
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein

SMALLEST = 16
"""No mode is made coarser than this."""


def coarser(setup: Setup) -> Setup | None:
    """
    The same problem with pairs of neighbouring bins added up, or None where that makes no sense.

    It does if every cost is that of a regular grid, and a step on the coarser grid costs no more
    than eps: what is lost is then below the smoothing. The losses of a sum must transport the same
    modes: what is a mode to one and samples to the other would be another problem when coarser.
    """
    if setup.kind == "nmf":
        return None
    shape = tuple(setup.X.shape)
    found = [_grid_modes(loss, shape) for loss in setup.losses]
    if not all(found):
        return None
    modes = set(found[0])
    if any(set(some) != modes for some in found):
        return None
    xp = array_namespace(setup.X)
    X = setup.X
    for mode in modes:
        n = X.shape[mode]
        X = xp.reshape(X, (*X.shape[:mode], n // 2, 2, *X.shape[mode + 1 :]))
        X = xp.sum(X, axis=mode + 1)
    shapes = [
        (rows // 2, *rest) if k in modes else (rows, *rest)
        for k, (rows, *rest) in enumerate(setup.shapes[: setup.modes])
    ]
    return replace(
        setup,
        X=X,
        losses=tuple(_coarser_loss(loss) for loss in setup.losses),
        shapes=(*shapes, *setup.shapes[setup.modes :]),
    )


def refine(setup: Setup, blocks: Sequence[Array]) -> list[Array]:
    """Blocks of the coarser problem on the grid of ``setup``: every bin is shared out in two."""
    xp = array_namespace(setup.X)
    fine = list(blocks)
    for k in range(setup.modes):
        if fine[k].shape[0] != setup.shapes[k][0]:
            fine[k] = xp.repeat(fine[k], 2, axis=0) * _share(setup, k)
    return fine


def refine_dual(g: Array, shape: tuple[int, ...]) -> Array:
    """The dual variable, stacked, on the finer grid: it is a potential, its values stay."""
    xp = array_namespace(g)
    for axis, n in enumerate(shape):
        if g.shape[axis] != n:
            g = xp.repeat(g, 2, axis=axis)
    return g


def refine_pairs(
    setup: Setup, coarse: Setup, pairs: dict[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """
    The curvature that was found on the coarser grid, as `CurvaturePairs.export` gives it.

    On the spheres `refine` is a linear map P, and the finer objective at P x is about that at x: a
    step s becomes P s, and a change y of the gradient ``P (P^T P)^-1 y``.
    """
    parts, start = [], 0
    for k in setup.free:
        n, rank = coarse.shapes[k][0], math.prod(coarse.shapes[k][1:])
        part = pairs["rows"][:, start : start + n * rank]
        start += n * rank
        if setup.shapes[k][0] != n:
            root = math.sqrt(_share(setup, k))
            part = np.repeat(part.reshape(-1, n, rank), 2, axis=1) * root
            part[1::2] *= 0.5 / root**2
        parts.append(part.reshape(part.shape[0], -1))
    rows = np.concatenate(parts, axis=1)
    return {**pairs, "rows": rows, "gram": rows @ rows.T}


def _share(setup: Setup, k: int) -> float:
    """What each of two bins gets of the one that it was made from."""
    return 1.0 if setup.constraints[k] == "rows" else 0.5


def _grid_modes(loss: Loss, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The transported modes, if all of them can be made coarser."""
    if not isinstance(loss, Wasserstein):
        return ()
    modes = loss.transported(shape)
    if len(modes) != len(loss.costs):
        return ()  # a cost over several modes together
    for mode, cost in zip(modes, loss.costs, strict=True):
        n = shape[mode]
        if n % 2 or n < 2 * SMALLEST:
            return ()
        table = to_host(cost)
        if not np.isfinite(table).all():
            return ()  # ways that are forbidden here may be open on a coarser grid
        steps = table[0, :]
        distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        regular = np.allclose(table, steps[distance], rtol=1e-6) and np.all(np.diff(steps) > 0)
        if not regular or steps[2] > loss.eps:
            return ()
    return modes


def _coarser_loss(loss: Loss) -> Loss:
    """The loss on every second point; `_grid_modes` has found that it has points to spare."""
    if not isinstance(loss, Wasserstein):
        return loss
    costs = [cost[::2, ::2] for cost in loss.costs]
    return Wasserstein(costs, loss.eps, loss.lam, loss.modes)
