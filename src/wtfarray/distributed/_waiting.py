"""Waiting for other processes without occupying a core that they may need."""

from __future__ import annotations

import time
from collections.abc import Callable

SPINS = 200
"""How often an answer is looked for at once, before this process sleeps between two looks."""
PAUSE = 5e-5
"""Seconds between two looks."""
CHECK_EVERY = 0.2
"""Seconds between two looks for a failure of another process."""


def wait_for(done: Callable[[], bool], check_failure: Callable[[], None]) -> None:
    """Wait until ``done()``; ``check_failure()`` raises if it will never be."""
    for _ in range(SPINS):
        if done():
            return
    due = time.monotonic() + CHECK_EVERY
    while not done():
        time.sleep(PAUSE)
        if time.monotonic() > due:
            check_failure()
            due = time.monotonic() + CHECK_EVERY


class Shareable:
    """A communicator stands for a connection: copies of an object that holds it share it."""

    def __deepcopy__(self, _: dict[int, object]) -> Shareable:
        return self
