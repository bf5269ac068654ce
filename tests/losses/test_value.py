"""The smoothed Wasserstein loss against POT, against its own laws, and for degenerate data."""

import math
import sys
import warnings

import numpy as np
import ot
import pytest
from array_api_compat import (
    array_namespace,
    device,
    is_jax_namespace,
    is_numpy_namespace,
    is_torch_namespace,
)
from helpers import assert_close, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import wtfarray as wtf

LAMS = [0.3, 10.0, math.inf]


# JAX compiles each operation anew for every shape: there, only three samples of six points.
OTHER_SHAPES = {
    "test_gradient_agrees_with_the_plan_of_pot",
    "test_empty_sample_of_x_costs_lam_per_unit_of_y",
    "test_sample_empty_in_both_costs_nothing",
    "test_single_bin_to_many_has_a_known_plan",
    "test_unbalanced_loss_is_the_sum_over_components",
    "test_loss_is_the_sum_over_samples",
    "test_several_sample_modes_are_samples_of_a_matrix",
    "test_separable_and_dense_costs_agree",
    "test_small_eps_converges_in_float32",
}


@pytest.fixture(autouse=True)
def few_on_jax(request, backend):
    chosen = getattr(request.node, "callspec", None)
    if backend.name != "jax" or chosen is None:
        return
    if request.node.originalname in OTHER_SHAPES or chosen.params.get("n", 6) != 6:
        pytest.skip("other shapes are left to the faster backends")
    if chosen.params.get("eps") == 1e-4 or chosen.params.get("lam") in (0.1, 0.3):
        pytest.skip("these numbers are left to the faster backends")


def cost(n, seed=0):
    return wtf.point_cost(np.random.default_rng(seed).normal(size=(n, 2)))


def samples(count, n, seed=0, mass=None):
    """Positive samples X and Y; of equal mass when that is given."""
    rng = np.random.default_rng(seed)
    X, Y = rng.gamma(1.0, size=(count, n)) + 1e-3, rng.gamma(1.0, size=(count, n)) + 1e-3
    if mass is not None:
        X, Y = (A * mass / A.sum(axis=1, keepdims=True) for A in (X, Y))
    return X, Y


def pair(lam, count=3, n=6, seed=0):
    return samples(count, n, seed, mass=1.5 if math.isinf(lam) else None)


def kl(a, b):
    logs = np.log(np.where(a > 0, a, 1.0)) - np.log(np.where(b > 0, b, 1.0))
    return float(np.sum(np.where(a > 0, a * logs, 0.0) - a + b))


def entropy(a):
    return float(np.sum(np.where(a > 0, a * (np.log(np.where(a > 0, a, 1.0)) - 1.0), 0.0)))


def objective(G, y, C, eps, lam):
    """The objective of a plan: eps H(G|K) + lam KL(G^T 1 | y)."""
    value = float(np.sum(G * C)) + eps * entropy(G)
    return value if math.isinf(lam) else value + lam * kl(G.sum(axis=0), y)


def pot_plan(x, y, C, eps, lam):
    tight = {"numItermax": 100_000, "stopThr": 1e-13}
    if math.isinf(lam):
        return ot.bregman.sinkhorn_log(x, y, C, eps, **tight)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="If reg_type = entropy", category=UserWarning)
        return ot.unbalanced.sinkhorn_unbalanced(
            x, y, C, eps, (math.inf, lam), reg_type="entropy", method="sinkhorn", **tight
        )


def value_of(X, Y, loss, tol=1e-12):
    return float(wtf.wasserstein(X, Y, loss, tol=tol).value)


class TestAgainstPot:
    @pytest.mark.parametrize("n", [6, 20])
    @pytest.mark.parametrize("eps", [0.1, 0.5, 2.0])
    @pytest.mark.parametrize("lam", [0.1, 1.0, 10.0, math.inf])
    def test_value_agrees_with_pot(self, array, n, eps, lam):
        X, Y = pair(lam, 3, n, seed=n)
        C = cost(n)
        expected = sum(
            objective(pot_plan(x, y, C, eps, lam), y, C, eps, lam)
            for x, y in zip(X, Y, strict=True)
        )
        result = wtf.wasserstein(array(X), array(Y), wtf.Wasserstein(C, eps, lam), tol=1e-10)
        assert result.converged
        assert float(result.value) == pytest.approx(expected, rel=1e-9)
        slack = 1e-10 * max(abs(expected), 1.0)  # POT's own error
        assert float(result.value) - slack <= expected <= float(result.value) + result.gap + slack

    @pytest.mark.parametrize("lam", [1.0, 10.0])
    def test_gradient_agrees_with_the_plan_of_pot(self, array, lam):
        X, Y = pair(lam, 1, 10)
        eps, C = 0.2, cost(10)
        plan = pot_plan(X[0], Y[0], C, eps, lam)
        # q = Y exp(-g/lam) and u = lam (1 - exp(-g/lam)).
        expected = lam * (1.0 - plan.sum(axis=0) / Y[0])
        result = wtf.wasserstein(array(X[0]), array(Y[0]), wtf.Wasserstein(C, eps, lam), tol=1e-13)
        assert_close(result.gradient, array(expected), rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("lam", LAMS)
    @pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-5])
    def test_loose_bounds_enclose_the_value(self, array, lam, tol):
        X, Y = pair(lam)
        loss = wtf.Wasserstein(cost(6), 0.05, lam)
        loose = wtf.wasserstein(array(X), array(Y), loss, tol=tol)
        tight = wtf.wasserstein(array(X), array(Y), loss, tol=1e-12)
        slack = 1e-12 * abs(float(tight.value))
        assert float(loose.value) <= float(tight.value) + tight.gap + slack
        assert float(loose.value) + loose.gap >= float(tight.value) - slack


class TestGradient:
    @pytest.mark.parametrize("lam", LAMS)
    def test_gradient_agrees_with_central_differences(self, array, lam):
        X, Y = pair(lam)
        loss = wtf.Wasserstein(cost(6), 0.1, lam)
        gradient = to_numpy(wtf.wasserstein(array(X), array(Y), loss, tol=1e-13).gradient)
        rng = np.random.default_rng(1)
        for _ in range(2):
            step = rng.normal(size=Y.shape) * Y
            if math.isinf(lam):  # along which the masses stay equal
                step -= step.sum(axis=1, keepdims=True) * Y / Y.sum(axis=1, keepdims=True)
            ends = [value_of(array(X), array(Y + h * step), loss) for h in (1e-4, -1e-4)]
            assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(
                np.sum(gradient * step), rel=1e-6, abs=1e-6
            )

    @pytest.mark.parametrize("lam", LAMS)
    def test_gradient_agrees_with_autograd_through_sinkhorn(self, xp, array, lam):
        if not is_torch_namespace(xp):
            pytest.skip("autograd is torch's")
        import torch

        eps, (X, Y) = 0.3, pair(lam)
        C = array(cost(6))
        x, y = array(X), array(Y).requires_grad_()
        f = torch.zeros_like(y)
        for _ in range(1000):
            a = torch.log(x) - torch.logsumexp(f[:, None, :] - C / eps, dim=2)
            back = torch.logsumexp(a[:, :, None] - C / eps, dim=1)
            f = (torch.log(y) - back) * (1.0 if math.isinf(lam) else lam / (lam + eps))
        a = torch.log(x) - torch.logsumexp(f[:, None, :] - C / eps, dim=2)
        logs = a[:, :, None] - C / eps + f[:, None, :]
        value = torch.sum(torch.exp(logs) * (C + eps * (logs - 1.0)))
        if not math.isinf(lam):
            q = torch.exp(logs).sum(dim=1)
            value = value + lam * torch.sum(torch.xlogy(q, q / y) - q + y)
        (expected,) = torch.autograd.grad(value, y)
        result = wtf.wasserstein(x, y, wtf.Wasserstein(C, eps, lam), tol=1e-13)
        found = result.gradient
        if math.isinf(lam):
            found = found - found.mean(dim=1, keepdim=True)
            expected = expected - expected.mean(dim=1, keepdim=True)
        assert float(result.value) == pytest.approx(float(value.detach()), rel=1e-10)
        assert_close(found, expected, rtol=1e-6, atol=1e-6)

    def test_gradient_is_minus_infinity_where_y_is_zero(self, array):
        X, Y = pair(1.0)
        Y[1, 2] = 0.0
        gradient = to_numpy(
            wtf.wasserstein(array(X), array(Y), wtf.Wasserstein(cost(6), 0.1, 1.0)).gradient
        )
        assert gradient[1, 2] == -math.inf
        assert np.isfinite(np.delete(gradient, 8)).all()


class TestStopping:
    @pytest.mark.parametrize("lam", LAMS)
    @pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-9])
    def test_gap_is_within_tol(self, array, lam, tol):
        X, Y = pair(lam)
        eps = 0.05
        result = wtf.wasserstein(array(X), array(Y), wtf.Wasserstein(cost(6), eps, lam), tol=tol)
        assert result.converged
        assert result.gap <= tol * max(abs(float(result.value)), eps * X.sum())

    @pytest.mark.parametrize("lam", LAMS)
    def test_smaller_tol_takes_more_iterations(self, array, lam):
        X, Y = pair(lam)
        loss = wtf.Wasserstein(cost(6), 0.05, lam)
        loose, tight = (
            wtf.wasserstein(array(X), array(Y), loss, tol=tol).n_iter for tol in (1e-2, 1e-10)
        )
        assert loose < tight

    @pytest.mark.parametrize("lam", LAMS)
    def test_warm_start_takes_fewer_iterations(self, array, lam):
        X, Y = pair(lam)
        loss = wtf.Wasserstein(cost(6), 0.05, lam)
        cold = wtf.wasserstein(array(X), array(Y), loss)
        warm = wtf.wasserstein(array(X), array(Y), loss, potential=cold.potential)
        assert warm.converged
        assert warm.n_iter < cold.n_iter / 3
        assert float(warm.value) == pytest.approx(float(cold.value), rel=2e-6)

    @pytest.mark.parametrize("lam", LAMS)
    def test_too_few_iterations_give_one_warning_and_valid_bounds(self, array, lam):
        X, Y = pair(lam)
        loss = wtf.Wasserstein(cost(6), 0.01, lam)
        with pytest.warns(UserWarning, match="increase `max_iter`") as caught:
            result = wtf.wasserstein(array(X), array(Y), loss, tol=1e-12, max_iter=2)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert not result.converged
        assert result.message == str(caught[0].message)
        true = value_of(array(X), array(Y), loss)
        assert float(result.value) <= true <= float(result.value) + result.gap

    def test_result_unpacks_as_value_and_gradient(self, array):
        X, Y = pair(1.0)
        result = wtf.wasserstein(array(X), array(Y), wtf.Wasserstein(cost(6), 0.1, 1.0))
        value, gradient = result
        assert value is result.value
        assert gradient is result.gradient


class TestDegenerateData:
    @pytest.mark.parametrize("lam", LAMS)
    def test_zeros_in_both_leave_the_problem_of_the_other_bins(self, array, lam):
        X, Y = pair(lam)
        X[:, 2:4] = 0.0
        Y[:, 3:5] = 0.0
        if math.isinf(lam):
            X, Y = (A / A.sum(axis=1, keepdims=True) for A in (X, Y))
        C, eps, rows, columns = cost(6), 0.2, X[0] > 0, Y[0] > 0
        part = C[rows][:, columns]
        expected = sum(
            objective(pot_plan(x, y, part, eps, lam), y, part, eps, lam)
            for x, y in zip(X[:, rows], Y[:, columns], strict=True)
        )
        found = value_of(array(X), array(Y), wtf.Wasserstein(C, eps, lam))
        assert found == pytest.approx(expected, rel=1e-9)

    def test_empty_sample_of_x_costs_lam_per_unit_of_y(self, array):
        X, Y = pair(2.0)
        X[1] = 0.0
        loss = wtf.Wasserstein(cost(6), 0.1, 2.0)
        result = wtf.wasserstein(array(X), array(Y), loss, tol=1e-12)
        others = value_of(array(X[[0, 2]]), array(Y[[0, 2]]), loss)
        assert float(result.value) == pytest.approx(others + 2.0 * Y[1].sum(), rel=1e-11)
        assert_close(result.gradient[1, :], array(np.full(6, 2.0)), rtol=1e-12)

    @pytest.mark.parametrize("lam", LAMS)
    def test_sample_empty_in_both_costs_nothing(self, array, lam):
        X, Y = pair(lam)
        X[1] = Y[1] = 0.0
        loss = wtf.Wasserstein(cost(6), 0.1, lam)
        result = wtf.wasserstein(array(X), array(Y), loss, tol=1e-12)
        assert result.converged
        others = value_of(array(X[[0, 2]]), array(Y[[0, 2]]), loss)
        assert float(result.value) == pytest.approx(others, rel=1e-11)
        assert np.isfinite(to_numpy(result.gradient)).all()

    def test_single_bins_have_a_known_value(self, array):
        C, eps = cost(6), 0.1
        x, y = np.zeros(6), np.zeros(6)
        x[1], y[4] = 0.7, 0.7
        expected = 0.7 * C[1, 4] + eps * entropy(x)
        assert value_of(array(x), array(y), wtf.Wasserstein(C, eps)) == pytest.approx(
            expected, rel=1e-12
        )
        y[4] = 0.2  # all of x must go there
        expected += 3.0 * kl(np.asarray([0.7]), np.asarray([0.2]))
        assert value_of(array(x), array(y), wtf.Wasserstein(C, eps, 3.0)) == pytest.approx(
            expected, rel=1e-12
        )

    def test_single_bin_to_many_has_a_known_plan(self, array):
        x, (_, Y) = np.eye(6)[2], samples(1, 6, mass=1.0)
        C, eps = cost(6), 0.1
        expected = float(C[2] @ Y[0]) + eps * entropy(Y[0])  # the plan is known
        assert value_of(array(x), array(Y[0]), wtf.Wasserstein(C, eps)) == pytest.approx(
            expected, rel=1e-12
        )

    @pytest.mark.parametrize("lam", LAMS)
    def test_constant_samples_agree_with_pot(self, array, lam):
        X, Y, C, eps = np.full((3, 6), 0.5), np.full((3, 6), 0.5), cost(6), 0.5
        expected = 3.0 * objective(pot_plan(X[0], Y[0], C, eps, lam), Y[0], C, eps, lam)
        found = value_of(array(X), array(Y), wtf.Wasserstein(C, eps, lam))
        assert found == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("lam", LAMS)
    @pytest.mark.parametrize("scale", [1e-12, 1e12])
    def test_tiny_and_huge_masses_scale(self, array, lam, scale):
        X, Y = pair(lam)
        loss = wtf.Wasserstein(cost(6), 0.1, lam)
        expected = scale * (value_of(array(X), array(Y), loss) + 0.1 * math.log(scale) * X.sum())
        found = value_of(array(X * scale), array(Y * scale), loss, tol=1e-11)
        assert found == pytest.approx(expected, rel=1e-9)


class TestInfiniteCosts:
    @pytest.mark.parametrize("eps", [1e-3, 0.1])
    def test_diagonal_cost_gives_kullback_leibler(self, array, eps):
        X, Y = pair(2.0)
        nowhere = np.where(np.eye(6) > 0, 0.0, math.inf)
        result = wtf.wasserstein(array(X), array(Y), wtf.Wasserstein(nowhere, eps, 2.0), tol=1e-13)
        assert float(result.value) == pytest.approx(2.0 * kl(X, Y) + eps * entropy(X), rel=1e-12)
        assert_close(result.gradient, array(2.0 * (1.0 - X / Y)), rtol=1e-6, atol=1e-6)

    def test_balanced_loss_is_the_sum_over_components(self, array):
        C = np.full((4, 4), math.inf)
        C[:2, :2] = C[2:, 2:] = [[0.0, 1.0], [1.0, 0.0]]
        x, y = array([0.2, 0.3, 0.1, 0.4]), array([0.3, 0.2, 0.25, 0.25])
        result = wtf.wasserstein(x, y, loss_of(C, math.inf), tol=1e-11)
        assert result.converged
        apart = [value_of(x[s], y[s], loss_of(C[s, s], math.inf)) for s in (slice(2), slice(2, 4))]
        assert float(result.value) == pytest.approx(sum(apart), rel=1e-10)

    @pytest.mark.parametrize("lam", LAMS[:-1])
    def test_unbalanced_loss_is_the_sum_over_components(self, array, lam):
        (X, Y), (V, W) = pair(lam, 2, 4, seed=1), pair(lam, 2, 3, seed=2)
        C = np.full((7, 7), math.inf)
        C[:4, :4], C[4:, 4:] = cost(4), cost(3)
        together = value_of(array(np.hstack([X, V])), array(np.hstack([Y, W])), loss_of(C, lam))
        apart = value_of(array(X), array(Y), loss_of(C[:4, :4], lam)) + value_of(
            array(V), array(W), loss_of(C[4:, 4:], lam)
        )
        assert together == pytest.approx(apart, rel=1e-10)

    @pytest.mark.parametrize("lam", [1.0, math.inf])
    def test_component_without_a_target_is_refused(self, array, lam):
        C = np.asarray([[0.0, 1.0, math.inf], [1.0, 0.0, math.inf], [math.inf, math.inf, 0.0]])
        x, y = array([0.3, 0.3, 0.4]), array([0.5, 0.5, 0.0])
        with pytest.raises(ValueError, match="Y"):
            wtf.wasserstein(x, y, loss_of(C, lam), max_iter=50)


def loss_of(C, lam, eps=0.1):
    return wtf.Wasserstein(C, eps, lam)


class TestBalancedMasses:
    def test_unequal_masses_are_refused(self, array):
        X, Y = pair(math.inf)
        Y[1] *= 1.01
        expected = r"Y has mass 1\.51.* in sample 1, where X has mass 1\."
        with pytest.raises(ValueError, match=expected):
            wtf.wasserstein(array(X), array(Y), wtf.Wasserstein(cost(6), 0.1))

    def test_masses_may_differ_by_rounding(self, array):
        X, Y = pair(math.inf)
        loss = wtf.Wasserstein(cost(6), 0.1)
        exact = value_of(array(X), array(Y), loss)
        assert value_of(array(X), array(Y * (1.0 + 1e-9)), loss) == pytest.approx(exact, rel=1e-7)

    def test_empty_sample_of_y_is_refused(self, array):
        X, Y = pair(1.0)
        Y[2] = 0.0
        with pytest.raises(ValueError, match=r"Y has mass 0\.0 in sample 2.*a positive mass"):
            wtf.wasserstein(array(X), array(Y), wtf.Wasserstein(cost(6), 0.1, 1.0))


class TestModes:
    @pytest.mark.parametrize("lam", LAMS)
    def test_loss_is_the_sum_over_samples(self, array, lam):
        X, Y = pair(lam, 4)
        loss = wtf.Wasserstein(cost(6), 0.1, lam)
        together = wtf.wasserstein(array(X), array(Y), loss, tol=1e-12)
        apart = [
            wtf.wasserstein(array(x), array(y), loss, tol=1e-12) for x, y in zip(X, Y, strict=True)
        ]
        total = sum(float(one.value) for one in apart)
        assert float(together.value) == pytest.approx(total, rel=1e-11)
        rows = np.stack([to_numpy(one.gradient) for one in apart])
        assert_close(together.gradient, array(rows), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("lam", [2.0, math.inf])
    @pytest.mark.parametrize("modes", [(1,), (0,), (2,)])
    def test_several_sample_modes_are_samples_of_a_matrix(self, array, lam, modes):
        X, Y = pair(lam, 6, 4)
        matrix = wtf.wasserstein(array(X), array(Y), wtf.Wasserstein(cost(4), 0.1, lam), tol=1e-12)

        def fold(A):
            return np.moveaxis(np.reshape(A, (2, 3, 4)), 2, modes[0])

        loss = wtf.Wasserstein(cost(4), 0.1, lam, modes=modes)
        tensor = wtf.wasserstein(array(fold(X)), array(fold(Y)), loss, tol=1e-12)
        assert float(tensor.value) == pytest.approx(float(matrix.value), rel=1e-11)
        expected = array(fold(to_numpy(matrix.gradient)))
        assert_close(tensor.gradient, expected, rtol=1e-8, atol=1e-8)
        warm = wtf.wasserstein(array(fold(X)), array(fold(Y)), loss, potential=tensor.potential)
        assert warm.n_iter < 3

    @pytest.mark.parametrize("lam", [2.0, math.inf])
    def test_separable_and_dense_costs_agree(self, array, lam):
        X, Y = pair(lam, 2, 12)
        C1, C2 = wtf.grid_cost(3, 4)
        whole = (C1[:, None, :, None] + C2[None, :, None, :]).reshape(12, 12)
        dense = value_of(array(X), array(Y), wtf.Wasserstein(whole, 0.1, lam))
        images = [array(A.reshape(2, 3, 4)) for A in (X, Y)]
        assert value_of(*images, wtf.Wasserstein((C1, C2), 0.1, lam)) == pytest.approx(
            dense, rel=1e-11
        )
        grouped = wtf.Wasserstein(whole, 0.1, lam, modes=((1, 2),))
        assert value_of(*images, grouped) == pytest.approx(dense, rel=1e-11)
        swapped = [array(A.reshape(2, 3, 4).transpose(2, 0, 1)) for A in (X, Y)]
        mixed = wtf.Wasserstein((C1, C2), 0.1, lam, modes=(2, 0))
        assert value_of(*swapped, mixed) == pytest.approx(dense, rel=1e-11)


class TestLaws:
    @staticmethod
    @settings(max_examples=10)
    @given(seed=st.integers(0, 1000), lam=st.sampled_from(LAMS))
    def test_loss_is_invariant_under_permutations(array, seed, lam):
        X, Y = pair(lam, 3, 6, seed)
        rng = np.random.default_rng(seed)
        rows, points, C = rng.permutation(3), rng.permutation(6), cost(6)
        plain = wtf.wasserstein(array(X), array(Y), loss_of(C, lam), tol=1e-11)
        mixed = wtf.wasserstein(
            array(X[rows][:, points]),
            array(Y[rows][:, points]),
            loss_of(C[points][:, points], lam),
            tol=1e-11,
        )
        assert float(mixed.value) == pytest.approx(float(plain.value), rel=1e-10)
        expected = array(to_numpy(plain.gradient)[rows][:, points])
        assert_close(mixed.gradient, expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("lam", LAMS)
    @pytest.mark.parametrize("scale", [1e-3, 7.0, 1e4])
    def test_loss_scales_with_cost_eps_and_lam(self, array, lam, scale):
        X, Y = pair(lam)
        C = cost(6)
        plain = wtf.wasserstein(array(X), array(Y), wtf.Wasserstein(C, 0.1, lam), tol=1e-13)
        loss = wtf.Wasserstein(C * scale, 0.1 * scale, lam * scale)
        scaled = wtf.wasserstein(array(X), array(Y), loss, tol=1e-13)
        assert float(scaled.value) == pytest.approx(float(plain.value) * scale, rel=1e-11)
        assert_close(scaled.gradient / scale, plain.gradient, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("lam", LAMS)
    @pytest.mark.parametrize("scale", [0.01, 30.0])
    def test_loss_is_homogeneous_in_the_mass_up_to_an_entropy(self, array, lam, scale):
        """Plans scale: OT(sx, sy) = s OT(x, y) + eps s log(s) <x, 1>, with the same gradient."""
        X, Y = pair(lam)
        loss = wtf.Wasserstein(cost(6), 0.1, lam)
        plain = wtf.wasserstein(array(X), array(Y), loss, tol=1e-13)
        scaled = wtf.wasserstein(array(X * scale), array(Y * scale), loss, tol=1e-13)
        expected = scale * (float(plain.value) + 0.1 * math.log(scale) * X.sum())
        assert float(scaled.value) == pytest.approx(expected, rel=1e-11)
        assert_close(scaled.gradient, plain.gradient, rtol=1e-5, atol=1e-6)

    def test_large_lam_tends_to_balanced(self, array):
        X, Y = pair(math.inf)
        balanced = value_of(array(X), array(Y), loss_of(cost(6), math.inf))
        errors = [
            balanced - value_of(array(X), array(Y), loss_of(cost(6), lam), tol=1e-10)
            for lam in (1e2, 1e3, 1e4)
        ]
        # The relaxed problem has the smaller minimum, by O(1/lam).
        assert all(error > 0 for error in errors)
        assert errors[1] == pytest.approx(0.1 * errors[0], rel=0.2)
        assert errors[2] == pytest.approx(0.1 * errors[1], rel=0.2)

    @pytest.mark.parametrize("lam", LAMS)
    def test_loss_is_convex_in_y(self, array, lam):
        X, Y = pair(lam)
        _, Z = pair(lam, seed=5)
        loss = loss_of(cost(6), lam)
        ends = [value_of(array(X), array(A), loss) for A in (Y, Z)]
        middle = value_of(array(X), array(0.5 * (Y + Z)), loss)
        assert middle < 0.5 * sum(ends)


class TestPrecision:
    @pytest.mark.parametrize("lam", LAMS)
    def test_float32_is_close_to_float64(self, array, lam):
        X, Y = pair(lam)
        loss = loss_of(cost(6), lam)
        double = wtf.wasserstein(array(X), array(Y), loss, tol=1e-10)
        single = wtf.wasserstein(array(X, "float32"), array(Y, "float32"), loss)
        assert float(single.value) == pytest.approx(float(double.value), rel=2e-4)
        expected = array(to_numpy(double.gradient), "float32")
        assert_close(single.gradient, expected, rtol=0.02, atol=0.02)

    @pytest.mark.parametrize("lam", [1.0, 10.0, math.inf])
    @pytest.mark.parametrize("eps", [1e-3, 1e-4])
    def test_small_eps_is_close_to_exact_transport(self, xp, array, lam, eps):
        """Finite without a warning and, when balanced, close to exact transport."""
        # Shapes that JAX has compiled for others.
        n, m = (3, 6) if is_jax_namespace(xp) else (2, 16)
        X, Y = samples(n, m, mass=1.0)
        X[0, 3 : min(9, m - 1)] = 0.0
        X[0] /= X[0].sum()
        C = wtf.grid_cost(m)[0]
        result = wtf.wasserstein(array(X), array(Y), wtf.Wasserstein(C, eps, lam), max_iter=5000)
        assert result.converged
        assert np.isfinite(to_numpy(result.gradient)).all()
        if math.isinf(lam):
            exact = sum(ot.emd2(x, y, C) for x, y in zip(X, Y, strict=True))
            smoothed = float(result.value)
            # The entropy of a plan of mass one on m^2 places lies in [-log m^2, 0] - 1.
            assert exact - n * eps * (2.0 * math.log(m) + 1.0) <= smoothed + result.gap
            assert smoothed <= exact - n * eps + 1e-9

    def test_small_eps_converges_in_float32(self, array):
        X, Y = samples(2, 16)
        loss = wtf.Wasserstein(wtf.grid_cost(16), 1e-3, 1.0)
        double = value_of(array(X), array(Y), loss, tol=1e-8)
        single = wtf.wasserstein(array(X, "float32"), array(Y, "float32"), loss)
        assert single.converged
        assert float(single.value) == pytest.approx(double, rel=2e-4)


class TestArrays:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("lam", [1.0, math.inf])
    def test_namespace_dtype_device_and_shape_are_kept(self, array, dtype, lam):
        X, Y = (array(A, dtype) for A in pair(lam))
        result = wtf.wasserstein(X, Y, loss_of(cost(6), lam))
        for found in (result.value, result.gradient, result.potential):
            assert array_namespace(found) is array_namespace(X)
            assert found.dtype == X.dtype
            assert device(found) == device(X)
        assert result.value.shape == ()
        assert tuple(result.gradient.shape) == tuple(result.potential.shape) == (3, 6)
        assert type(result.gap) is float
        assert type(result.converged) is bool

    @pytest.mark.parametrize("lam", LAMS)
    def test_inputs_are_untouched(self, xp, array, lam):
        X, Y = pair(lam)
        x, y, c, g = array(X), array(Y), array(cost(6)), array(0.1 * X)
        if is_numpy_namespace(xp):
            for given_array in (x, y, c, g):
                given_array.flags.writeable = False
        wtf.wasserstein(x, y, loss_of(c, lam), potential=g)
        for found, before in ((x, X), (y, Y), (c, cost(6)), (g, 0.1 * X)):
            assert_close(found, array(before), rtol=0, atol=0)


class TestSmallSmoothing:
    # JAX compiles exact sums of every length anew.
    @pytest.mark.parametrize("eps", [1e-2] if "jax" in sys.modules else [1e-3, 3e-3, 1e-2])
    def test_bins_that_lie_far_apart_converge(self, array, eps):
        """A step between two bins costs hundreds of times eps."""
        rng = np.random.default_rng(1)
        X, Y = rng.gamma(0.5, size=(4, 2, 3)), rng.gamma(0.5, size=(4, 2, 3)) + 1e-3
        loss = wtf.Wasserstein(wtf.grid_cost(3, 4), eps=eps, lam=1.0, modes=(2, 0))
        result = wtf.wasserstein(array(X), array(Y), loss, tol=1e-8)
        assert result.converged
        assert result.gap <= 1e-8 * abs(float(result.value))


def test_subnormal_model_is_accurate_or_refused(xp, array):
    X = np.asarray([[1.0, 0.0, 0.5, 0.0, 0.0, 0.0]] * 3)
    Y = np.asarray([[1e-39, 0.0, 0.3, 0.0, 0.0, 1e-3]] * 3, dtype="float32")
    loss = wtf.Wasserstein(wtf.grid_cost(6), eps=0.05, lam=0.005)
    arrays = (array(A, dtype="float32") for A in (X, Y))
    if is_jax_namespace(xp):
        with pytest.raises(ValueError, match=r"Y is 1.*e-39 at index \(0, 0\).*JAX takes smaller"):
            wtf.wasserstein(*arrays, loss)
        return
    found = wtf.wasserstein(*arrays, loss)
    assert found.converged
    Y = Y.astype("float64")
    exact = wtf.wasserstein(X, Y, loss)
    assert float(found.value) == pytest.approx(float(exact.value), rel=1e-4)
    without = wtf.wasserstein(X, np.where(Y < 1e-38, 0.0, Y), loss)
    assert float(without.value) > 1.01 * float(exact.value)
