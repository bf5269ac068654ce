"""Data sets of a coupled fit that are read in chunks of samples: large sparse ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import is_numpy_array
from numpy.typing import NDArray

from wtfarray._arrays.masks import as_mask
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sparse import SparseSamples
from wtfarray._arrays.stored import StoredData
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import chunk_size
from wtfarray._fit.absent_samples import Present
from wtfarray._fit.coupled_specification import Source, checked_sources
from wtfarray._losses.loss_sum import losses_of
from wtfarray._losses.protocol import Loss


def sources_of(
    Xs: Sequence[Array],
    losses: Sequence[Loss],
    weights: Sequence[float] | None,
    masks: Sequence[Array | None] | None,
    *,
    shared: bool = False,
) -> tuple[Source, ...]:
    """The checked data sets; if some are sparse and take several chunks, they stay sparse."""
    if any(isinstance(X, SparseSamples) and _chunk([X]) < X.shape[0] for X in Xs):
        return _chunked_sources(Xs, losses, weights, masks)
    dense = [X[0 : X.shape[0]] if isinstance(X, SparseSamples) else X for X in Xs]
    return checked_sources(dense, losses, weights, masks, shared=shared)


def without_absent(sources: tuple[Source, ...]) -> tuple[tuple[Source, ...], Present | None]:
    """The data sets without the samples of which nothing was observed in any of them."""
    known = [source.samples() for source in sources]
    if any(rows is None for rows in known) or sources[0].summary is not None:
        return sources, None
    rows = np.unique(np.concatenate([rows for rows in known if rows is not None]))
    shape = tuple(sources[0].X.shape)
    if rows.size == shape[0]:
        return sources, None
    present = Present(rows, shape)
    found = []
    for source in sources:
        mask = present.take(source.mask)
        mask = None if bool(array_namespace(mask).all(mask)) else mask
        found.append(replace(source, X=present.take(source.X), mask=mask))
    return tuple(found), present


def _chunk(Xs: Sequence[Array]) -> int:
    """The number of samples that are read at once from all data sets."""
    n = int(Xs[0].shape[0])
    return max(1, min(n, chunk_size(n, n * sum(math.prod(X.shape[1:]) for X in Xs))))


def _chunked_sources(
    Xs: Sequence[Array],
    losses: Sequence[Loss],
    weights: Sequence[float] | None,
    masks: Sequence[Array | None] | None,
) -> tuple[Source, ...]:
    """
    As `checked_sources` for data sets of which some are sparse and large.

    All are read in the same chunks of samples. Masks may hide whole samples.
    """
    n, chunk = int(Xs[0].shape[0]), _chunk(Xs)
    first = [X[0:1] if isinstance(X, SparseSamples) else X for X in Xs]
    for k, X in enumerate(first):
        if not is_numpy_array(X):
            msg = f"X[{k}] is a {type(X).__name__} beside sparse data: expected NumPy or sparse"
            raise TypeError(msg)
        if int(Xs[k].shape[0]) != n:
            msg = f"X[{k}] has {Xs[k].shape[0]} samples: expected {n}, those of X[0]"
            raise ValueError(msg)
    # One sample of ones stands for the data in the checks of losses, weights and dtypes.
    dtypes = [x.dtype if x.dtype in (np.float32, np.float64) else np.float64 for x in first]
    ones = [np.ones((1, *X.shape[1:]), dtype) for X, dtype in zip(Xs, dtypes, strict=True)]
    none = None if masks is None else [None] * len(masks)
    found = []
    for k, source in enumerate(checked_sources(ones, losses, weights, none)):
        if any(getattr(part, "debias", False) for part in losses_of(source.loss)):
            msg = f"losses[{k}] is debiased for data that are read in chunks: expected X in memory"
            raise ValueError(msg)
        present = None if masks is None else _samples_of_mask(k, masks[k], Xs[k])
        data = StoredData(_Present(Xs[k], present), chunk)
        summary = data.summary(f"X[{k}]")
        found.append(replace(source, X=data, mask=None, summary=summary, present=present))
    return tuple(found)


def _samples_of_mask(k: int, mask: Array | None, X: Array) -> NDArray[np.bool_] | None:
    """The samples that a mask leaves, (n,); None if these are all. Refuse a mask of entries."""
    if mask is None:
        return None
    rows = np.zeros((X.shape[0], *(1 for _ in X.shape[1:])))
    by_rows = tuple(getattr(mask, "shape", ())) == rows.shape
    like = rows if by_rows else np.broadcast_to(rows, X.shape)
    seen = as_mask(f"mask[{k}]", mask, like, f"X[{k}]")
    if seen is None:
        return None
    flat = seen.reshape(X.shape[0], -1)
    present: NDArray[np.bool_] = flat.any(axis=1)
    if (present & ~flat.all(axis=1)).any() or len(X.shape) > 2:
        msg = (
            f"mask[{k}] hides entries of samples, or samples of a tensor, and X is read in chunks: "
            "expected a mask of whole samples of a matrix, or X in memory"
        )
        raise ValueError(msg)
    return present


class _Present:
    """Samples along the first mode, 0 for those that are not present."""

    def __init__(self, X: Array, present: NDArray[np.bool_] | None) -> None:
        self._X, self._present = X, present
        self.shape, self.dtype = tuple(X.shape), X.dtype

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        part: NDArray[Any] = self._X[rows]
        if self._present is None:
            return part
        return np.where(self._present[rows][:, None], part, np.zeros_like(part))
