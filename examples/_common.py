"""What the experiments share: their command line, tables and figures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import wtfarray as wtf

mpl.use("Agg")
# The benchmarks make and load the same data, and know how to run the paper's code.
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

# Okabe and Ito's colours can be told apart by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
FROBENIUS = {"rho": 1e-12, "tol": 1e-7, "max_iter": 2000}
"""A squared error of data of mass one is small: an entropy that does not show beside it."""


def command_line(description: str) -> argparse.ArgumentParser:
    """The options of every experiment."""
    parser = argparse.ArgumentParser(description=description.strip().splitlines()[0])
    parser.add_argument("--backend", choices=("numpy", "torch"), default="numpy")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the figures")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a small part, in about a minute")
    parser.add_argument("--reference", type=Path, help="a checkout of the paper's code, to time it")
    return parser


def timed(
    name: str, fit: Callable[..., wtf.Factorisation], *data: object, **options: object
) -> tuple[wtf.Factorisation, float]:
    """A fit with a progress bar, and its seconds."""
    print(f"\n{name}", file=sys.stderr)
    begin = time.perf_counter()
    result = fit(*data, progress=True, **options)
    return result, time.perf_counter() - begin


def arrays(fit: wtf.Factorisation) -> list[np.ndarray]:
    """The factors in NumPy."""
    return [np.asarray(factor) for factor in fit.factors]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows below their heads, numbers to four digits, as Markdown."""
    cells = [[f"{c:.4g}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(row[k]) for row in [list(head), *cells]) for k in range(len(head))]

    def line(row: Sequence[str]) -> str:
        first, *rest = (
            text.ljust(w) if k == 0 else text.rjust(w)
            for k, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        return "| " + " | ".join([first, *rest]) + " |"

    print()
    print(line(head))
    print(
        "|" + "|".join("-" * (w + 1) + ("-" if k == 0 else ":") for k, w in enumerate(widths)) + "|"
    )
    for row in cells:
        print(line(row))
    print(flush=True)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in the common style."""
    mpl.rcParams.update({"font.size": 9, "axes.titlesize": 9})
    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def plain(ax: Axes) -> None:
    """No frame where there is nothing to read off."""
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure and say where."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / name)
    print(f"Figure: {folder / name}")
