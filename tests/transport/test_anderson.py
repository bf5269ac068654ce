"""Anderson acceleration: the secants of some samples, taken out and merged again."""

import numpy as np
import pytest
from helpers import to_numpy

from wtfarray._transport.anderson import Secants


class TestSecants:
    @staticmethod
    def memory(array, n, pairs, seed):
        rng = np.random.default_rng(seed)
        secants = Secants(4, array(rng.random((n, 3))), 1e3)
        for _ in range(pairs):
            move, change = (array(rng.normal(size=(n, 3))) for _ in range(2))
            secants.add(move, change, array(np.ones(n)) > 0)
        return secants

    @pytest.mark.parametrize("pairs", [0, 2, 6])
    def test_secants_of_some_samples_can_be_split_off_and_merged(self, array, pairs):
        secants = self.memory(array, 5, pairs, 0)
        residual = np.random.default_rng(1).normal(size=(5, 3))
        before = to_numpy(secants.step(array(residual)))
        some = np.asarray([3, 1])
        part = secants.of_samples(some)
        np.testing.assert_allclose(to_numpy(part.step(array(residual[some]))), before[some])
        rng = np.random.default_rng(2)
        new = (array(rng.normal(size=(2, 3))) for _ in range(2))
        part.add(*new, array(np.ones(2)) > 0)
        secants.merge(part, some)
        after = to_numpy(secants.step(array(residual)))
        others = [0, 2, 4]
        np.testing.assert_allclose(after[others], before[others])
        if pairs == 6:  # as many as are remembered, on both sides
            np.testing.assert_allclose(after[some], to_numpy(part.step(array(residual[some]))))
