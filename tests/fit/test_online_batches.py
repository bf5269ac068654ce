"""The batches of the online solver: every sample once, in runs, on one or several processes."""

import numpy as np
import pytest
from fitting import transport
from stored_data import Sliceable

from wtfarray._fit.online_batches import RUN, Batch, join, read_batch, read_batches, shuffled
from wtfarray._fit.specification import specify


def data(samples=40):
    X = np.random.default_rng(0).gamma(1.0, size=(samples, 12)) + 0.05
    return X / X.sum(axis=1, keepdims=True)


def specified(X, chunk=None):
    rest = {"constraints": None, "weights": None, "fixed": (), "sample_weight": None}
    loss = transport(shape=(12,), eps=0.05)
    return specify("nmf", X, 2, loss, rho=0.01, chunk=chunk, **rest)


def rows_of(runs):
    return [i for run in runs for i in range(run.start, run.stop)]


class TestShuffled:
    def test_every_sample_comes_once_in_an_order_of_the_seed_and_the_pass(self):
        spec = specified(data())
        orders = [rows_of(shuffled(spec, seed, sweep)) for seed, sweep in ((1, 0), (1, 1), (2, 0))]
        assert all(sorted(order) == list(range(40)) for order in orders)
        assert orders[0] != orders[1] != orders[2] != orders[0]
        assert orders[0] == rows_of(shuffled(spec, 1, 0))

    def test_files_are_read_in_runs(self):
        runs = shuffled(specified(Sliceable(data()), chunk=8), 1, 0)
        assert sorted(run.stop - run.start for run in runs) == [40 % RUN, RUN, RUN]
        assert sorted(rows_of(runs)) == list(range(40))


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_join_takes_runs_until_there_are_enough(size):
    order = [slice(4, 8), slice(0, 4), slice(8, 10)]
    start, found = 0, []
    while start < len(order):
        runs, start = join(order, start, size)
        found.append(runs)
    assert [run for runs in found for run in runs] == order
    assert all(sum(r.stop - r.start for r in runs) >= size for runs in found[:-1])
    assert all(sum(r.stop - r.start for r in runs[:-1]) < size for runs in found)


@pytest.mark.parametrize("stored", [False, True])
def test_batches_hold_their_samples(stored):
    X = data()
    spec = specified(Sliceable(X), chunk=8) if stored else specified(X)
    batches = [Batch.of(spec, [slice(8, 12), slice(3, 4)]), Batch.of(spec, [slice(39, 40)])]
    assert [batch.samples for batch in batches] == [5, 1]
    for (batch, found), rows in zip(
        read_batches(spec, batches), ([8, 9, 10, 11, 3], [39]), strict=True
    ):
        assert batch.indices.tolist() == rows
        assert np.array_equal(np.asarray(found), X[rows])
        assert np.array_equal(np.asarray(read_batch(spec, batch)), X[rows])
