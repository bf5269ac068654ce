"""The data of a fit part by part: large sparse arrays are made dense a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.samples import slices_of, take_samples
from wtfarray._arrays.sparse import SparseSamples
from wtfarray._arrays.stored import StoredData
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import projected_at_once
from wtfarray._fit.result import Factorisation


def sparse_or_dense(X: Array) -> Array:
    """Sparse samples as they are if they take several chunks, as floating numbers otherwise."""
    if not isinstance(X, SparseSamples):
        return X
    data = StoredData(X)
    return X if data.chunk < data.samples else data.read(slice(0, data.samples))


def parts_of_data(X: Array) -> Iterator[tuple[slice | None, Array]]:
    """The samples in dense parts; an array in memory is one part, with None for all samples."""
    if not isinstance(X, SparseSamples):
        yield None, X
        return
    data = StoredData(X)
    for rows, chunk in data.chunks():
        # What is computed from a part takes many times its memory.
        for part in slices_of(rows.stop - rows.start, projected_at_once(data.chunk)):
            yield slice(rows.start + part.start, rows.start + part.stop), chunk[part, ...]


def part_of_fit(fit: Factorisation, rows: slice | None) -> Factorisation:
    """The fit of some samples; all if None."""
    if rows is None:
        return fit
    first = fit.factors[0][rows, :]
    return replace(
        fit, factors=[first, *fit.factors[1:]], shape=(int(first.shape[0]), *fit.shape[1:])
    )


def some_samples(X: Array, samples: NDArray[np.intp]) -> Array:
    """The samples with the given indices, sparse if X is."""
    return X.take(samples) if isinstance(X, SparseSamples) else take_samples(X, samples)
