"""Input of the command line that is larger than memory: an ``.npy`` file, read in chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.typing import Array
from wtfarray.cli._data import normalised, observed, on_grid, to_backend
from wtfarray.distributed import Communicator


class SamplesInFile:
    """
    Samples of an ``.npy`` file, prepared when they are read.

    Parameters
    ----------
    path : Path
        The file, of which only the samples that are asked for are read.
    grid : tuple of int or None
        The grid of the last modes.
    missing : float or None
        Value of missing entries.
    normalise : bool
        Whether each sample is divided by its sum.
    backend, device, dtype
        As for `to_backend`.
    comm : Communicator, optional
        The team of this process, which has a part of the samples.
    """

    def __init__(
        self,
        path: Path,
        grid: tuple[int, ...] | None,
        missing: float | None,
        backend: str,
        device: str | None,
        dtype: str,
        comm: Communicator | None = None,
        *,
        normalise: bool,
    ) -> None:
        if path.suffix.lower() != ".npy":
            msg = f"--chunk was given with {path}: expected an .npy file, which is read in chunks"
            raise ValueError(msg)
        try:
            self._whole = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            msg = f"{path} cannot be read: {error}"
            raise ValueError(msg) from error
        if self._whole.ndim == 0 or self._whole.dtype.kind not in "biuf":
            found = f"{self._whole.dtype}, {self._whole.ndim}-d"
            msg = f"{path} contains {found}: expected an array of real numbers"
            raise TypeError(msg)
        if comm is not None:
            n = self._whole.shape[0]
            begin, end = (n * k // comm.size for k in (comm.rank, comm.rank + 1))
            self._whole = self._whole[begin:end]
        self._grid = grid
        self._missing = missing
        self._normalise = normalise
        self._target = (backend, device, dtype)
        self.dtype = np.dtype(dtype)
        self.shape = (self._whole.shape[0], *on_grid(self._whole[:1], grid).shape[1:])

    def __getitem__(self, rows: slice) -> Array:
        """Some samples, as an array of the library."""
        part = self.stored(rows)
        if self._normalise:
            part = normalised(part, observed(part, self._missing), first=rows.start)
        return to_backend(part, *self._target)

    def mask(self) -> SeenInFile | None:
        """Where something was observed; None if all entries are data."""
        return None if self._missing is None else SeenInFile(self, self._missing)

    def stored(self, rows: slice) -> NDArray[Any]:
        """Some samples as they are in the file."""
        return on_grid(np.array(self._whole[rows]), self._grid)


class SeenInFile:
    """A mask of the samples of a file, found when they are read."""

    def __init__(self, samples: SamplesInFile, missing: float) -> None:
        self.shape = samples.shape
        self.dtype = np.dtype(bool)
        self._samples = samples
        self._missing = missing

    def __getitem__(self, rows: slice) -> NDArray[np.bool_]:
        """True where something was observed."""
        found = observed(self._samples.stored(rows), self._missing)
        assert found is not None
        return found
