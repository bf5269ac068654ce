"""Colours, axes, legends and mosaics of images, as all plots use them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.axes import Axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The colour-blind safe palette of Okabe and Ito, without yellow, too pale for lines."""
STYLES = ("-", "--", ":", "-.")
HEAT = "cividis"
MOST_NAMES = 40
"""Bins with names are drawn as points with these names, if there are at most this many."""


def mode_axis(axis: Axis, mode: int, bins: int) -> tuple[NDArray[np.float64], str, list[str]]:
    """
    Where the bins of a mode are drawn, the label of the axis, and the names of the bins.

    Bins are drawn at their values if these are ordered numbers, otherwise at their indices.
    """
    positions = axis.positions
    if positions is not None:
        return positions, axis.title or f"value along mode {mode}", []
    names = [str(value) for value in axis.values or ()] if bins <= MOST_NAMES else []
    label = axis.title or f"index along mode {mode}"
    if names and axis.title is None:
        label = f"mode {mode}"
    elif not names and axis.title is not None:
        label = f"index of {axis.title}"
    return np.arange(bins, dtype=np.float64), label, names


def set_mode_axis(ax: Axes, positions: NDArray[np.float64], label: str, names: list[str]) -> None:
    """Label the horizontal axis of a plot along one mode."""
    ax.set_xlabel(label)
    if names:
        slanted = len(names) > 8 or max(map(len, names)) > 6
        ax.set_xticks(positions, names, rotation=90 if slanted else 0)


def draw_mosaic(
    images: NDArray[np.float64],
    columns: int,
    titles: tuple[str, str],
    label: str,
    ax: Axes | None,
    names: Sequence[str] | None = None,
) -> Axes:
    """Images (m, h, w) side by side, row by row; ``titles`` are those of rows and columns."""
    if names is None:
        names = [str(r) for r in range(len(images))]
        largest = images.max((1, 2), keepdims=True)
        images = images / np.where(largest > 0, largest, 1.0)
    count, height, width = images.shape
    rows = math.ceil(count / columns)
    gap = max(1, round(0.06 * max(height, width)))
    picture = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), np.nan)
    ax = new_axes(ax, picture.shape[1] / picture.shape[0])
    for i, image in enumerate(images):
        top, left = (i // columns) * (height + gap), (i % columns) * (width + gap)
        picture[top : top + height, left : left + width] = image
        # Outlined, to be legible on dark and on light backgrounds.
        text = ax.text(left + 0.04 * width, top + 0.04 * height, names[i], va="top", color="white")
        text.set(fontsize="small", path_effects=[_outline()])
    drawn = ax.imshow(picture, cmap=HEAT, vmin=0, vmax=1, interpolation="nearest")
    colour_bar(ax, drawn, label)
    ax.set_ylabel(titles[0])
    ax.set_xlabel(titles[1])
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    return ax


def mosaic_columns(images: NDArray[np.float64]) -> int:
    """The number of columns of a mosaic with few empty tiles and an aspect ratio near 3/2."""
    count, height, width = (int(n) for n in images.shape)

    def misfit(columns: int) -> float:
        rows = math.ceil(count / columns)
        empty = (rows * columns - count) / count
        return abs(math.log(columns * width / (rows * height) / 1.5)) + 4.0 * empty

    return min(range(1, count + 1), key=misfit)


def pyplot() -> Any:
    """The module `matplotlib.pyplot`."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        msg = "wtfarray.plot needs Matplotlib: pip install 'wtfarray[plot]'"
        raise ImportError(msg) from None
    return plt


def new_axes(ax: Axes | None, ratio: float = 1.5) -> Axes:
    """The given axes, or those of a new figure with this ratio of width to height."""
    plt = pyplot()
    if ax is not None:
        return ax
    # Leave space for the colour bar and the labels.
    height = min(max(5.0 / ratio, 1.3), 6.0) + 0.4
    width = min(6.0, (height - 0.4) * ratio + 1.0)
    made: Axes = plt.subplots(figsize=(width, height), layout="compressed")[1]
    return made


def colour_bar(ax: Axes, image: Any, label: str) -> None:
    """Add a colour bar of the height of the image."""
    bar: Any = ax.inset_axes((1.02, 0.0, 0.03, 1.0))
    figure: Any = ax.figure
    figure.colorbar(image, cax=bar, label=label)


def _outline() -> Any:
    from matplotlib.patheffects import withStroke

    return withStroke(linewidth=2, foreground="black")


def colour(i: int) -> str:
    """The colour of component i."""
    return COLOURS[i % len(COLOURS)]


def style(i: int) -> str:
    """The line style, which changes each time all colours have been used."""
    return STYLES[i // len(COLOURS) % len(STYLES)]


def legend_beside(ax: Axes, entries: int, **options: Any) -> None:
    """Add a legend to the right of the axes, where it covers no data."""
    ax.legend(
        frameon=False,
        fontsize="small",
        ncols=math.ceil(entries / 14),
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        **options,
    )


def legend_above(ax: Axes, *handles: Any) -> None:
    """Add a legend above the axes, where it covers no data."""
    ax.legend(
        *handles,
        frameon=False,
        fontsize="small",
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3,
    )


def tidy(ax: Axes) -> Axes:
    """A pale grid, and no frame above and to the right."""
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
