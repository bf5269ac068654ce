"""
The state of a fit of several processes on disk: one file per process, and a manifest.

Every process writes the state of its own samples to a file that is named after the step. When all
have, rank 0 replaces the manifest, the file that the user has named, which says which step is
complete. Only then are the files of the step before removed. Whenever a process is killed, the
manifest names a step of which every file is there.

A fit may continue on another number of processes, or with other shards, of the same samples in the
same order: each process takes its rows from the files that hold them (`resplit`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.shards import Shards
from wtfarray._arrays.typing import Array
from wtfarray._fit.checkpoint import Checkpoint, Stored, stored_state
from wtfarray._fit.journal import Record
from wtfarray._fit.resplit import EXPECTED, WORD, resplit, rounded
from wtfarray._fit.storage import get, reading, write_atomically
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._solvers.envelope import Progress
from wtfarray._solvers.objective import JointObjective


class SharedCheckpoint(Checkpoint):
    """The checkpoint of a team; its path is that of the manifest."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        arrays: Iterable[Array],
        arguments: object,
        shards: Shards,
        digest: NDArray[np.float64],
    ) -> None:
        super().__init__(path, arrays, rounded(arguments))
        self._shards = shards
        self._own = digest
        """Of the samples of this process."""
        self._agreed = False
        """Whether the identity is that of the samples of all processes."""
        self._manifest = self.path
        self._last: Path | None = None
        """The file of this process for the last complete step."""
        self._left_over: list[Path] = []
        """Files of processes that there are no more."""

    @property
    def exists(self) -> bool:
        """Whether rank 0 finds a manifest."""
        sums = self._shards.sums
        return sums.any(sums.leads and self._manifest.exists())

    def write(
        self,
        progress: Progress,
        pairs: CurvaturePairs,
        states: list[Array],
        history: list[Record],
        n_iter: int,
        seconds: float,
    ) -> None:
        """Write the files of a step and then the manifest; if one fails, the last step stays."""
        sums, self.path = self._shards.sums, self._file(n_iter, self._shards.rank)
        self._agree()
        super().write(progress, pairs, states, history, n_iter, seconds)
        complete = sums.all(self.path.exists())
        if complete and sums.leads:
            header = {"step": n_iter, "counts": list(self._shards.counts)}
            try:
                write_atomically(self._manifest, header, {})
            except OSError as error:
                self._warn("written", error)
                complete = False
        complete = sums.all(complete)
        done, old = (self.path, self._last) if complete else (self._last, self.path)
        if old is not None and old != done:
            old.unlink(missing_ok=True)
        self._last = done
        if complete:
            for path in self._left_over:
                path.unlink(missing_ok=True)
            self._left_over = []

    def read(self, objective: JointObjective, like: Array, levels: int) -> Stored | None:
        """The state of this process at the step that the manifest names, or None without one."""
        sums = self._shards.sums
        if not self.exists:
            return None
        self._agree()
        step, counts = self._manifest_of_all()
        self.path = self._last = self._file(step, self._shards.rank)
        if counts == self._shards.counts:
            return sums.agree(lambda: self._read_own(objective, like, levels))
        found = sums.agree(lambda: self._resplit(objective, like, levels, step, counts))
        if sums.leads:
            gone = range(len(self._shards.counts), len(counts))
            self._left_over = [self._file(step, rank) for rank in gone]
        return found

    def remove(self) -> None:
        """Delete the manifest, then the files."""
        if self._shards.sums.leads:
            self.path = self._manifest
            super().remove()
        self._shards.sums.all(True)  # noqa: FBT003 -- no file before the manifest
        if self._last is not None:
            self.path = self._last
            super().remove()
        for path in self._left_over:
            path.unlink(missing_ok=True)

    def _file(self, step: int, rank: int) -> Path:
        return self._manifest.with_name(f"{self._manifest.name}.step{step}.rank{rank}")

    def _agree(self) -> None:
        """Make the samples of all processes a part of the identity."""
        if not self._agreed:
            total = self._shards.sums.host(self._own) % WORD
            self._identity += "".join(f"{int(word):08x}" for word in total)
            self._agreed = True

    def _manifest_of_all(self) -> tuple[int, tuple[int, ...]]:
        """The last complete step, and the numbers of samples of its processes."""
        sums = self._shards.sums
        step, counts = sums.agree(self._read_manifest)
        numbers = sums.from_rank(np.asarray([float(step), float(len(counts))]), 0)
        listed = np.asarray(counts, dtype=np.float64)
        if not sums.leads:
            listed = np.zeros(int(numbers[1]))
        return int(numbers[0]), tuple(int(count) for count in sums.from_rank(listed, 0))

    def _read_manifest(self) -> tuple[int, list[int]]:
        """The last complete step and its shards, on rank 0; refuses another number of samples."""
        if not self._shards.sums.leads:
            return 0, []
        with reading("checkpoint", self._manifest, EXPECTED) as archive:
            step: int = get(archive.header, "step", int)
            counts = [int(count) for count in get(archive.header, "counts", list)]
        samples = sum(self._shards.counts)
        if sum(counts) != samples:
            msg = (
                f"checkpoint {str(self._manifest)!r} belongs to {sum(counts)} samples on "
                f"{len(counts)} processes: expected {samples}, as now; remove it"
            )
            raise ValueError(msg)
        return step, counts

    def _resplit(
        self,
        objective: JointObjective,
        like: Array,
        levels: int,
        step: int,
        counts: tuple[int, ...],
    ) -> Stored:
        """The state of the samples of this process, from the files of other shards."""
        files = [self._file(step, rank) for rank in range(len(counts))]
        begin = self._shards.first
        rows = slice(begin, begin + self._shards.counts[self._shards.rank])
        archive = resplit(files, counts, rows, like.shape[0] - objective.shared)
        if get(archive.header, "identity", str) != self._identity:
            self._refuse_other()
        return stored_state(archive, objective, like, levels, has_states=False)

    def _read_own(self, objective: JointObjective, like: Array, levels: int) -> Stored | None:
        if not self.path.exists():
            msg = f"checkpoint: {str(self.path)!r} was not found: expected it beside the manifest"
            raise ValueError(msg)
        return self._contents(objective, like, levels)
