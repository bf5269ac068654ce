"""Data that are read in chunks of samples: files, and anything that can be sliced."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from array_api_compat import device as device_of
from array_api_compat import is_array_api_obj
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.masks import observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import mass_tolerance, per_sample, slices_of
from wtfarray._arrays.stored_mask import StoredMask
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_floating,
    as_nonnegative,
    check_shape,
    common_namespace,
    refuse_total,
)
from wtfarray._dispatch import chunk_size

Key = TypeVar("Key")
Part = TypeVar("Part")


def is_stored(X: object) -> bool:
    """Whether X is no array in memory, but has a shape and a dtype and can be sliced."""
    if isinstance(X, np.memmap):
        return True
    package = type(X).__module__.partition(".")[0]
    if is_array_api_obj(X) or isinstance(X, np.generic) or package in NOT_STORED:
        return False
    return all(hasattr(X, name) for name in ("shape", "dtype", "__getitem__"))


def is_larger_than_a_chunk(X: Any) -> bool:
    """Whether X is stored and so large that it is read in chunks unless the user says otherwise."""
    if not is_stored(X) or 0 in X.shape or len(X.shape) == 0:
        return False
    return chunk_size(int(X.shape[0]), math.prod(X.shape)) < int(X.shape[0])


NOT_STORED = ("pandas", "polars", "xarray", "scipy", "sparse", "dask", "numpy")
"""Packages with containers that can be sliced, but that have to be converted by the user."""


@dataclass(frozen=True, eq=False)
class Summary:
    """What a pass over the data finds."""

    mass: NDArray[np.float64]
    """Of each sample, (n,)."""
    positive: float
    """Number of positive entries."""
    observed: float
    """Number of entries that were observed."""
    complete: bool
    """Whether all entries were observed."""
    unit: bool
    """Whether all samples have mass one."""

    @property
    def positive_share(self) -> float:
        """The share of positive entries among those that were observed."""
        return self.positive / self.observed


class StoredData:
    """
    Samples along the first mode of ``source``, of which ``chunk`` are read at once.

    The dtype is the floating one in which they are fitted. ``prepare`` is applied to every chunk
    that is read, and may change the other modes. Entries that were not observed are 0.
    """

    def __init__(
        self,
        source: Any,
        chunk: int | None = None,
        scratch: Any = None,
        prepare: Callable[[Array], Array] | None = None,
        mask: StoredMask | None = None,
    ) -> None:
        self.has_effects = True
        """It reads files."""
        self.source = source
        self.mask = mask
        """In the shape of the source; None if all entries were observed."""
        self.scratch = scratch
        """The folder for arrays as large as the data; None for that of the system."""
        self._prepare = prepare
        shape = tuple(int(n) for n in source.shape)
        if len(shape) == 0 or math.prod(shape) == 0:
            msg = f"X has shape {shape}: expected at least one mode, none empty"
            raise ValueError(msg)
        self.samples = shape[0]
        first = self.read(slice(0, 1))
        xp = array_namespace(first)
        self.like = xp.zeros((1,), dtype=first.dtype, device=device_of(first))
        """An array of the library, the dtype and the device of the chunks."""
        self.shape = (shape[0], *(int(n) for n in first.shape[1:]))
        self.dtype = first.dtype
        size = chunk_size(shape[0], math.prod(shape)) if chunk is None else chunk
        self.chunk = min(size, shape[0])

    @property
    def ndim(self) -> int:
        """Number of modes."""
        return len(self.shape)

    @property
    def dtype_name(self) -> str:
        """The dtype as NumPy calls it."""
        return "float32" if self.dtype == array_namespace(self.like).float32 else "float64"

    def read(self, rows: slice) -> Array:
        """Some samples in memory, as floating numbers."""
        return self._read(rows)[0]

    def _read(self, rows: slice) -> tuple[Array, Array | None]:
        """Some samples, and which of their entries were observed."""
        source = self.source
        if is_array_api_obj(source) and not isinstance(source, np.memmap):
            part = source[rows, ...]
        else:
            part = source[rows]
            if isinstance(part, np.memmap):
                part = np.array(part)  # reads what it only refers to
            elif not is_array_api_obj(part):
                part = np.asarray(part)
        expected = (rows.stop - rows.start, *(int(n) for n in source.shape[1:]))
        check_shape(f"X[{rows.start}:{rows.stop}]", part, expected)
        part = as_floating("X", part, common_namespace(X=part))
        seen = None if self.mask is None else self.mask.read(rows, part)
        part = observed(part, seen)
        return part if self._prepare is None else self._prepare(part), seen

    def slices(self) -> list[slice]:
        """The samples of each chunk."""
        return slices_of(self.samples, self.chunk)

    def chunks(self) -> Iterator[tuple[slice, Array]]:
        """All samples, chunk by chunk; a thread reads the next chunk meanwhile."""
        for rows, part, _ in self.masked_chunks():
            yield rows, part
            del part

    def masked_chunks(self) -> Iterator[tuple[slice, Array, Array | None]]:
        """As `chunks`, with what was observed of each chunk; None if all of it."""
        for rows, (part, seen) in read_ahead(self._read, self.slices()):
            yield rows, part, seen
            del part, seen

    def prepared(self, prepare: Callable[[Array], Array]) -> StoredData:
        """The same data with one more function applied to every chunk."""
        before = self._prepare
        both = prepare if before is None else lambda part: prepare(before(part))
        return StoredData(self.source, self.chunk, self.scratch, both, self.mask)

    def with_mask(self, mask: StoredMask | None) -> StoredData:
        """The same data with another mask, None if all of them were observed."""
        return StoredData(self.source, self.chunk, self.scratch, self._prepare, mask)

    def masses(self, name: str) -> NDArray[np.float64]:
        """The mass of each sample, (n,); check as well that data are finite and not negative."""
        mass = np.empty(self.samples)
        for rows, part in self.chunks():
            _check_chunk(name, rows, part)
            mass[rows] = to_host(per_sample(part))
            del part
        return mass

    def summary(self, name: str, *, shared: bool = False) -> Summary:
        """
        Check that the data are finite and not negative, in one pass.

        If other processes have samples as well, ``shared``, those of this one may be empty.
        """
        mass, positive, count, unit = np.empty(self.samples), 0.0, 0.0, True
        for rows, part, seen in self.masked_chunks():
            xp = array_namespace(part)
            _check_chunk(name, rows, part)
            sums = per_sample(part)
            are_one = xp.abs(sums - 1.0) <= mass_tolerance(part)
            if seen is not None:
                axes = tuple(range(1, seen.ndim))
                are_one = (are_one & xp.all(seen, axis=axes)) | ~xp.any(seen, axis=axes)
            unit = unit and bool(xp.all(are_one))
            mass[rows] = to_host(sums)
            positive += float(xp.sum(xp.astype(part > 0, part.dtype)))
            entries = math.prod(part.shape)
            count += entries if seen is None else float(xp.sum(xp.astype(seen, part.dtype)))
            del part, seen
        if not shared:
            refuse_total(name, float(mass.sum()), self.like, positive=positive > 0)
        return Summary(mass, positive, count, count == math.prod(self.shape), unit)


def _check_chunk(name: str, rows: slice, part: Array) -> None:
    """Refuse a chunk with an entry that is negative or not finite."""
    try:
        as_nonnegative(name, part, array_namespace(part))
    except ValueError as error:
        msg = f"{name}[{rows.start}:{rows.stop}]" + str(error).removeprefix(name)
        raise ValueError(msg) from None


def read_ahead(read: Callable[[Key], Part], keys: Sequence[Key]) -> Iterator[tuple[Key, Part]]:
    """What ``read`` returns for each key; a thread reads the next one meanwhile."""
    if len(keys) == 1:
        yield keys[0], read(keys[0])
        return
    from concurrent.futures import ThreadPoolExecutor  # not at the top: few fits need it

    with ThreadPoolExecutor(max_workers=1) as reader:
        ahead = [reader.submit(read, key) for key in keys[:1]]
        for here, following in itertools.zip_longest(keys, keys[1:]):
            part = ahead.pop().result()
            if following is not None:
                ahead.append(reader.submit(read, following))
            yield here, part
            del part  # before the next one is there as well


def chunks_of(X: Array) -> Iterator[tuple[slice | None, Array]]:
    """The data chunk by chunk; an array in memory is one chunk, with None for all samples."""
    if isinstance(X, StoredData):
        yield from X.chunks()
    else:
        yield None, X


def masked_chunks_of(
    X: Array, mask: Array | None
) -> Iterator[tuple[slice | None, Array, Array | None]]:
    """As `chunks_of`, with what was observed of each chunk; data in files have their own mask."""
    if isinstance(X, StoredData):
        yield from X.masked_chunks()
    else:
        yield None, X, mask


def like(X: Array) -> Array:
    """An array of the library, the dtype and the device of X."""
    return X.like if isinstance(X, StoredData) else X
