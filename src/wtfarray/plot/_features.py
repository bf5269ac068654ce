"""The largest entries of each atom by name, for many features in no order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wtfarray._arrays.host import to_host
from wtfarray._arrays.validation import axis_index, instance_of, positive_integer
from wtfarray._fit.result import Factorisation
from wtfarray.plot._drawing import colour, new_axes, pyplot, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def top_features(
    fit: Factorisation, /, *, mode: int = 1, n: int = 10, ax: Axes | None = None
) -> Axes:
    """
    Plot the largest entries of each column of a factor as bars, with the names of the features.

    Parameters
    ----------
    fit : Factorisation
        Any model, with arrays of any library.
    mode : int
        The factor; its rows are the features.
    n : int
        Number of features per atom.
    ax : matplotlib.axes.Axes, optional
        The axes to draw into; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        One block of bars per atom, the largest entry on top.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> from wtfarray import plot
    >>> X = np.random.default_rng(0).dirichlet(np.ones(50), 8)
    >>> genes = wtf.Axis("gene", [f"G{k}" for k in range(50)])
    >>> fit = wtf.nmf(X, 2, wtf.KullbackLeibler(), rng=0, axes=["cell", genes])
    >>> ax = plot.top_features(fit, n=3)
    >>> len(ax.patches), ax.get_xlabel()
    (6, 'value')
    """
    instance_of("fit", fit, Factorisation, "a Factorisation")
    mode = axis_index("mode", mode, len(fit.factors))
    values = to_host(fit.factors[mode])
    names = _names(fit, mode)
    count = min(positive_integer("n", n), values.shape[0])
    rank = values.shape[1]
    if ax is None:
        height = 0.6 + 0.17 * rank * (count + 1)
        ax = pyplot().subplots(figsize=(5, height), layout="constrained")[1]
    ax = new_axes(ax)
    places: list[float] = []
    labels: list[str] = []
    for r in range(rank):
        largest = np.argsort(-values[:, r], kind="stable")[:count]
        place = r * (count + 1) + np.arange(count)
        ax.barh(place, values[largest, r], color=colour(r), height=0.8)
        ax.annotate(
            f"atom {r}",
            (1.0, float(place[0])),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=colour(r),
            annotation_clip=False,
        )
        places.extend(place.tolist())
        labels.extend(names[i] for i in largest)
    ax.set_yticks(places, labels, fontsize="small")
    ax.set_ylim(rank * (count + 1) - 1.0, -1.0)
    ax.set_xlabel("value")
    ax.set_ylabel(fit.axis(mode).title or f"index along mode {mode}")
    ax.set_axisbelow(True)  # no grid lines over the bars
    return tidy(ax)


def _names(fit: Factorisation, mode: int) -> list[str]:
    """A name for each row of a factor."""
    flattened = fit.kind == "nmf" and mode == 1 and len(fit.shape) > 2
    if flattened:
        sizes = fit.shape[1:]
        levels = [fit.axis(k).values or range(n) for k, n in enumerate(sizes, start=1)]
        return [
            ", ".join(str(level[i]) for level, i in zip(levels, index, strict=True))
            for index in np.ndindex(*sizes)
        ]
    values = fit.axis(mode).values
    return [str(v) for v in (range(fit.shape[mode]) if values is None else values)]
