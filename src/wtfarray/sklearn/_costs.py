"""The loss of an estimator, from its ground cost scaled to mean one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from array_api_compat import is_array_api_obj

from wtfarray._arrays.axes import Axis, check_labels
from wtfarray._arrays.masks import filled_with_means
from wtfarray._arrays.samples import flat
from wtfarray._arrays.sparse import SparseSamples
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import positive_integer
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._transport.banded import BandedCost, map_cost
from wtfarray._transport.costs import grid_cost
from wtfarray._transport.feature_costs import (
    METRICS,
    Metric,
    column_distances,
    sparse_column_distances,
)
from wtfarray.sklearn._samples import Samples

POWERS = {"sqeuclidean": 2.0, "cityblock": 1.0}
"""Named costs on a grid: powers p of the distance, summed over the axes."""

Cost = str | Array | Sequence[Array]


def grid_of(n_features: int, cost: Cost, grid_shape: int | Sequence[int] | None) -> tuple[int, ...]:
    """The shape of the grid of the features, in C order."""
    if grid_shape is not None:
        sizes = (grid_shape,) if isinstance(grid_shape, (int, np.integer)) else tuple(grid_shape)
        shape = tuple(positive_integer(f"grid_shape[{k}]", n) for k, n in enumerate(sizes))
    elif isinstance(cost, (list, tuple)):
        for k, matrix in enumerate(cost):
            if not is_array_api_obj(matrix) and not isinstance(matrix, BandedCost):
                msg = f"cost[{k}] is a {type(matrix).__name__}: expected one array per axis"
                raise TypeError(msg)
        shape = tuple(int(matrix.shape[0]) for matrix in cost)
    else:
        shape = (n_features,)
    if math.prod(shape) != n_features:
        msg = (
            f"X has {n_features} features, but the grid of grid_shape or cost is {shape}: expected "
            f"a grid with {n_features} points"
        )
        raise ValueError(msg)
    return shape


def transport_loss(
    cost: Cost,
    eps: float,
    lam: float,
    grid: tuple[int, ...],
    samples: Samples,
    names: Sequence[str] | None = None,
    **options: Any,
) -> Wasserstein:
    """
    The loss for samples on a grid, with the cost scaled to mean one.

    ``names`` are those of the features, which a cost with labels must have as well; ``options``
    are those of `Wasserstein`.
    """
    modes: tuple[tuple[int, ...], ...] | None = None
    if isinstance(cost, str) and cost in METRICS:
        cost = _cost_of_samples(samples, cast("Metric", cost))
    elif isinstance(cost, str):
        if cost not in POWERS:
            expected = ", ".join(repr(name) for name in (*POWERS, *METRICS))
            msg = f"cost is {cost!r}: expected one of {expected}, a matrix or a list of matrices"
            raise ValueError(msg)
        return Wasserstein(grid_cost(*grid, p=POWERS[cost]), eps, lam, **options)
    if not isinstance(cost, (list, tuple)):
        cost, modes = (cost,), (tuple(range(1, len(grid) + 1)),)
    elif len(cost) != len(grid):
        msg = f"cost has {len(cost)} matrices: expected {len(grid)}, one per axis of {grid}"
        raise ValueError(msg)
    given = Wasserstein(cost, eps, lam, modes, **options)
    if names is not None and len(given.labels) == 1:
        check_labels("cost", given.labels[0], 0, Axis(values=list(names)), "X")
    scale = given.mean_cost() or 1.0  # the cost of a single bin is zero
    costs = [map_cost(lambda numbers: numbers / scale, matrix) for matrix in given.costs]
    return replace(given, costs=tuple(costs))


def _cost_of_samples(samples: Samples, metric: Metric) -> Array:
    """The distances of the features in the samples."""
    data = samples.data
    if isinstance(data, SparseSamples):
        return sparse_column_distances(data.array, metric, samples.weights)
    if samples.mask is not None:
        data = filled_with_means(data, samples.mask)
    return column_distances(flat(data), metric, samples.weights)
