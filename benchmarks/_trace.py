"""How fits are timed: the steps of a fit, and when they pass a certified objective."""

import importlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from _data import Array

import wtfarray as wtf

SAMPLES = ("rows", "columns", "columns")
"""Constraints of a stack of images: shares of each sample, and atoms of mass 1."""


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a fit, or one block of the reference."""

    name: str
    seconds: float
    objective: float
    factors: list[Array]


def convert(array: Array, backend: str, dtype: str = "float64") -> Array:
    """A NumPy array in the library and the dtype asked for."""
    array = array.astype(dtype)
    if backend == "numpy":
        return array
    if backend == "jax":
        importlib.import_module("jax").config.update("jax_enable_x64", val=True)
        return importlib.import_module("jax.numpy").asarray(array)
    return importlib.import_module(backend).asarray(array)


@contextmanager
def quiet() -> Iterator[None]:
    """A fit that is stopped warns that it has not converged: here that is intended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def best(
    function: Callable[[], object],
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """
    Shortest of many runs: the machine's noise only ever adds.

    The last result is kept while the next is computed, as an optimiser does: otherwise the
    allocator hands all memory back between two runs and page faults are measured.
    """
    kept = function()
    shortest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = clock()
        new = function()
        shortest = min(shortest, clock() - start)
        kept = new
    del kept
    return shortest


def trace(
    fit: Callable[..., wtf.Factorisation],
    watch: Callable[[Step], bool] = lambda _: False,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[Step], wtf.Factorisation, float]:
    """
    Call a fit with a callback: the steps at the final smoothing, the result, all seconds.

    The last step is the result itself, with its certified objective.
    """
    steps = []
    begin = clock()

    def keep(state: wtf.FitState) -> bool:
        if state.level != 1.0:
            return False
        seconds = clock() - begin
        steps.append(Step(str(state.n_iter), seconds, state.objective, state.blocks()))
        return watch(steps[-1])

    with quiet():
        result = fit(callback=keep)
    total = clock() - begin
    steps.append(Step("end", total, result.objective, list(result.factors)))
    return [replace(s, factors=[np.asarray(a) for a in s.factors]) for s in steps], result, total


class InnerTime:
    """Seconds and evaluations of the inner problems of fits, on the grid of the data only."""

    def __init__(self, shape: Sequence[int], clock: Callable[[], float]) -> None:
        self.shape, self.clock = tuple(shape), clock
        self.seconds, self.evaluations = 0.0, 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count what fits do within this context; an older version may have no such class."""
        term = importlib.import_module("wtfarray._losses.transport_term").TransportTerm
        evaluate = term.evaluate

        def timed(this: Any, *args: Any, **options: Any) -> Any:
            begin, before = self.clock(), this.evaluations
            found = evaluate(this, *args, **options)
            if tuple(this.shape) == self.shape:
                self.seconds += self.clock() - begin
                self.evaluations += this.evaluations - before
            return found

        term.evaluate = timed
        try:
            yield
        finally:
            term.evaluate = evaluate


def exact(X: Array, factors: Sequence[Array], loss: wtf.Wasserstein, rho: float) -> float:
    """The objective of given factors, the inner problem solved anew to a certified 1e-6."""
    entropies = sum(float(wtf.entropy(a)[0]) for a in factors)
    with quiet():
        value = wtf.wasserstein(X, wtf.cp_to_tensor(factors), loss).value
    return float(value) + rho * entropies


def passed(
    traces: Sequence[Sequence[Step]], level: float, certified: Callable[[list[Array]], float]
) -> Step | None:
    """
    When the mean objective of several fits is first at or below a level.

    All fits are taken to begin at the same time, and each stays at its last step once it has ended.
    The estimates propose a time, the certified values of the factors at that time decide. A single
    fit is its own mean.
    """
    known: dict[Step, float] = {}
    for seconds in sorted({step.seconds for steps in traces for step in steps}):
        latest = [[step for step in steps if step.seconds <= seconds][-1:] for steps in traces]
        current = [step for steps in latest for step in steps]
        if len(current) < len(traces) or np.mean([s.objective for s in current]) > level:
            continue
        for step in current:
            if step not in known:
                known[step] = certified([np.asarray(a, dtype=np.float64) for a in step.factors])
        mean = float(np.mean([known[step] for step in current]))
        if mean <= level:
            return Step(current[0].name, seconds, mean, current[0].factors)
    return None


def end(fit: wtf.Factorisation) -> str:
    """How a fit ended, for a table."""
    return f"{'' if fit.converged else 'not '}converged, gap {fit.gap:.1e}"
