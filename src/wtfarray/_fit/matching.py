"""Similarity of the atoms of two fits, regardless of their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._fit.result import Factorisation
from wtfarray._models.models import atoms_of


def assignment(cost: NDArray[np.float64], /) -> NDArray[np.intp]:
    """
    The column assigned to each row in the assignment of smallest total cost.

    The Hungarian method with shortest augmenting paths (Jonker and Volgenant 1987): cubic in the
    size of the square matrix.

    Examples
    --------
    >>> import numpy as np
    >>> assignment(np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]]))
    array([1, 0, 2])
    """
    n = cost.shape[0]
    row_price, column_price = np.zeros(n), np.zeros(n + 1)
    owner = np.full(n + 1, -1)  # the row assigned to a column; the last column is a placeholder
    for row in range(n):
        owner[n], column = row, n
        distance = np.full(n, np.inf)
        before = np.full(n, n)
        done = np.zeros(n + 1, dtype=bool)
        while owner[column] >= 0:
            done[column] = True
            i = owner[column]
            reduced = cost[i] - row_price[i] - column_price[:n]
            nearer = ~done[:n] & (reduced < distance)
            distance[nearer], before[nearer] = reduced[nearer], column
            nearest = int(np.argmin(np.where(done[:n], np.inf, distance)))
            step = distance[nearest]
            row_price[owner[done]] += step
            column_price[done] -= step
            distance[~done[:n]] -= step
            column = nearest
        while column != n:  # augment along the path
            owner[column] = owner[before[column]]
            column = int(before[column])
    return np.argsort(owner[:n])


def matched_cosine(a: Factorisation, b: Factorisation, /, modes: Sequence[int]) -> float:
    """
    The mean cosine of the atoms of two fits, under the matching that maximises it.

    Parameters
    ----------
    a, b : Factorisation
        Two fits with the same model and rank.
    modes : sequence of int
        The factors whose columns form an atom of CP or NMF. An atom of Tucker is always a slice of
        the core along the first mode, multiplied by the other factors.
    """
    if a.core is None:
        # The cosine of two rank-one tensors is the product of the cosines of their vectors.
        cosines = np.ones((a.factors[0].shape[1],) * 2)
        for k in modes:
            cosines *= _cosines(to_host(a.factors[k]), to_host(b.factors[k]))
    else:
        cosines = _cosines(*(to_host(atoms_of(f.factors, f.core, f.weights)) for f in (a, b)))
    return float(np.mean(np.take_along_axis(cosines, assignment(-cosines)[:, None], axis=1)))


def _cosines(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines between the columns of (n, r) matrices; zero for a column of zeros."""
    lengths = np.outer(np.linalg.norm(a, axis=0), np.linalg.norm(b, axis=0))
    cosines: NDArray[np.float64] = (a.T @ b) / np.where(lengths > 0, lengths, 1.0)
    return cosines
