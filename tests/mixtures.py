"""Mixtures of bumps on a line, and random images."""

import numpy as np


def bumps(samples=16, centres=(2, 6, 10), seed=0):
    """Mixtures of three bumps on a line."""
    rng = np.random.default_rng(seed)
    mix = rng.dirichlet(np.full(len(centres), 0.3), samples)
    atoms = np.exp(-((np.arange(12) - np.asarray(centres)[:, None]) ** 2))
    return mix @ (atoms / atoms.sum(axis=1, keepdims=True))


def images(seed=0):
    X = np.random.default_rng(seed).gamma(0.5, size=(6, 4, 3)) + 0.01
    return X / X.sum(axis=(1, 2), keepdims=True)
