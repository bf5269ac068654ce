"""
How fast and in how much memory whole fits run; benchmarks/README.md says what each command shows.

usage: python benchmarks/fits.py {images,faces,three-mode,histograms,scaling,memory} [options]
"""

import argparse
import inspect
import itertools
import math
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from _data import (
    atom_error,
    counted_histograms,
    random_factors,
    sampled_tensor,
    stacked_images,
    training_faces,
)
from _reference import reference
from _trace import SAMPLES, Step, convert, end, exact, passed, quiet, trace

import wtfarray as wtf
from wtfarray import _dispatch
from wtfarray._arrays.typing import Array
from wtfarray._losses import sparse_tensor
from wtfarray._solvers import envelope
from wtfarray._transport import sinkhorn


class EnoughError(Exception):
    """Raised by a callback that has seen what it wanted."""


def row(name: str, step: Step | None) -> str:
    """A line of a table."""
    if step is None:
        return f"{name:50s} {'never':>9s}"
    return f"{name:50s} {step.seconds:9.2f} {step.objective:10.5f}"


def images(arguments: argparse.Namespace) -> None:
    """Time to given objectives on the stacked images, and to the reference's best one."""
    X, rank, rho = stacked_images(100), 3, 0.01
    loss = wtf.Wasserstein(wtf.grid_cost(32, 32), eps=0.01, lam=25.0)
    start = random_factors(X.shape, rank)
    levels = {"-10.048": -10.048, "-10.08": -10.08}
    theirs = None
    if arguments.reference is not None:
        print(f"{'reference':18s} {'seconds':>9s} {'J':>10s}")
        steps = []
        blocks = reference(arguments.reference, X, start, loss, rho, sweeps=arguments.sweeps)
        for name, seconds, factors in blocks:
            steps.append(Step(name, seconds, exact(X, factors, loss, rho), factors))
            print(f"{name:18s} {seconds:9.2f} {steps[-1].objective:10.5f}", flush=True)
        if steps:
            theirs = min(steps, key=lambda step: step.objective)
            levels[f"{theirs.objective:.5f} (the reference's best)"] = theirs.objective
        print()
    start = [convert(a, arguments.backend) for a in start]
    data = convert(X, arguments.backend)
    ours, fit, total = trace(
        partial(wtf.cp, data, rank, loss, rho=rho, init=start, constraints=SAMPLES)
    )
    print(f"{'wtfarray, ' + arguments.backend:50s} {'seconds':>9s} {'J':>10s}")
    for name, level in levels.items():
        found = passed([ours], level, lambda factors: exact(X, factors, loss, rho))
        print(row(f"certified J below {name}", found), flush=True)
    print(row(end(fit), Step("", total, fit.objective, [])))
    if theirs is not None and found is not None:
        ratio = theirs.seconds / found.seconds
        print(f"\nreference {theirs.seconds:.2f} s / wtfarray {found.seconds:.2f} s = {ratio:.1f}")


def faces(arguments: argparse.Namespace) -> None:
    """The objective against time on the Olivetti faces."""
    X = training_faces(arguments.data)
    loss = wtf.Wasserstein(wtf.grid_cost(32, 32), eps=1e-3, lam=10.0)
    rho, mark = 0.005 / arguments.rank, 0.0
    print(f"{'seconds':>9s} {'step':>6s} {'J (estimate)':>13s}")

    def watch(step: Step) -> bool:
        nonlocal mark
        stop = step.seconds > arguments.seconds
        if step.seconds >= mark or stop:
            mark = step.seconds + arguments.seconds / 13
            print(f"{step.seconds:9.1f} {step.name:>6s} {step.objective:13.5f}", flush=True)
        return stop

    options = {"rho": rho, "rng": 0, "max_iter": 100_000, "constraints": SAMPLES}
    data = convert(X, arguments.backend)
    steps, fit, total = trace(partial(wtf.cp, data, arguments.rank, loss, **options), watch)
    print()
    print(f"{'wtfarray, ' + arguments.backend:50s} {'seconds':>9s} {'J':>10s}")
    for level in (-1.70, -1.73):
        found = passed([steps], level, lambda factors: exact(X, factors, loss, rho))
        print(row(f"certified J below {level:.2f}", found), flush=True)
    print(row(end(fit), Step("", total, fit.objective, [])))
    print(fit.message)


def three_mode(arguments: argparse.Namespace) -> None:
    """Seconds and error of the atoms on the paper's sampled 128^3 tensor."""
    stored = np.load(arguments.data / "three_mode.npz")
    X = sampled_tensor(stored)
    loss = wtf.Wasserstein([stored["C"]] * 3, eps=0.01, lam=25.0)
    begin = time.perf_counter()
    with quiet():
        fit = wtf.cp(
            convert(X, arguments.backend),
            3,
            loss,
            rho=2.5e-3,
            constraints=("columns",) * 3,
            weights="fixed",
            rng=0,
        )
    seconds = time.perf_counter() - begin
    truth = [stored[f"true_{name}"] for name in ("alpha", "beta", "gamma")]
    ours = atom_error([np.asarray(a) for a in fit.factors], truth)
    swift = atom_error([stored[f"swift_A{k}"] for k in range(3)], truth)
    print(f"{'':18s} {'seconds':>9s} {'mean total variation of the atoms':>36s}")
    print(f"{'wtfarray, ' + arguments.backend:18s} {seconds:9.1f} {ours:36.4f}")
    print(f"{'SWIFT, stored':18s} {'':9s} {swift:36.4f}")
    print(f"\nJ {fit.objective:.5f}, gap {fit.gap:.1e}; {fit.message}")


def histograms(arguments: argparse.Namespace) -> None:
    """NMF of short samples, with and without solving the slowest apart from the others."""
    X = convert(counted_histograms(arguments.samples), arguments.backend)
    loss = wtf.Wasserstein(wtf.grid_cost(60), eps=0.01, lam=10.0)
    usual, traces = _dispatch.THRESHOLDS, {}
    never = replace(usual, straggler_samples=sys.maxsize)
    for name, thresholds in (("apart", usual), ("together", never)):
        _dispatch.THRESHOLDS = thresholds
        steps: list[tuple[float, float]] = []
        start = time.perf_counter()

        def note(state: wtf.FitState, steps: list = steps, start: float = start) -> None:
            if state.level == 1.0:
                steps.append((time.perf_counter() - start, state.objective))

        with quiet():
            wtf.nmf(X, 8, loss, rho=1e-3, rng=0, max_iter=arguments.steps, callback=note)
        seconds, objective = steps[-1]
        print(f"{name:10s} {seconds:8.2f} s  J {objective:.5f}", flush=True)
        traces[name] = steps
    _dispatch.THRESHOLDS = usual
    mark = max(steps[-1][1] for steps in traces.values())
    apart, together = (
        next(seconds for seconds, objective in steps if objective <= mark)
        for steps in traces.values()
    )
    print(f"J below {mark:.5f} after {apart:.2f} s and {together:.2f} s: {together / apart:.1f}x")


def scaling(arguments: argparse.Namespace) -> None:
    """Time of an evaluation against the number of samples."""
    counts = [100, 200, 400, 800, 1600]
    every = stacked_images(counts[-1])
    times = []
    print(f"{'samples':>8s} {'ms/evaluation':>14s} {'us/sample':>10s}")
    for n in counts:
        X = convert(every[:n], arguments.backend)
        times.append(min(per_evaluation(X, arguments.steps) for _ in range(arguments.repeats)))
        print(f"{n:8d} {times[-1] * 1e3:14.2f} {times[-1] * 1e6 / n:10.1f}", flush=True)
    slope = np.polyfit(np.log(counts), np.log(times), 1)[0]
    print(f"\nslope of log time against log samples {slope:.3f}")


def per_evaluation(X: Array, steps: int) -> float:
    """Seconds an evaluation of the inner problem, all that the outer steps cost included."""
    loss = wtf.Wasserstein(wtf.grid_cost(32, 32), eps=0.01, lam=25.0)
    marks = []

    def count(state: wtf.FitState) -> None:
        marks.append((time.perf_counter(), state.evaluations))
        if len(marks) > steps:
            raise EnoughError

    backend = "numpy" if isinstance(X, np.ndarray) else "torch"
    start = [convert(a, backend) for a in random_factors(X.shape, 3)]
    with suppress(EnoughError):
        wtf.cp(X, 3, loss, rho=0.01, init=start, constraints=SAMPLES, callback=count)
    (first, before), (last, after) = marks[0], marks[-1]
    return (last - first) / (after - before)


def memory(arguments: argparse.Namespace) -> None:
    """Peak memory of a fit, in arrays of the size of X."""
    rng = np.random.default_rng(0)
    dense = rng.random((200, 32, 32))
    dense /= dense.sum((1, 2), keepdims=True)
    sparse = np.zeros((128, 128, 128))
    centres = rng.normal(64, 16, (1315, 3)).astype(int).clip(0, 127)
    sparse[tuple(centres.T)] = 1.0
    sparse /= sparse.sum()
    cases = (
        ("200x32x32, rank 50", dense, 50, None),
        ("200x32x32, rank 50, batch 25", dense, 50, 25),
        ("128^3 sparse, rank 3", sparse, 3, None),
    )
    with quiet():  # imports what is imported late, Numba included
        wtf.cp(dense[:10], 1, wtf.Wasserstein(wtf.grid_cost(32, 32), eps=1.0), max_iter=1)
    print("arrays of the size of X, beyond X itself")
    print(f"{'':30s} {'peak':>7s} {'secants':>9s} {'L-BFGS':>8s} {'rest':>7s}")
    full, on_support = sinkhorn.LONG_MEMORY, default_memory(sparse_tensor.SparseTensorTerm)
    for name, X, rank, batch in cases:
        peak = peak_memory(X, rank, batch, arguments.steps)
        if X is sparse:
            secants = on_support * np.count_nonzero(X) / X.size
        else:
            secants = (full + 2.5) * min(1.0, (batch or X.shape[0]) / X.shape[0])
        pairs = 2 * envelope.SETTINGS.memory * rank * sum(X.shape) / X.size
        rest = peak - secants - pairs
        print(f"{name:30s} {peak:7.1f} {secants:9.2f} {pairs:8.2f} {rest:7.1f}", flush=True)
    print(f"\nsecants: up to {full} pairs of the inner problem and the weights of their norm in")
    print("float32, the last point, for the next pair; with batch those of one batch at a time;")
    print(f"{on_support} pairs on the support where X is sparse")
    print(f"L-BFGS: {envelope.SETTINGS.memory} pairs of all factors")


def default_memory(solver: type) -> int:
    """How many secant pairs an inner solver keeps."""
    return inspect.signature(solver).parameters["memory"].default


def peak_memory(X: Array, rank: int, batch: int | None, steps: int) -> float:
    """Peak of a fit that ends after some steps on the grid of X, in arrays of the size of X."""
    stacked = X.shape[0] != X.shape[1]
    costs = wtf.grid_cost(*X.shape[1:] if stacked else X.shape)
    loss = wtf.Wasserstein(costs, eps=0.01, lam=25.0)
    left = itertools.count(1)

    def stop(state: wtf.FitState) -> bool:
        return math.isfinite(state.level) and next(left) >= steps

    tracemalloc.start()
    with quiet():
        constraints = SAMPLES if stacked else ("columns",) * 3
        options = {"rho": 2.5e-3, "rng": 0, "constraints": constraints, "batch": batch}
        wtf.cp(X, rank, loss, callback=stop, **options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / X.nbytes


def main() -> None:
    """Read the command line and run one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    commands = parser.add_subparsers(required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=run.__doc__)
        added.set_defaults(run=run)
        if name != "memory":
            added.add_argument("--backend", choices=("numpy", "torch"), default="numpy")
        if name in {"faces", "three-mode"}:
            added.add_argument("--data", type=Path, required=True, help="folder of the npz files")
        return added

    added = command("images", images)
    added.add_argument("--reference", type=Path, help="a checkout of the paper's code")
    added.add_argument("--sweeps", type=int, default=5, help="of the reference")
    added = command("faces", faces)
    added.add_argument("--rank", type=int, default=50)
    added.add_argument("--seconds", type=float, default=130.0)
    command("three-mode", three_mode)
    added = command("histograms", histograms)
    added.add_argument("--samples", type=int, default=400)
    added.add_argument("--steps", type=int, default=40)
    added = command("scaling", scaling)
    added.add_argument("--steps", type=int, default=10)
    added.add_argument("--repeats", type=int, default=3)
    added = command("memory", memory)
    added.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    print("$ python benchmarks/fits.py", *sys.argv[1:], flush=True)
    print()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
