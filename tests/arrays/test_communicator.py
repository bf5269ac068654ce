"""The protocol that a team of processes implements."""

import numpy as np
from helpers import numpy_only
from teams import GRID_LOSS, assert_alike, images, quietly, traced

import wtfarray as wtf
from wtfarray.distributed import Communicator, run_threads


class OwnCommunicator:
    """What a user has to write, on top of some library that can add arrays."""

    def __init__(self, comm):
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size

    def sum(self, array):
        return self._comm.sum(array)

    def split(self, groups):
        part = self._comm.split(groups)
        return None if part is None else OwnCommunicator(part)

    def fail(self, message):
        self._comm.fail(message)


@quietly
@numpy_only
def test_own_communicator():
    def fit(comm):
        own = OwnCommunicator(comm)
        assert isinstance(own, Communicator)
        mine = np.array_split(images(10), comm.size)[comm.rank]
        return traced(wtf.cp, mine, 2, GRID_LOSS, rng=0, last=3, comm=own)

    assert_alike(run_threads(fit, 2, timeout=30.0))


def test_other_objects_are_none():
    assert not isinstance(object(), Communicator)
