"""Waiting for other processes."""

import copy
import time

import pytest

from wtfarray.distributed import _waiting, threads
from wtfarray.distributed._waiting import wait_for

pytestmark = pytest.mark.usefixtures("on_numpy")


def no_failure():
    raise AssertionError


def test_an_answer_that_is_there_is_not_waited_for():
    wait_for(lambda: True, no_failure)


def test_a_late_answer_is_waited_for():
    begin = time.monotonic()
    wait_for(lambda: time.monotonic() - begin > 0.05, no_failure)
    assert 0.05 < time.monotonic() - begin < 5.0


def test_a_failure_ends_the_wait(monkeypatch):
    monkeypatch.setattr(_waiting, "CHECK_EVERY", 0.01)

    def fail():
        msg = "rank 1 has failed"
        raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="rank 1"):
        wait_for(lambda: False, fail)


def test_what_does_not_come_is_given_up(monkeypatch):
    """And failures are still looked for before."""
    monkeypatch.setattr(_waiting, "CHECK_EVERY", 0.01)
    looks = []
    with pytest.raises(RuntimeError, match=r"has not answered for 0\.1 s: .*larger timeout"):
        wait_for(lambda: False, lambda: looks.append(1), 0.1)
    assert looks


def test_copies_share_a_communicator():
    """Estimators are cloned with their parameters."""
    (comm,) = threads(1)
    assert copy.deepcopy({"comm": comm})["comm"] is comm
