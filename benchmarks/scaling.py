"""
Strong and weak scaling of one fit over MPI processes of one thread each.

    python benchmarks/scaling.py                      # both problems, 1 and 2 processes
    python benchmarks/scaling.py --ranks 1 2 4 8 --problem images
    python benchmarks/scaling.py --quick              # small, to see that it runs
    python benchmarks/scaling.py --equal              # rounding of the first ten steps

Strong: the same samples on more processes. Weak: as many samples more as processes. The efficiency
is the time of one process, divided by that of several and, if strong, by their number. Other data
take another number of inner iterations: the efficiency per iteration divides the time by their
number, times the samples of a process. For these times, the machine has to be idle. Three columns
hardly depend on that: the efficiency per iteration in CPU time, of the busiest process; the
balance, which is the mean number of iterations of a process divided by that of the busiest one, and
the most that can be reached with these shards; and the messages of a step. Needs mpi4py and
mpiexec, such as ``pip install mpi4py mpich``.
"""

import argparse
import json
import os
import shutil
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
    """Count the inner iterations of this process, each as often as it has samples."""
    count, evaluate = [0.0], TransportTerm.evaluate

    def counting(term: Any, *arguments: Any) -> Any:
        before = term.evaluations
        found = evaluate(term, *arguments)
        count[0] += (term.evaluations - before) * term.problem.data.shape[0]
        return found

    TransportTerm.evaluate = counting
    try:
        yield count
    finally:
        TransportTerm.evaluate = evaluate


def work(problem: str, samples: int) -> None:
    """Fit on this process of several; rank 0 prints what was measured."""
    comm = mpi()
    X, loss = {"images": images, "histograms": histograms}[problem](samples)
    begin, end = (samples * k // comm.size for k in (comm.rank, comm.rank + 1))
    X, timed = X[begin:end].copy(), Timed(comm)
    comm.sum(np.zeros(1))  # all begin together
    clock, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(), counted() as count:
        warnings.simplefilter("ignore")
        fit = wtf.nmf(X, 10, loss, rho=1e-2, rng=0, max_iter=STEPS, tol=1e-12, comm=timed)
    seconds, cpu = time.perf_counter() - clock, time.process_time() - cpu
    table = np.zeros((comm.size, 6))
    messages = timed.sent() / fit.n_iter
    table[comm.rank] = [seconds, cpu, timed.waited(), count[0], messages, timed.bytes]
    table = comm.sum(table)
    if comm.rank == 0:
        mean, most = table.mean(axis=0), table.max(axis=0)
        found = {"seconds": mean[0], "cpu": most[1], "waited": mean[2], "messages": mean[4]}
        print(json.dumps({**found, "balance": mean[3] / most[3], "iterations": mean[3]}))


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


def launched(ranks: int, problem: str, samples: int) -> dict[str, float]:
    """What a fit of so many processes measured."""
    folder = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=f"{folder}{os.pathsep}{os.environ['PATH']}")
    if mpiexec is None:
        sys.exit("mpiexec was not found: pip install mpi4py mpich")
    command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "mpi4py", __file__]
    command += ["--work", "--problem", problem, "--samples", str(samples)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--problem", choices=sorted(SAMPLES), action="append")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.equal:
        print_rounding()
        return
    if options.work:
        work(options.problem[0], options.samples)
        return
    names = ("problem", "scaling", "processes", "samples", "seconds", "waiting", "efficiency")
    names += ("per iteration", "of CPU time", "balance", "messages")
    print(f"| {' | '.join(names)} |")
    print(f"| {' | '.join('---' for _ in names)} |")
    for problem in options.problem or sorted(SAMPLES):
        total = options.samples or (40 if options.quick else SAMPLES[problem])
        most = max(options.ranks)
        for kind in ("strong", "weak"):
            first: dict[str, float] = {}
            for ranks in options.ranks:
                samples = total if kind == "strong" else total * ranks // most
                found = launched(ranks, problem, samples)
                first = first or found
                times = ranks if kind == "strong" else 1
                fewer = found["iterations"] / first["iterations"]
                seconds, cpu = (first[name] / found[name] for name in ("seconds", "cpu"))
                waiting = found["waited"] / found["seconds"]
                print(
                    f"| {problem} | {kind} | {ranks} | {samples} | {found['seconds']:.2f} "
                    f"| {waiting:.0%} | {seconds / times:.0%} | {seconds * fewer:.0%} "
                    f"| {cpu * fewer:.0%} | {found['balance']:.0%} "
                    f"| {found['messages']:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
