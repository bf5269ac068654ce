"""What the page for library authors promises: repeatable results, also from threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import to_numpy

import wtfarray as wtf


class TestFits:
    @pytest.fixture(autouse=True)
    def only_where_it_is_fast(self, backend):
        if backend.name not in ("numpy", "torch"):
            pytest.skip("left to the faster backends")

    def fit(self, array, seed):
        X = array(np.random.default_rng(seed).dirichlet(np.ones(8), 6))
        loss = wtf.Wasserstein(wtf.grid_cost(8), eps=0.1, lam=1.0)
        return to_numpy(wtf.nmf(X, 2, loss, rng=seed).to_tensor())

    def test_same_seed_gives_equal_results(self, array):
        assert (self.fit(array, 0) == self.fit(array, 0)).all()

    def test_threads_give_bit_equal_results(self, array):
        """Fits in threads equal sequential fits bit by bit."""
        alone = [self.fit(array, seed) for seed in range(4)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda seed: self.fit(array, seed), range(4)))
        for one, other in zip(alone, together, strict=True):
            assert (one == other).all()
