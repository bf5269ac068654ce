"""Data for the estimators, and the objective that their documentation states."""

import numpy as np

import wtfarray as wtf
from wtfarray.sklearn import WassersteinCP, WassersteinNMF, WassersteinTucker

ESTIMATORS = [WassersteinNMF, WassersteinCP, WassersteinTucker]


FAST = {"eps": 0.2, "tol": 1e-3, "random_state": 0}


def bumps(n=24, size=16, seed=0, jitter=0.05):
    """Mixtures of three bumps, each shifted a little in every sample."""
    rng = np.random.default_rng(seed)
    x = (np.arange(size) + 0.5) / size
    shares = rng.dirichlet(np.full(3, 0.5), n)
    X = np.zeros((n, size))
    for j, (centre, width) in enumerate([(0.2, 0.08), (0.5, 0.1), (0.8, 0.06)]):
        bump = np.exp(-(((x - centre - rng.normal(0, jitter, (n, 1))) / width) ** 2))
        X += shares[:, [j]] * bump / bump.sum(axis=1, keepdims=True)
    return X


def images(n=12, size=6, seed=0):
    """Samples with two modes: mixtures of two bumps, each shifted a little in every sample."""
    rng = np.random.default_rng(seed)
    x = (np.arange(size) + 0.5) / size
    share = rng.uniform(size=(n, 1, 1))
    X = np.zeros((n, size, size))
    for part, centre in ((share, (0.3, 0.3)), (1.0 - share, (0.7, 0.6))):
        down, across = (
            np.exp(-(((x - c - rng.normal(0, 0.05, (n, 1))) / 0.15) ** 2)) for c in centre
        )
        bump = down[:, :, None] * across[:, None, :]
        X += part * bump / bump.sum(axis=(1, 2), keepdims=True)
    return X


def data_of(cls, **options):
    return bumps(**options) if cls is WassersteinNMF else images(**options)


def objective(model, X):
    """The objective of the documentation at the best coefficients, and its loss."""
    coefficients, atoms = model.transform(X), model.components_
    value, _ = wtf.wasserstein(X, model.inverse_transform(coefficients), model.loss_)
    least, _ = model.loss_.conjugate(X, np.zeros_like(X))
    loss = float(value + least) / X.shape[0]
    return (
        loss
        + model.rho_coefs * float(wtf.entropy(coefficients)[0]) / X.shape[0]
        + model.rho_atoms * float(wtf.entropy(atoms)[0]) / atoms.shape[0]
    ), loss
