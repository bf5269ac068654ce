"""Scans over the rank: warm starts, left-out samples, stability."""

import numpy as np
import pytest
from array_api_compat import array_namespace
from array_api_compat import device as device_of
from helpers import numpy_only, without_escape
from mixtures import bumps, images

import wtfarray as wtf

pytestmark = without_escape

LOSS = wtf.Wasserstein(wtf.grid_cost(12), eps=0.1, lam=2.0)


class TestScan:
    def test_records_are_sorted_and_arrays_stay_in_their_library(self, array, xp, device):
        loss = wtf.KullbackLeibler()
        scan = wtf.rank_scan(array(bumps(10)), [2, 1], loss, n_seeds=2, held_out=0.5, tol=1e-2)
        assert [record.rank for record in scan] == [1, 2]
        assert [fit.factors[1].shape for fit in scan.fits] == [(12, 1), (12, 2)]
        factor = scan.fits[1].factors[1]
        assert array_namespace(factor) is xp
        assert device_of(factor) == device
        first, second = scan.records
        assert 0 < second.loss < first.loss
        assert first.held_out > 0
        assert first.stability == pytest.approx(1.0, abs=1e-2)

    @numpy_only
    def test_true_rank_shows_in_loss_and_stability(self):
        scan = wtf.rank_scan(bumps(), range(1, 5), LOSS, held_out=2, n_seeds=2, tol=1e-4)
        objective, loss, held_out, stability = (
            np.array([getattr(record, name) for record in scan])
            for name in ("objective", "loss", "held_out", "stability")
        )
        # The third component brings much, the fourth little, and is another for every seed.
        for falls in (objective, loss, held_out):
            steps = -np.diff(falls)
            assert (steps[:2] > 0).all()
            assert steps[1] > 4.0 * steps[2]
        assert (stability[:3] > 0.9).all()
        assert stability[3] < 0.8
        assert all(record.held_out_error > 0 for record in scan)
        found = np.sort(np.argmax(scan.fits[2].factors[1], axis=0))
        np.testing.assert_array_equal(found, [2, 6, 10])

    @numpy_only
    @pytest.mark.parametrize(
        ("model", "ranks"), [("cp", [1, 3]), ("tucker", [(2, 2, 2), (1, 1, 1), (2, 1, 3)])]
    )
    def test_cp_and_tucker_are_scanned(self, model, ranks):
        loss = wtf.Wasserstein(wtf.grid_cost(4, 3), eps=0.2, lam=2.0)
        scan = wtf.rank_scan(images(), ranks, loss, model=model, n_seeds=2, rho=0.05, tol=1e-4)
        assert scan.model == model
        assert [record.rank for record in scan] == sorted(ranks)
        assert all(fit.kind == model for fit in scan.fits)
        assert scan.records[-1].objective < scan.records[0].objective

    @numpy_only
    def test_sums_of_losses_and_losses_without_samples_are_scanned(self):
        loss = wtf.LossSum(LOSS, wtf.Frobenius())
        assert len(wtf.rank_scan(bumps(), [1], loss, n_seeds=1).records) == 1
        whole = wtf.Wasserstein(wtf.grid_cost(6, 4, 3), eps=0.1, lam=10.0)
        X = images() / 6
        scan = wtf.rank_scan(X, [1, 2], whole, model="cp", n_seeds=2, held_out=None)
        assert scan.records[0].stability == pytest.approx(1.0, abs=1e-2)
        with pytest.raises(ValueError, match=r"held_out is 0\.2, but the loss transports"):
            wtf.rank_scan(X, [1, 2], whole, model="cp")

    @numpy_only
    def test_same_seed_gives_equal_records(self):
        one, two, other = (
            wtf.rank_scan(bumps(), [1, 2], wtf.Frobenius(), rng=seed) for seed in (1, 1, 2)
        )
        numbers = [[(r.objective, r.loss, r.held_out) for r in scan] for scan in (one, two, other)]
        assert numbers[0] == numbers[1]
        assert numbers[0] != numbers[2]

    @numpy_only
    def test_inputs_are_untouched(self):
        X = bumps()
        before = X.copy()
        wtf.rank_scan(X, [1, 2], wtf.Frobenius())
        np.testing.assert_array_equal(X, before)

    @numpy_only
    def test_callback_can_stop_the_scan(self):
        seen = []
        scan = wtf.rank_scan(
            bumps(), [1, 2, 3], wtf.Frobenius(), callback=lambda r: seen.append(r) or r.rank == 2
        )
        assert seen == scan.records
        assert len(seen) == len(scan.fits) == 2

    @numpy_only
    def test_unfinished_fits_give_one_warning(self):
        with pytest.warns(UserWarning, match="rank_scan: nmf: stopped after max_iter") as caught:
            scan = wtf.rank_scan(bumps(), [2, 3], LOSS, max_iter=1, tol=1e-14)
        assert len(caught) == 1
        assert not scan.records[0].converged
        assert "not all fits converged" in repr(scan)

    @numpy_only
    def test_bar_counts_every_fit(self, capsys):
        pytest.importorskip("tqdm")
        wtf.rank_scan(bumps(), [1, 2], wtf.Frobenius(), n_seeds=2, progress=True)
        assert "6/6" in capsys.readouterr().err


@numpy_only
class TestRefused:
    @pytest.mark.parametrize(
        ("ranks", "options", "error", "said"),
        [
            ([], {}, ValueError, "ranks is empty"),
            (3, {}, TypeError, "ranks is 3: expected several ranks"),
            ([1, 0], {}, ValueError, r"ranks\[1\] is 0: expected a positive integer"),
            ([(1, 2)], {}, TypeError, r"ranks\[0\] is \(1, 2\): expected a positive integer"),
            ([1], {"model": "tucker"}, TypeError, r"ranks\[0\] is 1: expected a sequence"),
            ([1], {"model": "pca"}, ValueError, "model is 'pca': expected one of"),
            ([1], {"n_seeds": 0}, ValueError, "n_seeds is 0"),
            ([1], {"held_out": 1}, ValueError, "held_out is 1: expected 2 to 16 folds"),
            ([1], {"held_out": 17}, ValueError, "held_out is 17: expected 2 to 16 folds"),
            ([1], {"held_out": 0.99}, ValueError, "held_out is 0.99 of 16 samples"),
            ([1], {"held_out": 1.5}, ValueError, "held_out is 1.5 of 16 samples"),
            ([1], {"held_out": -0.1}, ValueError, "held_out is -0.1: expected a positive number"),
            ([1], {"held_out": True}, TypeError, "held_out is True"),
            ([1], {"init": "kl"}, TypeError, "no option 'init': expected some of model, "),
            ([1], {"rho": -1.0}, ValueError, "rho is -1.0"),
        ],
    )
    def test_bad_argument_is_named_with_its_value(self, ranks, options, error, said):
        with pytest.raises(error, match=said):
            wtf.rank_scan(bumps(), ranks, LOSS, **options)
