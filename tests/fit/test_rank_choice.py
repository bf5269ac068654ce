"""The suggested rank and core consistency."""

import numpy as np
import pytest
from helpers import numpy_only, without_escape

import wtfarray as wtf
from wtfarray._fit.rank_choice import core_consistency, suggest_rank

pytestmark = without_escape


@numpy_only
class TestSuggestRank:
    def test_largest_ratio_of_decreases(self):
        rank, ratio = suggest_rank([1, 2, 3, 4], [10.0, 4.0, 1.0, 0.9], 20.0)
        assert rank == 3
        assert ratio == pytest.approx(30.0)

    def test_weak_last_component_is_kept(self):
        assert suggest_rank([1, 2, 3, 4, 5], [10.0, 4.0, 3.0, 2.5, 2.48], None)[0] == 4

    def test_rank_one_needs_the_loss_without_structure(self):
        assert suggest_rank([1, 2, 3], [1.0, 0.9, 0.85], 20.0)[0] == 1
        assert suggest_rank([1, 2], [1.0, 0.9], None) is None

    def test_decreases_are_per_component(self):
        assert suggest_rank([2, 4, 8, 9], [8.0, 4.0, 3.0, 2.9], None)[0] == 4

    def test_noise_is_no_decrease(self):
        """The loss of left-out samples may rise; ratios of tiny decreases mean nothing."""
        assert suggest_rank([1, 2, 3, 4, 5], [10, 1.0, 1.0 - 1e-9, 1.1, 1.05], None)[0] == 2

    @pytest.mark.parametrize("losses", [[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    def test_nothing_stands_out(self, losses):
        assert suggest_rank([1, 2, 3, 4], losses, None) is None


class TestCoreConsistency:
    def test_trilinear_data(self, array):
        rng = np.random.default_rng(0)
        factors = [array(rng.random((n, 2)) + 0.1) for n in (6, 5, 4)]
        X = wtf.cp_to_tensor(factors)
        assert core_consistency(X, factors, None) == pytest.approx(100.0)
        more = [array(rng.random((n, 3))) for n in (6, 5, 4)]
        assert core_consistency(X, more, None) < 90.0

    @numpy_only
    def test_weights_belong_to_the_model(self):
        rng = np.random.default_rng(0)
        factors, weights = [rng.random((n, 2)) for n in (6, 5, 4)], np.array([2.0, 5.0])
        X = wtf.cp_to_tensor(factors, weights)
        assert core_consistency(X, factors, weights) == pytest.approx(100.0)
        assert core_consistency(X[:, :, 0], factors[:2], weights) is None


@numpy_only
class TestPlantedRank:
    """The rest of the ten data sets of benchmarks/rank.py takes longer."""

    @pytest.mark.filterwarnings("ignore:rank_scan. cp. stopped after max_iter")
    @pytest.mark.parametrize("planted", [2, 5])
    def test_trilinear(self, planted):
        from rank import scan_trilinear

        scan = scan_trilinear(planted, seed=planted, n_seeds=1)
        assert scan.suggested == planted
        assert f"suggested rank: {planted}, " in repr(scan)
        assert scan.records[planted - 1].core_consistency > 90.0
        assert scan.records[-1].core_consistency < 70.0

    def test_shifted_bumps(self):
        from rank import scan_bumps

        assert scan_bumps(2, seed=2, n_seeds=1).suggested == 2
