"""Two data sets of the same samples, for the tests of coupled fits."""

import numpy as np

import wtfarray as wtf

N, SIZES, RANK = 12, (10, 6), 2


def data(masses=(1.0, 1.0), seed=0):
    """A matrix of shifted bumps and another without order, of the same coefficients."""
    rng = np.random.default_rng(seed)
    A = rng.dirichlet(np.ones(RANK), N)
    B = np.exp(-(((np.arange(SIZES[0])[:, None] - [2, 7]) / 1.5) ** 2))
    C = rng.dirichlet(np.full(SIZES[1], 0.5), RANK).T
    return [m * A @ (D / D.sum(axis=0)).T for m, D in zip(masses, (B, C), strict=True)], A


def line(lam=10.0):
    return wtf.Wasserstein(wtf.grid_cost(SIZES[0]), 0.05, lam)


def losses(lam=10.0):
    return [line(lam), wtf.KullbackLeibler()]


OPTIONS = {"rho": 1e-2, "rng": 0, "tol": 1e-5}
