"""Coupled fits of large sparse data, which are read in chunks."""

import math

import numpy as np
import pytest
from helpers import numpy_only, set_thresholds, sizes_made_dense

import wtfarray as wtf

pytestmark = numpy_only
N = 16


def data():
    rng = np.random.default_rng(0)
    A = rng.dirichlet(np.full(2, 0.3), N)
    found = []
    for m in (10, 6):
        X = A @ rng.dirichlet(np.full(m, 0.2), 2)
        X[X < 0.02] = 0.0
        found.append(X / X.sum(axis=1, keepdims=True))
    return found


def csr(X):
    return pytest.importorskip("scipy.sparse").csr_array(X)


def losses(lam=5.0):
    return [wtf.Wasserstein(wtf.grid_cost(m), 0.2, lam) for m in (10, 6)]


@pytest.mark.parametrize("lam", [5.0, math.inf])
def test_fit_is_that_of_the_dense_arrays(monkeypatch, lam):
    """
    With samples that one data set lacks, among them all of one batch.

    Of fixed atoms the best coefficients are unique.
    """
    X, Z = data()
    lacking = np.isin(np.arange(N), [0, 1, 2, 3, 9])
    options = {"weights": [1.0, 0.5], "mask": [None, ~lacking[:, None]], "rng": 0, "tol": 1e-6}
    rng = np.random.default_rng(2)
    options["init"] = [rng.dirichlet(np.ones(n), 2).T for n in (N, 10, 6)]
    options["fixed"] = (1, 2)
    options["sample_weight"] = np.random.default_rng(1).uniform(0.5, 2.0, N)
    dense = wtf.coupled([X, Z], 2, losses(lam), **options)
    set_thresholds(monkeypatch, chunk_entries=80, chunk_batches=2)
    sizes = sizes_made_dense(monkeypatch)
    found = wtf.coupled([csr(X), np.where(lacking[:, None], 9.0, Z)], 2, losses(lam), **options)
    assert {rows for rows, _ in sizes} <= {1, 5}  # chunks of five samples
    # Objectives are lower bounds, to within the gap.
    for a, b in zip([found, *found.fits], [dense, *dense.fits], strict=True):
        assert abs(a.objective - b.objective) < max(a.gap, b.gap) + 1e-4 * abs(b.objective)
        assert max(a.gap, b.gap) < 1e-3 * abs(b.objective)
    assert found.fits[1].dual[0:N].shape == (N, 6)


def test_samples_are_projected_in_chunks(monkeypatch):
    X, Z = data()
    loss = [wtf.KullbackLeibler()] * 2
    fit = wtf.coupled([X, Z], 2, loss, rng=0, tol=1e-5)
    expected = fit.project([X, Z])
    set_thresholds(monkeypatch, chunk_entries=80)
    sizes = sizes_made_dense(monkeypatch)
    np.testing.assert_allclose(fit.project([csr(X), csr(Z)]), expected, atol=1e-3)
    np.testing.assert_allclose(fit.project([csr(X), None]), fit.project([X, None]), atol=1e-3)
    assert max(rows for rows, _ in sizes) < N


def test_small_sparse_data_are_fitted_dense():
    X, Z = data()
    options = {"rng": 0, "tol": 1e-2}
    found, dense = (wtf.coupled(pair, 2, losses(), **options) for pair in ([csr(X), Z], [X, Z]))
    assert np.array_equal(found.coefficients, dense.coefficients)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": [np.arange(10) > 3, None]}, r"mask\[0\] hides entries of samples"),
        ({"init": "nnsvd"}, "init is 'nnsvd', which needs X in memory"),
        ({"X": np.ones((3, 6))}, r"X\[1\] has 3 samples: expected 16, those of X\[0\]"),
        ({"X": -np.ones((N, 6))}, r"X\[1\]\[0:5\] is -1.0 at index \(0, 0\)"),
        ({"debias": True}, r"losses\[0\] is debiased for data that are read in chunks"),
        ({"weights": [1.0]}, "weights has 1 entries: expected 2"),
    ],
)
def test_refuses(monkeypatch, options, message):
    set_thresholds(monkeypatch, chunk_entries=80)
    X, Z = data()
    given = dict(options)
    loss = losses()
    if given.pop("debias", False):
        loss[0] = wtf.Wasserstein(wtf.grid_cost(10), 0.2, 5.0, debias=True)
    with pytest.raises(ValueError, match=message):
        wtf.coupled([csr(X), given.pop("X", Z)], 2, loss, **given)
