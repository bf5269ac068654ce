"""The terms of data that are read in chunks: bound to one batch of samples after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from array_api_compat import is_numpy_array

from wtfarray._arrays.host import to_host
from wtfarray._arrays.samples import slices_of
from wtfarray._arrays.scratch import FileArray, Scratch
from wtfarray._arrays.stored import StoredData
from wtfarray._arrays.sums import asarray_like
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import batch_of_chunk
from wtfarray._losses.protocol import Loss
from wtfarray._losses.selection import Binding
from wtfarray._losses.term import Term
from wtfarray._losses.wasserstein import Wasserstein

Potentials = tuple[FileArray | None, ...]
"""The potential of each loss, (n_0, entries of a sample); None for a loss in closed form."""


class StreamedLosses:
    """
    Losses of stored data, whose terms are made anew for each batch of samples.

    What is kept between evaluations are the potentials, in files. A state is never changed after it
    was written: `begin` gives new files to write to.
    """

    def __init__(
        self,
        losses: Sequence[Loss],
        data: StoredData,
        sample_weight: Array | None,
        batch: int | None,
    ) -> None:
        self.losses = tuple(losses)
        self.data = data
        self.weights = sample_weight
        row = math.prod(data.shape[1:])
        if batch is None:
            moved = [loss.costs for loss in losses if isinstance(loss, Wasserstein)]
            kernel = max((c.shape[0] ** 2 for costs in moved for c in costs), default=0)
            batch = batch_of_chunk(
                data.chunk, data.chunk * row, kernel, in_cache=is_numpy_array(data.like)
            )
        self.batch = min(batch, data.chunk)
        self.batches = sum(
            len(slices_of(rows.stop - rows.start, self.batch))
            for rows in slices_of(data.samples, data.chunk)
        )
        self.evaluations = 0
        """Evaluations of the inner problems, summed over the samples."""
        self.work = 0.0
        """Work of the inner problems, as `Term.work`, averaged over the samples."""
        self._scratch = Scratch(data.scratch)
        self._binding = Binding(losses)
        self._row = row
        self.state = self.begin()

    def begin(self) -> Potentials:
        """New potentials, of zeros."""
        return tuple(
            self.file((self.data.samples, self._row)) if isinstance(loss, Wasserstein) else None
            for loss in self.losses
        )

    def file(self, shape: tuple[int, ...]) -> FileArray:
        """A new array on disk, of the dtype of the data."""
        return self._scratch.zeros(shape, self.data.dtype_name)

    def set_level(self, level: float) -> None:
        """Continue with ``level`` times eps; the potentials are kept."""
        self._binding = Binding(self.losses, level)

    def terms(self) -> Iterator[tuple[slice, list[Term], Array | None]]:
        """The samples of each batch, its terms, which start from the potentials, and its mask."""
        for chunk, X, seen in self.data.masked_chunks():
            for part in slices_of(chunk.stop - chunk.start, self.batch):
                rows = slice(chunk.start + part.start, chunk.start + part.stop)
                weights = None if self.weights is None else self.weights[rows]
                mask = None if seen is None else seen[part, ...]
                terms = self._binding.terms(X[part, ...], weights, mask)
                for term, stored in zip(terms, self.state, strict=True):
                    if stored is not None:
                        term.start_from(self._potential(stored[rows], term))
                yield rows, terms, mask
            del X, seen

    def _potential(self, stored: Array, term: Term) -> Array:
        return asarray_like(stored.reshape(tuple(term.potential.shape)), self.data.like)

    def start_from(
        self, other: StreamedLosses, refine: Callable[[Array, tuple[int, ...]], Array]
    ) -> None:
        """Start from the potentials of another grid; ``refine(g, shape)`` changes the shape."""
        files = self.begin()
        grids = zip(self.losses, other.losses, strict=True)
        for (loss, before), file, old in zip(grids, files, other.state, strict=True):
            if file is None or old is None:
                continue
            fine, coarse = _bins(loss), _bins(before)
            for rows in slices_of(self.data.samples, self.batch):
                g = old[rows].reshape((-1, *coarse))
                file.write(rows.start, refine(g, (g.shape[0], *fine)).reshape(-1, self._row))
        self.state = files

    def store(self, files: Potentials, rows: slice, terms: Sequence[Term]) -> None:
        """Write where the terms of a batch have got to, and count their evaluations."""
        for term, file in zip(terms, files, strict=True):
            if file is not None:
                file.write(rows.start, to_host(term.potential).reshape(-1, self._row))
        count = rows.stop - rows.start
        self.evaluations += count * sum(term.evaluations for term in terms)
        self.work += count / self.data.samples * sum(term.work for term in terms)


def _bins(loss: Loss) -> tuple[int, ...]:
    """The number of bins along each transported mode or group of modes."""
    return tuple(int(c.shape[0]) for c in loss.costs) if isinstance(loss, Wasserstein) else ()
