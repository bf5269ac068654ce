"""
The state of a fit of several processes on disk: one file per process, and a manifest.

Every process writes the state of its own samples to a file that is named after the step. When all
have, rank 0 replaces the manifest, the file that the user has named, which says which step is
complete. Only then are the files of the step before removed. Whenever a process is killed, the
manifest names a step of which every file is there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from wtfarray._arrays.shards import Shards
from wtfarray._arrays.typing import Array
from wtfarray._fit.checkpoint import Checkpoint, Stored
from wtfarray._fit.journal import Record
from wtfarray._fit.storage import get, reading, write_atomically
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._solvers.envelope import Progress
from wtfarray._solvers.objective import JointObjective

EXPECTED = "a file written by a fit of several processes"


class SharedCheckpoint(Checkpoint):
    """The checkpoint of a team; its path is that of the manifest."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        arrays: Iterable[Array],
        arguments: object,
        shards: Shards,
    ) -> None:
        super().__init__(path, arrays, (arguments, shards.counts, shards.rank))
        self._shards = shards
        self._manifest = self.path
        self._last: Path | None = None
        """The file of this process for the last complete step."""

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
        sums, self.path = self._shards.sums, self._file(n_iter)
        super().write(progress, pairs, states, history, n_iter, seconds)
        complete = sums.all(self.path.exists())
        if complete and sums.leads:
            header = {"step": n_iter, "counts": list(self._shards.counts)}
            coded = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
            try:
                write_atomically(self._manifest, {"header": coded})
            except OSError as error:
                self._warn("written", error)
                complete = False
        complete = sums.all(complete)
        done, old = (self.path, self._last) if complete else (self._last, self.path)
        if old is not None and old != done:
            old.unlink(missing_ok=True)
        self._last = done

    def read(self, objective: JointObjective, like: Array, levels: int) -> Stored | None:
        """The state of this process at the step that the manifest names, or None without one."""
        sums = self._shards.sums
        if not self.exists:
            return None
        step = sums.agree(self._read_manifest)
        (step_of_all,) = sums.from_rank(np.asarray([float(step)]), 0)
        self.path = self._file(int(step_of_all))
        found = sums.agree(lambda: self._read_own(objective, like, levels))
        self._last = self.path
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

    def _file(self, step: int) -> Path:
        name = f"{self._manifest.name}.step{step}.rank{self._shards.rank}"
        return self._manifest.with_name(name)

    def _read_manifest(self) -> int:
        """The last complete step, on rank 0; refuses that of other shards."""
        if not self._shards.sums.leads:
            return 0
        with reading("checkpoint", self._manifest, EXPECTED) as archive:
            step: int = get(archive.header, "step", int)
            counts = tuple(get(archive.header, "counts", list))
        if counts != self._shards.counts:
            msg = (
                f"checkpoint {str(self._manifest)!r} belongs to {len(counts)} processes with "
                f"{counts} samples: expected {len(self._shards.counts)} with "
                f"{self._shards.counts}, as now; start as many, or remove it"
            )
            raise ValueError(msg)
        return step

    def _read_own(self, objective: JointObjective, like: Array, levels: int) -> Stored | None:
        if not self.path.exists():
            msg = f"checkpoint: {str(self.path)!r} was not found: expected it beside the manifest"
            raise ValueError(msg)
        return self._contents(objective, like, levels)
