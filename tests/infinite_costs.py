"""Costs with infinite entries, samples of bins that are in reach or not, and plain Sinkhorn."""

import math

import numpy as np

import wtfarray as wtf

N = 6


LAMS = [0.5, 10.0]


def band(width, n=N):
    """A cost on a line that forbids transport over more than ``width`` bins."""
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return np.where(distance <= width, (distance / n) ** 2, math.inf)


def apart(*costs):
    """A cost with one connected component for each of the given costs."""
    n = sum(len(cost) for cost in costs)
    whole, start = np.full((n, n), math.inf), 0
    for cost in costs:
        whole[start : start + len(cost), start : start + len(cost)] = cost
        start += len(cost)
    return whole


def partly_reachable(seed=0):
    """With `band(1)` six, two and four bins of the three samples are reachable."""
    rng = np.random.default_rng(seed)
    X, Y = rng.gamma(1.0, size=(2, 3, N)) + 0.05
    X[1, 1:] = X[2, :1] = X[2, 3:] = 0.0
    Y[2, 5] = 0.0
    return X, Y


CLOSED = np.asarray([[False] * 6, [False] * 2 + [True] * 4, [False] * 4 + [True] * 2])


def reachable(width=1, shape=(3, N), seed=0):
    """Positive samples X and Y, and Y can be reached from X within the band."""
    rng = np.random.default_rng(seed)
    open_ = np.isfinite(band(width, shape[1]))
    plans = np.where(open_, rng.gamma(0.5, size=(shape[0], shape[1], shape[1])) + 1e-3, 0.0)
    return plans.sum(axis=2), plans.sum(axis=1)


def plain_sinkhorn(x, y, C, eps, lam, iterations=20_000):
    """The loss by Sinkhorn's iterations in the log domain, primal: eps H(G|K) + lam KL(q|y)."""
    rows, columns = x > 0, (y > 0) & np.isfinite(C[x > 0]).any(axis=0)
    K, x, target = -C[np.ix_(rows, columns)] / eps, x[rows], y[columns]
    h = np.zeros(target.size)
    damp = 1.0 if math.isinf(lam) else lam / (lam + eps)
    for _ in range(iterations):
        log_a = np.log(x) - np.logaddexp.reduce(K + h, axis=1)
        h = damp * (np.log(target) - np.logaddexp.reduce(K + log_a[:, None], axis=0))
    log_a = np.log(x) - np.logaddexp.reduce(K + h, axis=1)
    q = np.exp(h + np.logaddexp.reduce(K + log_a[:, None], axis=0))
    value = eps * float(x @ log_a + q @ h - q.sum())
    if math.isinf(lam):
        return value
    left = y.sum() - target.sum()  # what nothing can reach: KL(0|y) = y
    return value + lam * float(np.sum(q * np.log(q / target) - q + target) + left)


def loss_with(C, lam=math.inf, eps=0.1, **options):
    return wtf.Wasserstein(C, eps, lam, **options)
