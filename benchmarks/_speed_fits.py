"""Rows of `speed.py` that time whole fits."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _data import atom_error, random_factors, sampled_tensor
from _problems import (
    Figures,
    Line,
    Problem,
    Row,
    Setting,
    dense_problem,
    digits_problem,
    faces_problem,
    histograms_problem,
    images_problem,
    slope,
    stiff_problem,
    strokes_problem,
)
from _reference import reference
from _trace import Step, convert, passed, quiet, trace

import wtfarray as wtf

SAME = 1e-4
"""Two objectives that differ by less, relatively, are the same."""


def measure_fits(
    setting: Setting, before: Mapping[str, Any], problem: Problem, seeds: tuple[int, ...] = (0,)
) -> tuple[Figures, wtf.Factorisation]:
    """
    Fits of one problem, from several seeds: means, and the time to the mean J of the baseline.

    Without a baseline the J is that of this version itself. Returns the last fit as well.
    """
    found = []
    for seed in seeds:
        options = {} if "init" in problem.options else {"rng": seed}
        fit = problem.fit(setting.backend, setting.dtype, **options)
        found.append(trace(fit, clock=setting.now))
    J = float(np.mean([fit.objective for _, fit, _ in found]))
    level = before.get("J", J)
    step = passed([steps for steps, _, _ in found], level + SAME * abs(level), problem.certified)
    figures = {
        "to": None if step is None else step.seconds,
        "total": float(np.mean([total for _, _, total in found])),
        "J": J,
        "converged": float(np.mean([fit.converged for _, fit, _ in found])),
        "evaluations": float(np.mean([fit.history[-1].evaluations for _, fit, _ in found])),
    }
    return figures, found[-1][1]


def fit_lines(name: str, to: str = "", total: str = "", J: str = "") -> tuple[Line, ...]:
    """The lines of one kind of fits, with what is to be reached."""
    return (
        Line("to", f"{name}: s to the baseline's J", to),
        Line("total", f"{name}: s of the whole fit", total),
        Line("J", f"{name}: J at the end, certified", J, ".5f", compared=False),
        Line("converged", f"{name}: converged (share)", "", ".2g", compared=False),
        Line("evaluations", f"{name}: inner evaluations", "", ".0f"),
    )


def digits_row(setting: Setting, before: Mapping[str, Any]) -> Figures:
    """Written digits, from three seeds, and the projection of as many others."""
    figures, fit = measure_fits(setting, before, digits_problem(quick=setting.quick), (0, 1, 2))
    others = digits_problem(quick=setting.quick, first=400).X
    others = convert(others, setting.backend, setting.dtype)
    begin = setting.now()
    with quiet():
        fit.project(others)
    return figures | {"project": setting.now() - begin}


def histograms_row(setting: Setting, before: Mapping[str, Any]) -> Figures:
    """Counted histograms."""
    return measure_fits(setting, before, histograms_problem(quick=setting.quick))[0]


def strokes_row(setting: Setting, before: Mapping[str, Any]) -> Figures:
    """Images with empty regions, from three seeds."""
    return measure_fits(setting, before, strokes_problem(quick=setting.quick), (0, 1, 2))[0]


def stiff_row(setting: Setting, before: Mapping[str, Any]) -> Figures:
    """Written digits at a small eps, from three seeds."""
    return measure_fits(setting, before, stiff_problem(quick=setting.quick), (0, 1, 2))[0]


def dense_row(setting: Setting, before: Mapping[str, Any]) -> Figures:
    """A dense cost."""
    return measure_fits(setting, before, dense_problem(quick=setting.quick))[0]


def faces_row(setting: Setting, _: Mapping[str, Any]) -> Figures:
    """The paper's faces: the times of two given values of J."""
    problem = faces_problem(setting.folder(), quick=setting.quick)

    def late(step: Step) -> bool:
        return step.seconds > setting.seconds

    fit = problem.fit(setting.backend, setting.dtype)
    steps, fit, total = trace(fit, late, clock=setting.now)
    first, second = (passed([steps], level, problem.certified) for level in (-1.70, -1.735))
    return {
        "first": None if first is None else first.seconds,
        "second": None if second is None else second.seconds,
        "total": total,
        "J": fit.objective,
        "converged": float(fit.converged),
    }


def images_row(setting: Setting, before: Mapping[str, Any]) -> Figures:
    """The paper's stacked images, also by its code."""
    problem = images_problem(quick=setting.quick)
    start = random_factors(problem.X.shape, problem.rank)
    theirs = None
    if setting.reference is not None and "paper J" not in before:
        blocks = reference(
            Path(setting.reference),
            problem.X,
            start,
            problem.loss,
            problem.rho,
            sweeps=1 if setting.quick else 5,
            clock=setting.now,
        )
        values = [(problem.certified(factors), seconds) for _, seconds, factors in blocks]
        theirs = min(values, default=None)
    paper_J, paper_seconds = theirs or (before.get("paper J"), before.get("paper"))
    fit = problem.fit(setting.backend, setting.dtype)
    steps, fit, total = trace(fit, clock=setting.now)
    step = passed([steps], -10.08, problem.certified)
    figures = {"total": total, "J": fit.objective, "to": None if step is None else step.seconds}
    if paper_J is None:
        return figures
    step = passed([steps], paper_J, problem.certified)
    figures |= {"paper J": paper_J, "paper": paper_seconds, "to paper": None}
    if step is not None:
        figures |= {"to paper": step.seconds, "sooner": paper_seconds / step.seconds}
    return figures


def three_mode_row(setting: Setting, _: Mapping[str, Any]) -> Figures:
    """The paper's sampled tensor of 128^3 bins."""
    stored = np.load(setting.folder() / "three_mode.npz")
    loss = wtf.Wasserstein([stored["C"]] * 3, eps=0.01, lam=25.0)
    options = {"constraints": ("columns",) * 3, "weights": "fixed"}
    if setting.quick:
        options["max_iter"] = 2
    problem = Problem(sampled_tensor(stored), "cp", 3, loss, 2.5e-3, options)
    fit = problem.fit(setting.backend, setting.dtype)
    begin = setting.now()
    with quiet():
        found = fit()
    total = setting.now() - begin
    truth = [stored[f"true_{name}"] for name in ("alpha", "beta", "gamma")]
    variation = atom_error([np.asarray(a) for a in found.factors], truth)
    return {"total": total, "variation": variation, "J": found.objective}


def samples_row(setting: Setting, _: Mapping[str, Any]) -> Figures:
    """Whole fits against the number of samples."""
    counts = [4.0, 8.0] if setting.quick else [100.0, 400.0, 1600.0, 6400.0]
    seconds, evaluations = [], []
    for n in counts:
        problem = histograms_problem(quick=setting.quick, samples=int(n))
        fit = problem.fit(setting.backend, setting.dtype)
        begin = setting.now()
        with quiet():
            found = fit()
        seconds.append(setting.now() - begin)
        evaluations.append(found.history[-1].evaluations)
    return {
        "first": seconds[0],
        "last": seconds[-1],
        "slope": slope(counts, seconds),
        "evaluations": slope(counts, evaluations),
    }


def n_init_row(setting: Setting, _: Mapping[str, Any]) -> Figures:
    """Eight starts in units of one."""
    figures = {}
    options = {"constraints": images_problem(quick=True).options["constraints"]}
    images = images_problem(quick=setting.quick)
    if setting.quick:
        options |= {"max_iter": 4, "tol": 1e-2}
    problems = {
        "histograms": histograms_problem(quick=setting.quick, samples=200),
        "images": Problem(images.X, "cp", images.rank, images.loss, images.rho, options),
    }
    for name, problem in problems.items():
        one, several = (
            partial(problem.fit(setting.backend, setting.dtype), n_init=n) for n in (1, 8)
        )
        begin = setting.now()
        with quiet():
            first = one()
            middle = setting.now()
            best = several()
        ratio = (setting.now() - middle) / (middle - begin)
        gain = (first.objective - best.objective) / abs(first.objective)
        figures |= {name: ratio, f"{name} gain": gain}
    return figures


ROWS = (
    Row(
        "digits",
        (
            *fit_lines("digits 400x8x8, 3 seeds", "25 times sooner"),
            Line("project", "digits: s to project 400 more", "1 s"),
        ),
        digits_row,
    ),
    Row(
        "histograms",
        fit_lines("histograms 1000x60", total="5 times sooner, converged"),
        histograms_row,
    ),
    Row(
        "strokes",
        fit_lines("strokes 300x28x28, 3 seeds", "5 times sooner", J="no higher"),
        strokes_row,
    ),
    Row("stiff", fit_lines("stiff digits 200x8x8, 3 seeds"), stiff_row),
    Row("dense", fit_lines("dense cost, 700x800", "4 times sooner"), dense_row),
    Row(
        "faces",
        (
            Line("first", "faces 200x32x32: s to J = -1.70", "7 s"),
            Line("second", "faces: s to J = -1.735", "25 s"),
            Line("total", "faces: s of the whole fit", "90 s, converged"),
            Line("J", "faces: J at the end, certified", "", ".5f", compared=False),
            Line("converged", "faces: converged", "1", ".0f", compared=False),
        ),
        faces_row,
    ),
    Row(
        "images",
        (
            Line("to", "stacked images 100x32x32: s to J = -10.08"),
            Line("total", "stacked images: s of the whole fit", "0.8 s"),
            Line("J", "stacked images: J at the end, certified", "", ".5f", compared=False),
            Line(
                "paper J", "stacked images: best J of the paper's code", "", ".5f", compared=False
            ),
            Line("paper", "stacked images: s of the paper's code to it", "", ".1f", compared=False),
            Line("to paper", "stacked images: s to the same J"),
            Line(
                "sooner",
                "stacked images: times sooner than the paper's code",
                "100",
                ".0f",
                compared=False,
            ),
        ),
        images_row,
    ),
    Row(
        "three-mode",
        (
            Line("total", "three-mode 128^3: s of the whole fit", "6 s"),
            Line(
                "variation", "three-mode: mean total variation", "the same", ".4f", compared=False
            ),
            Line("J", "three-mode: J at the end, certified", "", ".5f", compared=False),
        ),
        three_mode_row,
    ),
    Row(
        "samples",
        (
            Line("first", "100 histograms: s of the whole fit"),
            Line("last", "6400 histograms: s of the whole fit"),
            Line("slope", "samples: slope of log s, 100 to 6400", "1.1"),
            Line("evaluations", "samples: slope of log evaluations"),
        ),
        samples_row,
    ),
    Row(
        "n_init",
        (
            Line("histograms", "histograms 200x60: time of n_init=8 / n_init=1", "3"),
            Line(
                "histograms gain", "histograms: J lower by, relatively", "", ".1e", compared=False
            ),
            Line("images", "stacked images: time of n_init=8 / n_init=1", "3"),
            Line(
                "images gain", "stacked images: J lower by, relatively", "", ".1e", compared=False
            ),
        ),
        n_init_row,
    ),
)
