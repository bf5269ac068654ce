"""The matching of the atoms of two fits."""

import itertools

import numpy as np
import pytest
from array_api_compat import array_namespace
from array_api_compat import device as device_of
from helpers import numpy_only, random_fit

from wtfarray._fit.matching import assignment, matched_cosine


class TestAssignment:
    @numpy_only
    @pytest.mark.parametrize("n", [1, 2, 5])
    def test_total_is_the_best_of_all_permutations(self, n):
        rng = np.random.default_rng(n)
        for _ in range(20):
            cost = rng.normal(size=(n, n))
            found = assignment(cost)
            best = min(
                sum(cost[i, p[i]] for i in range(n)) for p in itertools.permutations(range(n))
            )
            assert sorted(found) == list(range(n))
            assert cost[np.arange(n), found].sum() == pytest.approx(best, abs=1e-12)

    @numpy_only
    @pytest.mark.parametrize("ties", [False, True])
    def test_agrees_with_scipy(self, ties):
        optimize = pytest.importorskip("scipy.optimize")
        rng = np.random.default_rng(0)
        cost = rng.integers(0, 4, (30, 30)).astype(float) if ties else rng.normal(size=(30, 30))
        rows, columns = optimize.linear_sum_assignment(cost)
        assert cost[np.arange(30), assignment(cost)].sum() == pytest.approx(
            cost[rows, columns].sum(), abs=1e-10
        )


class TestMatchedCosine:
    @pytest.mark.parametrize(("model", "rank"), [("cp", 3), ("nmf", 3), ("tucker", (3, 2, 2))])
    def test_cosine_is_invariant_under_permuted_components(self, array, model, rank):
        fit = random_fit(array, model, (6, 4, 3), rank)
        xp = array_namespace(*fit.factors)
        order = xp.asarray([2, 0, 1], device=device_of(fit.factors[0]))
        other = random_fit(array, model, (6, 4, 3), rank)
        for k in range(1 if model == "tucker" else len(other.factors)):
            other.factors[k] = xp.take(other.factors[k], order, axis=1)
        if model == "tucker":
            object.__setattr__(other, "core", xp.take(other.core, order, axis=0))
        modes = range(1, len(fit.factors))
        assert matched_cosine(fit, other, modes) == pytest.approx(1.0, abs=1e-12)

    @numpy_only
    def test_cosine_is_the_mean_over_matched_pairs(self):
        a, b = (random_fit(np.array, "nmf", (4, 3), 2) for _ in range(2))
        a.factors[1] = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
        b.factors[1] = np.array([[0.0, 0.6], [1.0, 0.0], [0.0, 0.8]])
        assert matched_cosine(a, b, [1]) == pytest.approx(0.8)
        b.factors[1][:, 1] = 0.0  # an atom that is like nothing
        assert matched_cosine(a, b, [1]) == pytest.approx(0.5)
