"""Sparse matrices as the samples of an estimator, which are never made dense as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.samples import slices_of
from wtfarray._arrays.sparse import (
    SparseSamples,
    divided_rows,
    is_sparse,
    refuse_bad_entries,
    to_csr,
    to_dense,
)
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import refuse_where
from wtfarray._dispatch import chunk_size, projected_at_once
from wtfarray.sklearn._samples import Samples, sample_weights, with_weights


def is_large(X: Any) -> bool:
    """Whether the dense array of a sparse matrix would take more than one chunk."""
    return bool(_chunk(X) < X.shape[0])


def dense_parts(X: Array) -> Iterator[Array]:
    """The samples as dense arrays: all at once, of a large sparse matrix some at a time."""
    if isinstance(X, SparseSamples):
        parts = slices_of(X.shape[0], projected_at_once(_chunk(X)))
        yield from (X[part] for part in parts)
    elif is_sparse(X):
        n = X.shape[0]
        for part in slices_of(n, projected_at_once(_chunk(X)) if is_large(X) else n):
            yield to_dense(X[part])
    else:
        yield X


def _chunk(X: Any) -> int:
    n = int(X.shape[0])
    return min(n, chunk_size(n, math.prod(X.shape)))


def refuse_missing(name: str, X: Any) -> None:
    """Refuse NaN in a sparse matrix that is too large to be made dense."""
    missing = int(np.isnan(X.data).sum()) if is_sparse(X) else 0
    if missing:
        msg = (
            f"{name} is a sparse matrix with {missing} entries of NaN, and too large to be made "
            "dense: expected no missing entries, or a dense array"
        )
        raise ValueError(msg)


def distinct_sparse_samples(X: Any, sample_weight: object) -> Samples:
    """As `distinct_samples` for a large sparse matrix (n, m), whose rows stay sparse."""
    refuse_missing("X", X)
    refuse_bad_entries("X", X)
    weights, X = sample_weights(sample_weight, X.shape[0]), to_csr(X)
    mass = np.asarray(X.sum(axis=1), dtype=np.float64).reshape(-1)
    refuse_where(~np.isfinite(mass), "the mass of X", mass, "samples of finite mass")
    weights = np.where(mass > 0, weights, 0.0)
    if not np.any(weights > 0):
        msg = "X has no sample of positive mass and weight: expected at least one"
        raise ValueError(msg)
    X = divided_rows(X, np.where(mass > 0, mass, 1.0))
    # Equal samples have equal keys; other samples almost never do.
    keys = X @ np.random.default_rng(0).uniform(1.0, 2.0, X.shape[1])
    order = np.argsort(keys, kind="stable")
    order = order[weights[order] > 0]
    new = np.ones(order.size, dtype=bool)
    for k in np.flatnonzero(np.diff(keys[order]) == 0):
        new[k + 1] = not _same_rows(X, order[k], order[k + 1])
    kept, scaled, total = with_weights(new, weights[order], X.dtype)
    return Samples(SparseSamples(X[order[kept]]), scaled, total)


def _same_rows(X: Any, i: int, j: int) -> bool:
    """Whether two rows of a CSR matrix in canonical form are equal."""
    a, b = (slice(X.indptr[k], X.indptr[k + 1]) for k in (i, j))
    same: bool = np.array_equal(X.indices[a], X.indices[b]) and np.array_equal(X.data[a], X.data[b])
    return same


def parts_of_samples(samples: Samples) -> Iterator[tuple[slice, Samples]]:
    """The samples with their weights, dense: all at once, of sparse ones some at a time."""
    if not isinstance(samples.data, SparseSamples):
        yield slice(0, int(samples.data.shape[0])), samples
        return
    for rows in slices_of(samples.data.shape[0], projected_at_once(_chunk(samples.data))):
        weights: NDArray[Any] | None = None if samples.weights is None else samples.weights[rows]
        yield rows, Samples(samples.data[rows], weights, samples.total)
