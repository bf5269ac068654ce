"""Things that can be sliced, as data of a fit."""

import warnings

import numpy as np

import wtfarray as wtf


class Sliceable:
    """What a fit needs of a file: shape, dtype and slices of samples, which it counts."""

    def __init__(self, values):
        self.values = values
        self.shape = tuple(values.shape)
        self.dtype = values.dtype
        self.read = []

    def __getitem__(self, rows):
        self.read.append((rows.start, rows.stop))
        return self.values[rows, ...]


def trace(X, rank, loss, model=wtf.nmf, **options):
    """The objective after every step of a short fit, and the fit."""
    values = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f"{model.__name__}: stopped after max_iter")
        fit = model(
            X,
            rank,
            loss,
            rng=0,
            callback=lambda state: values.append(state.objective),
            **{"max_iter": 3, **options},
        )
    return np.asarray(values), fit
