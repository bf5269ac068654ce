"""Data, starts and measures for the tests of whole fits."""

import math
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
from array_api_compat import (
    is_jax_namespace,
)
from helpers import to_numpy

import wtfarray as wtf

SHAPE = (6, 5, 4)
RANKS = {"cp": 2, "tucker": (2, 2, 2), "nmf": 2}
WHOLE = {"modes": (0, 1, 2)}


def spare_jax(xp):
    """Skip JAX: it compiles each operation for each shape and dtype, 20 s for a new layout."""
    if is_jax_namespace(xp):
        pytest.skip("JAX would compile for too long: other shapes and dtypes are tested with it")


def data(shape=SHAPE, seed=0, mass=1.0):
    """Positive data; ``mass`` of each sample, or None for samples of different masses."""
    X = np.random.default_rng(seed).gamma(1.0, size=shape) + 0.01
    if mass is not None:
        X *= mass / X.sum(axis=tuple(range(1, X.ndim)), keepdims=True)
    return X


def planted(model, shape=SHAPE, noise=0.05, seed=0):
    """Data of two separated components, and a start in the basin of one minimum."""
    rng = np.random.default_rng(seed)
    factors = []
    for k, n in enumerate(shape):
        x = np.linspace(0.0, 1.0, n)[:, None]
        bumps = np.exp(-(((x - [0.1, 0.9]) / 0.35) ** 2))
        factors.append(rng.dirichlet([0.7, 0.7], n) if k == 0 else bumps / bumps.sum(axis=0))
    X = wtf.cp_to_tensor(factors) * rng.uniform(1.0 - noise, 1.0 + noise, shape)
    X /= X.sum(axis=tuple(range(1, X.ndim)), keepdims=True)
    if model == "nmf":
        atoms = np.einsum("ir,jr->ijr", *factors[1:]) if len(shape) == 3 else factors[1]
        factors = [factors[0], atoms.reshape(-1, 2)]
    factors = [f * rng.uniform(0.5, 1.5, f.shape) + 0.02 for f in factors]
    if model != "tucker":
        return X, factors
    core = np.full((2,) * len(shape), 0.05)
    core[(0,) * len(shape)] = core[(1,) * len(shape)] = 1.0
    return X, (core, factors)


def transport(eps=0.2, lam=5.0, shape=SHAPE[1:], **options):
    return wtf.Wasserstein(wtf.grid_cost(*shape), eps, lam, **options)


def fibres():
    """The sum of transport along two modes."""
    first, second = wtf.grid_cost(*SHAPE[1:])
    return wtf.LossSum(
        wtf.Wasserstein(first, 0.3, 5.0, modes=(1,)), wtf.Wasserstein(second, 0.3, 2.0, modes=(2,))
    )


LOSSES = {
    "unbalanced": transport(),
    "balanced": transport(lam=math.inf),
    "Frobenius": wtf.Frobenius(),
    "KL": wtf.KullbackLeibler(),
    "sum": fibres(),
}
# No constraints of a Tucker model with samples conserve mass: there the whole tensor is moved.
WHOLE_BALANCED = transport(shape=SHAPE, lam=math.inf)
MODELS_AND_LOSSES = [(model, name) for model in RANKS for name in LOSSES]


def problem(model, name):
    """Data, rank and loss."""
    if (model, name) == ("tucker", "balanced"):
        X = data(mass=None)
        return X / X.sum(), RANKS[model], WHOLE_BALANCED
    return data(), RANKS[model], LOSSES[name]


def start(model, shape=SHAPE, rank=2, seed=1):
    """Positive factors to start from, and a core for Tucker."""
    rng = np.random.default_rng(seed)
    sizes = (shape[0], math.prod(shape[1:])) if model == "nmf" else shape
    factors = [rng.uniform(0.1, 1.0, (n, rank)) for n in sizes]
    if model == "tucker":
        return rng.uniform(0.1, 1.0, (rank,) * len(shape)), factors
    return factors


def arrays_of(fit):
    """All arrays of a fit, by name."""
    named = {f"factors[{k}]": factor for k, factor in enumerate(fit.factors)}
    named |= {"core": fit.core, "weights": fit.weights, "dual": fit.dual}
    return {name: value for name, value in named.items() if value is not None}


def entropy(a):
    a = to_numpy(a)
    return float(np.sum(a * np.log(np.where(a > 0, a, 1.0)) - a))


def loss_of(X, Y, loss):
    """The loss, solved again on its own."""
    if isinstance(loss, wtf.LossSum):
        return sum(loss_of(X, Y, part) for part in loss.losses)
    if isinstance(loss, wtf.Wasserstein):
        return float(wtf.wasserstein(X, Y, loss, tol=1e-10, max_iter=20_000).value)
    if isinstance(loss, wtf.Frobenius):
        return 0.5 * float(np.sum((X - Y) ** 2))
    return float(np.sum(X * np.log(np.where(X > 0, X, Y) / Y) - X + Y))


def blocks_of(fit):
    """The factors, then the core or the learned weights."""
    if fit.core is not None:
        return [*fit.factors, fit.core]
    if len(fit.rho) > len(fit.factors):
        return [*fit.factors, fit.weights / float(np.sum(fit.weights))]
    return list(fit.factors)


def objective_of(X, fit):
    """The objective, from the definition."""
    return loss_of(X, fit.to_tensor(), fit.loss) + entropies_of(fit)


def entropies_of(fit):
    """``sum_k rho_k <A_k, log(A_k / s_k) - 1>``."""
    parts = zip(fit.rho, fit.references, blocks_of(fit), strict=True)
    return sum(rho * s * entropy(to_numpy(block) / s) for rho, s, block in parts)


@contextmanager
def unfinished(match="max_iter"):
    """Expect one warning of a fit that stops early."""
    with pytest.warns(UserWarning, match=match) as caught:
        yield caught
    assert len(caught) == 1


def run(model, X, rank, loss, **options):
    return getattr(wtf, model)(X, rank, loss, **options)


def fit_few(model, X, rank, loss, **options):
    """A fit of two iterations; its warning is tested elsewhere."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f"{model}: stopped after max_iter")
        return run(model, X, rank, loss, max_iter=2, tol=1e-14, **options)


def assert_same_factors(found, expected, rtol, atol=0.0):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=rtol, atol=atol)
