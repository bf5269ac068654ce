"""One sample of smoothed transport, solved by plain Sinkhorn iterations in NumPy to rounding."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ExactSolution:
    """The loss of one sample and a potential at which the dual attains it, 0 in dead bins."""

    value: float
    g: np.ndarray


def solve_exactly(x, y, cost, eps, lam=math.inf, iterations=100_000):
    """The primal value ``eps H(G|K) + lam KL(q|y)`` of the plan on which Sinkhorn settles."""
    rows = x > 0
    columns = (y > 0) & np.isfinite(cost[rows]).any(axis=0)
    logs = -cost[np.ix_(rows, columns)] / eps
    log_x, log_y = np.log(x[rows]), np.log(y[columns])
    h, damping = np.zeros(log_y.size), 1.0 if math.isinf(lam) else lam / (lam + eps)
    for _ in range(iterations):
        log_a = log_x - np.logaddexp.reduce(logs + h, axis=1)
        before, h = h, damping * (log_y - np.logaddexp.reduce(logs + log_a[:, None], axis=0))
        if np.abs(h - before).max() <= 1e-14 * max(1.0, np.abs(h).max()):
            break
    else:
        msg = "plain Sinkhorn did not settle"
        raise AssertionError(msg)
    log_a = log_x - np.logaddexp.reduce(logs + h, axis=1)
    q = np.exp(h + np.logaddexp.reduce(logs + log_a[:, None], axis=0))
    value = eps * float(x[rows] @ log_a + q @ h - q.sum())
    if not math.isinf(lam):
        rest = y.sum() - y[columns].sum()  # KL(0|y) = y
        value += lam * float(np.sum(q * (np.log(q) - log_y) - q + y[columns]) + rest)
    g = np.zeros(y.size)
    g[columns] = eps * h
    return ExactSolution(value, g)


def exact_values(X, Y, cost, eps, lam=math.inf):
    """The losses of a stack of samples, (N,)."""
    return np.array([solve_exactly(x, y, cost, eps, lam).value for x, y in zip(X, Y, strict=True)])


def exact_potentials(X, Y, cost, eps, lam=math.inf):
    """The potentials of a stack of samples, (N, m)."""
    return np.stack([solve_exactly(x, y, cost, eps, lam).g for x, y in zip(X, Y, strict=True)])


def samples_with_zeros(lam, seed=0):
    """Three samples X and Y of six bins with zeros in both; balanced, of equal mass."""
    rng = np.random.default_rng(seed)
    X, Y = rng.uniform(0.2, 1.0, size=(2, 3, 6))
    X[0, 2] = X[2, 5] = Y[0, 4] = Y[1, 0] = 0.0
    if math.isinf(lam):
        Y *= X.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
    return X, Y
