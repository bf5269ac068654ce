"""Samples and entries that a rank scan leaves out."""

import numpy as np
from helpers import numpy_only, without_escape
from mixtures import bumps

import wtfarray as wtf
from wtfarray._fit import left_out

pytestmark = without_escape

LOSS = wtf.Wasserstein(wtf.grid_cost(12), eps=0.1, lam=2.0)


@numpy_only
class TestLeftOut:
    def test_blocks_of_entries_are_left_out(self):
        loss = wtf.KullbackLeibler()
        scan = wtf.rank_scan(
            bumps(), [1, 2, 3], loss, n_seeds=1, held_out=None, held_out_entries=0.2, tol=1e-4
        )
        entries = [record.held_out_entries for record in scan]
        assert entries[0] > entries[1] > entries[2] > 0
        assert "entries" in repr(scan).splitlines()[1]
        blocks = left_out.left_out_blocks((5, 8, 6), 0.25, np.random.default_rng(0))
        assert (blocks.sum(axis=(1, 2)) == 4 * 3).all()

    def test_every_sample_is_in_one_fold(self):
        folds = left_out.left_out_samples(7, 3, np.random.default_rng(0), sampled=True)
        assert sorted(map(len, folds)) == [2, 2, 3]
        np.testing.assert_array_equal(np.sort(np.concatenate(folds)), np.arange(7))
