"""Teams of threads."""

import numpy as np
import pytest

from wtfarray.distributed import run_threads, threads

pytestmark = pytest.mark.usefixtures("on_numpy")


def test_sums_are_the_same_on_every_rank():
    rng = np.random.default_rng(0)
    parts = rng.normal(size=(3, 7)) * 10.0 ** rng.uniform(-9, 9, (3, 7))
    found = run_threads(lambda comm: comm.sum(parts[comm.rank]), 3)
    assert all(np.array_equal(total, found[0]) for total in found)
    np.testing.assert_allclose(found[0], parts.sum(axis=0))


def test_groups_add_on_their_own():
    def work(comm):
        part = comm.split([[0, 2], [3]])
        return None if part is None else (part.rank, part.size, part.sum(np.ones(1))[0])

    assert run_threads(work, 4) == [(0, 2, 2.0), None, (1, 2, 2.0), (0, 1, 1.0)]


def test_a_rank_that_does_not_come_is_given_up():
    first, _ = threads(2, timeout=0.1)
    with pytest.raises(RuntimeError, match=r"not answered for 0\.1 s"):
        first.sum(np.zeros(1))


def test_a_failure_reaches_groups():
    def work(comm):
        part = comm.split([[0, 1]])
        if comm.rank == 2:
            msg = "broken"
            raise ValueError(msg)
        for _ in range(1000):
            part.sum(np.zeros(1))
        comm.sum(np.zeros(1))

    with pytest.raises(ValueError, match="broken"):
        run_threads(work, 3, timeout=20.0)


def test_different_shapes_are_refused():
    with pytest.raises(RuntimeError, match="expected one shape"):
        run_threads(lambda comm: comm.sum(np.zeros(comm.rank + 1)), 2, timeout=5.0)


def test_messages_and_bytes_are_counted():
    def work(comm):
        comm.sum(np.zeros(3))
        comm.sum(np.zeros(2))
        return comm.messages, comm.bytes

    assert run_threads(work, 2) == [(2, 40), (2, 40)]
