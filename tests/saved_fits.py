"""Short fits for the tests of files, and whether two fits are equal bit by bit."""

import json
import math
import warnings
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from array_api_compat import array_namespace, device
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._fit.storage import write_atomically

SHAPE = (6, 5, 4)


RANKS = {"cp": 2, "tucker": (2, 3, 2), "nmf": 2}


COSTS = wtf.grid_cost(*SHAPE[1:])


LOSSES = {
    "unbalanced": wtf.Wasserstein(COSTS, 0.2, 5.0),
    "balanced": wtf.Wasserstein(COSTS, 0.2),
    "one dense cost": wtf.Wasserstein(wtf.point_cost(np.arange(20.0)), 0.2, 5.0, modes=((1, 2),)),
    "Frobenius": wtf.Frobenius(),
    "KL": wtf.KullbackLeibler(),
    "sum": wtf.LossSum(wtf.Wasserstein(COSTS[0], 0.3, 5.0, modes=(1,)), wtf.Frobenius()),
}


def data(seed=0):
    X = np.random.default_rng(seed).gamma(1.0, size=SHAPE) + 0.01
    return X / X.sum(axis=(1, 2), keepdims=True)


def short_fit(model, X, name="KL", **options):
    """A fit of two iterations; its warning is tested elsewhere."""
    options = {"rho": 0.02, "rng": 0, "max_iter": 2, "tol": 1e-14} | options
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f"{model}: stopped after max_iter")
        return getattr(wtf, model)(X, RANKS[model], LOSSES[name], **options)


def in_library(fit, array, dtype):
    """A fit of NumPy arrays in the library under test."""
    core, weights = (None if a is None else array(a, dtype) for a in (fit.core, fit.weights))
    factors = [array(factor, dtype) for factor in fit.factors]
    return replace(fit, factors=factors, core=core, weights=weights, dual=array(fit.dual, dtype))


def objective(X, fit):
    """A number that depends on the loss, its costs and the model."""
    if isinstance(fit.loss, wtf.Wasserstein) and not math.isinf(fit.loss.lam):
        return float(wtf.wasserstein(X, fit.to_tensor(), fit.loss).value)
    return float(fit.to_tensor().sum())


def assert_same_fit(found, expected):
    """Check that two fits are equal bit by bit."""
    for name in ("kind", "objective", "gap", "converged", "message", "n_iter", "history", "rho"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.constraints == expected.constraints
    assert found.shape == expected.shape
    assert type(found.loss) is type(expected.loss)
    for name in ("core", "weights"):
        assert (getattr(found, name) is None) == (getattr(expected, name) is None)
    blocks = [(found.dual, expected.dual), *zip(found.factors, expected.factors, strict=True)]
    blocks += [(a, b) for a, b in zip(found, expected, strict=True) if a is not found.factors]
    for a, b in blocks:
        assert array_namespace(a) is array_namespace(b)
        assert a.dtype == b.dtype
        assert device(a) == device(b)
        assert (to_numpy(a) == to_numpy(b)).all()


def not_a_fit(path):
    """A file that is no fit, or a truncated one."""
    if path.suffix == ".npy":
        np.save(path, np.ones(3))
    elif path.name == "other.npz":
        np.savez(path, np.ones(3))
    elif path.name == "empty.npz":
        path.touch()
    else:
        short_fit("cp", data()).save(path)
        path.write_bytes(path.read_bytes()[: 1000 if path.name == "half.npz" else None])
    return path


@contextmanager
def limited_files(size):
    """Let no file grow beyond ``size`` bytes: writing fails as on a disk that is full."""
    resource = pytest.importorskip("resource", reason="this system has no limit of file sizes")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def content(path):
    """The arrays of a file, and its header without their checksums."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    header = json.loads(bytes(arrays.pop("header")).decode())
    del header["checksums"]
    return arrays, header


def write_content(path, arrays, header):
    """Write a file as `content` gives it, with the checksums of these arrays."""
    write_atomically(path, header, arrays)


def forge(path, change):
    """Let ``change(arrays, header)`` change a file."""
    arrays, header = content(path)
    change(arrays, header)
    write_content(path, arrays, header)
