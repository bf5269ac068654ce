"""Criteria for the choice of a rank: ratios of decreases of the loss, and core consistency."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._fit.svd_start import orthonormal
from wtfarray._models.tensor import mode_products

LEAST_DECREASE = 3e-4
"""Decreases below this share of the largest are not told apart: they may be rounding or noise."""
LEAST_RATIO = 2.0
"""No rank is suggested if the loss decreases more evenly than this."""
FALLS_SHARE = 0.1
"""Nor if at the largest rank it still falls by this share of its fall at the best one."""


def suggest_rank(
    ranks: list[int], losses: list[float], unstructured: float | None
) -> tuple[int, float] | None:
    """
    The rank with the largest ratio of decreases of the loss, and that ratio.

    With ``D(r)`` the decrease of the loss per component up to rank r, the rank maximises ``D(r) /
    D(r + 1)``: the eigenvalue ratio of Ahn and Horenstein (2013, Econometrica 81, 1203), with
    losses in place of eigenvalues. A loss above that of a smaller rank is replaced by it: the
    model of the larger rank contains the other, and its fit was not the best.

    Parameters
    ----------
    ranks : list of int
        Increasing.
    losses : list of float
        The loss of the fitted samples for each rank.
    unstructured : float or None
        The loss at rank 0, of samples that are constant; without it the smallest rank is not
        considered.

    Returns
    -------
    rank, ratio
        None if no rank stands out; if there are too few ranks, as the largest cannot be judged; or
        if the loss still falls there, and a larger rank, which was not tried, might stand out.
    """
    ranks, decreases = _decreases(ranks, losses, unstructured)
    if len(decreases) < 2 or not max(decreases) > 0:
        return None
    least = LEAST_DECREASE * max(decreases)
    floored = [max(decrease, least) for decrease in decreases]
    ratios = [floored[k] / floored[k + 1] for k in range(len(floored) - 1)]
    best = max(range(len(ratios)), key=lambda k: ratios[k])
    if ratios[best] < LEAST_RATIO or decreases[-1] >= FALLS_SHARE * decreases[best]:
        return None
    return ranks[best + 1], ratios[best]


def _decreases(
    ranks: list[int], losses: list[float], unstructured: float | None
) -> tuple[list[int], list[float]]:
    """The ranks, with 0 if its loss is known, and the decrease per component between them."""
    if unstructured is not None:
        ranks, losses = [0, *ranks], [unstructured, *losses]
    losses = list(itertools.accumulate(losses, min))
    pairs = itertools.pairwise(zip(ranks, losses, strict=True))
    return ranks, [(before - after) / (r - q) for (q, before), (r, after) in pairs]


def core_consistency(
    data: Array, factors: list[Array], weights: Array | None, sums: Sums = ALONE
) -> float | None:
    """
    The core consistency of a CP model, at most 100 (Bro and Kiers 2003, J. Chemometrics 17, 274).

    The core of the Tucker model with the factors of the CP model, fitted by least squares, is
    compared with the superdiagonal core of ones that CP assumes: ``100 (1 - |G - I|^2 / r)``.
    None for matrices, whose factors are not unique.

    Parameters
    ----------
    data : array (n_0, ..., n_{d-1})
        What the model approximates.
    factors : list of arrays (n_k, r)
        The factors.
    weights : array (r,) or None
        The weights of the components.
    sums : Sums
        Over the rows of the first mode, if several processes share them.
    """
    return core_consistency_of_parts([(None, data)], factors, weights, sums)


def core_consistency_of_parts(
    parts: Iterable[tuple[slice | None, Array]],
    factors: list[Array],
    weights: Array | None,
    sums: Sums = ALONE,
) -> float | None:
    """As `core_consistency` for data in parts, each with its rows; None for all rows."""
    xp = array_namespace(factors[0])
    modes, rank = len(factors), int(factors[0].shape[1])
    if modes < 3:
        return None
    first = factors[0] if weights is None else factors[0] * weights
    inverses = [_inverse(first, sums), *(xp.linalg.pinv(factor) for factor in factors[1:])]
    cores = [
        mode_products(part, [_columns(inverses[0], rows), *inverses[1:]], range(modes))
        for rows, part in parts
    ]
    core = sums.array(functools.reduce(operator.add, cores))
    square = float(xp.sum(core**2.0))
    corners = sum(float(core[(r,) * modes]) for r in range(rank))
    return 100.0 * (1.0 - (square - 2.0 * corners + rank) / rank)


def _columns(inverse: Array, rows: slice | None) -> Array:
    """The columns of a pseudo-inverse that belong to some rows of the factor."""
    return inverse if rows is None else inverse[:, rows]


def _inverse(factor: Array, sums: Sums) -> Array:
    """The columns of the pseudo-inverse of a factor that belong to the rows of this process."""
    xp = array_namespace(factor)
    if not sums.shared:
        return xp.linalg.pinv(factor)
    basis = orthonormal(factor, sums)
    return xp.matmul(xp.linalg.pinv(sums.array(xp.matmul(basis.mT, factor))), basis.mT)
