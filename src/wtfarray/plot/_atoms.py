"""Plots of atoms, of all factors, and of reconstructions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.containers import without_labels
from wtfarray._arrays.host import to_host
from wtfarray._arrays.sparse import SparseSamples
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import axis_index, check_shape, common_namespace, instance_of
from wtfarray._fit.result import Factorisation
from wtfarray._models.models import atoms_of
from wtfarray.plot._drawing import (
    COLOURS,
    colour,
    draw_mosaic,
    legend_above,
    legend_beside,
    mode_axis,
    mosaic_columns,
    new_axes,
    pyplot,
    set_mode_axis,
    style,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MARKERS = ("o", "s", "^", "D")


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

    Bins with names, such as features in no order, are drawn as points; if there are many, see
    `top_features`. Modes with a single bin are left out.

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
        titles = _titles(fit, modes)
        return draw_mosaic(values, mosaic_columns(values), titles, "share of the largest", ax)
    ax = new_axes(ax)
    positions, label, names = mode_axis(fit.axis(modes[0]), modes[0], values.shape[1])
    points = bool(names) or values.shape[1] == 1  # a line of one bin would not be seen
    for r, atom in enumerate(values):
        ax.plot(
            positions,
            atom,
            color=colour(r),
            linestyle="" if points else style(r),
            marker=MARKERS[r // len(COLOURS) % len(MARKERS)] if points else None,
            label=str(r),
        )
    set_mode_axis(ax, positions, label, names)
    ax.set_ylabel("value")
    legend_beside(ax, len(values), title="atom")
    return tidy(ax)


def factors(fit: Factorisation, /) -> list[Axes]:
    """
    Plot the columns of all factors in one figure, one panel per mode.

    Parameters
    ----------
    fit : Factorisation
        Any model, with arrays of any library.

    Returns
    -------
    list of matplotlib.axes.Axes
        The panels, in the order of the factors.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> from wtfarray import plot
    >>> X = np.random.default_rng(0).gamma(1.0, size=(6, 5, 4, 3))
    >>> fit = wtf.cp(X, 2, wtf.KullbackLeibler(), rng=0)
    >>> [ax.get_xlabel() for ax in plot.factors(fit)][-1]
    'index along mode 3'
    """
    instance_of("fit", fit, Factorisation, "a Factorisation")
    count = len(fit.factors)
    _, panels = pyplot().subplots(
        count, 1, figsize=(6, 2.2 * count), layout="constrained", squeeze=False
    )
    for k, ax in enumerate(panels[:, 0]):
        size = fit.factors[k].shape[0]
        # The features of a matrix model may have more modes than a picture shows.
        flat = fit.kind == "nmf" and k == 1 and sum(n > 1 for n in fit.shape[1:]) > 2
        atoms(fit, mode=k, shape=(size,) if flat else None, ax=ax)
    return list(panels[:, 0])


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
        The fitted data; NaN, where nothing was observed, is left blank.
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
    X, _ = without_labels("X", X, in_chunks=True)
    if not isinstance(X, SparseSamples):
        common_namespace(X=X)
    check_shape("X", X, fit.shape)
    chosen = [axis_index("samples", i, X.shape[0]) for i in samples if i < X.shape[0]]
    if not chosen:
        msg = f"samples is {tuple(samples)}: expected indices below {X.shape[0]}"
        raise ValueError(msg)
    atom, modes = _atoms_of(fit, None, shape)
    data = np.stack([to_host(_sample(X, i)).reshape(atom.shape[1:]) for i in chosen])
    seen = np.nan_to_num(data)  # missing entries are left blank
    labels = fit.axis(0).values
    sample_names = [str(i if labels is None else labels[i]) for i in chosen]
    model = np.tensordot(to_host(fit.factors[0])[chosen], atom, axes=1)
    if data.ndim == 3:
        largest = np.maximum(seen.max((1, 2)), model.max((1, 2)))[:, None, None]
        largest = np.where(largest > 0, largest, 1.0)
        images = np.concatenate([data / largest, model / largest])
        names = [f"{kind} {name}" for kind in ("data", "model") for name in sample_names]
        label = "share of the largest"
        return draw_mosaic(images, len(chosen), _titles(fit, modes), label, ax, names)
    ax = new_axes(ax)
    place, label, names = mode_axis(fit.axis(modes[0]), modes[0], data.shape[1])
    step = 1.1 * max(seen.max(), model.max())
    for j, (x, y) in enumerate(zip(data, model, strict=True)):
        base = -j * step
        ax.fill_between(place, base, base + x, color="0.75", linewidth=0, label="data")
        ax.plot(place, base + y, color=COLOURS[0], label="model")
    ax.set_yticks([-j * step for j in range(len(chosen))], sample_names)
    set_mode_axis(ax, place, label, names)
    ax.set_ylabel(fit.axis(0).title or "sample")
    legend_above(ax, *(entry[:2] for entry in ax.get_legend_handles_labels()))
    return tidy(ax)


def _sample(X: Array, i: int) -> Array:
    """One sample, dense."""
    return X[i : i + 1] if isinstance(X, SparseSamples) else X[i, ...]


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
    elif 1 in sizes and len(sizes) > 1:
        kept = [k for k, n in enumerate(sizes) if n > 1] or [0]
        sizes, modes = tuple(sizes[k] for k in kept), tuple(modes[k] for k in kept)
    if len(sizes) not in (1, 2):
        choices = ", ".join(str(k) for k in range(len(fit.factors)))
        msg = f"the atoms have {len(sizes)} modes: expected one or two; choose a mode of {choices}"
        raise ValueError(msg)
    return columns.T.reshape(-1, *sizes), modes


def _titles(fit: Factorisation, modes: tuple[int, ...]) -> tuple[str, str]:
    """The titles of the rows and columns of images."""
    down, across = (fit.axis(k).title or f"mode {k}" for k in modes)
    return (f"rows of {down}", f"columns of {down}") if modes[0] == modes[1] else (down, across)
