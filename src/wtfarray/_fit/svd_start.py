"""Initial factors from singular vectors, of data in memory, in files, or of several processes."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.host import to_host
from wtfarray._arrays.masks import filled_with_means
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.stored import StoredData
from wtfarray._arrays.sums import ALONE, Sums, asarray_like
from wtfarray._arrays.typing import Array
from wtfarray._models.tensor import unfold

Parts = Callable[[], Iterator[tuple[slice, Array]]]
"""A pass over the samples: their indices, and the data."""


def svd_factors(
    X: Array,
    mask: Array | None,
    shapes: Sequence[tuple[int, ...]],
    rng: np.random.Generator,
    shards: Shards,
) -> list[Array]:
    """
    One factor per mode, from singular vectors.

    ``shapes`` are those of the factors: the data are reshaped to their numbers of rows. Missing
    entries are replaced by means.
    """
    sizes = tuple(shape[0] for shape in shapes)
    ranks = [shape[1] for shape in shapes]
    if not isinstance(X, StoredData):
        complete = X if mask is None else filled_with_means(X, mask, shards.sums)
        matrix = array_namespace(X).reshape(complete, sizes)
        return [svd_factor(matrix, k, r, rng, shards) for k, r in enumerate(ranks)]
    means = None if mask is None else _means(X, shards.sums)

    def parts() -> Iterator[tuple[slice, Array]]:
        for rows, part, seen in X.masked_chunks():
            xp = array_namespace(part)
            data = part if seen is None else xp.where(seen, part, means)
            yield rows, xp.reshape(data, (rows.stop - rows.start, *sizes[1:]))
            del part, seen, data

    return [_svd_factor(parts, sizes, X.like, k, r, rng, shards) for k, r in enumerate(ranks)]


def svd_factor(
    X: Array, mode: int, rank: int, rng: np.random.Generator, shards: Shards = WHOLE
) -> Array:
    """
    A non-negative factor (n_mode, rank) from the leading singular vectors of an unfolding.

    NNDSVD (Boutsidis and Gallopoulos 2008): the larger of the positive and the negative part of
    each singular pair. The singular vectors come from a randomised range finder with one power
    iteration (Halko, Martinsson and Tropp 2011), without an SVD of the whole unfolding. If the
    unfolding has fewer than ``rank`` singular vectors, the other columns are random. If several
    processes share the samples, each has some rows of the unfolding along the first mode, and some
    columns of the others: products over what is shared are added.
    """

    def parts() -> Iterator[tuple[slice, Array]]:
        yield slice(0, X.shape[0]), X

    return _svd_factor(parts, tuple(X.shape), X, mode, rank, rng, shards)


def _svd_factor(
    parts: Parts,
    shape: tuple[int, ...],
    like: Array,
    mode: int,
    rank: int,
    rng: np.random.Generator,
    shards: Shards,
) -> Array:
    """As `svd_factor`, for data of this shape that are read part by part, several times."""
    xp = array_namespace(like)
    n, samples, features = shape[mode], shards.total(shape[0]), math.prod(shape[1:])
    rows, columns = (samples, features) if mode == 0 else (n, samples * features // n)
    of_rows, of_columns = (shards.sums, ALONE) if mode == 0 else (ALONE, shards.sums)
    width = min(rank + 8, rows, columns)
    basis = asarray_like(shards.normal(rng, (n, width), mode), like)
    for _ in range(2):
        basis = orthonormal(_times_square(parts, mode, basis, of_rows, of_columns), of_rows)

    def in_basis() -> Iterator[Array]:
        """The columns of the unfolding in the basis, all or some at a time."""
        if mode == 0:
            products = (xp.matmul(basis[at, :].mT, unfold(part, 0)) for at, part in parts())
            yield of_rows.array(_added(products))
        else:
            yield from (xp.matmul(basis.mT, unfold(part, mode)) for _, part in parts())

    square = of_columns.array(_added(xp.matmul(small, small.mT) for small in in_basis()))
    values, vectors = xp.linalg.eigh(square)
    left = xp.matmul(basis, vectors)
    right = _added(_signed_squares(xp.matmul(small.mT, vectors)) for small in in_basis())
    weights = of_rows.array(_signed_squares(left)) * of_columns.array(right)
    floor = float(xp.max(values)) * float(xp.finfo(like.dtype).eps)
    found = []
    for j in range(width - 1, max(width - 1 - rank, -1), -1):
        if float(values[j]) <= floor:
            break
        is_plus = float(weights[0, j]) >= float(weights[1, j])
        found.append(xp.maximum(left[:, j] if is_plus else -left[:, j], 0.0))
    missing = rank - len(found)
    if missing:
        drawn = shards.uniform(rng, 0.05, 1.0, (n, missing), mode) / math.sqrt(rows)
        noise = asarray_like(drawn, like)
        found += [noise[:, j] for j in range(missing)]
    return xp.stack(found, axis=1)


def _times_square(parts: Parts, mode: int, basis: Array, of_rows: Sums, of_columns: Sums) -> Array:
    """``M M^T`` times a matrix, where M is the unfolding."""
    xp = array_namespace(basis)
    if mode == 0:
        products = (xp.matmul(unfold(part, 0).mT, basis[at, :]) for at, part in parts())
        image = of_rows.array(_added(products))
        found = [xp.matmul(unfold(part, 0), image) for _, part in parts()]
        return found[0] if len(found) == 1 else xp.concat(found)
    unfoldings = (unfold(part, mode) for _, part in parts())
    return of_columns.array(_added(xp.matmul(m, xp.matmul(m.mT, basis)) for m in unfoldings))


def _added(arrays: Iterable[Array]) -> Array:
    """The sum of several arrays."""
    return functools.reduce(operator.add, arrays)


def _signed_squares(columns: Array) -> Array:
    """The squared norms of the positive and of the negative part of each column, (2, r)."""
    xp = array_namespace(columns)
    parts = [xp.maximum(sign * columns, 0.0) for sign in (1.0, -1.0)]
    return xp.stack([xp.sum(part**2.0, axis=0) for part in parts])


def _means(X: StoredData, sums: Sums) -> Array:
    """The mean of each entry over the samples that have it; otherwise of all observed entries."""
    totals, counts = [], []
    for _, part, seen in X.masked_chunks():
        xp = array_namespace(part)
        totals.append(xp.sum(part, axis=0))
        counts.append(xp.sum(xp.astype(seen, part.dtype), axis=0))
        del part, seen
    total, count = sums.arrays([_added(totals), _added(counts)])[0]
    mean = xp.sum(total) / xp.sum(count)
    return xp.where(count > 0, total / xp.where(count > 0, count, 1.0), mean)


def orthonormal(matrix: Array, sums: Sums = ALONE) -> Array:
    """
    An orthonormal basis of the columns of a matrix, whose rows several processes may share.

    Each process factorises its own rows; a second factorisation, of their triangular factors, makes
    the bases of all processes one (Demmel, Grigori, Hoemmen and Langou 2012).
    """
    xp = array_namespace(matrix)
    if sums.comm is None:
        return xp.linalg.qr(matrix)[0]
    rank, width = sums.comm.rank, matrix.shape[1]
    # Rows of zeros, because a process may have fewer than there are columns.
    padding = xp.zeros((width, width), dtype=matrix.dtype, device=device_of(matrix))
    own, triangle = xp.linalg.qr(xp.concat([matrix, padding]))
    triangles = np.zeros((sums.comm.size, width, width))
    triangles[rank] = to_host(triangle)
    basis, _ = np.linalg.qr(sums.host(triangles).reshape(-1, width))
    mine = basis[rank * width : (rank + 1) * width]
    return xp.matmul(own[: matrix.shape[0], :], asarray_like(mine, matrix))
