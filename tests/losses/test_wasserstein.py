"""The conjugate of the Wasserstein loss against dense plans, and its symmetries."""

import math

import array_api_compat
import numpy as np
import pytest
from fitting import spare_jax
from helpers import assert_close
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    LAMS,
    SHAPE,
    assert_same,
    central_differences,
    dense_plans,
    entropy_of,
    evaluate,
    every_lam,
    exponent,
    few,
    free,
    kl,
    plan_value,
    random_cost,
    random_data,
    random_dual,
    some_seed,
)

import wtfarray as wtf


class TestConjugate:
    @every_lam
    @pytest.mark.parametrize("eps", [0.02, 0.3, 5.0])
    def test_agrees_with_the_closed_form(self, array, lam, eps):
        rng = np.random.default_rng(0)
        cost, X, U = random_cost(rng, 6, forbidden=0.2), random_data(rng), random_dual(rng, lam)
        log_f = U / eps if math.isinf(lam) else lam / eps * np.log(lam / (lam - U))
        log_Kf = np.log(np.exp(log_f) @ np.exp(-cost / eps).T)
        plan = dense_plans(X, eps * log_f, cost, eps)
        factor = 1.0 if math.isinf(lam) else lam / (lam - U)
        expected = eps * np.sum(X * log_Kf) - eps * entropy_of(X), factor * plan.sum(axis=1)
        assert_same(evaluate(wtf.Wasserstein(cost, eps, lam), X, U, array), expected)

    @few
    @given(lam=st.sampled_from(LAMS), eps=exponent(-2, 1), seed=some_seed)
    def test_is_the_supremum_over_plans_and_models(self, array, lam, eps, seed):
        rng = np.random.default_rng(seed)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, lam)
        value, best = evaluate(wtf.Wasserstein(cost, eps, lam), X, U, array)

        def below(plan, Y):
            penalty = 0.0 if math.isinf(lam) else lam * kl(plan.sum(axis=1), Y)
            return np.sum(U * Y) - plan_value(plan, cost, eps) - penalty

        plan = dense_plans(X, free(U, lam), cost, eps)
        size = 1.0 + X.sum() * (eps * 30 + 10)
        assert below(plan, best) == pytest.approx(value, abs=1e-13 * size)
        for amount in (0.01, 0.1, 1.0):
            other = plan * np.exp(amount * rng.normal(size=plan.shape))
            other *= (X / np.where(X > 0, other.sum(axis=2), 1.0))[:, :, None]
            marginal = other.sum(axis=1)
            noise = 0.0 if math.isinf(lam) else amount * rng.normal(size=X.shape)
            for Y in (marginal, marginal * np.exp(noise)):
                assert below(other, Y) <= value + 1e-13 * size

    @every_lam
    def test_gradient_agrees_with_central_differences(self, array, lam):
        rng = np.random.default_rng(1)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, lam)
        loss = wtf.Wasserstein(cost, 0.2, lam)
        expected = central_differences(lambda u: evaluate(loss, X, u, array)[0], U, 1e-5)
        np.testing.assert_allclose(evaluate(loss, X, U, array)[1], expected, rtol=2e-7, atol=1e-8)

    @every_lam
    def test_gradient_agrees_with_torch_autograd(self, array, xp, lam):
        if not array_api_compat.is_torch_namespace(xp):
            pytest.skip("torch's own derivative needs --backend torch")
        rng = np.random.default_rng(2)
        C, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, lam)
        loss, eps = wtf.Wasserstein(C, 0.1, lam), 0.1
        C, X, U = array(C), array(X), array(U).requires_grad_()
        log_f = U / eps if math.isinf(lam) else -(lam / eps) * xp.log(1 - U / lam)
        log_Kf = xp.logsumexp(log_f[:, None, :] - C / eps, 2)
        value = eps * xp.sum(X * log_Kf) - eps * xp.sum(xp.xlogy(X, X) - X)
        value.backward()
        result, gradient = loss.conjugate(X, U.detach())
        assert_close(result, value.detach(), rtol=1e-13)
        assert_close(gradient, U.grad, rtol=1e-12)

    def test_large_lam_tends_to_balanced(self, array):
        rng = np.random.default_rng(3)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, math.inf)
        value, gradient = evaluate(wtf.Wasserstein(cost, 0.1), X, U, array)
        for lam in (1e2, 1e4, 1e6):
            near = evaluate(wtf.Wasserstein(cost, 0.1, lam), X, U, array)
            # u and g differ by g^2 / 2 lam
            assert abs(near[0] - value) <= X.sum() * np.max(U**2) / lam
            assert np.abs(near[1] - gradient).max() <= 20 * X.sum() * np.max(U**2) / lam

    @few
    @given(lam=st.sampled_from(LAMS), scale=exponent(-3, 3), seed=some_seed)
    def test_scales_with_cost_eps_and_lam(self, array, lam, scale, seed):
        rng = np.random.default_rng(seed)
        cost, X, U = random_cost(rng, 6, forbidden=0.2), random_data(rng), random_dual(rng, lam)
        value, gradient = evaluate(wtf.Wasserstein(cost, 0.1, lam), X, U, array)
        scaled = wtf.Wasserstein(scale * cost, scale * 0.1, scale * lam)
        other, same = evaluate(scaled, X, scale * U, array)
        assert_same((other / scale, same), (value, gradient), rtol=1e-12)

    @every_lam
    def test_is_equivariant_under_permuted_samples(self, array, lam):
        rng = np.random.default_rng(4)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, lam)
        loss, order = wtf.Wasserstein(cost, 0.1, lam), [2, 0, 1]
        value, gradient = evaluate(loss, X, U, array)
        assert_same(evaluate(loss, X[order], U[order], array), (value, gradient[order]))

    @every_lam
    def test_is_the_sum_over_samples(self, array, lam):
        rng = np.random.default_rng(5)
        shape = (3, 4, 5)
        X, U = random_data(rng, (12, 5)).reshape(shape), random_dual(rng, lam, shape)
        loss = wtf.Wasserstein([random_cost(rng, 4), random_cost(rng, 5)], 0.1, lam)
        apart = [evaluate(loss, x, u, array) for x, u in zip(X, U, strict=True)]
        together = evaluate(loss, X, U, array)
        assert_same(together, (sum(v for v, _ in apart), np.stack([g for _, g in apart])))

    @every_lam
    def test_float32_is_close_to_float64(self, array, lam):
        rng = np.random.default_rng(6)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, lam)
        loss = wtf.Wasserstein(cost, 0.05, lam)
        single = evaluate(loss, X, U, array, "float32")
        assert_same(single, evaluate(loss, X, U, array), rtol=3e-5)

    @every_lam
    def test_empty_samples_add_nothing(self, array, lam):
        rng = np.random.default_rng(7)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, lam)
        X[1] = 0.0
        loss = wtf.Wasserstein(cost, 0.1, lam)
        value, gradient = evaluate(loss, X, U, array)
        keep = [0, 2]
        assert_same((value, gradient[keep]), evaluate(loss, X[keep], U[keep], array))
        np.testing.assert_array_equal(gradient[1], 0.0)

    @every_lam
    def test_single_bins_at_small_eps_follow_the_closed_form(self, array, lam):
        rng = np.random.default_rng(8)
        cost, U, X, eps = random_cost(rng, 6), random_dual(rng, lam), np.eye(3, 6), 1e-4
        g = free(U, lam)
        logs = (g - cost[:3]) / eps
        top = logs.max(axis=1, keepdims=True)
        value = eps * np.sum(np.log(np.exp(logs - top).sum(axis=1)) + top[:, 0]) + 3 * eps
        factor = 1.0 if math.isinf(lam) else lam / (lam - U)
        expected = value, factor * dense_plans(X, g, cost, eps).sum(axis=1)
        assert_same(evaluate(wtf.Wasserstein(cost, eps, lam), X, U, array), expected, rtol=1e-11)

    @pytest.mark.parametrize("lam", [0.5, 5.0])
    def test_diagonal_cost_gives_kullback_leibler(self, array, lam):
        """K = I: the loss is ``lam KL(X|Y) + eps E(X)``."""
        rng = np.random.default_rng(9)
        X, Y = rng.exponential(size=(2, *SHAPE))
        cost, eps = np.where(np.eye(6) > 0, 0.0, np.inf), 0.3
        loss, expected = wtf.Wasserstein(cost, eps, lam), lam * kl(X, Y) + eps * entropy_of(X)
        U = lam * (1 - X / Y)
        value, gradient = evaluate(loss, X, U, array)
        np.testing.assert_allclose(gradient, Y, rtol=1e-13)
        assert np.sum(U * Y) - value == pytest.approx(expected, rel=1e-12)
        for _ in range(5):
            other = np.minimum(U + rng.normal(size=SHAPE), 0.9 * lam)
            assert np.sum(other * Y) - evaluate(loss, X, other, array)[0] <= expected + 1e-12
        plain = evaluate(wtf.KullbackLeibler(), X, U / lam, array)
        assert_same((value, gradient), (lam * plain[0] - eps * entropy_of(X), plain[1]), rtol=1e-12)

    @pytest.mark.parametrize("value", [2.0, 3.0])
    def test_dual_variable_of_lam_or_more_is_refused(self, array, value):
        U = np.zeros(SHAPE)
        U[1, 4] = value
        loss = wtf.Wasserstein(np.ones((6, 6)), 0.1, 2.0)
        with pytest.raises(ValueError, match=r"U is .* at index \(1, 4\): expected .*lam"):
            loss.conjugate(array(np.ones(SHAPE)), array(U))

    def test_dual_variable_of_another_shape_or_dtype_is_refused(self, array):
        loss, X = wtf.Wasserstein(np.ones((6, 6)), 0.1), array(np.ones(SHAPE))
        with pytest.raises(ValueError, match=r"U has shape \(2, 6\): expected \(3, 6\)"):
            loss.conjugate(X, array(np.ones((2, 6))))
        with pytest.raises(TypeError, match=r"U has dtype .*float32"):
            loss.conjugate(X, array(np.ones(SHAPE), "float32"))


class TestModes:
    """Every choice of modes is the default one after permuting the data by hand."""

    @pytest.mark.parametrize(
        ("modes", "order", "sizes"),
        [
            (None, (0, 1, 2), (3, 4, 5)),
            ((1, 2), (0, 1, 2), (3, 4, 5)),
            ((0, 1), (2, 0, 1), (5, 3, 4)),
            ((2, 0), (1, 2, 0), (4, 5, 3)),
            ((-1, -3), (1, 2, 0), (4, 5, 3)),
            ((0,), (1, 2, 0), (20, 3)),
            ((-2,), (0, 2, 1), (15, 4)),
            (((1, 2),), (0, 1, 2), (3, 20)),
            (((2, 1),), (0, 2, 1), (3, 20)),
            (((0, -1),), (1, 0, 2), (4, 15)),
            ((1, (2, 0)), (1, 2, 0), (1, 4, 15)),
            ((0, 1, 2), (0, 1, 2), (1, 3, 4, 5)),
            ((2, 0, 1), (2, 0, 1), (1, 5, 3, 4)),
            (((0, 1, 2),), (0, 1, 2), (1, 60)),
        ],
        ids=str,
    )
    def test_modes_are_those_of_the_permuted_problem(self, xp, array, modes, order, sizes):
        if modes not in (None, (2, 0), ((0, -1),), (1, (2, 0)), (2, 0, 1)):
            spare_jax(xp)
        rng = np.random.default_rng(0)
        shape, lam = (3, 4, 5), 5.0
        X, U = rng.exponential(size=shape), random_dual(rng, lam, shape)
        costs = [random_cost(rng, n) for n in sizes[1:]]
        value, gradient = evaluate(wtf.Wasserstein(costs, 0.2, lam, modes), X, U, array)
        by_hand = wtf.Wasserstein(costs, 0.2, lam)
        data, dual = (np.transpose(T, order).reshape(sizes) for T in (X, U))
        expected = evaluate(by_hand, data, dual, array)
        turned = np.transpose(gradient, order).reshape(sizes)
        assert_same((value, turned), expected)

    def test_single_cost_is_a_list_of_one(self, array):
        rng = np.random.default_rng(1)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, math.inf)
        one, several = wtf.Wasserstein(cost, 0.1), wtf.Wasserstein([cost], 0.1)
        assert_same(evaluate(one, X, U, array), evaluate(several, X, U, array), rtol=0)

    @pytest.mark.parametrize("modes", [(0, 0), (1, -2), (1, 3), (1,), ((), 1)])
    def test_repeated_or_missing_modes_are_refused(self, array, modes):
        with pytest.raises(ValueError, match="modes is"):
            wtf.Wasserstein([np.ones((4, 4))] * 2, 0.1, modes=modes).bind(array(np.ones((4, 4, 4))))

    def test_cost_of_another_size_is_refused(self, array):
        with pytest.raises(ValueError, match=r"costs\[0\] has shape \(4, 4\): expected \(5, 5\)"):
            wtf.Wasserstein(np.ones((4, 4)), 0.1).bind(array(np.ones((4, 5))))

    def test_costs_may_be_arrays_of_the_library_of_the_data(self, array):
        rng = np.random.default_rng(3)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, math.inf)
        own, numpy = wtf.Wasserstein(array(cost), 0.1), wtf.Wasserstein(cost, 0.1)
        assert_same(evaluate(own, X, U, array), evaluate(numpy, X, U, array), rtol=0)
