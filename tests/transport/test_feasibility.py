"""Problems without a finite solution: unequal masses, bins that no mass can reach."""

import math

import numpy as np
import pytest
from helpers import to_numpy
from infinite_costs import N, apart, band, loss_with, partly_reachable

import wtfarray as wtf


class TestOutOfReach:
    def test_mass_without_a_target_in_reach_is_refused(self, array):
        X, Y = partly_reachable()
        Y[1, :2] = 0.0
        with pytest.raises(
            ValueError, match=r"X is .* at index \(1, 0\): expected a finite cost to some bin"
        ):
            wtf.wasserstein(array(X), array(Y), loss_with(band(1), 1.0))

    def test_finite_costs_close_no_bins(self, array):
        problem = loss_with(np.ones((N, N)), 1.0).bind(array(partly_reachable()[0]))
        assert problem.unreachable is None
        assert tuple(problem.reachable.shape) == (3, 1)


class TestComponents:
    """Balanced transport between components."""

    def test_components_of_unequal_mass_are_refused(self, array):
        C = apart(band(2, 2), band(4, 4))
        X, Y = np.ones((3, N)), np.ones((3, N))
        Y[2] = [1.5, 1.0, 1.0, 1.0, 1.0, 0.5]
        expected = (
            r"Y has mass 2\.5 in sample 2 on the connected component of bin \(0,\), where X has "
            r"mass 2\.0, and costs between components are infinite: expected the same mass, or a "
            r"loss"
        )
        with pytest.raises(ValueError, match=expected):
            wtf.wasserstein(array(X), array(Y), loss_with(C))

    def test_masses_may_differ_by_rounding(self, array):
        C = apart(band(2, 2), band(4, 4))
        X, Y = np.ones((3, N)), np.ones((3, N))
        Y[:, 0] += 1e-8
        exact = wtf.wasserstein(array(X), array(X), loss_with(C), tol=1e-11)
        found = wtf.wasserstein(array(X), array(Y), loss_with(C), tol=1e-11)
        assert float(found.value) == pytest.approx(float(exact.value), rel=1e-7)

    def test_component_without_mass_has_an_infinite_gradient(self, array):
        C = apart(band(2, 2), band(4, 4))
        X, Y = np.ones((3, N)), np.ones((3, N))
        X[1, 2:] = Y[1, 2:] = 0.0
        Y[1, :2] = [0.5, 1.5]
        found = wtf.wasserstein(array(X), array(Y), loss_with(C))
        assert found.converged
        assert np.all(to_numpy(found.gradient)[1, 2:] == math.inf)
        Y[1] = [1.0, 0.9, 0.0, 0.1, 0.0, 0.0]
        with pytest.raises(ValueError, match=r"Y is 0\.1 at index \(1, 3\): expected 0 where no"):
            wtf.wasserstein(array(X), array(Y), loss_with(C))


class TestForbiddenTransport:
    """Balanced transport with infinite costs within a connected component."""

    @pytest.mark.parametrize("excess", [1e-10, 1e-6])
    def test_slightly_infeasible_problem_has_an_infinite_gap(self, array, excess):
        """Only bin 0 can fill bin 0, and it has too little mass."""
        C = np.asarray([[1.0, 2.0], [math.inf, 1.0]])
        X, Y = np.full((1, 2), 0.5), np.asarray([[0.5 + excess, 0.5 - excess]])
        with pytest.warns(UserWarning, match="Y may be out of reach of X"):
            found = wtf.wasserstein(array(X), array(Y), loss_with(C, eps=1e-3), max_iter=100)
        assert found.gap == math.inf

    def test_infeasible_problem_is_refused(self, array):
        X, Y = np.full((3, N), 0.1), np.full((3, N), 0.1)
        X[1, 0] = Y[1, 5] = 1.0
        expected = r"Y cannot be reached from X at a finite cost in sample 1: the bins \(0,\) of X"
        with pytest.raises(ValueError, match=expected):
            wtf.wasserstein(array(X), array(Y), loss_with(band(1)), max_iter=100)
