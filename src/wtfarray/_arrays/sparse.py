"""Sparse matrices of SciPy and sparse tensors of pydata: recognised without importing them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.validation import negative_advice

PACKAGES = ("scipy", "sparse")


def is_sparse(array: object) -> bool:
    """Whether this is a sparse matrix or array of SciPy or ``sparse``, or of a derived class."""
    packages = {kind.__module__.partition(".")[0] for kind in type(array).__mro__}
    has_methods = any(hasattr(array, name) for name in ("toarray", "todense"))
    return not packages.isdisjoint(PACKAGES) and has_methods and hasattr(array, "nnz")


def to_dense(array: Any) -> NDArray[Any]:
    """All entries of a sparse array, as a NumPy array in C order."""
    dense = array.toarray() if hasattr(array, "toarray") else array.todense()
    return np.ascontiguousarray(dense)


def is_mostly_zero(array: Any) -> bool:
    """Whether the entries that a sparse array does not store are zeros; pydata's may be others."""
    return bool(getattr(array, "fill_value", 0) == 0)


def _rows(array: Any) -> Any:
    """The samples along the first mode of a sparse array as rows of a CSR matrix of SciPy."""
    if hasattr(array, "to_coo"):  # a dictionary of keys of pydata
        array = array.to_coo()
    if len(array.shape) != 2:
        array = array.reshape((array.shape[0], math.prod(array.shape[1:])))
    if hasattr(array, "to_scipy_sparse"):
        array = array.to_scipy_sparse()
    return array.tocsr()


def to_csr(matrix: Any) -> Any:
    """
    A copy of a sparse (n, m) matrix in the CSR format of SciPy, floating, in one canonical form.

    Its indices are sorted, without duplicates and without stored zeros: equal rows are stored
    equally.
    """
    found = _rows(matrix).copy()
    if found.dtype not in (np.float32, np.float64):
        found = found.astype(np.float64)
    found.sum_duplicates()
    found.eliminate_zeros()
    return found


def divided_rows(matrix: Any, divisors: NDArray[np.float64]) -> Any:
    """A CSR matrix with each row divided by a number."""
    found = matrix.copy()
    found.data = matrix.data / _of_entries(matrix, divisors)
    return found


def _of_entries(matrix: Any, values: NDArray[np.float64]) -> NDArray[Any]:
    """One number per row as one number per stored entry, in the dtype of a CSR matrix."""
    return np.repeat(values, np.diff(matrix.indptr)).astype(matrix.dtype)


class SparseSamples:
    """
    Samples along the first mode of a sparse array, which are made dense as they are read.

    ``grid`` is the shape that a sample gets; by default the one that it has.
    """

    def __init__(self, array: Any, grid: tuple[int, ...] | None = None) -> None:
        self.array = _rows(array)
        """The samples as rows of a CSR matrix of SciPy."""
        self.shape: tuple[int, ...] = (int(array.shape[0]), *(grid or array.shape[1:]))
        self.dtype = array.dtype

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Some samples, dense."""
        return to_dense(self.array[rows]).reshape((-1, *self.shape[1:]))

    def take(self, rows: NDArray[np.intp]) -> SparseSamples:
        """The samples with the given indices."""
        return SparseSamples(self.array[rows], self.shape[1:])

    def on_grid(self, grid: tuple[int, ...]) -> SparseSamples:
        """The same samples, each reshaped to a grid."""
        return SparseSamples(self.array, grid)


def gram_of_columns(
    rows: Any, weights: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """
    The Gram matrix (m, m) and the sums (m,) of the columns of a sparse (n, m) matrix.

    ``weights`` (n,) repeat the rows. The matrix is not made dense.
    """
    rows = to_csr(rows).astype(np.float64)
    weighted = rows
    if weights is not None:
        weighted = rows.copy()
        weighted.data = rows.data * _of_entries(rows, weights)
    gram = np.asarray((weighted.T @ rows).toarray(), dtype=np.float64)
    return gram, np.asarray(weighted.sum(axis=0), dtype=np.float64).reshape(-1)


def refuse_bad_entries(name: str, array: Any) -> None:
    """Refuse a stored entry that is negative or not finite."""
    stored = np.asarray(_rows(array).data)
    bad = stored[~((stored >= 0) & np.isfinite(stored))]
    if bad.size:
        others = "" if bad.size == 1 else f" and {bad.size - 1} more such"
        msg = f"{name} has the entry {bad[0]}{others}: expected finite, non-negative values"
        if np.isfinite(bad).all():
            msg += f"; {negative_advice(name, stored)}"
        raise ValueError(msg)
