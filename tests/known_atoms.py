"""Mixtures of known atoms whose lines are displaced, and losses to unmix them with."""

import numpy as np

import wtfarray as wtf

BINS = 24


def line(centre, width=1.5):
    return 1.0 / (1.0 + ((np.arange(BINS) - centre) / width) ** 2)


def atoms():
    return np.stack([line(c) / line(c).sum() for c in (5.0, 12.0, 18.0)])


def mixtures(count=3, seed=0):
    """Mixtures of shifted atoms, of different masses, and their coefficients."""
    rng = np.random.default_rng(seed)
    mixed = rng.dirichlet(np.ones(3), count) * rng.uniform(0.5, 3.0, (count, 1))
    shifted = [[line(c + rng.normal(0, 0.5)) for c in (5.0, 12.0, 18.0)] for _ in range(count)]
    parts = np.asarray(shifted)
    parts /= parts.sum(axis=2, keepdims=True)
    return np.einsum("ij,ijk->ik", mixed, parts), mixed


LOSS = wtf.Wasserstein(wtf.grid_cost(BINS), eps=0.02, lam=2.0)
LOSSES = {
    "wasserstein": LOSS,
    "frobenius": wtf.Frobenius(),
    "kullback-leibler": wtf.KullbackLeibler(),
    "sum": wtf.LossSum(LOSS, wtf.KullbackLeibler()),
}
