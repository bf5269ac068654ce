"""The fits that `speed.py` measures, and what its rows have in common."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _data import (
    Array,
    counted_histograms,
    digits,
    moving_peaks,
    random_factors,
    scattered,
    stacked_images,
    strokes,
    training_faces,
)
from _trace import SAMPLES, convert, exact

import wtfarray as wtf

Figures = dict[str, Any]
"""What one version measured in one row: numbers by the keys of the row's lines; None for never."""


class SkippedError(Exception):
    """A row cannot run here; the message says what it needs."""


@dataclass(frozen=True)
class Setting:
    """The options of the command line that every row sees."""

    backend: str = "numpy"
    dtype: str = "float64"
    quick: bool = False
    """Small data and few steps, to try the script itself."""
    data: str | None = None
    reference: str | None = None
    seconds: float = 150.0
    """After which the fit of the faces is stopped."""
    steps: int | None = None
    """`max_iter` of the fits of `jax` and `torch`; the default of the library if None."""
    clock: str = "wall"

    def now(self) -> float:
        """Seconds, by the clock asked for."""
        return time.process_time() if self.clock == "cpu" else time.perf_counter()

    def folder(self) -> Path:
        """The folder of the stored data."""
        if self.data is None:
            msg = "needs --data FOLDER"
            raise SkippedError(msg)
        return Path(self.data)


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    key: str
    what: str
    target: str = ""
    form: str = ".2f"
    compared: bool = True
    """Whether the figure of the baseline divided by ours says anything."""


@dataclass(frozen=True)
class Row:
    """One part of the benchmark, which `speed.py` runs by its name."""

    name: str
    lines: tuple[Line, ...]
    measure: Callable[[Setting, Mapping[str, Any]], Figures]
    """Called with the setting and the figures of the baseline, which are empty for itself."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A fit: its data, and all arguments but the seed."""

    X: Array
    model: str
    rank: int
    loss: wtf.Wasserstein
    rho: float
    options: dict[str, Any] = field(default_factory=dict)

    def fit(self, backend: str, dtype: str = "float64", **options: Any) -> Callable[..., Any]:
        """The call of the fit, ready to run: the data are converted already."""
        function = {"cp": wtf.cp, "nmf": wtf.nmf}[self.model]
        options = {"rho": self.rho, "rng": 0, **self.options, **options}
        if "init" in options:
            options["init"] = [convert(a, backend, dtype) for a in options["init"]]
        return partial(function, convert(self.X, backend, dtype), self.rank, self.loss, **options)

    def certified(self, factors: list[Array]) -> float:
        """The objective of factors, from inner problems that are solved anew."""
        return exact(self.X, factors, self.loss, self.rho)


class Evaluations:
    """A callback that counts the inner evaluations of a fit, with those on coarser grids."""

    def __init__(self) -> None:
        self._before, self._last, self._level = 0, 0, math.inf

    def __call__(self, state: wtf.FitState) -> None:
        # Every grid counts from zero; all but that of the data are at level inf.
        if state.evaluations < self._last or (self._level == math.inf) != (state.level == math.inf):
            self._before += self._last
        self._last, self._level = state.evaluations, state.level

    def of(self, fit: wtf.Factorisation) -> int:
        """The number of evaluations of the fit that has ended."""
        return self._before + max(self._last, fit.history[-1].evaluations)


def _few_steps(*, quick: bool) -> dict[str, Any]:
    return {"max_iter": 4, "tol": 1e-2} if quick else {}


def digits_problem(*, quick: bool, first: int = 0) -> Problem:
    """Written digits; `first` is the first of the 400 images."""
    count, rank = (6, 2) if quick else (400, 16)
    X = digits()[first : first + count]
    loss = wtf.Wasserstein(wtf.grid_cost(8, 8), eps=0.01, lam=1.0)
    options = {"constraints": SAMPLES, **_few_steps(quick=quick)}
    return Problem(X, "cp", rank, loss, 0.01, options)


def histograms_problem(*, quick: bool, samples: int = 1000) -> Problem:
    """Counted histograms of 60 bins."""
    X = counted_histograms(min(samples, 12) if quick else samples)
    loss = wtf.Wasserstein(wtf.grid_cost(60), eps=0.01, lam=10.0)
    return Problem(X, "nmf", 2 if quick else 8, loss, 0.01, _few_steps(quick=quick))


def strokes_problem(*, quick: bool) -> Problem:
    """Thick lines on an empty background."""
    X, rank = (strokes(6, 12), 2) if quick else (strokes(300), 10)
    loss = wtf.Wasserstein(wtf.grid_cost(*X.shape[1:]), eps=0.01, lam=10.0)
    options = {"constraints": SAMPLES, **_few_steps(quick=quick)}
    return Problem(X, "cp", rank, loss, 1e-3, options)


def stiff_problem(*, quick: bool) -> Problem:
    """Written digits with so small an eps that neighbouring bins are 24 eps apart."""
    count, rank = (6, 2) if quick else (200, 6)
    loss = wtf.Wasserstein(wtf.grid_cost(8, 8), eps=0.002, lam=5.0)
    options = {"constraints": SAMPLES, "max_iter": 300} | _few_steps(quick=quick)
    return Problem(digits()[:count], "cp", rank, loss, 0.003, options)


def dense_problem(*, quick: bool) -> Problem:
    """A dense cost between random points."""
    places, X = scattered(*((10, 20) if quick else (700, 800)))
    loss = wtf.Wasserstein(wtf.point_cost(places), eps=0.05, lam=10.0)
    return Problem(X, "nmf", 2 if quick else 10, loss, 1e-3, _few_steps(quick=quick))


def faces_problem(folder: Path, *, quick: bool) -> Problem:
    """The paper's faces."""
    X, rank = training_faces(folder), 50
    if quick:
        X, rank = X[:6, ::4, ::4], 2
        X = X / X.sum((1, 2), keepdims=True)
    loss = wtf.Wasserstein(wtf.grid_cost(*X.shape[1:]), eps=1e-3, lam=10.0)
    options = {"constraints": SAMPLES, "max_iter": 100_000} | _few_steps(quick=quick)
    return Problem(X, "cp", rank, loss, 0.005 / rank, options)


def images_problem(*, quick: bool) -> Problem:
    """The paper's stacked images, from a fixed random start."""
    X = stacked_images(4 if quick else 100)
    loss = wtf.Wasserstein(wtf.grid_cost(32, 32), eps=0.01, lam=25.0)
    options = {"constraints": SAMPLES, "init": random_factors(X.shape, 3)}
    return Problem(X, "cp", 3, loss, 0.01, options | _few_steps(quick=quick))


def readme_problem() -> Problem:
    """The fit that README.md shows."""
    loss = wtf.Wasserstein(wtf.grid_cost(64), eps=1e-2, lam=10.0)
    return Problem(moving_peaks(), "nmf", 2, loss, 1e-2)


COMPARED: dict[str, Callable[..., Problem]] = {
    "digits": digits_problem,
    "histograms": histograms_problem,
    "strokes": strokes_problem,
}
"""The fits that are run on every library."""


def slope(x: list[float], y: list[float]) -> float:
    """Slope of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
