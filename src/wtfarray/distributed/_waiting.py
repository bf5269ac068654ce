"""Waiting for other processes without occupying a core that they may need."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

SPIN = 1e-3
"""
Seconds for which an answer is looked for all the time, before this process sleeps between looks.

A pause takes twice as long as it should, because the clock of the system is coarse. Most messages
of a step follow each other within less than this.
"""
PAUSE = 5e-5
"""Seconds between two looks."""
CHECK_EVERY = 0.2
"""Seconds between two looks for a failure of another process."""
give_way = getattr(os, "sched_yield", lambda: None)
TIMEOUT = 3600.0
"""Seconds after which a process that waits for another gives up, unless told otherwise."""


def wait_for(
    done: Callable[[], bool], check_failure: Callable[[], None], timeout: float = math.inf
) -> None:
    """
    Wait until ``done()``; ``check_failure()`` raises if it will never be.

    After ``timeout`` seconds it is given up.
    """
    begin = now = time.monotonic()
    due = begin + CHECK_EVERY
    while not done():
        if now - begin < SPIN:
            give_way()  # to another process on this core, if there is one
        else:
            time.sleep(PAUSE)
        now = time.monotonic()
        if now > due:
            check_failure()
            due = now + CHECK_EVERY
        if now - begin > timeout:
            raise no_answer(timeout)


def no_answer(timeout: float) -> RuntimeError:
    """The error of a rank that has waited too long."""
    msg = (
        f"a rank has not answered for {timeout:g} s: expected every rank to call the same "
        "functions; if it only takes longer, give its team a larger timeout"
    )
    return RuntimeError(msg)


class Shareable:
    """A communicator stands for a connection: copies of an object that holds it share it."""

    def __deepcopy__(self, _: dict[int, object]) -> Shareable:
        return self
