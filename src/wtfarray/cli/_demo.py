"""
Demonstration: three sources with random displacements, recovered with two losses.

Every image is a mixture, with random shares, of a vertical bar, a horizontal bar and a spot. Each
source is displaced at random, by up to five times the width of the bars. A CP decomposition with
three components estimates the sources and the shares, once with a Wasserstein loss and once with a
squared error. ``wtfarray demo`` and ``examples/demo.py`` run it; it requires Matplotlib.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

import wtfarray as wtf
from wtfarray import plot
from wtfarray._fit.storage import replace_file

IMAGES, SIDE, RANK = 40, 32, 3
CENTRES = ((-0.4, -0.5), (-0.5, 0.4), (0.5, 0.0))
"""Mean position (y, x) of the vertical bar, the horizontal bar and the spot, in [-1, 1]."""
WIDTHS = ((0.2, 0.06), (0.06, 0.2), (0.1, 0.1))
"""Standard deviations (y, x) of their Gaussian profiles."""
SHIFT = 0.3
"""Largest displacement along each axis; displacements are uniform and independent."""
MARKERS = ("s", "D", "o")

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Mixture:
    """Images, with the true sources and shares."""

    images: FloatArray  # (IMAGES, SIDE, SIDE), of mass one
    sources: FloatArray  # (RANK, SIDE, SIDE), at their mean position in the images, of mass one
    shares: FloatArray  # (IMAGES, RANK), rows of sum one


@dataclass(frozen=True, eq=False)
class Found:
    """Atoms and shares of a fit, in the order of the true sources, and their errors."""

    atoms: FloatArray  # (RANK, SIDE, SIDE)
    shares: FloatArray  # (IMAGES, RANK)
    similarity: float
    share_error: float


def source(
    centre: tuple[float, float], width: tuple[float, float], shift: FloatArray
) -> FloatArray:
    """Displaced copies (n, SIDE, SIDE) of one source, each of mass one; ``shift`` is (n, 2)."""
    place = np.linspace(-1, 1, SIDE)
    down, across = (
        np.exp(-0.5 * ((place - centre[axis] - shift[:, axis, None]) / width[axis]) ** 2)
        for axis in (0, 1)
    )
    images: FloatArray = down[:, :, None] * across[:, None, :]
    images /= images.sum(axis=(1, 2), keepdims=True)
    return images


def mixture(rng: np.random.Generator) -> Mixture:
    """Draw shares and displacements, and mix the displaced sources."""
    shares = rng.dirichlet(np.ones(RANK), IMAGES)
    shifts = rng.uniform(-SHIFT, SHIFT, (RANK, IMAGES, 2))
    kinds = list(zip(CENTRES, WIDTHS, strict=True))
    moved = np.stack([source(*kind, shift) for kind, shift in zip(kinds, shifts, strict=True)])
    still = [source(*k, s.mean(axis=0, keepdims=True)) for k, s in zip(kinds, shifts, strict=True)]
    images: FloatArray = np.einsum("nr,rnij->nij", shares, moved)
    return Mixture(images, np.concatenate(still), shares)


def cosines(a: FloatArray, b: FloatArray) -> FloatArray:
    """Cosine of every image of ``a`` with every image of ``b``."""
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    similarity: FloatArray = (a @ b.T) / np.outer(
        np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    )
    return similarity


def compare(fit: wtf.Factorisation, truth: Mixture) -> Found:
    """Match the atoms to the true sources."""
    shares, down, across = fit.factors
    atoms: FloatArray = np.einsum("ir,jr->rij", down, across)
    similarity = cosines(truth.sources, atoms)
    orders = [list(order) for order in itertools.permutations(range(RANK))]
    best = max(orders, key=lambda order: float(similarity[range(RANK), order].sum()))
    return Found(
        atoms[best],
        shares[:, best],
        float(similarity[range(RANK), best].mean()),
        float(np.abs(shares[:, best] - truth.shares).mean()),
    )


def row(name: str, fit: wtf.Factorisation, found: Found, seconds: float) -> str:
    """One line of the table."""
    return (
        f"{name:<15}{fit.objective:>10.5f}{fit.gap:>9.1e}{fit.converged!s:>11}{fit.n_iter:>12}"
        f"{seconds:>9.1f}{found.similarity:>16.2f}{found.share_error:>13.3f}"
    )


def frame(ax: Axes, title: str, *, labelled: bool) -> None:
    """Set the title and the axes of an image panel."""
    ax.set_title(title)
    ax.set_xticks([-0.5, 0, 0.5])
    ax.set_yticks([-0.5, 0, 0.5])
    ax.tick_params(labelleft=labelled, length=2)
    ax.set_xlabel("$x$", labelpad=0)
    if labelled:
        ax.set_ylabel("$y$", labelpad=0)


def show_image(ax: Axes, image: FloatArray) -> None:
    """Show one image of the data in grey."""
    ax.imshow(image, cmap="Greys", extent=(-1, 1, 1, -1), interpolation="nearest")


def show_atoms(ax: Axes, atoms: FloatArray) -> None:
    """Show all atoms in one image, each in its own colour, scaled to its largest value."""
    ink = 1 - np.asarray([to_rgb(colour) for colour in plot.COLOURS[:RANK]])
    scaled = atoms / atoms.max(axis=(1, 2), keepdims=True)
    picture = np.clip(1 - np.einsum("rij,rc->ijc", scaled, ink), 0, 1)
    ax.imshow(picture, extent=(-1, 1, 1, -1), interpolation="nearest")


def show_shares(ax: Axes, truth: Mixture, found: Found) -> None:
    """Plot estimated against true shares, in the colours of the atoms."""
    ax.plot([0, 1], [0, 1], color="0.7", linewidth=1, zorder=0)
    for r, (colour, marker) in enumerate(zip(plot.COLOURS, MARKERS, strict=False)):
        ax.scatter(
            truth.shares[:, r], found.shares[:, r], 12, color=colour, marker=marker, linewidths=0
        )
    ax.set_title(f"shares, mean error {found.share_error:.2f}")
    ax.set(xlabel="true share", ylabel="found share", xlim=(-0.04, 1.04), ylim=(-0.04, 1.04))
    ax.set_xticks([0, 0.5, 1])
    ax.set_yticks([0, 0.5, 1])
    ax.set_aspect("equal")
    ax.spines[["top", "right"]].set_visible(False)


def draw(truth: Mixture, wasserstein: Found, frobenius: Found) -> Figure:
    """A figure with data and true sources above, atoms and shares of both fits below."""
    figure = Figure(figsize=(10, 5.3), dpi=150, layout="constrained")
    panels: Any = figure.subplots(2, 4)
    mixed = np.sort(np.argsort(truth.shares.min(axis=1))[-3:])  # where every source is visible
    for i, ax in zip(mixed, panels[0, :3], strict=True):
        show_image(ax, truth.images[i])
        frame(ax, f"image {i + 1} of {len(truth.images)}", labelled=i == mixed[0])
    show_atoms(panels[0, 3], truth.sources)
    frame(panels[0, 3], "true sources", labelled=False)
    for left, name, found in (
        (0, "Wasserstein loss", wasserstein),
        (2, "squared error", frobenius),
    ):
        show_atoms(panels[1, left], found.atoms)
        frame(panels[1, left], f"atoms, {name}", labelled=True)
        show_shares(panels[1, left + 1], truth, found)
    return figure


def _uninterrupted(fit: wtf.Factorisation) -> wtf.Factorisation:
    """The fit; raises KeyboardInterrupt if it was stopped by Ctrl-C."""
    if fit.stopped:
        raise KeyboardInterrupt
    return fit


def _save(path: Path, save: Callable[[Path], object]) -> Path:
    save(path)
    return path


def run(
    out: Path,
    write: Callable[[str], object] = print,
    *,
    progress: bool = True,
    seed: int = 0,
    save: Callable[[Path, Callable[[Path], object]], Path | None] = _save,
) -> Path | None:
    """
    Fit both models, print a table and save a figure.

    Parameters
    ----------
    out : Path
        The file of the figure.
    write : callable
        Prints a line.
    progress : bool
        Show progress bars.
    seed : int
        Sets the random images.
    save : callable
        Calls its second argument with a path and returns that path.

    Returns
    -------
    Path or None
        The path returned by ``save``.
    """
    truth = mixture(np.random.default_rng(seed))
    X = truth.images
    loss = wtf.Wasserstein(wtf.grid_cost(SIDE, SIDE), eps=1e-2, lam=10.0)
    begin = time.perf_counter()
    wasserstein = _uninterrupted(wtf.cp(X, RANK, loss, rho=2e-3, rng=0, progress=progress))
    between = time.perf_counter()
    # The squared error has many local minima: take the best of five initialisations. Its values
    # are small, and the weight of the entropy is chosen accordingly.
    frobenius = _uninterrupted(
        wtf.cp(X, RANK, wtf.Frobenius(), rho=1e-6, rng=0, n_init=5, progress=progress)
    )
    end = time.perf_counter()
    found = compare(wasserstein, truth), compare(frobenius, truth)

    write(f"\nCP of {IMAGES} images of {SIDE} x {SIDE} pixels, rank {RANK}\n")
    write(
        f"{'loss':<15}{'objective':>10}{'gap':>9}{'converged':>11}{'iterations':>12}{'seconds':>9}"
        f"{'cosine of atoms':>16}{'share error':>13}"
    )
    write(row("Wasserstein", wasserstein, found[0], between - begin))
    write(row("squared error", frobenius, found[1], end - between))

    out.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"font.size": 10, "axes.titlesize": 10}):
        figure = draw(truth, *found)

        def save_figure(path: Path) -> None:
            replace_file(path, partial(figure.savefig, format=path.suffix[1:].lower()))

        written = save(out, save_figure)
    if written is not None:
        write(f"\nFigure: {written}")
    return written
