"""Teams of MPI processes, by mpi4py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.validation import positive_number
from wtfarray.distributed._waiting import TIMEOUT, Shareable, wait_for

FAILED = 7651
"""The tag of messages about failures."""


class MPICommunicator(Shareable):
    """The processes of an MPI communicator; see `mpi`."""

    def __init__(
        self, comm: Any, team: MPICommunicator | None = None, timeout: float = TIMEOUT
    ) -> None:
        self._comm = comm
        self._timeout = timeout
        self._team = self if team is None else team
        self._groups: dict[tuple[tuple[int, ...], ...], MPICommunicator | None] = {}
        self._sent: list[Any] = []
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def sum(self, array: NDArray[np.float64], /) -> NDArray[np.float64]:
        """The sum over all ranks."""
        mine = np.array(array, dtype=np.float64, order="C")
        total = np.empty_like(mine)
        request = self._comm.Iallreduce(mine, total)
        wait_for(request.Test, self._team.check_failure, self._timeout)
        return total

    def split(self, groups: Sequence[Sequence[int]], /) -> MPICommunicator | None:
        """The group of this rank, or None; made once for the same groups."""
        key = tuple(tuple(group) for group in groups)
        if key not in self._groups:
            from mpi4py import MPI

            colour = next((k for k, g in enumerate(key) if self.rank in g), MPI.UNDEFINED)
            part = self._comm.Split(colour, self.rank)
            found = (
                None if part == MPI.COMM_NULL else MPICommunicator(part, self._team, self._timeout)
            )
            self._groups[key] = found
        return self._groups[key]

    def fail(self, message: str, /) -> None:
        """Send the message to all ranks, which look for it while they wait."""
        text = f"rank {self.rank} has failed: {message}"
        others = (rank for rank in range(self.size) if rank != self.rank)
        self._sent += [self._comm.isend(text, rank, FAILED) for rank in others]

    def check_failure(self) -> None:
        """Raise the failure of another rank."""
        if self._comm.iprobe(tag=FAILED):
            raise RuntimeError(self._comm.recv(tag=FAILED))


def mpi(comm: Any = None, /, *, timeout: float = TIMEOUT) -> MPICommunicator:
    """
    A team of MPI processes. Requires mpi4py and an implementation of MPI.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        The processes; all of them, ``MPI.COMM_WORLD``, by default. It is duplicated, so that no
        message of the caller is mistaken for one of a fit.
    timeout : float
        Seconds after which a rank that waits for another one gives up with an error, in case that
        one has never called the function. ``inf`` to wait for ever.

    Returns
    -------
    Communicator
        To be passed as ``comm``.

    Examples
    --------
    Start it with ``mpiexec -n 4 python -m mpi4py script.py``, so that an error of one process ends
    all::

        import numpy as np
        import wtfarray as wtf
        from wtfarray.distributed import mpi

        comm = mpi()
        X = np.load("images.npy", mmap_mode="r")
        X = np.array(np.array_split(X, comm.size)[comm.rank])
        fit = wtf.nmf(X, 50, loss, rng=0, comm=comm)
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        msg = "distributed.mpi needs mpi4py and MPI: pip install 'wtfarray[mpi]' mpich"
        raise ImportError(msg) from error
    chosen = MPI.COMM_WORLD if comm is None else comm
    if not isinstance(chosen, MPI.Intracomm):
        msg = f"comm is a {type(comm).__name__}: expected an mpi4py.MPI.Intracomm"
        raise TypeError(msg)
    return MPICommunicator(chosen.Dup(), timeout=positive_number("timeout", timeout, infinite=True))
