"""Terms of several data sets in batches, against the terms of all samples."""

import numpy as np
import pytest
from helpers import numpy_only

import wtfarray as wtf
from wtfarray._arrays.stored import StoredData
from wtfarray._losses.streamed_sources import (
    AbsentTerm,
    SideBySide,
    StreamedSource,
    StreamedSources,
)

pytestmark = numpy_only
N = 6


def data():
    rng = np.random.default_rng(0)
    return rng.gamma(1.0, size=(N, 3)), rng.gamma(1.0, size=(N, 2, 2))


def sources(present):
    loss = wtf.Wasserstein(wtf.grid_cost(3), 0.2, 5.0)
    return [
        StreamedSource((loss, wtf.Frobenius()), (3,), 2.0, present),
        StreamedSource((wtf.KullbackLeibler(),), (2, 2), 1.0, np.arange(N) < 4),
    ]


def test_data_sets_stand_side_by_side():
    X, Z = data()
    both = SideBySide([StoredData(X, 2), StoredData(Z, 2)])
    assert both.shape == (N, 7)
    assert np.array_equal(both[1:4], np.hstack([X[1:4], Z[1:4].reshape(3, -1)]))


def test_losses_are_those_of_the_samples_that_there_are():
    X, Z = data()
    present = np.array([True, False, True, True, False, False])
    stored = StoredData(SideBySide([StoredData(X, 3), StoredData(Z, 3)]), 3)
    streamed = StreamedSources(sources(present), stored, None, 2)
    Y = np.random.default_rng(1).gamma(1.0, size=(N, 7))
    files, total, gradient = streamed.begin(), 0.0, np.zeros((N, 7))
    kinds = []
    for rows, terms, _ in streamed.terms():
        for term in terms:
            value = term.certify(Y[rows], 1e-8, 500)
            total += value.value
            gradient[rows] += value.gradient
        kinds.append([type(term).__name__ for term in terms])
        streamed.store(files, rows, terms)
    assert kinds[-1] == ["AbsentTerm"]  # of the last sample, which no data set has
    loss = wtf.Wasserstein(wtf.grid_cost(3), 0.2, 5.0)
    moved = wtf.wasserstein(X[present], Y[present, :3], loss, tol=1e-9)
    square = 0.5 * ((X - Y[:, :3])[present] ** 2).sum()
    divergence = wtf.KullbackLeibler().value_and_gradient(Z[:4], Y[:4, 3:].reshape(4, 2, 2))[0]
    assert total == pytest.approx(2 * (float(moved.value) + square) + divergence.sum(), rel=1e-6)
    assert not gradient[~present, :3].any()
    assert not gradient[4:, 3:].any()
    assert files[0][0:N][present].any()
    assert not files[0][0:N][~present].any()
    assert files[1:] == (None, None)


def test_absent_term_is_zero():
    term = AbsentTerm()
    term.set_level(2.0)
    term.drop_history()
    term.start_from(np.ones(2))
    value = term.certify(np.ones((2, 3)), 1.0, 1)
    assert (value.value, value.gap, value.gradient.any()) == (0.0, 0.0, False)
