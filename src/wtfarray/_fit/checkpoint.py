"""The state of a joint fit on disk, from which an interrupted fit can continue."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.typing import Array
from wtfarray._fit.journal import Record
from wtfarray._fit.storage import reading, write_atomically
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._optimize.objective import Point
from wtfarray._solvers.envelope import Progress, new_pairs
from wtfarray._solvers.objective import Evaluation

EVERY = 10
"""Number of steps between two checkpoints."""


@dataclass(frozen=True, eq=False)
class Stored:
    """The contents of a checkpoint."""

    progress: Progress
    pairs: CurvaturePairs
    states: list[Array]
    history: list[Record]
    n_iter: int
    seconds: float


class Checkpoint:
    """A checkpoint file, identified by the data and the arguments of its fit."""

    def __init__(
        self, path: str | os.PathLike[str], arrays: Iterable[Array], arguments: object
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            msg = f"checkpoint is {path!r}: expected a path"
            raise TypeError(msg)
        self.path = Path(path)
        if self.path.is_dir() or not self.path.parent.is_dir():
            msg = f"checkpoint is {os.fspath(path)!r}: expected a file in a folder that exists"
            raise ValueError(msg)
        digest = hashlib.sha256(repr(arguments).encode())
        for array in arrays:
            digest.update(np.ascontiguousarray(to_host(array)).tobytes())
        self._identity = digest.hexdigest()

    def write(
        self,
        progress: Progress,
        pairs: CurvaturePairs,
        states: list[Array],
        history: list[Record],
        n_iter: int,
        seconds: float,
    ) -> None:
        """Replace the file atomically."""
        point, current = progress.current.point, progress.current
        header = {
            "identity": self._identity,
            "point": [point.value, point.norm, point.square, point.slope],
            "current": [current.error, current.gap, current.converged],
            "progress": [progress.level, progress.n_iter, progress.small_steps, progress.failures],
            "numbers": [progress.decrease, progress.tightness],
            "n_iter": n_iter,
            "seconds": seconds,
        }
        records = [[r.time, r.objective, r.gap, r.evaluations] for r in history]
        arrays: dict[str, NDArray[Any]] = {
            "header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
            "history": np.asarray(records, dtype=np.float64).reshape(-1, 4),
            "x": to_host(point.x),
            "gradient": to_host(point.gradient),
            **{f"state_{k}": to_host(state) for k, state in enumerate(states)},
            **{f"pairs_{name}": array for name, array in pairs.export().items()},
        }
        write_atomically(self.path, arrays)

    def read(self, like: Array) -> Stored | None:
        """The contents of the file, or None if it does not exist; refuses that of another fit."""
        if not self.path.exists():
            return None
        xp = array_namespace(like)
        with reading("checkpoint", self.path, "identity", "a file that a fit wrote") as opened:
            stored, header = opened
            if header["identity"] != self._identity:
                msg = (
                    f"checkpoint {str(self.path)!r} belongs to a fit with different data or "
                    f"arguments: expected one of this fit; remove it or choose another path"
                )
                raise ValueError(msg)

            def array(name: str) -> Array:
                return xp.asarray(stored[name], dtype=like.dtype, device=device_of(like))

            point = Point(array("x"), array("gradient"), *header["point"])
            pairs = new_pairs(point)
            names = [name for name in stored.files if name.startswith("pairs_")]
            pairs.restore({name.removeprefix("pairs_"): stored[name] for name in names})
            level, steps, small_steps, failures = header["progress"]
            decrease, tightness = header["numbers"]
            current = Evaluation(point, *header["current"])
            count = sum(name.startswith("state_") for name in stored.files)
            return Stored(
                Progress(level, steps, current, decrease, tightness, small_steps, failures),
                pairs,
                [array(f"state_{k}") for k in range(count)],
                [Record(t, j, gap, int(n)) for t, j, gap, n in stored["history"].tolist()],
                header["n_iter"],
                header["seconds"],
            )

    def remove(self) -> None:
        """Delete the file after the fit has converged."""
        self.path.unlink(missing_ok=True)
