"""
Sums over samples, and the decisions that follow from them, if several processes share the samples.

Everything that adds over samples or decides for all of them goes through a `Sums`. Without a
communicator it does nothing but what the array library does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array

Result = TypeVar("Result")
MESSAGE_LENGTH = 2000
"""Number of characters of an error message that are sent to the other ranks."""


class AgreedError(Exception):
    """An error of which all ranks know; ``error`` is what the user sees."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Sums:
    """
    Sums over the samples of all processes of a team.

    Parameters
    ----------
    comm : Communicator, optional
        The team; None if this process has all samples.
    silent : bool
        Whether this process takes part without samples of its own: it adds zeros.
    """

    def __init__(self, comm: Communicator | None = None, *, silent: bool = False) -> None:
        self.comm = comm
        self.silent = silent

    @property
    def shared(self) -> bool:
        """Whether other processes hold some of the samples."""
        return self.comm is not None

    @property
    def has_effects(self) -> bool:
        """Whether a sum sends messages, so that functions that add cannot be compiled."""
        return self.shared

    @property
    def leads(self) -> bool:
        """Whether this is the process that speaks for all."""
        return self.comm is None or self.comm.rank == 0

    def without_samples(self) -> Sums:
        """The same sums for a process that has none of the samples in question."""
        return Sums(self.comm, silent=True)

    def host(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum over all processes of an array on the host."""
        if self.comm is None:
            return array
        return self.comm.sum(np.zeros_like(array) if self.silent else array)

    def numbers(self, *values: float) -> list[float]:
        """The sums of several numbers, in one message."""
        if self.comm is None:
            return list(values)
        total: list[float] = self.host(np.asarray(values, dtype=np.float64)).tolist()
        return total

    def any(self, flag: bool, /) -> bool:  # noqa: FBT001
        """Whether the flag is set on some process."""
        return flag if self.comm is None else self.numbers(float(flag))[0] > 0

    def all(self, flag: bool, /) -> bool:  # noqa: FBT001
        """Whether the flag is set on all processes."""
        return flag if self.comm is None else not self.any(not flag)

    def arrays(
        self, arrays: Sequence[Array], numbers: Sequence[float] = ()
    ) -> tuple[list[Array], list[float]]:
        """The sums of several arrays and numbers, in one message."""
        if self.comm is None:
            return list(arrays), list(numbers)
        parts = [to_host(array).reshape(-1) for array in arrays]
        packed = self.host(np.concatenate([*parts, np.asarray(numbers, dtype=np.float64)]))
        found, start = [], 0
        for array, part in zip(arrays, parts, strict=True):
            total = packed[start : start + part.size].reshape(tuple(array.shape))
            start += part.size
            found.append(asarray_like(total, array))
        return found, packed[start:].tolist()

    def array(self, array: Array) -> Array:
        """The sum of one array."""
        return array if self.comm is None else self.arrays([array])[0][0]

    def over(self, array: Array, axis: int | tuple[int, ...] | None) -> Array:
        """The sum along some axes, kept, of an array whose first axis is shared."""
        total = array_namespace(array).sum(array, axis=axis, keepdims=True)
        return self.array(total) if self.shared and _has_first(axis) else total

    def mean(self, array: Array, axis: int | tuple[int, ...] | None) -> Array:
        """The mean along some axes, kept, of an array whose first axis is shared."""
        xp = array_namespace(array)
        if not (self.shared and _has_first(axis)):
            return xp.mean(array, axis=axis, keepdims=True)
        total = xp.sum(array, axis=axis, keepdims=True)
        count = float(np.prod(array.shape)) / max(1.0, float(np.prod(total.shape)))
        (total,), (count,) = self.arrays([total], [count])
        return total / max(count, 1.0)

    def share(self, count: int) -> slice:
        """The share of this process of so many things that all processes have."""
        if self.comm is None:
            return slice(0, count)
        rank, size = self.comm.rank, self.comm.size
        return slice(count * rank // size, count * (rank + 1) // size)

    def place(self, count: int) -> tuple[int, int]:
        """The sum of the counts of the processes before this one, and that of all."""
        if self.comm is None:
            return 0, count
        counts = np.zeros(self.comm.size)
        counts[self.comm.rank] = 0 if self.silent else count
        counts = self.comm.sum(counts)
        return int(counts[: self.comm.rank].sum()), int(counts.sum())

    def largest(self, value: float) -> float:
        """The largest of the numbers of all processes."""
        if self.comm is None:
            return value
        values = np.zeros(self.comm.size)
        values[self.comm.rank] = value
        return float(self.comm.sum(values).max())

    def from_rank(self, array: NDArray[np.float64], root: int) -> NDArray[np.float64]:
        """The array of one process, on all of them."""
        if self.comm is None:
            return array
        return self.comm.sum(array if self.comm.rank == root else np.zeros_like(array))

    def agree(self, check: Callable[[], Result]) -> Result:
        """The result of a check that makes no collective call; its error is raised everywhere."""
        if self.comm is None:
            return check()
        error: Exception | None = None
        try:
            result = check()
        except Exception as found:  # noqa: BLE001
            error = found
        failed = np.zeros(self.comm.size)
        failed[self.comm.rank] = error is not None
        failed = self.comm.sum(failed)
        if failed.any():
            first = int(np.argmax(failed))
            mine = error is not None and first == self.comm.rank
            message = self.text(described(error) if mine and error is not None else "")
            raise AgreedError(error or RuntimeError(f"rank {first} has failed: {message}"))
        return result

    def text(self, text: str) -> str:
        """The text of one process on all of them; the others give an empty one."""
        if self.comm is None:
            return text
        codes = np.zeros(MESSAGE_LENGTH)
        found = np.frombuffer(text.encode()[:MESSAGE_LENGTH], dtype=np.uint8)
        codes[: found.size] = found
        shared = self.comm.sum(codes)
        return bytes(shared[shared > 0].astype(np.uint8)).decode(errors="replace")


def refusal(sums: Sums, error: Exception) -> Exception:
    """An error that all processes raise, as such."""
    return AgreedError(error) if sums.shared else error


ALONE = Sums()
"""The sums of a process that has all samples."""


def described(error: BaseException) -> str:
    """The type and the message of an error."""
    return f"{type(error).__name__}: {error}"


def asarray_like(values: NDArray[np.float64], array: Array) -> Array:
    """Values on the host as an array of the library, dtype and device of another."""
    xp = array_namespace(array)
    return xp.asarray(values, dtype=array.dtype, device=device_of(array))


def _has_first(axis: int | tuple[int, ...] | None) -> bool:
    return axis is None or 0 in (axis if isinstance(axis, tuple) else (axis,))


@contextmanager
def failing_together(comm: Communicator | None) -> Iterator[None]:
    """Tell the other ranks of an error that only this one has."""
    if comm is None:
        yield
        return
    try:
        yield
    except AgreedError as agreed:
        raise agreed.error from None
    except BaseException as error:
        comm.fail(described(error))
        raise
