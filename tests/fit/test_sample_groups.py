"""Groups of samples: every sample in one of them, similar ones together."""

import numpy as np
from helpers import numpy_only

from wtfarray._fit.sample_groups import (
    SIMILAR_LOSS,
    SIMILAR_MASS,
    groups_of_similar_loss,
    groups_of_similar_mass,
)

pytestmark = numpy_only


class TestGroupsOfSimilarMass:
    def groups(self, mass):
        return [group.tolist() for group in groups_of_similar_mass(np.asarray(mass))]

    def test_every_sample_is_in_one_group(self):
        mass = 10.0 ** np.random.default_rng(0).uniform(-12, 12, 50)
        groups = self.groups(mass)
        assert len(groups) > 1
        assert sorted(i for group in groups for i in group) == list(range(50))
        assert all(mass[group].max() <= SIMILAR_MASS * mass[group].min() for group in groups)

    def test_like_masses_stay_together(self):
        assert self.groups([1.0, 1.1, 2.5]) == [[0, 1, 2]]

    def test_groups_go_from_light_to_heavy_with_the_empty_first(self):
        assert self.groups([1e5, 1.0, 0.0, 2e5]) == [[1, 2], [0, 3]]


class TestGroupsOfSimilarLoss:
    def groups(self, losses, negligible=1e-3):
        losses = np.asarray(losses)
        found = groups_of_similar_loss(losses, np.full(losses.shape, negligible))
        return [group.tolist() for group in found]

    def test_sizes_count_and_not_signs(self):
        assert self.groups([-1.0, 0.5, 2.0]) == [[0, 1, 2]]

    def test_much_smaller_losses_are_apart(self):
        assert self.groups([-1.0, 1e4, 0.5, 2e4]) == [[0, 2], [1, 3]]
        assert self.groups([1.0, 0.9 * SIMILAR_LOSS]) == [[0, 1]]

    def test_small_losses_are_those_of_negligible_size(self):
        assert self.groups([1.0, 0.0, 1e-9], negligible=0.1) == [[0, 1, 2]]
        assert self.groups([1.0, 0.0, 1e-9], negligible=1e-4) == [[1, 2], [0]]
