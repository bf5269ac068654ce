"""Arrays on disk, read and written a few samples at a time: they may be larger than memory."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Scratch:
    """A folder for temporary files, which is removed when nothing refers to it any more."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        import shutil  # not at the top: few fits need them
        import tempfile

        if folder is not None and (
            not isinstance(folder, str | os.PathLike) or not Path(folder).is_dir()
        ):
            msg = f"scratch is {folder!r}: expected a folder that exists"
            raise ValueError(msg)
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="wtfarray-", dir=folder))
        except OSError as error:
            msg = f"scratch is {folder!r}: expected a folder that can be written to; {error}"
            raise ValueError(msg) from error
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._count = 0

    def zeros(self, shape: tuple[int, ...], dtype: str) -> FileArray:
        """A new array of zeros; the file takes no room until it is written to."""
        self._count += 1
        return FileArray(self, self._folder / f"{self._count}.bin", shape, np.dtype(dtype))


class FileArray:
    """
    An array in a file of its own, which is deleted with it.

    Only the samples that are read or written are mapped into memory, for the time that takes.
    """

    def __init__(
        self, scratch: Scratch, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.path = path
        self._scratch = scratch  # keeps the folder
        self._row = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        with path.open("wb") as stream:
            stream.truncate(self._row * shape[0])
        weakref.finalize(self, _unlink, path)

    @property
    def ndim(self) -> int:
        """Number of modes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        """Shape, dtype and where it is."""
        return f"<array of shape {self.shape}, {self.dtype}, in {str(self.path)!r}>"

    def __getitem__(self, key: Any) -> Any:
        """A copy of some samples, by an integer or a slice, and of a part of them."""
        first, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(first, slice):
            start, stop, step = first.indices(self.shape[0])
            if step > 0:
                found = np.array(self._window(start, max(start, stop), "r"))[::step]
                return found[(slice(None), *rest)] if rest else found
        elif isinstance(first, int | np.integer) and -len(self) <= first < len(self):
            found = np.array(self._window(int(first) % len(self), None, "r"))
            return found[tuple(rest)] if rest else found
        return np.asarray(self)[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: FBT001
        """The whole array in memory."""
        if copy is False:
            msg = "an array on disk cannot be converted without a copy"
            raise ValueError(msg)
        return np.asarray(self[:], dtype=dtype)

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Replace samples, from the one with index ``start`` on."""
        self._window(start, start + rows.shape[0], "r+")[...] = rows

    def memmap(self) -> NDArray[Any]:
        """The whole array, mapped into memory."""
        return self._window(0, self.shape[0], "r")

    def _window(self, start: int, stop: int | None, mode: Any) -> NDArray[Any]:
        """Some samples, mapped into memory; one sample if ``stop`` is None."""
        shape = self.shape[1:] if stop is None else (stop - start, *self.shape[1:])
        if 0 in shape:
            return np.empty(shape, self.dtype)
        offset = start * self._row
        return np.memmap(self.path, self.dtype, mode=mode, offset=offset, shape=shape)


def _unlink(path: Path) -> None:
    """Delete a file, which may be gone with its folder; where it is still open, leave it."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
