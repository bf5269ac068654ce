"""The interface between a fit and the processes that share its samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Communicator(Protocol):
    """
    A team of processes, each of which holds some of the samples.

    `wtfarray.distributed` has implementations for MPI, torch.distributed and threads. All methods
    but `fail` are collective: every rank of the team calls them in the same order.

    Examples
    --------
    >>> from wtfarray.distributed import Communicator, threads
    >>> all(isinstance(rank, Communicator) for rank in threads(2))
    True
    """

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    def size(self) -> int:
        """The number of processes."""

    def sum(self, array: NDArray[np.float64], /) -> NDArray[np.float64]:
        """The sum over all ranks of arrays of one shape, with the same bits on every rank."""

    def split(self, groups: Sequence[Sequence[int]], /) -> Communicator | None:
        """
        A communicator of the group that holds this rank, or None if no group does.

        The groups are disjoint, increasing lists of ranks, and the same on every rank.
        """

    def fail(self, message: str, /) -> None:
        """
        Tell all ranks that this one has failed: what they wait for will not come.

        Their present or next collective call raises RuntimeError with the message.
        """
