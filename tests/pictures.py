"""Axes and pictures, as the tests of plots look at them; skips them without Matplotlib."""

import numpy as np
import pytest

mpl = pytest.importorskip("matplotlib", reason="plots need Matplotlib")
mpl.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

SHAPE = (6, 5, 4)


@pytest.fixture(autouse=True)
def closed():
    """Close all figures after the test."""
    yield
    plt.close("all")


def data(shape=SHAPE):
    X = np.random.default_rng(0).gamma(1.0, size=shape) + 0.01
    return X / X.sum(axis=tuple(range(1, len(shape))), keepdims=True)


def picture(ax):
    """The image that was drawn, NaN between the tiles."""
    return np.ma.filled(ax.images[0].get_array().astype(float), np.nan)


def labelled(ax):
    return bool(ax.get_xlabel()) and bool(ax.get_ylabel())


def covers_data(ax):
    """Whether the legend lies over the part of the axes in which data are drawn."""
    ax.figure.canvas.draw()
    return ax.get_legend().get_window_extent().overlaps(ax.get_window_extent().padded(-2))
