"""Plots of fits; requires Matplotlib (``pip install 'wtfarray[plot]'``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import axis_index, check_shape, common_namespace, instance_of
from wtfarray._fit.rank_scan import RankScan
from wtfarray._fit.result import Factorisation
from wtfarray._models.models import atoms_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["atoms", "convergence", "core", "rank_scan", "reconstruction"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The colour-blind safe palette of Okabe and Ito, without yellow, too pale for lines."""
STYLES = ("-", "--", ":", "-.")
HEAT = "cividis"


def atoms(
    fit: Factorisation,
    /,
    *,
    mode: int | None = None,
    shape: Sequence[int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """
    Plot the atoms of a fit: as lines if they have one mode, as images if they have two.

    Parameters
    ----------
    fit : Factorisation
        Any model, with arrays of any library.
    mode : int, optional
        Draw the columns of the factor of this mode. By default, draw the atoms that belong to the
        columns of the first factor, which have all modes but the first.
    shape : sequence of int, optional
        The grid of the features, if these are a flattened image.
    ax : matplotlib.axes.Axes, optional
        The axes to draw into; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Every image is divided by its largest entry.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> from wtfarray import plot
    >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
    >>> fit = wtf.nmf(X, 2, wtf.KullbackLeibler(), rng=0)
    >>> ax = plot.atoms(fit)
    >>> len(ax.lines), ax.get_xlabel()
    (2, 'index along mode 1')
    """
    values, modes = _atoms_of(fit, mode, shape)
    if values.ndim == 3:
        return _draw_mosaic(values, _columns(values), modes, "share of the largest", ax)
    ax = _axes(ax)
    for r, atom in enumerate(values):
        ax.plot(atom, color=_colour(r), linestyle=_style(r), label=str(r))
    ax.set_xlabel(f"index along mode {modes[0]}")
    ax.set_ylabel("value")
    _legend(ax, len(values), title="atom")
    return _tidy(ax)


def reconstruction(
    fit: Factorisation,
    X: Array,
    /,
    *,
    samples: Sequence[int] = (0, 1, 2),
    shape: Sequence[int] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """
    Plot the data and the model of some samples: as areas and lines, or as two rows of images.

    The Wasserstein loss compares the model with the data blurred by the kernel, so even the model
    of a perfect fit is smoother than the data.

    Parameters
    ----------
    fit : Factorisation
        A fit to data with two or three modes, counted after the features have ``shape``.
    X : array
        The fitted data.
    samples : sequence of int
        Indices along the first mode; those that are out of range are ignored.
    shape : sequence of int, optional
        The grid of the features, if these are a flattened image.
    ax : matplotlib.axes.Axes, optional
        The axes to draw into; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Each pair of images is divided by its largest entry.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> from wtfarray import plot
    >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
    >>> fit = wtf.nmf(X, 2, wtf.KullbackLeibler(), rng=0)
    >>> plot.reconstruction(fit, X, samples=[3]).get_ylabel()
    'sample'
    """
    instance_of("fit", fit, Factorisation, "a Factorisation")
    common_namespace(X=X)
    check_shape("X", X, fit.shape)
    chosen = [axis_index("samples", i, X.shape[0]) for i in samples if i < X.shape[0]]
    if not chosen:
        msg = f"samples is {tuple(samples)}: expected indices below {X.shape[0]}"
        raise ValueError(msg)
    atom, modes = _atoms_of(fit, None, shape)
    data = np.stack([to_host(X[i, ...]).reshape(atom.shape[1:]) for i in chosen])
    model = np.tensordot(to_host(fit.factors[0])[chosen], atom, axes=1)
    if data.ndim == 3:
        largest = np.maximum(data.max((1, 2)), model.max((1, 2)))[:, None, None]
        images = np.concatenate([data / largest, model / largest])
        names = [f"{kind} {i}" for kind in ("data", "model") for i in chosen]
        label = "share of the largest"
        return _draw_mosaic(images, len(chosen), modes, label, ax, names)
    ax = _axes(ax)
    place = np.arange(data.shape[1])
    step = 1.1 * max(data.max(), model.max())
    for j, (x, y) in enumerate(zip(data, model, strict=True)):
        base = -j * step
        ax.fill_between(place, base, base + x, color="0.75", linewidth=0, label="data")
        ax.plot(place, base + y, color=COLOURS[0], label="model")
    ax.set_yticks([-j * step for j in range(len(chosen))], [str(i) for i in chosen])
    ax.set_xlabel(f"index along mode {modes[0]}")
    ax.set_ylabel("sample")
    ax.legend(*(entry[:2] for entry in ax.get_legend_handles_labels()), frameon=False)
    return _tidy(ax)


def convergence(fit: Factorisation, /, *, ax: Axes | None = None) -> Axes:
    """
    Plot the objective of a fit above its last value, and the duality gap, against time.

    Parameters
    ----------
    fit : Factorisation
        Any model.
    ax : matplotlib.axes.Axes, optional
        The axes to draw into; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Differences of objectives against seconds, on a logarithmic scale. Differences below the
        last gap are not resolved and are left out.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> from wtfarray import plot
    >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
    >>> loss = wtf.Wasserstein(wtf.grid_cost(12), eps=0.05, lam=10.0)
    >>> plot.convergence(wtf.nmf(X, 2, loss, rng=0)).get_yscale()
    'log'
    """
    instance_of("fit", fit, Factorisation, "a Factorisation")
    ax = _axes(ax)
    blue, vermilion = COLOURS[:2]
    seconds = np.asarray([record.time for record in fit.history])
    objective = np.asarray([record.objective for record in fit.history])
    gap = np.asarray([record.gap for record in fit.history])
    excess = objective - objective[-1]
    resolved = excess > gap[-1]
    ax.plot(seconds[resolved], excess[resolved], color=blue, label="objective minus its last value")
    positive = gap > 0
    if positive.any():
        ax.plot(
            seconds[positive],
            gap[positive],
            STYLES[1],
            color=vermilion,
            label="duality gap at the current blocks",
        )
    if positive[-1]:
        ax.plot(seconds[-1:], gap[-1:], "o", color=vermilion, label="gap of the result")
    ax.set_yscale("log")
    ax.set_xlabel("time [s]")
    ax.set_ylabel("difference of objectives")
    ax.legend(frameon=False)
    return _tidy(ax)


def core(fit: Factorisation, /, *, ax: Axes | None = None) -> Axes:
    """
    Plot the core of a Tucker decomposition as a heat map.

    Parameters
    ----------
    fit : Factorisation
        A Tucker decomposition.
    ax : matplotlib.axes.Axes, optional
        The axes to draw into; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        One row per column of the first factor. The columns of the heat map run over the columns of
        the other factors, in C order.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> from wtfarray import plot
    >>> X = np.random.default_rng(0).dirichlet(np.ones(36), 8).reshape(8, 6, 6)
    >>> fit = wtf.tucker(X, (2, 3, 3), wtf.KullbackLeibler(), rng=0)
    >>> plot.core(fit).get_ylabel()
    'atom of mode 0'
    """
    instance_of("fit", fit, Factorisation, "a Factorisation")
    if fit.core is None:
        msg = f"fit is a {fit.kind} fit, which has no core: expected a Tucker decomposition"
        raise ValueError(msg)
    values = to_host(fit.core)
    others = values.shape[1:]
    matrix = values.reshape(values.shape[0], -1)
    ax = _axes(ax)
    image = ax.imshow(matrix, cmap=HEAT, vmin=0, aspect="auto", interpolation="nearest")
    _colour_bar(ax, image, "entry of the core")
    ax.set_yticks(range(matrix.shape[0]))
    ax.set_ylabel("atom of mode 0")
    modes = ", ".join(str(k) for k in range(1, values.ndim))
    ax.set_xlabel(f"atoms of mode{'s' * (len(others) > 1)} {modes}")
    step = math.ceil(matrix.shape[1] / 24)
    shown = range(0, matrix.shape[1], step)
    names = [",".join(str(j) for j in np.unravel_index(i, others)) for i in shown] if others else []
    ax.set_xticks(list(shown) if others else [], names, rotation=90 if len(names) > 6 else 0)
    if len(others) > 1:
        for edge in range(others[-1], matrix.shape[1], others[-1]):
            ax.axvline(edge - 0.5, color="white", linewidth=1.5)
    return ax


def rank_scan(scan: RankScan, /, *, ax: Axes | None = None) -> Axes:
    """
    Plot a rank scan: loss of fitted and of left-out samples, and stability of the atoms.

    Parameters
    ----------
    scan : RankScan
        The result of `wtfarray.rank_scan`.
    ax : matplotlib.axes.Axes, optional
        The axes to draw into; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The loss on the left axis; the stability, if there are several seeds, on the right one.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> from wtfarray import plot
    >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
    >>> scan = wtf.rank_scan(X, (1, 2), wtf.KullbackLeibler(), n_seeds=2)
    >>> plot.rank_scan(scan).get_ylabel()
    'loss per sample above its minimum'
    """
    instance_of("scan", scan, RankScan, "a RankScan")
    ax = _axes(ax)
    blue, vermilion, green = COLOURS[:3]
    place = np.arange(len(scan.records))
    ax.plot(place, [r.loss for r in scan.records], "o-", color=blue, label="fitted samples")
    held_out = np.asarray([math.nan if r.held_out is None else r.held_out for r in scan.records])
    if np.isfinite(held_out).any():
        error = [r.held_out_error or 0.0 for r in scan.records]
        ax.errorbar(
            *(place, held_out, error),
            fmt="s--",
            color=vermilion,
            capsize=3,
            label="left-out samples",
        )
    ax.set_xlabel("rank")
    ax.set_xticks(place, [str(r.rank).strip("()") for r in scan.records])
    ax.set_ylabel("loss per sample above its minimum")
    lines, names = ax.get_legend_handles_labels()
    if any(r.stability is not None for r in scan.records):
        right = ax.twinx()
        stability = [math.nan if r.stability is None else r.stability for r in scan.records]
        lines += right.plot(place, stability, "^:", color=green)
        names.append("stability (right)")
        right.set_ylim(0, 1.05)
        right.set_ylabel("stability: cosine of matched atoms", color=green)
        right.tick_params(axis="y", labelcolor=green)
        right.spines["top"].set_visible(False)
    if all(r.loss > 0 and (r.held_out is None or r.held_out > 0) for r in scan.records):
        ax.set_yscale("log")
    ax.legend(lines, names, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    return _tidy(ax)


def _atoms_of(
    fit: Factorisation, mode: int | None, shape: Sequence[int] | None
) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    """The atoms (r, ...) and their modes."""
    instance_of("fit", fit, Factorisation, "a Factorisation")
    sizes, modes = fit.shape[1:], tuple(range(1, len(fit.shape)))
    if mode is None:
        columns = to_host(atoms_of(fit.factors, fit.core, fit.weights))
    else:
        mode = axis_index("mode", mode, len(fit.factors))
        columns = to_host(fit.factors[mode])
        if fit.kind != "nmf" or mode == 0:
            sizes, modes = fit.shape[mode : mode + 1], (mode,)
    if shape is not None:
        if math.prod(shape) != math.prod(sizes):
            msg = f"shape is {tuple(shape)}: expected sizes whose product is {math.prod(sizes)}"
            raise ValueError(msg)
        if tuple(shape) != sizes:
            modes = modes[:1] * len(shape)
        sizes = tuple(shape)
    if len(sizes) not in (1, 2):
        choices = ", ".join(str(k) for k in range(len(fit.factors)))
        msg = f"the atoms have {len(sizes)} modes: expected one or two; choose a mode of {choices}"
        raise ValueError(msg)
    return columns.T.reshape(-1, *sizes), modes


def _draw_mosaic(
    images: NDArray[np.float64],
    columns: int,
    modes: tuple[int, ...],
    label: str,
    ax: Axes | None,
    names: Sequence[str] | None = None,
) -> Axes:
    """Images (m, h, w) side by side, row by row."""
    if names is None:
        names = [str(r) for r in range(len(images))]
        largest = images.max((1, 2), keepdims=True)
        images = images / np.where(largest > 0, largest, 1.0)
    count, height, width = images.shape
    rows = math.ceil(count / columns)
    gap = max(1, round(0.06 * max(height, width)))
    picture = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), np.nan)
    ax = _axes(ax, picture.shape[1] / picture.shape[0])
    for i, image in enumerate(images):
        top, left = (i // columns) * (height + gap), (i % columns) * (width + gap)
        picture[top : top + height, left : left + width] = image
        # Outlined, to be legible on dark and on light backgrounds.
        text = ax.text(left + 0.04 * width, top + 0.04 * height, names[i], va="top", color="white")
        text.set(fontsize="small", path_effects=[_outline()])
    drawn = ax.imshow(picture, cmap=HEAT, vmin=0, vmax=1, interpolation="nearest")
    _colour_bar(ax, drawn, label)
    down, across = (f"mode {k}" for k in modes)
    ax.set_ylabel(down if down != across else f"rows of {down}")
    ax.set_xlabel(across if down != across else f"columns of {down}")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    return ax


def _columns(images: NDArray[np.float64]) -> int:
    """The number of columns of a mosaic with few empty tiles and an aspect ratio near 3/2."""
    count, height, width = (int(n) for n in images.shape)

    def misfit(columns: int) -> float:
        rows = math.ceil(count / columns)
        empty = (rows * columns - count) / count
        return abs(math.log(columns * width / (rows * height) / 1.5)) + 4.0 * empty

    return min(range(1, count + 1), key=misfit)


def _axes(ax: Axes | None, ratio: float = 1.5) -> Axes:
    """The given axes, or those of a new figure with this ratio of width to height."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        msg = "wtfarray.plot needs Matplotlib: pip install 'wtfarray[plot]'"
        raise ImportError(msg) from None
    if ax is not None:
        return ax
    # Leave space for the colour bar and the labels.
    height = min(max(5.0 / ratio, 1.3), 6.0) + 0.4
    width = min(6.0, (height - 0.4) * ratio + 1.0)
    return plt.subplots(figsize=(width, height), layout="compressed")[1]


def _colour_bar(ax: Axes, image: Any, label: str) -> None:
    """Add a colour bar of the height of the image."""
    bar: Any = ax.inset_axes((1.02, 0.0, 0.03, 1.0))
    figure: Any = ax.figure
    figure.colorbar(image, cax=bar, label=label)


def _outline() -> Any:
    from matplotlib.patheffects import withStroke

    return withStroke(linewidth=2, foreground="black")


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _style(i: int) -> str:
    """The line style, which changes each time all colours have been used."""
    return STYLES[i // len(COLOURS) % len(STYLES)]


def _legend(ax: Axes, entries: int, **options: Any) -> None:
    """Add a legend: inside the axes if it is short, otherwise beside them."""
    if entries > 8:
        options |= {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    ax.legend(frameon=False, fontsize="small", ncols=math.ceil(entries / 14), **options)


def _tidy(ax: Axes) -> Axes:
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
