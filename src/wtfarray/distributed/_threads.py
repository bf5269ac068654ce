"""Teams of threads of one process, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from wtfarray.distributed._waiting import Shareable, no_answer

Result = TypeVar("Result")


class _Room:
    """What the threads of one team share."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self.slots: list[list[NDArray[np.float64]]] = [[np.zeros(0)] * size for _ in range(2)]
        """Two sets, used in turn: the next sum begins while some still read the last one."""
        self.rooms: dict[tuple[int, ...], _Room] = {}
        self.failure: str | None = None
        self._changed = threading.Condition()
        self._arrived = 0
        self._met = 0

    def wait(self) -> None:
        """Wait for all; a failure after they have met is none of this meeting."""
        with self._changed:
            if self.failure is not None:
                raise RuntimeError(self.failure)
            met = self._met
            self._arrived += 1
            if self._arrived == self.size:
                self._arrived, self._met = 0, met + 1
                self._changed.notify_all()
                return
            self._changed.wait_for(
                lambda: self._met != met or self.failure is not None, self.timeout
            )
            if self._met == met:
                raise RuntimeError(self.failure) if self.failure else no_answer(self.timeout)

    def group(self, ranks: tuple[int, ...]) -> _Room:
        """The room of some of the ranks."""
        with self._changed:
            room = self.rooms.setdefault(ranks, _Room(len(ranks), self.timeout))
            room.failure = room.failure or self.failure
        return room

    def fail(self, message: str) -> None:
        """Wake all that wait, here and in groups."""
        with self._changed:
            self.failure = self.failure or message
            self._changed.notify_all()
            rooms = list(self.rooms.values())
        for room in rooms:
            room.fail(message)


class ThreadCommunicator(Shareable):
    """One thread of a team; see `threads`."""

    def __init__(self, room: _Room, rank: int) -> None:
        self._room = room
        self.rank = rank
        self.size = room.size
        self._groups: dict[tuple[int, ...], ThreadCommunicator] = {}
        self.messages = 0
        """Number of sums so far."""
        self.bytes = 0
        """Number of bytes in them."""

    def sum(self, array: NDArray[np.float64], /) -> NDArray[np.float64]:
        """The sum over all ranks, in their order."""
        room = self._room
        slots = room.slots[self.messages % 2]
        self.messages += 1
        self.bytes += array.nbytes
        slots[self.rank] = array
        room.wait()
        shapes = {slot.shape for slot in slots}
        if len(shapes) > 1:
            msg = f"the ranks sum arrays of shapes {shapes}: expected one shape"
            raise RuntimeError(msg)
        return np.asarray(np.sum(np.stack(slots), axis=0))

    def split(self, groups: Sequence[Sequence[int]], /) -> ThreadCommunicator | None:
        """The group of this rank, or None; made once for the same groups."""
        ranks = next((tuple(group) for group in groups if self.rank in group), None)
        if ranks is None:
            return None
        if ranks not in self._groups:
            room = self._room.group(ranks)
            self._groups[ranks] = ThreadCommunicator(room, ranks.index(self.rank))
        return self._groups[ranks]

    def fail(self, message: str, /) -> None:
        """Wake all ranks that wait for this one."""
        self._room.fail(f"rank {self.rank} has failed: {message}")


def threads(size: int, *, timeout: float = 60.0) -> list[ThreadCommunicator]:
    """
    A team of threads of this process, for tests: one communicator for each.

    Parameters
    ----------
    size : int
        Number of threads.
    timeout : float
        Seconds after which a rank that waits for another gives up.

    Returns
    -------
    list of Communicator
        The communicator of each rank, to be used in a thread of its own.

    Examples
    --------
    >>> from wtfarray.distributed import threads
    >>> [comm.rank for comm in threads(3)]
    [0, 1, 2]
    """
    room = _Room(size, timeout)
    return [ThreadCommunicator(room, rank) for rank in range(size)]


def run_threads(
    function: Callable[[ThreadCommunicator], Result], size: int, *, timeout: float = 60.0
) -> list[Result]:
    """
    Run a function on every rank of a team of threads; the error of the first that fails is raised.

    Parameters
    ----------
    function : callable
        Called with the communicator of each rank, in a thread of its own.
    size : int
        Number of threads.
    timeout : float
        As for `threads`.

    Returns
    -------
    list
        What the function returned, rank by rank.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> from wtfarray.distributed import run_threads
    >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
    >>> loss = wtf.Wasserstein(wtf.grid_cost(12), eps=0.05, lam=10.0)
    >>> def fit(comm):
    ...     mine = np.array_split(X, comm.size)[comm.rank]
    ...     return wtf.nmf(mine, 2, loss, rng=0, comm=comm)
    >>> fits = run_threads(fit, 3)
    >>> [fit.factors[0].shape for fit in fits]
    [(3, 2), (3, 2), (2, 2)]
    >>> bool(np.all(fits[0].factors[1] == fits[2].factors[1]))
    True
    """
    team = threads(size, timeout=timeout)
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def run(comm: ThreadCommunicator) -> None:
        try:
            results[comm.rank] = function(comm)
        except BaseException as error:  # noqa: BLE001
            errors[comm.rank] = error
            comm.fail(f"{type(error).__name__}: {error}")

    workers = [threading.Thread(target=run, args=(comm,)) for comm in team]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = [error for error in errors if error is not None]
    if found:
        named = [e for e in found if not (isinstance(e, RuntimeError) and "has failed" in str(e))]
        raise (named or found)[0]
    return results
