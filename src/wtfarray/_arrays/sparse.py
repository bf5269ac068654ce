"""Sparse matrices of SciPy and sparse tensors of pydata: recognised without importing them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PACKAGES = ("scipy", "sparse")


def is_sparse(array: object) -> bool:
    """Whether this is a sparse matrix or array of SciPy, or of the package ``sparse``."""
    package = type(array).__module__.partition(".")[0]
    has_methods = any(hasattr(array, name) for name in ("toarray", "todense"))
    return package in PACKAGES and has_methods and hasattr(array, "nnz")


def to_dense(array: Any) -> NDArray[Any]:
    """All entries of a sparse array, as a NumPy array in C order."""
    dense = array.toarray() if hasattr(array, "toarray") else array.todense()
    return np.ascontiguousarray(dense)


class SparseSamples:
    """Samples along the first mode of a sparse array, which are made dense as they are read."""

    def __init__(self, array: Any) -> None:
        self._array = array.tocsr() if hasattr(array, "tocsr") else array
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype = array.dtype

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Some samples, dense."""
        return to_dense(self._array[rows])


def gram_of_columns(rows: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """
    The Gram matrix (m, m) and the sums (m,) of the columns of a sparse (n, m) matrix.

    The matrix is not made dense.
    """
    if not hasattr(rows, "tocsr"):
        rows = rows.to_scipy_sparse()
    rows = rows.tocsr().astype(np.float64)
    gram = np.asarray((rows.T @ rows).toarray(), dtype=np.float64)
    return gram, np.asarray(rows.sum(axis=0), dtype=np.float64).reshape(-1)


def refuse_bad_entries(name: str, array: Any) -> None:
    """Refuse a stored entry that is negative or not finite."""
    stored = np.asarray(array.data)
    bad = stored[~((stored >= 0) & np.isfinite(stored))]
    if bad.size:
        others = "" if bad.size == 1 else f" and {bad.size - 1} more such"
        msg = f"{name} has the entry {bad[0]}{others}: expected finite, non-negative values"
        raise ValueError(msg)
