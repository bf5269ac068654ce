"""Each refusal of a problem without a finite solution, with its message, and what decides it."""

import math
import re

import numpy as np
import pytest
from exact_transport import exact_values
from helpers import to_numpy
from infinite_costs import N, apart, band, loss_with, reachable

import wtfarray as wtf
from wtfarray._transport.components import components_of
from wtfarray._transport.feasibility import (
    feasible_target,
    is_infinite,
    of_equal_mass,
    refuse_infinite,
    refuse_other_mass,
    refuse_unreachable,
    stranded,
    wrong_component_mass,
    wrong_mass,
)

SEPARATE = apart(band(2, 2), band(4, 4))


def ones():
    return np.ones((3, N)), np.ones((3, N))


def refused(message):
    return pytest.raises(ValueError, match=f"^{re.escape(message)}$")


class TestFeasibleTarget:
    def check(self, array, cost, lam, X, Y):
        problem = loss_with(cost, lam).bind(array(X))
        return to_numpy(feasible_target(problem, array(Y), X.shape))

    def test_unequal_mass_is_refused(self, array):
        X, Y = ones()
        Y[1, 0] = 1.5
        message = (
            "Y has mass 6.5 in sample 1, where X has mass 6.0: expected the same mass, or a loss "
            "with finite lam"
        )
        with refused(message):
            self.check(array, band(N), math.inf, X, Y)
        np.testing.assert_array_equal(self.check(array, band(N), 1.0, X, Y), Y)

    def test_empty_sample_of_the_model_is_refused(self, array):
        X, Y = ones()
        Y[2] = 0.0
        message = "Y has mass 0.0 in sample 2, where X has mass 6.0: expected a positive mass, not so small that their ratio underflows"
        with refused(message):
            self.check(array, band(N), 1.0, X, Y)
        X[2] = 0.0
        np.testing.assert_array_equal(self.check(array, band(N), 1.0, X, Y), Y)

    @pytest.mark.parametrize("lam", [1.0, math.inf])
    def test_mass_that_can_go_nowhere_is_refused(self, array, lam):
        X, Y = ones()
        Y[1] = [0.0, 0.0, 1.5, 1.5, 1.5, 1.5]
        message = "X is 1.0 at index (1, 0): expected a finite cost to some bin where Y is positive"
        with refused(message):
            self.check(array, band(1), lam, X, Y)

    def test_mass_that_cannot_come_from_anywhere_is_refused_balanced(self, array):
        X, Y = ones()
        X[1] = [6.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        Y[1] = [5.0, 0.0, 1.0, 0.0, 0.0, 0.0]
        message = (
            "Y is 1.0 at index (1, 2): expected 0 where no mass of X can arrive at a finite cost, "
            "or a loss with finite lam"
        )
        with refused(message):
            self.check(array, band(1), math.inf, X, Y)
        np.testing.assert_array_equal(self.check(array, band(1), 1.0, X, Y), Y)

    def test_components_of_unequal_mass_are_refused_balanced(self, array):
        X, Y = ones()
        Y[2] = [1.5, 1.0, 1.0, 1.0, 1.0, 0.5]
        message = (
            "Y has mass 2.5 in sample 2 on the connected component of bin (0,), where X has mass "
            "2.0, and costs between components are infinite: expected the same mass, or a loss "
            "with finite lam"
        )
        with refused(message):
            self.check(array, SEPARATE, math.inf, X, Y)
        np.testing.assert_array_equal(self.check(array, SEPARATE, 1.0, X, Y), Y)

    @pytest.mark.parametrize(("dtype", "excess"), [("float32", 5e-4), ("float64", 5e-7)])
    def test_masses_may_differ_by_rounding(self, array, dtype, excess):
        problem = loss_with(band(N)).bind(array(np.ones((3, N)), dtype))
        Y = np.ones((3, N))
        Y[1] *= 1.0 + excess
        found = to_numpy(feasible_target(problem, array(Y, dtype), Y.shape))
        np.testing.assert_allclose(found.sum(axis=1), N, rtol=4 * np.finfo(dtype).eps)
        Y[1] *= 1.0 + 2.0 * excess
        with pytest.raises(ValueError, match=r"^Y has mass .* in sample 1, where X has mass 6\.0"):
            feasible_target(problem, array(Y, dtype), Y.shape)

    def test_entries_are_named_in_the_modes_of_the_data(self, array):
        """The first mode is transported: the stack is the transpose."""
        X, Y = ones()
        Y[1] = [0.0, 0.0, 1.5, 1.5, 1.5, 1.5]
        problem = loss_with(band(1), 1.0, modes=(0,)).bind(array(X.T))
        with pytest.raises(ValueError, match=re.escape("X is 1.0 at index (0, 1): expected")):
            feasible_target(problem, array(Y), (N, 3))


class TestMasses:
    def test_wrong_mass_is_found_sample_by_sample(self, array):
        X, Y = ones()
        Y[0, 0], Y[1] = 2.0, 0.0
        for lam, expected in ((math.inf, [True, True, False]), (1.0, [False, True, False])):
            problem = loss_with(band(N), lam).bind(array(X))
            np.testing.assert_array_equal(to_numpy(wrong_mass(problem, array(Y))), expected)

    def test_wrong_component_mass_is_found_component_by_component(self, array):
        X, Y = ones()
        Y[1, 0], Y[2, 5] = 1.5, 0.0
        problem = loss_with(SEPARATE).bind(array(X))
        found = wrong_component_mass(problem, array(Y), components_of(problem.kernel.costs))
        expected = [[False, False], [True, False], [False, True]]
        np.testing.assert_array_equal(to_numpy(found), expected)

    def test_stranded_mass_is_found_bin_by_bin(self, array):
        X, Y = ones()
        X[0, 0], Y[0, :2], Y[1, :3] = 0.0, 0.0, 0.0
        problem = loss_with(band(1), 1.0).bind(array(X))
        expected = np.zeros((3, N), dtype=bool)
        expected[1, :2] = True  # of sample 0 bin 0 is empty, and bin 1 reaches bin 2
        np.testing.assert_array_equal(to_numpy(stranded(problem, array(Y))), expected)


class TestOfEqualMass:
    def test_balanced_samples_are_scaled_to_the_mass_of_the_data(self, array):
        rng = np.random.default_rng(0)
        X, Y = rng.exponential(size=(2, 3, N))
        found = to_numpy(of_equal_mass(loss_with(band(N)).bind(array(X)), array(Y)))
        np.testing.assert_allclose(found.sum(axis=1), X.sum(axis=1), rtol=1e-14)
        np.testing.assert_allclose(found / Y, (found / Y)[:, :1] * np.ones(N), rtol=1e-14)

    def test_components_are_scaled_one_by_one(self, array):
        rng = np.random.default_rng(1)
        X, Y = rng.exponential(size=(2, 3, N))
        problem = loss_with(SEPARATE).bind(array(X))
        components = components_of(problem.kernel.costs)
        found = to_numpy(of_equal_mass(problem, array(Y), components))
        for part in (slice(0, 2), slice(2, N)):
            np.testing.assert_allclose(
                found[:, part].sum(axis=1), X[:, part].sum(axis=1), rtol=1e-14
            )
            ratio = (found / Y)[:, part]
            np.testing.assert_allclose(ratio, ratio[:, :1] * np.ones_like(ratio), rtol=1e-14)

    def test_empty_samples_stay_empty(self, array):
        X, Y = ones()
        X[1] = Y[1] = 0.0
        found = to_numpy(of_equal_mass(loss_with(band(N)).bind(array(X)), array(Y)))
        np.testing.assert_array_equal(found, Y)

    def test_finite_lam_changes_nothing(self, array):
        X, Y = ones()
        model = array(2.0 * Y)
        assert of_equal_mass(loss_with(band(N), 1.0).bind(array(X)), model) is model


class TestRefuseOtherMass:
    def test_message_names_the_worst_sample(self, array):
        message = (
            "constraints is 'rows' and the loss is balanced (lam = inf), but sample 1 of X has "
            "mass 2.0 and a model under these constraints 1.0: expected constraints that conserve "
            "mass (normalise the samples, rows of their factor, columns of the others), or a "
            "finite lam"
        )
        with refused(message):
            refuse_other_mass(
                array([1.0, 2.0, 1.5]), array([1.0, 1.0, 1.0]), "constraints is 'rows'"
            )

    def test_rounding_is_allowed(self, array):
        refuse_other_mass(array([1.0, 2.0]), array([1.0 + 1e-6, 2.0]), "constraints")
        with pytest.raises(ValueError, match="sample 0 of X has mass 1"):
            refuse_other_mass(array([1.0, 2.0]), array([1.0 + 3e-6, 2.0]), "constraints")


class TestRefuseUnreachable:
    def test_components_are_refused(self, array):
        message = (
            "loss is balanced (lam = inf) and its infinite costs separate the bins into connected "
            "components, on each of which a model would need the mass of X: expected finite "
            "costs that connect all bins, or a finite lam"
        )
        with refused(message):
            refuse_unreachable(loss_with(SEPARATE).bind(array(ones()[0])))

    def test_bin_out_of_reach_is_refused(self, array):
        X, _ = ones()
        X[1, :2] = 0.0
        message = (
            "X, transported modes last, is 0.0 at index (1, 0): expected mass of its sample that "
            "can reach this bin at a finite cost, or a finite lam"
        )
        with refused(message):
            refuse_unreachable(loss_with(band(1)).bind(array(X)))

    @pytest.mark.parametrize(
        ("cost", "lam"), [(SEPARATE, 1.0), (band(N), math.inf), (band(1), math.inf)]
    )
    def test_other_problems_pass(self, array, cost, lam):
        refuse_unreachable(loss_with(cost, lam).bind(array(ones()[0])))


class TestInfiniteLoss:
    def test_finite_losses_are_below_the_bound(self, array):
        X, Y = reachable()
        for eps in (0.01, 0.3, 10.0):
            problem = loss_with(band(1), eps=eps).bind(array(X))
            exact = exact_values(X, Y, band(1), eps)
            assert not np.any(to_numpy(is_infinite(problem, array(exact))))

    def test_bound_is_attained_by_a_plan_in_one_place(self, array):
        """All mass goes from one bin to one other, at the largest cost."""
        cost = np.asarray([[0.0, 2.0], [math.inf, 0.0]])
        X, Y = np.asarray([[3.0, 0.0]]), np.asarray([[0.0, 3.0]])
        problem = wtf.Wasserstein(cost, 0.1).bind(array(X))
        (exact,) = exact_values(X, Y, cost, 0.1)
        assert exact == pytest.approx(3.0 * 2.0 + 0.1 * (3.0 * math.log(3.0) - 3.0), rel=1e-14)
        for value, infinite in ((exact - 1e-9, False), (exact + 1e-9, True)):
            assert bool(is_infinite(problem, array([value]))[0]) == infinite

    def test_costs_of_several_modes_add_up(self, array):
        costs = (np.asarray([[0.0, 2.0], [2.0, 0.0]]), np.asarray([[0.0, 3.0], [math.inf, 0.0]]))
        problem = wtf.Wasserstein(costs, 1.0).bind(array(np.eye(2)[None] / 2.0))
        # Mass 1: E = -1.
        found = is_infinite(problem, array([3.99]))
        assert not bool(found[0])
        assert bool(is_infinite(problem, array([4.01]))[0])

    def test_refusal_names_the_sample(self, array):
        X, _ = reachable()
        problem = loss_with(band(1)).bind(array(X))
        refuse_infinite(problem, array([0.0, 0.0, 0.0]))
        message = (
            "Y cannot be reached from X at a finite cost in sample 1, where the loss is infinite: "
            "expected a Y that can, or a loss with finite lam"
        )
        with refused(message):
            refuse_infinite(problem, array([0.0, 1e6, 1e6]))
