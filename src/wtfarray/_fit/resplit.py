"""Files of several processes that continue with other shards: which rows belong to whom."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.typing import Array
from wtfarray._fit.storage import Archive, reading

EXPECTED = "a file written by a fit of several processes"
WORD = 2**32
"""Digests of samples are added modulo this number, word by word: float64 holds the sums exactly."""
SHARED = ("x", "gradient", "pairs_rows", "pairs_diagonal")
"""Arrays whose last axis begins with the entries of the first factor, row by row."""


def rounded(arguments: object) -> str:
    """
    A representation in which numbers have nine digits.

    Sums over samples, such as the default weights of the entropies, are rounded differently if
    other processes hold the samples.
    """
    number = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+")
    return number.sub(lambda match: f"{float(match[0]):.9g}", repr(arguments))


def digest_of_samples(arrays: Sequence[Array], first: int) -> NDArray[np.float64]:
    """
    Four words that identify samples and their order, whichever process holds them.

    The arrays have the samples of this process along their first axis, and ``first`` is the number
    of samples before these. The words of all processes are added.
    """
    hosts = [np.ascontiguousarray(to_host(array)) for array in arrays]
    total = np.zeros(4, dtype=np.uint64)
    for i in range(hosts[0].shape[0]):
        digest = hashlib.sha256(str(first + i).encode())
        for host in hosts:
            digest.update(host[i].tobytes())
        total += np.frombuffer(digest.digest()[:16], dtype="<u4").astype(np.uint64)
    return (total % np.uint64(WORD)).astype(np.float64)


def resplit(files: Sequence[Path], counts: Sequence[int], rows: slice, others: int) -> Archive:
    """
    The state of some samples, from the files of processes with other ones.

    Parameters
    ----------
    files : sequence of Path
        One for each process that wrote them.
    counts : sequence of int
        The number of samples of each.
    rows : slice
        The samples in question, numbered over all processes.
    others : int
        The number of entries of a vector that do not belong to samples.
    """
    begins = [0, *itertools.accumulate(counts)]
    found: list[_Part] = []
    for path, begin, count in zip(files, begins, counts, strict=False):
        here = slice(max(rows.start - begin, 0), min(rows.stop - begin, count))
        if here.start < here.stop or (not found and begin + count >= rows.stop):
            found.append(_Part(path, here, count, others))
    return _Joined(found)


class _Part:
    """The arrays of one file, of which some rows are needed."""

    def __init__(self, path: Path, rows: slice, count: int, others: int) -> None:
        if not path.exists():
            msg = f"checkpoint: {str(path)!r} was not found: expected it beside the manifest"
            raise ValueError(msg)
        with reading("checkpoint", path, EXPECTED) as archive:
            self.header = archive.header
            self.arrays = {name: archive.read(name, (None,)) for name in ("x", "gradient")}
            self.arrays["history"] = archive.read("history", (None, 4))
            for name in ("used", "free", "gradient_products", "diagonal"):
                self.arrays[f"pairs_{name}"] = archive.read(f"pairs_{name}", (None,))
            for name in ("rows", "gram"):
                self.arrays[f"pairs_{name}"] = archive.read(f"pairs_{name}", (None, None))
            for name in ("scale", "gradient_square"):
                self.arrays[f"pairs_{name}"] = archive.read(f"pairs_{name}", ())
        own = self.arrays["x"].shape[0] - others
        columns = own // count if count else 0
        self._own = own
        self._rows = slice(columns * rows.start, max(columns * rows.start, columns * rows.stop))

    def rows(self, name: str) -> NDArray[np.float64]:
        """The entries of the rows that are needed."""
        return self.arrays[name][..., : self._own][..., self._rows]

    def others(self, name: str) -> NDArray[np.float64]:
        """The entries that all processes have."""
        return self.arrays[name][..., self._own :]


class _Joined(Archive):
    """Rows of several files as one file."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.header = parts[0].header
        self._arrays = dict(parts[0].arrays)
        for name in SHARED:
            pieces = [*(part.rows(name) for part in parts), parts[0].others(name)]
            self._arrays[name] = np.concatenate(pieces, axis=-1)

    def has(self, name: str) -> bool:
        """Whether there is such an array."""
        return name in self._arrays

    def read(
        self, name: str, shape: tuple[int | None, ...], kind: str = "f8"
    ) -> NDArray[np.float64]:
        """An array of the given shape, in which None stands for any size."""
        found = self._arrays[name]
        fits = (n is None or n == m for n, m in zip(shape, found.shape, strict=False))
        if kind != "f8" or found.ndim != len(shape) or not all(fits):
            msg = f"checkpoint: {name} has shape {found.shape}: expected {shape}"
            raise ValueError(msg)
        return found

    def finish(self) -> None:
        """All arrays that are needed were read."""
