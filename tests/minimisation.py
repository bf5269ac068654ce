"""Functions to minimise whose minima are known, for the tests of the optimisers."""

import math

import numpy as np
import pytest
import scipy.optimize
from array_api_compat import array_namespace, device, is_torch_namespace

from wtfarray._optimize import gradient_descent, lbfgs

SOLVERS = [lbfgs, gradient_descent]


def rosenbrock(x):
    xp = array_namespace(x)
    bend, gap = x[1:] - x[:-1] ** 2, 1.0 - x[:-1]
    zero = xp.zeros((1,), dtype=x.dtype, device=device(x))
    left = xp.concat([-400.0 * bend * x[:-1] - 2.0 * gap, zero])
    right = xp.concat([zero, 200.0 * bend])
    return xp.sum(100.0 * bend**2 + gap**2), left + right


def rosenbrock_start(n):
    return np.where(np.arange(n) % 2 == 0, -1.2, 1.0)


def quadratic(matrix, target):
    """Return the parabola of a symmetric matrix with its minimum, zero, at `target`."""

    def fun(x):
        xp = array_namespace(x)
        gradient = xp.matmul(matrix, x - target)
        return 0.5 * xp.vecdot(x - target, gradient), gradient

    return fun


def random_quadratic(n, condition, rng):
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    spectrum = np.logspace(0, math.log10(condition), n)
    matrix = (basis * spectrum) @ basis.T
    return 0.5 * (matrix + matrix.T), rng.normal(size=n)


def logistic(data, labels):
    """Return ridge-penalised logistic regression."""

    def fun(w):
        xp = array_namespace(w)
        z = -labels * xp.matmul(data, w)
        value = xp.sum(xp.logaddexp(z, 0.0 * z)) + 0.05 * xp.vecdot(w, w)
        return value, 0.1 * w - xp.matmul(data.mT, labels / (1.0 + xp.exp(-z)))

    return fun


def logistic_data():
    rng = np.random.default_rng(1)
    data = rng.normal(size=(60, 5))
    return data, np.sign(data @ np.arange(1, 6) + rng.normal(size=60))


def barrier(costs):
    """Return ``<c, x> - sum(log(x))``, NaN outside the positive orthant; minimum at ``1 / c``."""

    def fun(x):
        xp = array_namespace(x)
        inside = xp.where(x > 0, x, xp.asarray(math.nan, dtype=x.dtype, device=device(x)))
        return xp.vecdot(costs, x) - xp.sum(xp.log(inside)), costs - 1.0 / inside

    return fun


def quartic(x):
    xp = array_namespace(x)
    return xp.sum((x - 1.0) ** 4), 4.0 * (x - 1.0) ** 3


def parabola(x):
    xp = array_namespace(x)
    return 0.5 * xp.sum((x - 1.0) ** 2), x - 1.0


def scipy_evaluations(fun, x0, gtol):
    options = {"maxcor": 10, "gtol": gtol, "ftol": 0.0, "maxiter": 5000, "maxfun": 9999}
    result = scipy.optimize.minimize(fun, x0, jac=True, method="L-BFGS-B", options=options)
    assert result.success
    return result.nfev


def torch_or_skip(xp):
    if not is_torch_namespace(xp):
        pytest.skip("autograd and the dispatch mode are torch's")
    import torch

    return torch
