"""
Strong and weak scaling of one fit over MPI processes of one thread each.

    python benchmarks/scaling.py                      # both problems, 1 and 2 processes
    python benchmarks/scaling.py --ranks 1 2 4 8 --problem images --rounds 3
    python benchmarks/scaling.py --quick              # small, to see that it runs
    python benchmarks/scaling.py --equal              # rounding of the first ten steps

Strong: the same samples on more processes. Weak: as many samples more as processes. The efficiency
is the time of one process, divided by that of several and, if strong, by their number. Other data
take another number of inner iterations: the efficiency per iteration divides the time by their
number, times the samples of a process. The fits are repeated in turn, 1 process, 2 processes, 1, 2,
and so on; the median over the rounds and their range are printed, so that one disturbance does not
decide. For these times, the machine has to be idle.

The limit is what the machine allows: the efficiency of as many fits of one process each, which have
nothing to do with each other, at the same time. They share memory, cache and clock frequency.

Three columns do not depend on other work of the machine. The balance is the mean number of inner
iterations of a process divided by that of the busiest one, of the fit as a whole, and evaluation by
evaluation, after each of which the processes wait for the last one: the most that can be reached
with these shards. And the messages of a step. Needs mpi4py and mpiexec, such as ``pip install
mpi4py mpich``.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import wtfarray as wtf
from wtfarray._losses.transport_term import TransportTerm
from wtfarray.distributed import mpi, run_threads

SAMPLES = {"images": 800, "histograms": 2000}
STEPS = 20


def images(n: int, side: int = 32) -> tuple[np.ndarray, wtf.Loss]:
    """Images of three blobs, alike in difficulty."""
    rng = np.random.default_rng(0)
    x = np.linspace(-1.0, 1.0, side)
    centres, widths = rng.uniform(-0.5, 0.5, (2, n, 3, 1)), rng.uniform(0.1, 0.3, (n, 3, 1))
    rows, columns = (np.exp(-(((x - c) / widths) ** 2)) for c in centres)
    X = np.einsum("nki,nkj->nij", rows, columns) + 1e-6
    loss = wtf.Wasserstein(wtf.grid_cost(side, side), eps=1e-2, lam=25.0)
    return X / X.sum(axis=(1, 2), keepdims=True), loss


def histograms(n: int, bins: int = 64) -> tuple[np.ndarray, wtf.Loss]:
    """Histograms of which one in ten is narrow, and takes many times as many iterations."""
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, bins)
    widths = np.where(rng.uniform(size=(n, 1)) < 0.1, 0.01, 0.2)
    X = np.exp(-0.5 * ((x - rng.uniform(0.1, 0.9, (n, 1))) / widths) ** 2) + 1e-9
    loss = wtf.Wasserstein(wtf.grid_cost(bins), eps=1e-2, lam=5.0)
    return X / X.sum(axis=1, keepdims=True), loss


class Timed:
    """A communicator that measures how long it waits."""

    def __init__(self, comm: Any) -> None:
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self.seconds, self.messages, self.bytes, self._parts = 0.0, 0, 0, []

    def sum(self, array: np.ndarray) -> np.ndarray:
        """The sum, timed."""
        begin = time.perf_counter()
        total: np.ndarray = self._comm.sum(array)
        self.seconds += time.perf_counter() - begin
        self.messages += 1
        self.bytes += array.nbytes
        return total

    def split(self, groups: Any) -> Any:
        """A group, timed as well."""
        part = self._comm.split(groups)
        if part is not None:
            part = Timed(part)
            self._parts.append(part)
        return part

    def fail(self, message: str) -> None:
        """Pass it on."""
        self._comm.fail(message)

    def sent(self) -> int:
        """Messages, with those of groups."""
        return self.messages + sum(part.sent() for part in self._parts)

    def waited(self) -> float:
        """Seconds, with those of groups."""
        return self.seconds + sum(part.waited() for part in self._parts)


@contextmanager
def counted() -> Iterator[list[float]]:
    """The inner iterations of each evaluation, counted as often as this process has samples."""
    counts: list[float] = []
    evaluate = TransportTerm.evaluate

    def counting(term: Any, *arguments: Any) -> Any:
        before = term._evaluations  # noqa: SLF001
        found = evaluate(term, *arguments)
        counts.append(term._evaluations - before)  # noqa: SLF001
        return found

    TransportTerm.evaluate = counting
    try:
        yield counts
    finally:
        TransportTerm.evaluate = evaluate


def work(problem: str, samples: int, *, apart: bool) -> None:
    """Fit on this process of several, together or each on its own; rank 0 prints the measures."""
    comm = mpi()
    X, loss = {"images": images, "histograms": histograms}[problem](samples)
    timed = None
    if not apart:
        begin, end = (samples * k // comm.size for k in (comm.rank, comm.rank + 1))
        X, timed = X[begin:end].copy(), Timed(comm)
    comm.sum(np.zeros(1))  # all begin together
    clock = time.perf_counter()
    with warnings.catch_warnings(), counted() as counts:
        warnings.simplefilter("ignore")
        fit = wtf.nmf(X, 10, loss, rho=1e-2, rng=0, max_iter=STEPS, tol=1e-12, comm=timed)
    seconds = time.perf_counter() - clock
    waited, sent = (0.0, 0) if timed is None else (timed.waited(), timed.sent())
    table = np.zeros((comm.size, 3 + len(counts)))
    table[comm.rank] = [seconds, waited, sent / fit.n_iter, *counts]
    table = comm.sum(table)
    if comm.rank == 0:
        iterations = table[:, 3:]
        mean = float(iterations.sum(axis=1).mean())
        found = dict(zip(("seconds", "waited", "messages"), table.mean(axis=0), strict=False))
        found["iterations"] = mean
        found["balance"] = mean / iterations.sum(axis=1).max()
        found["balance of evaluations"] = mean / iterations.max(axis=0).sum()
        print(json.dumps(found))


def print_rounding() -> None:
    """Two processes, as threads, beside one, and beside one with X changed in the last bits."""
    rng = np.random.default_rng(0)
    X = rng.dirichlet(np.full(256, 0.3), 200).reshape(200, 16, 16)
    loss = wtf.Wasserstein(wtf.grid_cost(16, 16), eps=0.02, lam=10.0)

    def steps(mine: np.ndarray, comm: Any = None) -> np.ndarray:
        found: list[float] = []

        def keep(state: wtf.FitState) -> bool:
            found.append(state.objective)
            return len(found) == 10

        wtf.nmf(mine, 5, loss, rng=0, comm=comm, callback=keep)
        return np.asarray(found)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = steps(X)
        changed = steps(X * (1.0 + 1e-16 * rng.choice([-1.0, 0.0, 1.0, 2.0], X.shape)))
        team, _ = run_threads(lambda comm: steps(np.split(X, [7])[comm.rank], comm), 2)
    print("| step | X changed by 1e-16 | two processes |")
    print("| --- | --- | --- |")
    for n in range(10):
        print(f"| {n + 1} | {abs(changed[n] / one[n] - 1):.0e} | {abs(team[n] / one[n] - 1):.0e} |")


def launched(ranks: int, problem: str, samples: int, *, apart: bool = False) -> dict[str, float]:
    """What a fit of so many processes measured, or as many fits that are ``apart``."""
    folder = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=f"{folder}{os.pathsep}{os.environ['PATH']}")
    if mpiexec is None:
        sys.exit("mpiexec was not found: pip install mpi4py mpich")
    command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "mpi4py", __file__]
    command += ["--work", "--problem", problem, "--samples", str(samples)]
    command += ["--apart"] if apart else []
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


Run = tuple[int, int, bool]
"""Number of processes, number of samples of all, and whether their fits are apart."""


def measured(problem: str, total: int, ranks: list[int], rounds: int) -> dict[Run, list[Any]]:
    """What every run measured in every round; strong and weak scaling share the largest one."""
    most = max(ranks)
    runs: dict[Run, list[Any]] = {(r, total, False): [] for r in ranks}
    runs |= {(r, total * r // most, False): [] for r in ranks}
    runs[most, total // most, True] = []
    for _ in range(rounds):
        for (processes, samples, apart), found in runs.items():
            found.append(launched(processes, problem, samples, apart=apart))
    return runs


def spread(values: list[float]) -> str:
    """The median and the range of shares."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.0%} ({low:.0%} to {high:.0%})"


def print_rows(problem: str, total: int, ranks: list[int], rounds: int) -> None:
    """Measure one problem and print its rows of the table."""
    most, fewest = max(ranks), min(ranks)
    runs = measured(problem, total, ranks, rounds)

    def times(run: Run) -> list[float]:
        return [found["seconds"] for found in runs[run]]

    alone, apart = (fewest, total * fewest // most, False), (most, total // most, True)
    limit = "-"
    if fewest == 1:
        limit = spread([a / b for a, b in zip(times(alone), times(apart), strict=True)])
    for kind in ("strong", "weak"):
        first = (fewest, total, False) if kind == "strong" else alone
        for r in ranks:
            run = (r, total if kind == "strong" else total * r // most, False)
            shared = r / fewest if kind == "strong" else 1.0
            ratios = [a / b for a, b in zip(times(first), times(run), strict=True)]
            found, before = runs[run][0], runs[first][0]
            fewer = found["iterations"] / before["iterations"]
            waited = statistics.median(f["waited"] / f["seconds"] for f in runs[run])
            balance = (found["balance"], found["balance of evaluations"])
            columns = [problem, kind, str(r), str(run[1])]
            columns += [f"{statistics.median(times(run)):.2f}", f"{waited:.0%}"]
            columns += [spread([ratio / shared for ratio in ratios])]
            columns += [spread([ratio * fewer for ratio in ratios]), limit if r == most else "-"]
            columns += [f"{share:.0%}" for share in balance] + [f"{found['messages']:.1f}"]
            print(f"| {' | '.join(columns)} |", flush=True)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--problem", choices=sorted(SAMPLES), action="append")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.equal:
        print_rounding()
        return
    if options.work:
        work(options.problem[0], options.samples, apart=options.apart)
        return
    names = ("problem", "scaling", "processes", "samples", "seconds", "waiting", "efficiency")
    names += ("per iteration", "limit", "balance", "of evaluations", "messages")
    print(f"| {' | '.join(names)} |")
    print(f"| {' | '.join('---' for _ in names)} |")
    for problem in options.problem or sorted(SAMPLES):
        total = options.samples or (40 if options.quick else SAMPLES[problem])
        print_rows(problem, total, options.ranks, 1 if options.quick else options.rounds)


if __name__ == "__main__":
    main()
