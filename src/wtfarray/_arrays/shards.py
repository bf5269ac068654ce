"""How the samples of a fit are divided: into shards, one per process, and into batches."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.samples import slices_of
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array

CHUNK = 2**20
"""Numbers that are drawn at once on behalf of other processes."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples that are solved together, of which this process holds a slice."""

    index: int
    """The number of the batch among those of all processes."""
    here: slice
    """The samples of the batch on this process, as indices of its own stack."""
    samples: int
    """The number of samples of the batch, on all processes."""
    sums: Sums = ALONE
    """Over the samples of the batch."""
    turn: int = 0
    """Batches of this process alone are solved first, then the shared ones: see `batches`."""


class News(NamedTuple):
    """What processes tell each other beside the sums that they need, over all of them."""

    evaluations: float
    """Number of evaluations of the inner problems, summed over the samples."""
    interrupts: float
    """Number of interrupts since they were told last."""


@dataclass(frozen=True, eq=False)
class Shards:
    """
    The number of samples of every process, along the first mode.

    Without a team there is one shard, and ``counts`` is empty.
    """

    sums: Sums = ALONE
    counts: tuple[int, ...] = ()
    interrupted: Callable[[], bool] = field(default=lambda: False)
    """Whether this process was interrupted since it was asked last."""

    @property
    def shared(self) -> bool:
        """Whether other processes hold some of the samples."""
        return self.sums.shared

    @property
    def rank(self) -> int:
        """The number of this process."""
        return 0 if self.sums.comm is None else self.sums.comm.rank

    @property
    def first(self) -> int:
        """The number of samples on the processes before this one."""
        return sum(self.counts[: self.rank])

    def total(self, here: int) -> int:
        """The number of samples on all processes; ``here`` of them are on this one."""
        return sum(self.counts) if self.shared else here

    def news(self, evaluations: int) -> News:
        """What this process has to tell; ``evaluations`` are per sample."""
        here = self.counts[self.rank] if self.shared else 0
        return News(float(evaluations * here), float(self.interrupted()))

    def block_sums(self, k: int) -> Sums:
        """Over the rows of block k: only those of the first factor are shared."""
        return self.sums if k == 0 else ALONE

    def gathered(self, rows: Array) -> NDArray[np.float64]:
        """The rows of all processes, of which this one has some, on the host of each."""
        mine = to_host(rows)
        if not self.shared:
            return mine
        whole = np.zeros((sum(self.counts), *mine.shape[1:]))
        whole[self.first : self.first + mine.shape[0]] = mine
        return self.sums.host(whole)

    def uniform(
        self, rng: np.random.Generator, low: float, high: float, shape: tuple[int, ...], k: int
    ) -> NDArray[np.float64]:
        """
        Random numbers for block k, of which this process holds the given shape.

        The rows of a shared block are those that a single process would draw: the rows of others
        are drawn and dropped, so that the result does not depend on the number of processes.
        """
        return self._drawn(lambda size: rng.uniform(low, high, size), shape, k)

    def normal(
        self, rng: np.random.Generator, shape: tuple[int, ...], k: int
    ) -> NDArray[np.float64]:
        """As `uniform`, normally distributed."""
        return self._drawn(rng.standard_normal, shape, k)

    def _drawn(
        self,
        draw: Callable[[tuple[int, ...]], NDArray[np.float64]],
        shape: tuple[int, ...],
        k: int,
    ) -> NDArray[np.float64]:
        if k != 0 or not self.shared:
            return draw(shape)
        rest = shape[1:]
        rows = max(1, CHUNK // max(1, int(np.prod(rest))))

        def drop(count: int) -> None:
            for part in slices_of(count, rows):
                draw((part.stop - part.start, *rest))

        drop(self.first)
        found = draw(shape)
        drop(sum(self.counts) - self.first - shape[0])
        return found

    def batches(self, per_row: int, here: int, size: int) -> tuple[list[Batch], int]:
        """
        The batches with samples on this process, and the number of all batches.

        Batches are cut by the number of a sample among all, so that they do not depend on how
        many processes there are. ``per_row`` is the number of samples for one index of the first
        mode, ``here`` the number of samples on this process, ``size`` that of a batch. Most
        batches are on one process, and their sums take no message. The processes that share a
        batch form a group. Every process is in two groups at the most, with the batches of its
        first and of its last sample, which are neighbours in the sequence of shared batches. Those
        of even number in it have their turn first, then the others: so all groups of one turn work
        at the same time.
        """
        if not self.shared:
            slices = slices_of(here, size)
            return [Batch(k, s, s.stop - s.start) for k, s in enumerate(slices)], len(slices)
        comm = self.sums.comm
        assert comm is not None
        ends = [count * per_row for count in itertools.accumulate(self.counts)]
        whole = slices_of(ends[-1], size)
        owners = [_owners(ends, batch) for batch in whole]
        cut = [k for k, ranks in enumerate(owners) if len(ranks) > 1]
        turns = {k: 1 + i % 2 for i, k in enumerate(cut)}
        groups = [
            comm.split([owners[k] for k in kind]) if kind else None
            for kind in (cut[::2], cut[1::2])
        ]
        start, found = self.first * per_row, []
        for k, batch in enumerate(whole):
            if self.rank not in owners[k]:
                continue
            part = slice(max(batch.start - start, 0), min(batch.stop - start, here))
            turn = turns.get(k, 0)
            sums = Sums(groups[turn - 1]) if turn else ALONE
            found.append(Batch(k, part, batch.stop - batch.start, sums, turn))
        return found, len(whole)


WHOLE = Shards()
"""One process has all samples."""


def _owners(ends: Sequence[int], batch: slice) -> list[int]:
    """The processes that hold samples of a batch; process r holds those before ``ends[r]``."""
    first, last = bisect.bisect_right(ends, batch.start), bisect.bisect_left(ends, batch.stop)
    ranks = range(first, last + 1)
    return [r for r in ranks if ends[r] > (ends[r - 1] if r else 0)]
