"""Plots of fits; requires Matplotlib (``pip install 'wtfarray[plot]'``)."""

from wtfarray.plot._atoms import atoms, factors, reconstruction
from wtfarray.plot._diagnostics import convergence, core, rank_scan
from wtfarray.plot._drawing import COLOURS as COLOURS
from wtfarray.plot._features import top_features

__all__ = [
    "atoms",
    "convergence",
    "core",
    "factors",
    "rank_scan",
    "reconstruction",
    "top_features",
]
