"""Which problems come in which order, and the processes that share them."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import queue
import sys
import time
from collections.abc import Callable, Iterator

from campaign.backends import backend
from campaign.block_duals import check_block
from campaign.faults import check_faults
from campaign.fits import check_fit
from campaign.losses import check_conjugate, check_wasserstein
from campaign.projections import check_projection
from campaign.trial import Outcome, Trial, run

KINDS: dict[str, Callable[[Trial], None]] = {
    "wasserstein": check_wasserstein,
    "conjugate": check_conjugate,
    "cp_dual": check_block,
    "tucker_dual": check_block,
    "cp": check_fit,
    "tucker": check_fit,
    "nmf": check_fit,
    "projection": check_projection,
    "faults": check_faults,
}
WEIGHTS = {"wasserstein": 4, "conjugate": 2, "faults": 0.5}
"""How often a kind is drawn, as against once."""
FORGET_EVERY = 10
"""Problems after which a library may forget what it has compiled."""


def sequence(kinds: list[str], seed: int):
    """Kinds and seeds without end; each kind as often as its weight says."""
    credit = dict.fromkeys(kinds, 0.0)
    for number in itertools.count():
        for kind in kinds:
            credit[kind] += WEIGHTS.get(kind, 1.0)
        kind = max(kinds, key=credit.__getitem__)
        credit[kind] -= sum(WEIGHTS.get(k, 1.0) for k in kinds)
        yield kind, seed * 1_000_000 + number


def work(given: argparse.Namespace, worker: int = 0) -> Iterator[Outcome]:
    """Every n-th problem of n workers, until the time or the number of problems is up."""
    library, begin = backend(given.backend), time.monotonic()
    problems = sequence(given.kind or list(KINDS), given.seed)
    mine = itertools.islice(problems, worker, given.problems, given.workers)
    for number, (kind, seed) in enumerate(mine, start=1):
        if time.monotonic() - begin > 60 * given.minutes:
            break
        yield run(kind, seed, library, KINDS[kind], given.dtype)
        if number % FORGET_EVERY == 0:
            library.forget()


def _send(given: argparse.Namespace, worker: int, outcomes: multiprocessing.Queue) -> None:
    """The work of one process; None at its end."""
    for outcome in work(given, worker):
        outcomes.put(outcome)
    outcomes.put(None)


def work_together(given: argparse.Namespace) -> Iterator[Outcome]:
    """The outcomes of all workers, as they come; a worker that dies is a failure."""
    context = multiprocessing.get_context("spawn")
    outcomes = context.Queue()
    workers = [
        context.Process(target=_send, args=(given, number, outcomes), daemon=True)
        for number in range(given.workers)
    ]
    for process in workers:
        process.start()
    finished = 0
    while finished < given.workers:
        try:
            outcome = outcomes.get(timeout=5.0)
        except queue.Empty:
            dead = [process.exitcode for process in workers if process.exitcode]
            if dead:
                sys.exit(f"a worker ended with exit code {dead[0]}")
            continue
        if outcome is None:
            finished += 1
        else:
            yield outcome
