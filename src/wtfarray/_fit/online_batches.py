"""The batches of the online solver: samples in a random order, and how they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import slices_of, take_samples
from wtfarray._arrays.stored import StoredData, read_ahead
from wtfarray._arrays.typing import Array
from wtfarray._fit.specification import Specification

RUN = 16
"""Samples that are read together from a file, whose order is random otherwise."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples, of which this process may have only a part."""

    rows: list[slice]
    """Those on this process, in runs."""
    samples: int
    """The number of all."""
    counts: tuple[int, ...]
    """Their number on every process; empty if there is only one."""

    @classmethod
    def of(cls, spec: Specification, rows: list[slice]) -> Batch:
        """A batch of runs of the samples of all processes."""
        samples = sum(run.stop - run.start for run in rows)
        if not spec.shards.shared:
            return cls(rows, samples, ())
        starts, stops = (np.asarray([getattr(run, e) for run in rows]) for e in ("start", "stop"))
        ends = np.cumsum([0, *spec.shards.counts])
        starts = np.maximum(starts[:, None], ends[None, :-1])  # one column for each process
        lengths = np.minimum(stops[:, None], ends[None, 1:]) - starts
        counts = np.sum(np.maximum(lengths, 0), axis=0).tolist()
        rank = spec.shards.rank
        first, here = starts[:, rank] - ends[rank], lengths[:, rank]
        own = [slice(i, i + n) for i, n in zip(first.tolist(), here.tolist(), strict=True) if n > 0]
        return cls(own, samples, tuple(counts))

    @property
    def indices(self) -> NDArray[np.intp]:
        """The samples on this process."""
        runs = [np.arange(run.start, run.stop) for run in self.rows]
        return np.concatenate(runs) if runs else np.zeros(0, dtype=np.intp)


def shuffled(spec: Specification, seed: int, sweep: int) -> list[slice]:
    """All samples in a random order: one by one, or in runs if they are read from a file."""
    samples = spec.shards.total(spec.X.shape[0])
    runs = slices_of(samples, RUN if isinstance(spec.X, StoredData) else 1)
    order = np.random.default_rng([seed, sweep]).permutation(len(runs))
    return [runs[i] for i in order]


def join(order: Sequence[slice], start: int, size: int) -> tuple[list[slice], int]:
    """The runs from ``start`` on that have ``size`` samples together, and where they end."""
    count, stop = 0, start
    while stop < len(order) and (count < size or stop == start):
        count += order[stop].stop - order[stop].start
        stop += 1
    return list(order[start:stop]), stop


def read_batch(spec: Specification, batch: Batch) -> Array:
    """The samples of a batch on this process, in memory."""
    if not isinstance(spec.X, StoredData):
        return take_samples(spec.X, batch.indices)
    xp, like = array_namespace(spec.like), spec.like
    if not batch.rows:
        return xp.zeros((0, *spec.X.shape[1:]), dtype=like.dtype, device=device_of(like))
    return xp.concat([spec.X.read(run) for run in batch.rows])


def read_batches(spec: Specification, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Array]]:
    """The samples of each batch; a thread reads the next one from a file meanwhile."""
    if not isinstance(spec.X, StoredData):
        for batch in batches:
            yield batch, read_batch(spec, batch)
    else:
        yield from read_ahead(lambda batch: read_batch(spec, batch), batches)
