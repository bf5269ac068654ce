"""The largest entries of each atom by name."""

from dataclasses import replace

import numpy as np
from helpers import numpy_only, random_fit, to_numpy
from pictures import closed

import wtfarray as wtf
from wtfarray import plot

__all__ = ["closed"]
GENES = wtf.Axis("gene", [f"G{k}" for k in range(50)])


def names(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def test_largest_entries_are_named(array):
    fit = replace(random_fit(array, "nmf", (6, 50), 3), axes=(wtf.Axis("cell"), GENES))
    ax = plot.top_features(fit, n=4)
    atoms = to_numpy(fit.factors[1])
    expected = [f"G{k}" for r in range(3) for k in np.argsort(-atoms[:, r])[:4]]
    assert names(ax) == expected
    widths = [bar.get_width() for bar in ax.patches]
    assert widths[:4] == sorted(atoms[:, 0])[:-5:-1]
    assert ax.get_ylabel() == "gene"


@numpy_only
def test_fewer_features_than_asked_for_and_no_names():
    fit = random_fit(np.array, "cp", (6, 5, 3), 2)
    assert sorted(names(plot.top_features(fit, mode=2))) == ["0", "0", "1", "1", "2", "2"]


@numpy_only
def test_flattened_features_have_several_names():
    axes = (wtf.Axis(), wtf.Axis("x", [10, 20]), wtf.Axis())
    fit = replace(random_fit(np.array, "nmf", (6, 2, 3), 1), axes=axes)
    assert min(names(plot.top_features(fit, n=6))) == "10, 0"
