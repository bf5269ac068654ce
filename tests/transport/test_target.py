"""The model for which the inner problem is solved: which of its bins are live."""

import math

import numpy as np
import pytest
from exact_transport import samples_with_zeros
from fitting import spare_jax
from helpers import to_numpy
from infinite_costs import band, loss_with, partly_reachable

import wtfarray as wtf
from wtfarray._transport.anderson import new_secants
from wtfarray._transport.iterate import search_radius
from wtfarray._transport.sinkhorn import first_state, sinkhorn_step
from wtfarray._transport.target import masked_target, needs_mask, target_of

COST, EPS = wtf.grid_cost(6)[0], 0.1
some_lam = pytest.mark.parametrize("lam", [1.0, math.inf])


@pytest.fixture(autouse=True)
def not_on_jax(xp):
    spare_jax(xp)


def problem_of(array, lam):
    """A problem with zeros in X and Y; its model; both as NumPy arrays too."""
    X, Y = samples_with_zeros(lam)
    return wtf.Wasserstein(COST, EPS, lam).bind(array(X)), array(Y), X, Y


def test_mask_is_needed_where_the_model_is_zero_or_out_of_reach(array):
    problem, Y, X, _ = problem_of(array, 1.0)
    assert needs_mask(problem, Y)
    assert not needs_mask(problem, array(X + 1.0))
    # What is known of the model is not computed again.
    assert needs_mask(problem, array(X + 1.0), positive=False)
    assert not needs_mask(problem, Y, positive=True)
    X[1] = 0.0
    empty = wtf.Wasserstein(COST, EPS, 1.0).bind(array(X))
    assert needs_mask(empty, array(X + 1.0), positive=True)


def test_positive_model_has_no_mask(array):
    problem, _, X, _ = problem_of(array, 1.0)
    assert target_of(problem, array(X + 1.0)).live is None


@some_lam
def test_mask_is_where_the_model_is_positive(array, lam):
    problem, Y, _, host = problem_of(array, lam)
    target = target_of(problem, Y)
    np.testing.assert_array_equal(to_numpy(target.live), host > 0)
    expected = problem.damping * np.log(np.where(host > 0, host, 1.0))
    np.testing.assert_allclose(to_numpy(target.scaled_logs), expected, rtol=1e-14)
    assert np.all(to_numpy(target.scaled_logs)[host == 0] == 0.0)


def test_bins_out_of_reach_are_dead(array):
    X, Y = partly_reachable()
    problem = loss_with(band(1), 1.0).bind(array(X))
    target = target_of(problem, array(Y))
    reach = np.isfinite(band(1))[None, :, :] & (X > 0)[:, :, None]
    np.testing.assert_array_equal(to_numpy(target.live), (Y > 0) & reach.any(axis=1))


def test_mask_of_all_bins_changes_nothing(array):
    problem, _, X, _ = problem_of(array, 1.0)
    Y = array(X + 1.0)
    targets = target_of(problem, Y), masked_target(problem, Y)
    assert bool(np.all(to_numpy(targets[1].live)))
    ends = []
    for target in targets:
        state = first_state(problem, array(0.0 * X))
        secants = new_secants(3, Y, problem.damping)
        for _ in range(4):
            state, secants, _ = sinkhorn_step(
                problem, target, state, secants, safe=True, max_step=search_radius(problem)
            )
        ends.append(to_numpy(state.ahead))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-12)


def test_dead_bins_get_no_mass(array):
    problem, Y, X, host = problem_of(array, 1.0)
    g = np.random.default_rng(0).normal(size=X.shape)
    masked = to_numpy(target_of(problem, Y).masked(problem, array(g)))
    np.testing.assert_array_equal(masked, np.where(host > 0, g, -math.inf))


def test_empty_samples_keep_finite_potentials(array):
    X, Y = samples_with_zeros(1.0)
    X[1] = 0.0
    problem = wtf.Wasserstein(COST, EPS, 1.0).bind(array(X))
    target = target_of(problem, array(Y))
    assert not np.any(to_numpy(target.live)[1])
    masked = to_numpy(target.masked(problem, array(np.ones(X.shape))))
    assert np.all(masked[1] == 0.0)
