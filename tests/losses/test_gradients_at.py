"""Gradients at a dual solution against central differences of losses computed independently."""

import math

import numpy as np
import pytest
from exact_transport import exact_potentials, samples_with_zeros, solve_exactly
from fitting import spare_jax
from helpers import to_numpy
from infinite_costs import band, loss_with

import wtfarray as wtf
from wtfarray._losses.gradients import gradients_at, losses_and_gradients

COST, EPS = wtf.grid_cost(6)[0], 0.3
LAMS = [0.5, 2.0, math.inf]
some_lam = pytest.mark.parametrize("lam", LAMS)


@pytest.fixture(autouse=True)
def not_on_jax(xp):
    spare_jax(xp)


def exact_loss(x, y, lam, cost=COST):
    """The loss of one sample; balanced, of the model scaled to the mass of the data."""
    if math.isinf(lam):
        y = y * (x.sum() / y.sum())
    return solve_exactly(x, y, cost, EPS, lam).value


def differences(x, y, lam, which, step=1e-4):
    """Central differences in the positive entries of x (which=0) or y (which=1)."""
    gradient = np.zeros(6)
    for k in np.flatnonzero((x, y)[which] > 0):
        ends = []
        for move in (step, -step):
            pair = [x.copy(), y.copy()]
            pair[which][k] += move
            ends.append(exact_loss(*pair, lam))
        gradient[k] = (ends[0] - ends[1]) / (2.0 * step)
    return gradient


def found_gradients(array, X, Y, lam, cost=COST):
    """The gradients at the exact potential; balanced, with ``<g, Y> = 0``."""
    g = exact_potentials(X, Y, cost, EPS, lam)
    if math.isinf(lam):
        g = g - (np.sum(g * Y, axis=1) / Y.sum(axis=1))[:, None]
    problem = wtf.Wasserstein(cost, EPS, lam).bind(array(X))
    return [to_numpy(a) for a in gradients_at(problem, array(Y), array(g))]


class TestGradientsAt:
    @some_lam
    def test_agree_with_central_differences(self, array, lam):
        X, Y = samples_with_zeros(lam)
        found = found_gradients(array, X, Y, lam)
        for which, stack in enumerate((X, Y)):
            for k in range(2):
                expected = differences(X[k], Y[k], lam, which)
                positive = stack[k] > 0
                np.testing.assert_allclose(
                    found[which][k][positive], expected[positive], rtol=0, atol=1e-5
                )

    @some_lam
    def test_zero_of_the_data_has_the_derivative_at_the_smallest_number(self, array, lam):
        """It falls like ``eps log x`` towards 0, and is known at a small x by differences."""
        X, Y = samples_with_zeros(lam)
        least, small = float(np.finfo("float64").smallest_normal), 1e-7
        found = found_gradients(array, X, Y, lam)[0]
        for k, j in ((0, 2), (2, 5)):
            assert X[k, j] == 0.0
            x = X[k].copy()
            x[j] = small
            at_small = differences(x, Y[k], lam, 0, step=1e-2 * small)[j]
            expected = at_small + EPS * (math.log(least) - math.log(small))
            assert found[k, j] == pytest.approx(expected, abs=1e-2)

    @some_lam
    def test_zero_of_the_model_has_the_derivative_at_the_smallest_number(self, array, lam):
        """There ``g = damping log y`` but for a constant, and ``u = -lam expm1(-g/lam)``."""
        X, Y = samples_with_zeros(lam)
        least, small = float(np.finfo("float64").smallest_normal), 1e-7
        damping = EPS if math.isinf(lam) else EPS * lam / (EPS + lam)
        found = found_gradients(array, X, Y, lam)[1]
        for k, j in ((0, 4), (1, 0)):
            assert Y[k, j] == 0.0
            y = Y[k].copy()
            y[j] = small
            slope = differences(X[k], y, lam, 1, step=1e-2 * small)[j]
            g = slope if math.isinf(lam) else -lam * math.log1p(-slope / lam)
            g += damping * (math.log(least) - math.log(small))
            expected = g if math.isinf(lam) else -lam * math.expm1(-g / lam)
            assert found[k, j] == pytest.approx(expected, rel=1e-2)

    @some_lam
    def test_are_finite_everywhere(self, array, lam):
        X, Y = samples_with_zeros(lam)
        assert all(np.all(np.isfinite(a)) for a in found_gradients(array, X, Y, lam))

    def test_balanced_gradients_are_those_of_scaled_models(self, array):
        """Scaling the model does not change the balanced loss: ``<gradient, Y> = 0``."""
        X, Y = samples_with_zeros(math.inf)
        gradient = found_gradients(array, X, Y, math.inf)[1]
        np.testing.assert_allclose(np.sum(gradient * Y, axis=1), 0.0, atol=1e-12)

    def test_bins_out_of_reach_have_the_gradient_lam(self, array):
        X, Y = np.zeros((3, 6)), np.ones((3, 6))
        X[:, 0] = [1.0, 2.0, 3.0]
        problem = loss_with(band(1), 0.5, eps=EPS).bind(array(X))
        g = exact_potentials(X, Y, band(1), EPS, 0.5)
        in_X, in_Y = (to_numpy(a) for a in gradients_at(problem, array(Y), array(g)))
        np.testing.assert_allclose(in_Y[:, 2:], 0.5, rtol=1e-12)
        assert np.all(in_Y[:, :2] < 0.5)
        assert np.all(np.isfinite(in_X))

    def in_the_first_bins(self, array, lam):
        """X is in bin 0, Y in the bins 0 and 1, and no others can be reached from there."""
        X, Y = np.zeros((3, 6)), np.zeros((3, 6))
        X[:, 0], Y[:, :2] = 1.0, 0.5
        problem = loss_with(band(1), lam, eps=EPS).bind(array(X))
        g = exact_potentials(X, Y, band(1), EPS, lam)
        return [to_numpy(a) for a in gradients_at(problem, array(Y), array(g))]

    LARGE = -math.log(float(np.finfo("float64").smallest_normal)) * EPS

    def test_model_where_no_mass_can_arrive_has_a_large_positive_gradient(self, array):
        """Balanced: the loss would be infinite there."""
        _, in_Y = self.in_the_first_bins(array, math.inf)
        np.testing.assert_allclose(in_Y[:, 2:], self.LARGE, rtol=1e-12)

    @pytest.mark.parametrize("lam", [1.0, math.inf])
    def test_data_that_can_go_nowhere_have_a_large_positive_gradient(self, array, lam):
        """Mass in the bins 3 to 5 would reach no bin where Y is positive: the loss is infinite."""
        in_X, _ = self.in_the_first_bins(array, lam)
        assert np.all(in_X[:, 1:3] < 0.0)
        np.testing.assert_allclose(in_X[:, 3:], self.LARGE, rtol=1e-12)


class TestLossesAndGradients:
    @some_lam
    def test_are_the_gradients_at_the_solution(self, array, lam):
        X, Y = samples_with_zeros(lam)
        loss = wtf.Wasserstein(COST, EPS, lam)
        values, *gradients, _ = losses_and_gradients(array(X), array(Y), loss, 1e-12, 5000)
        exact = [solve_exactly(x, y, COST, EPS, lam).value for x, y in zip(X, Y, strict=True)]
        np.testing.assert_allclose(to_numpy(values), exact, atol=1e-10)
        expected = found_gradients(array, X, Y, lam)
        for found, other in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(to_numpy(found), other, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("costs", ["finite", "infinite"])
    @some_lam
    def test_products_of_the_certificate_are_not_reused_where_they_differ(self, array, lam, costs):
        """Empty samples, and bins that no mass of X can reach."""
        X, Y = samples_with_zeros(lam)
        X[1] = 0.0
        Y[1] = 0.0 if math.isinf(lam) else Y[1]
        loss = wtf.Wasserstein(COST, EPS, lam)
        if costs == "infinite":
            X[0], Y[0] = [1.0, 0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0, 0]
            X[2] = Y[2] = X[0]
            loss = loss_with(band(1), lam, eps=EPS)
        found = losses_and_gradients(array(X), array(Y), loss, 1e-10, 5000)
        problem, stacked = loss.bind_pair(array(X), array(Y))
        expected = gradients_at(problem, stacked, found.potential)
        for gradient, other in zip(found[1:3], expected, strict=True):
            np.testing.assert_allclose(to_numpy(gradient), to_numpy(other), rtol=1e-12)

    def test_gradients_have_the_modes_of_the_data(self, array):
        """Transport along the first mode: the stack is the transpose."""
        X, Y = samples_with_zeros(1.0)
        along_last, along_first = (
            wtf.Wasserstein(COST, EPS, 1.0, modes=modes) for modes in ((1,), (0,))
        )
        expected = losses_and_gradients(array(X), array(Y), along_last, 1e-10, 2000)
        turned = losses_and_gradients(array(X.T), array(Y.T), along_first, 1e-10, 2000)
        np.testing.assert_allclose(to_numpy(turned[0]), to_numpy(expected[0]), rtol=1e-12)
        for found, other in zip(turned[1:], expected[1:], strict=True):
            np.testing.assert_allclose(to_numpy(found).T, to_numpy(other), rtol=1e-9)
