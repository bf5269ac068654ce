"""
Three shifting blobs: what a Wasserstein loss learns from them, and what a squared error does.

Every image is the sum of three separable bumps, and every bump sits a little elsewhere in each
image. A CP decomposition of the stacked images looks for three separable atoms. ``wtfarray demo``
and ``examples/demo.py`` run it; it needs Matplotlib.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

import wtfarray as wtf
from wtfarray import plot

IMAGES, SIDE, RANK = 60, 32, 3
CENTRES = (0.0, 0.5, -0.5)
WIDTHS = (0.3, 0.2, 0.15)
JITTER = (0.15, 0.15)
"""Standard deviation of the bumps' places, down and across."""


def stacked_images(rng: np.random.Generator) -> NDArray[np.float64]:
    """Images (IMAGES, SIDE, SIDE) of mass one."""
    x = np.linspace(-1, 1, SIDE)
    X: NDArray[np.float64] = np.zeros((IMAGES, SIDE, SIDE))
    for centre, width in zip(CENTRES, WIDTHS, strict=True):
        down, across = (
            np.exp(-(((x - centre - rng.normal(0, r, (IMAGES, 1))) / width) ** 2)) for r in JITTER
        )
        X += down[:, :, None] * across[:, None, :]
    X /= X.sum(axis=(1, 2), keepdims=True)
    return X


def atoms(fit: wtf.Factorisation) -> NDArray[np.float64]:
    """The atoms as images (RANK, SIDE, SIDE), from the upper left to the lower right."""
    _, down, across = fit.factors
    images: NDArray[np.float64] = np.einsum("ir,jr->rij", down, across)
    place = np.arange(SIDE)
    return images[np.argsort(place @ down + place @ across)]


def summary(name: str, fit: wtf.Factorisation, seconds: float) -> str:
    """One line of the table."""
    return (
        f"{name:<14}{fit.objective:>12.5f}{fit.gap:>10.1e}{fit.converged!s:>11}"
        f"{fit.n_iter:>12}{seconds:>9.1f}"
    )


def show(ax: Axes, image: NDArray[np.float64], *, left: bool, bottom: bool) -> None:
    """Draw one image; only the outer panels carry numbers."""
    ax.imshow(image, cmap="cividis", extent=(-1, 1, 1, -1), interpolation="nearest")
    ax.set_xticks([-0.5, 0, 0.5])
    ax.set_yticks([-0.5, 0, 0.5])
    ax.tick_params(labelbottom=bottom, labelleft=left, length=2)
    if left:
        ax.set_ylabel("$y$", labelpad=0)
    if bottom:
        ax.set_xlabel("$x$", labelpad=0)


def draw(
    X: NDArray[np.float64], wasserstein: wtf.Factorisation, frobenius: wtf.Factorisation
) -> Figure:
    """Data, atoms and convergence."""
    figure = Figure(figsize=(10, 5.4), dpi=150, layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=(1.3, 1))
    pictures, curves = halves
    rows = (
        (f"Three of {IMAGES} images", X[:3]),
        ("Atoms, Wasserstein loss", atoms(wasserstein)),
        ("Atoms, squared error", atoms(frobenius)),
    )
    panels = pictures.subplots(3, 3, sharex=True, sharey=True)
    for i, (title, images) in enumerate(rows):
        for j, image in enumerate(images):
            show(panels[i, j], image, left=j == 0, bottom=i == 2)
            if i:
                panels[i, j].plot(CENTRES, CENTRES, "+", color="white", markersize=5)
        panels[i, 0].set_title(title, loc="left")
    pictures.supxlabel("+  the mean place of each bump", fontsize=9)
    above, below = curves.subplots(2, 1, sharex=True)
    seconds = [record.time for record in wasserstein.history]
    objective = [record.objective for record in wasserstein.history]
    above.plot(seconds, objective, color=plot.COLOURS[0])
    above.set_ylabel("objective")
    above.set_title("Convergence, Wasserstein loss", loc="left")
    above.grid(alpha=0.3)
    above.spines[["top", "right"]].set_visible(False)
    plot.convergence(wasserstein, ax=below)
    return figure


def _whole(fit: wtf.Factorisation) -> wtf.Factorisation:
    """Half a demonstration is none: Ctrl-C ends it."""
    if fit.stopped:
        raise KeyboardInterrupt
    return fit


def run(out: Path, write: Callable[[str], object] = print, *, progress: bool = True) -> None:
    """Fit, print and draw."""
    X = stacked_images(np.random.default_rng(0))
    loss = wtf.Wasserstein(wtf.grid_cost(SIDE, SIDE), eps=1e-2, lam=25.0)
    begin = time.perf_counter()
    wasserstein = _whole(wtf.cp(X, RANK, loss, rho=1e-2, rng=0, progress=progress))
    between = time.perf_counter()
    # The squared error has many local minima: the best of five starts.
    frobenius = _whole(
        wtf.cp(X, RANK, wtf.Frobenius(), rho=1e-6, rng=0, n_init=5, progress=progress)
    )
    end = time.perf_counter()

    write(f"\nCP of {IMAGES} images of {SIDE} x {SIDE} pixels, rank {RANK}\n")
    write(
        f"{'loss':<14}{'objective':>12}{'gap':>10}{'converged':>11}{'iterations':>12}{'seconds':>9}"
    )
    write(summary("Wasserstein", wasserstein, between - begin))
    write(summary("Frobenius", frobenius, end - between))

    out.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"font.size": 9, "axes.titlesize": 9}):
        draw(X, wasserstein, frobenius).savefig(out)
    write(f"\nFigure: {out}")
