"""How samples are divided among processes and batches."""

import numpy as np
import pytest

from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.sums import Sums
from wtfarray.distributed import run_threads


def on_shards(counts, function):
    return run_threads(lambda comm: function(Shards(Sums(comm), counts)), len(counts), timeout=20.0)


@pytest.mark.parametrize("counts", [(5, 4), (1, 7, 1), (0, 6, 3), (9, 0, 0), (3, 3, 3)])
@pytest.mark.parametrize("size", [2, 3, 4, 100])
def test_batches_are_those_of_one_process(counts, size):
    """Every sample is in the batch that it would be in without a team."""
    whole, number = WHOLE.batches(2, 18, size)
    batch_of = {i: b.index for b in whole for i in range(b.here.start, b.here.stop)}

    def check(shards):
        here = 2 * counts[shards.rank]
        found, count = shards.batches(2, here, size)
        assert count == number
        samples = [
            (2 * shards.first + i, b) for b in found for i in range(b.here.start, b.here.stop)
        ]
        assert [i for i, _ in samples] == list(range(2 * shards.first, 2 * shards.first + here))
        for i, batch in samples:
            assert batch.index == batch_of[i]
        for batch in sorted(found, key=lambda b: b.turn):
            length = batch.here.stop - batch.here.start
            assert batch.sums.numbers(length) == [batch.samples]
            assert batch.sums.shared == (length < batch.samples)

    on_shards(counts, check)


@pytest.mark.parametrize("counts", [(5, 4), (0, 6, 3)])
def test_random_rows_do_not_depend_on_the_number_of_ranks(counts):
    def draw(shards):
        rng = np.random.default_rng(3)
        shape = (counts[shards.rank], 4)
        return shards.uniform(rng, 0.0, 1.0, shape, 0), shards.normal(rng, shape, 0), rng.random()

    rng = np.random.default_rng(3)
    uniform, normal, after = rng.uniform(0.0, 1.0, (9, 4)), rng.standard_normal((9, 4)), None
    after = rng.random()
    found = on_shards(counts, draw)
    assert np.array_equal(np.concatenate([f[0] for f in found]), uniform)
    assert np.array_equal(np.concatenate([f[1] for f in found]), normal)
    assert {f[2] for f in found} == {after}
