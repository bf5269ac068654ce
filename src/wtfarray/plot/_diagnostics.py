"""Plots of convergence, of the core and of rank scans."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from wtfarray._arrays.host import to_host
from wtfarray._arrays.validation import instance_of
from wtfarray._fit.rank_records import RankScan
from wtfarray._fit.result import Factorisation
from wtfarray.plot._drawing import COLOURS, HEAT, STYLES, colour_bar, legend_above, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    ax = new_axes(ax)
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
    legend_above(ax)
    return tidy(ax)


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
    ax = new_axes(ax)
    image = ax.imshow(matrix, cmap=HEAT, vmin=0, aspect="auto", interpolation="nearest")
    colour_bar(ax, image, "entry of the core")
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

    A grey bar marks the suggested rank.

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
    ax = new_axes(ax)
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
    if scan.suggested is not None:
        suggested = [r.rank for r in scan.records].index(scan.suggested)
        ax.axvline(suggested, color="0.6", linewidth=6, alpha=0.4, zorder=0)
    if all(r.loss > 0 and (r.held_out is None or r.held_out > 0) for r in scan.records):
        ax.set_yscale("log")
    legend_above(ax, lines, names)
    return tidy(ax)
