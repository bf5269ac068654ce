"""The terms of several data sets that are read in chunks: of one batch after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import slices_of
from wtfarray._arrays.stored import StoredData
from wtfarray._arrays.typing import Array
from wtfarray._losses.protocol import Loss
from wtfarray._losses.selection import Binding
from wtfarray._losses.source_term import SourceTerm
from wtfarray._losses.streamed import Potentials, StreamedLosses
from wtfarray._losses.term import Term, TermValue
from wtfarray._losses.wasserstein import Wasserstein


class SideBySide:
    """Data sets with the same samples as one matrix, of which some rows can be read; NumPy."""

    def __init__(self, parts: Sequence[StoredData]) -> None:
        self._parts = tuple(parts)
        widths = [math.prod(part.shape[1:]) for part in parts]
        self.shape = (parts[0].samples, sum(widths))
        self.dtype = parts[0].dtype

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Some samples, dense."""
        read = [part.read(rows) for part in self._parts]
        return np.concatenate([one.reshape(one.shape[0], -1) for one in read], axis=1)


@dataclass(frozen=True, eq=False)
class StreamedSource:
    """One of the data sets."""

    losses: tuple[Loss, ...]
    shape: tuple[int, ...]
    """Of one sample."""
    weight: float
    present: NDArray[np.bool_] | None
    """The samples that it has, (n,); None for all."""

    @property
    def features(self) -> int:
        """Number of entries of a sample."""
        return math.prod(self.shape)


class AbsentTerm:
    """The term of a batch of which no data set has any sample: zero."""

    evaluations = 0
    work = 0.0
    scale = 0.0
    potential: Array = None
    state: Array = None

    def start_from(self, g: Array) -> None:
        """No effect."""

    def set_level(self, level: float) -> None:
        """No effect."""

    def drop_history(self) -> None:
        """No effect."""

    def evaluate(
        self,
        model: Array,
        tolerance: float,  # noqa: ARG002
        max_iter: int,  # noqa: ARG002
        *,
        ordinary: bool = False,  # noqa: ARG002
    ) -> TermValue:
        """Zero, with a gradient of zero."""
        return TermValue(0.0, 0.0, 0.0, array_namespace(model).zeros_like(model), converged=True)

    certify = evaluate


class StreamedSources(StreamedLosses):
    """
    The losses of several data sets side by side, ``data``, as one `StreamedLosses`.

    In a batch there are terms of those data sets only that have some of its samples.
    """

    def __init__(
        self,
        sources: Sequence[StreamedSource],
        data: StoredData,
        sample_weight: Array | None,
        batch: int | None,
    ) -> None:
        self._sources = tuple(sources)
        self._bindings = [Binding(source.losses) for source in sources]
        self._places: list[tuple[int, NDArray[np.intp] | None]] = []
        """For each term of the last batch the index of its loss, and its samples in the batch."""
        losses = [loss for source in sources for loss in source.losses]
        self._widths = [source.features for source in sources for _ in source.losses]
        super().__init__(losses, data, sample_weight, batch)

    def begin(self) -> Potentials:
        """New potentials, of zeros."""
        return tuple(
            self.file((self.data.samples, width)) if isinstance(loss, Wasserstein) else None
            for loss, width in zip(self.losses, self._widths, strict=True)
        )

    def set_level(self, level: float) -> None:
        """Continue with ``level`` times eps; the potentials are kept."""
        self._bindings = [Binding(source.losses, level) for source in self._sources]

    def terms(self) -> Iterator[tuple[slice, list[Term], None]]:
        """The samples of each batch, and its terms, which start from the potentials; no mask."""
        for chunk, X in self.data.chunks():
            for part in slices_of(chunk.stop - chunk.start, self.batch):
                rows = slice(chunk.start + part.start, chunk.start + part.stop)
                yield rows, self._terms(rows, X[part, :]), None
            del X

    def _terms(self, rows: slice, X: NDArray[Any]) -> list[Term]:
        """The terms of a batch, whose data sets stand side by side in X."""
        found: list[Term] = []
        self._places, column, first = [], 0, 0
        for source, binding in zip(self._sources, self._bindings, strict=True):
            columns = slice(column, column + source.features)
            column, index, first = columns.stop, first, first + len(source.losses)
            samples = None
            if source.present is not None and not source.present[rows].all():
                samples = np.flatnonzero(source.present[rows])
                if not samples.size:
                    continue
            data = X[:, columns].reshape(-1, *source.shape)
            weights = None if self.weights is None else self.weights[rows]
            if samples is not None:
                data = data[samples]
                weights = None if weights is None else weights[samples]
            for k, term in enumerate(binding.terms(data, weights), start=index):
                stored = self.state[k]
                if stored is not None:
                    g = stored[rows] if samples is None else stored[rows][samples]
                    term.start_from(self._potential(g, term))
                shape = tuple(data.shape)
                found.append(SourceTerm(term, columns, samples, shape, source.weight))
                self._places.append((k, samples))
        return found or [AbsentTerm()]

    def store(self, files: Potentials, rows: slice, terms: Sequence[Term]) -> None:
        """Write where the terms of a batch have got to, and count their evaluations."""
        count = rows.stop - rows.start
        for term, (k, samples) in zip(terms, self._places, strict=False):
            file = files[k]
            if file is not None:
                g = to_host(term.potential).reshape(-1, self._widths[k])
                if samples is not None:
                    whole = np.zeros((count, self._widths[k]), dtype=g.dtype)
                    whole[samples] = g
                    g = whole
                file.write(rows.start, g)
        self.evaluations += count * sum(term.evaluations for term in terms)
        self.work += count / self.data.samples * sum(term.work for term in terms)
