"""Large sparse data in a rank scan: a chunk of samples is dense at a time."""

import numpy as np
import pytest
from helpers import numpy_only, set_thresholds, sizes_made_dense, without_escape

import wtfarray as wtf
from wtfarray._arrays.sparse import SparseSamples
from wtfarray._fit.rank_choice import core_consistency, core_consistency_of_parts
from wtfarray._fit.sample_parts import part_of_fit, parts_of_data, some_samples, sparse_or_dense

pytestmark = [numpy_only, without_escape]
N = 24


def data(shape=(10,)):
    rng = np.random.default_rng(0)
    X = rng.dirichlet(np.full(2, 0.3), N) @ rng.dirichlet(np.full(10, 0.2), 2)
    return np.where(X < 0.02, 0.0, X).reshape(N, *shape)


def sparse_of(X):
    return pytest.importorskip("scipy.sparse").coo_array(X)


@pytest.mark.parametrize(
    ("model", "shape", "loss", "ranks"),
    [
        ("nmf", (10,), wtf.Wasserstein(wtf.grid_cost(10), 0.2, 5.0), [1]),
        ("nmf", (10,), wtf.KullbackLeibler(), [1, 2]),
        ("cp", (5, 2), wtf.Frobenius(), [1, 2]),
    ],
)
def test_scan_is_that_of_the_dense_array(monkeypatch, model, shape, loss, ranks):
    X = data(shape)
    options = {"model": model, "n_seeds": 1, "tol": 1e-3}
    dense = wtf.rank_scan(X, ranks, loss, **options)
    set_thresholds(monkeypatch, chunk_entries=60)
    sizes = sizes_made_dense(monkeypatch)
    found = wtf.rank_scan(sparse_of(X), ranks, loss, **options)
    assert {rows for rows, _ in sizes} <= set(range(1, 7))  # a chunk has six samples
    assert found.unstructured == pytest.approx(dense.unstructured, rel=1e-4)
    for a, b in zip(found.records, dense.records, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=0.05)
        assert a.held_out == pytest.approx(b.held_out, rel=0.05)


def test_core_consistency_of_parts(monkeypatch):
    X = data((5, 2))
    fit = wtf.cp(X, 2, wtf.Frobenius(), rng=0, tol=1e-3)
    set_thresholds(monkeypatch, chunk_entries=60)
    parts = parts_of_data(SparseSamples(sparse_of(X)))
    found = core_consistency_of_parts(parts, fit.factors, fit.weights)
    assert found == pytest.approx(core_consistency(X, fit.factors, fit.weights), rel=1e-9)


def test_what_needs_all_samples_is_refused(monkeypatch):
    set_thresholds(monkeypatch, chunk_entries=60)
    Z, loss = sparse_of(data()), wtf.KullbackLeibler()
    with pytest.raises(ValueError, match="mask was given for a sparse X of 24 x 10, which is read"):
        wtf.rank_scan(Z, [1], loss, mask=np.ones((N, 10), dtype=bool))
    with pytest.raises(ValueError, match="held_out_entries was given for a sparse X"):
        wtf.rank_scan(Z, [1], loss, held_out_entries=0.2)
    both = wtf.Wasserstein([wtf.grid_cost(N)[0], wtf.grid_cost(10)[0]], 0.1, 1.0, modes=(0, 1))
    with pytest.raises(ValueError, match="loss transports the first mode for a sparse X"):
        wtf.rank_scan(Z, [1], both, held_out=None)


def test_parts(monkeypatch):
    X = data()
    samples = SparseSamples(sparse_of(X))
    assert np.array_equal(sparse_or_dense(samples), X)
    assert sparse_or_dense(X) is X
    assert [rows for rows, _ in parts_of_data(X)] == [None]
    fit = wtf.nmf(X, 2, wtf.Frobenius(), rng=0, tol=1e-2)
    assert part_of_fit(fit, None) is fit
    assert np.array_equal(part_of_fit(fit, slice(2, 5)).to_tensor(), fit.to_tensor()[2:5])
    set_thresholds(monkeypatch, chunk_entries=60)
    assert sparse_or_dense(samples) is samples
    assert np.array_equal(np.concatenate([part for _, part in parts_of_data(samples)]), X)
    rows = np.array([7, 1])
    assert np.array_equal(some_samples(samples, rows)[0:2], some_samples(X, rows))
