"""The state of a joint fit on disk, from which an interrupted fit can continue."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import asarray_like
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import refuse_where
from wtfarray._fit.journal import Record
from wtfarray._fit.storage import (
    Archive,
    as_number,
    check_finite,
    get,
    get_count,
    read_records,
    reading,
    to_dtype_name,
    try_to_write,
    write_atomically,
    write_records,
)
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._optimize.objective import Point
from wtfarray._solvers.envelope import Progress, new_pairs
from wtfarray._solvers.objective import Evaluation, JointObjective

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
    has_states: bool = True
    """Whether the states of the inner problems were stored; otherwise they are to be solved."""


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
        try:
            try_to_write(self.path)
        except OSError as error:
            msg = (
                f"checkpoint is {os.fspath(path)!r}: expected a folder that can be written to; "
                f"{error.strerror or error}"
            )
            raise ValueError(msg) from error
        self._warned = False
        digest = hashlib.sha256(repr(arguments).encode())
        for array in arrays:
            digest.update(np.ascontiguousarray(to_host(array)).tobytes())
        self._identity = digest.hexdigest()

    @property
    def exists(self) -> bool:
        """Whether there is a state to continue from."""
        return self.path.exists()

    def write(
        self,
        progress: Progress,
        pairs: CurvaturePairs,
        states: list[Array],
        history: list[Record],
        n_iter: int,
        seconds: float,
    ) -> None:
        """Replace the file atomically; if that fails, warn once, so that the fit continues."""
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
        arrays: dict[str, NDArray[Any]] = {
            "history": write_records(history),
            "x": to_host(point.x),
            "gradient": to_host(point.gradient),
            **{
                f"state_{k}": to_host(state)
                for k, state in enumerate(states)
                if not isinstance(state, tuple)  # files as large as the data
            },
            **{f"pairs_{name}": array for name, array in pairs.export().items()},
        }
        try:
            write_atomically(self.path, header, arrays)
        except OSError as error:
            self._warn("written", error)

    def read(self, objective: JointObjective, like: Array, levels: int) -> Stored | None:
        """
        The contents of the file, or None if it does not exist; refuses that of another fit.

        Parameters
        ----------
        objective : JointObjective
            The objective of this fit.
        like : array (n,)
            A point, for its shape, dtype and device.
        levels : int
            Number of smoothing levels.
        """
        if not self.exists:
            return None
        return self._contents(objective, like, levels)

    def _contents(self, objective: JointObjective, like: Array, levels: int) -> Stored:
        """The contents of the file."""
        with reading("checkpoint", self.path, "a file written by a fit") as archive:
            if "counts" in archive.header:
                counts = get(archive.header, "counts", list)
                msg = f"it belongs to {len(counts)} processes; continue on two or more, with comm"
                raise ValueError(msg)
            identity = get(archive.header, "identity", str)
            found = None
            if identity == self._identity:
                found = stored_state(archive, objective, like, levels)
        if found is None:
            self._refuse_other()
        return found

    def write_arrays(
        self, numbers: dict[str, float], arrays: dict[str, NDArray[np.float64]]
    ) -> None:
        """Replace the file by numbers and arrays of another solver; as `write` if that fails."""
        try:
            write_atomically(self.path, {"identity": self._identity, **numbers}, arrays)
        except OSError as error:
            self._warn("written", error)

    def read_arrays(
        self, numbers: Sequence[str], shapes: dict[str, tuple[int | None, ...]]
    ) -> tuple[dict[str, float], dict[str, NDArray[np.float64]]] | None:
        """What `write_arrays` wrote, None if the file does not exist; refuses that of another."""
        if not self.path.exists():
            return None
        with reading("checkpoint", self.path, "a file written by a fit") as archive:
            header, found = archive.header, None
            if get(header, "identity", str) == self._identity:
                found = {name: as_number(name, get(header, name, (int, float))) for name in numbers}
                arrays = {name: archive.read(name, shape) for name, shape in shapes.items()}
                for name, array in arrays.items():
                    check_finite(name, array, "float64")
                archive.finish()
        if found is None:
            self._refuse_other()
        return found, arrays

    def _refuse_other(self) -> NoReturn:
        msg = (
            f"checkpoint {str(self.path)!r} belongs to a fit with different data or "
            f"arguments: expected one of this fit; remove it or choose another path"
        )
        raise ValueError(msg)

    def remove(self) -> None:
        """Delete the file after the fit has converged."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self._warn("removed", error)

    def _warn(self, what: str, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            msg = f"checkpoint {str(self.path)!r} cannot be {what}: {error.strerror or error}"
            warnings.warn(msg, stacklevel=2)


def stored_state(
    archive: Archive,
    objective: JointObjective,
    like: Array,
    levels: int,
    *,
    has_states: bool = True,
) -> Stored:
    """The content of a file of this fit, checked; without states, the present ones are kept."""
    xp, dtype, header = array_namespace(like), to_dtype_name(like), archive.header

    def array(name: str, shape: Sequence[int]) -> Array:
        found = archive.read(name, tuple(shape))
        check_finite(name, found, dtype)
        return asarray_like(found, like)

    def numbers(name: str, *least: float, infinite: bool = False) -> list[float]:
        found = get(header, name, list)
        pairs = zip(found, least, strict=True)
        return [as_number(name, number, low, infinite=infinite) for number, low in pairs]

    point = Point(
        array("x", like.shape),
        array("gradient", like.shape),
        *numbers("point", -math.inf, 0.0, 0.0, -math.inf),
    )
    if not objective.sums.shared:  # the blocks may take sums, for which all have to be here
        with np.errstate(all="ignore"):
            blocks = objective.blocks(point.x)
        for k, block in enumerate(blocks):
            refuse_where(~xp.isfinite(block), f"block {k}", block, "finite values")
    error, gap, converged = get(header, "current", list)
    current = Evaluation(
        point,
        as_number("the error", error),
        as_number("the gap", gap, infinite=True),
        get({"converged": converged}, "converged", bool),
    )
    names = ("level", "steps", "small_steps", "failures")
    counts = dict(zip(names, get(header, "progress", list), strict=True))
    level, steps, small_steps, failures = (get_count(counts, name) for name in names)
    if level >= levels:
        msg = f"level is {level}: expected one of {levels}"
        raise ValueError(msg)
    decrease, tightness = numbers("numbers", 0.0, 0.0, infinite=True)
    if tightness > 1.0:
        msg = f"tightness is {tightness}: expected at most 1"
        raise ValueError(msg)
    found = Stored(
        Progress(level, steps, current, decrease, tightness, small_steps, failures),
        _stored_pairs(archive, objective, point, dtype),
        [
            array(f"state_{k}", state.shape)
            if has_states and not isinstance(state, tuple)
            else state
            for k, state in enumerate(objective.states())
        ],
        read_records(archive),
        get_count(header, "n_iter"),
        as_number("seconds", get(header, "seconds", (int, float)), 0.0),
        has_states,
    )
    archive.finish()
    return found


def _stored_pairs(
    archive: Archive, objective: JointObjective, point: Point, dtype: str
) -> CurvaturePairs:
    """The curvature pairs, of the sizes that an empty memory has."""
    pairs = new_pairs(point, objective.sums, objective.shared)
    empty = pairs.export()
    stored = {
        name: archive.read(f"pairs_{name}", (None,) if name in {"used", "free"} else like.shape)
        for name, like in empty.items()
    }
    for name, found in stored.items():
        check_finite(f"pairs_{name}", found, dtype if name in {"rows", "diagonal"} else "float64")
    slots = np.concatenate([stored["used"], stored["free"]])
    if sorted(slots.tolist()) != sorted(empty["free"].tolist()):
        msg = "the slots of its curvature pairs are not each there once"
        raise ValueError(msg)
    curvature = stored["gram"].diagonal(1)[::2][stored["used"].astype(int)]
    inverse = (curvature, stored["scale"], stored["diagonal"])
    if not all((part > 0).all() for part in inverse) or not stored["gradient_square"] >= 0:
        msg = "its curvature is not positive"
        raise ValueError(msg)
    pairs.restore(stored)
    return pairs
