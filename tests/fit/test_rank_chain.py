"""The fits of a rank scan: each starts from the one before, and an interrupt ends them."""

import numpy as np
import pytest
from helpers import numpy_only, without_escape
from mixtures import bumps

import wtfarray as wtf
from wtfarray._fit import rank_chain

pytestmark = without_escape

LOSS = wtf.Wasserstein(wtf.grid_cost(12), eps=0.1, lam=2.0)


@numpy_only
class TestChain:
    def test_warm_started_fit_is_as_good_as_a_separate_one(self):
        scan = wtf.rank_scan(bumps(), [1, 2, 3], LOSS, held_out=None, n_seeds=1, tol=1e-6)
        alone = wtf.nmf(bumps(), 3, LOSS, rng=0)
        assert scan.fits[2].objective == pytest.approx(
            alone.objective, abs=1e-3 * abs(alone.objective)
        )
        record = scan.records[2]
        assert (record.objective, record.gap) == (scan.fits[2].objective, scan.fits[2].gap)
        assert record.held_out is record.held_out_error is record.stability is None

    def test_fold_without_mass_is_refused_before_fitting(self):
        X = np.concatenate([bumps(5), np.zeros((1, 12))])
        with pytest.raises(ValueError, match="held_out leaves a part of X that is zero everywhere"):
            wtf.rank_scan(X, [1], LOSS, held_out=6, progress=False)

    def test_interrupt_returns_the_finished_ranks(self, monkeypatch):
        fit = rank_chain.fit_model

        def stop(state):
            raise KeyboardInterrupt

        ranks = []

        def interrupted(model, X, rank, loss, weights, options, *team):
            ranks.append(rank)
            options = {**options, **({"callback": stop} if rank == 3 else {})}
            return fit(model, X, rank, loss, weights, options, *team)

        monkeypatch.setattr(rank_chain, "fit_model", interrupted)
        with pytest.warns(UserWarning, match="interrupted"):
            scan = wtf.rank_scan(bumps(), [1, 2, 3, 4], wtf.Frobenius())
        assert [record.rank for record in scan] == [1, 2]
        assert ranks.count(3) == 1
        assert 4 not in ranks
