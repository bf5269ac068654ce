"""The losses against dense plans, the definition of their conjugates, and their symmetries."""

import math
import sys

import array_api_compat
import numpy as np
import pytest
from helpers import assert_close, to_numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wtfarray as wtf
from wtfarray._losses.protocol import stack, unstack

few = settings(
    # JAX compiles every operation anew for every shape.
    max_examples=2 if "jax" in sys.modules else 30,
    suppress_health_check=[HealthCheck.differing_executors],
)
some_seed = st.integers(0, 10_000)
LAMS = [0.5, 5.0, math.inf]
every_lam = pytest.mark.parametrize("lam", LAMS)
SHAPE = (3, 6)


def exponent(low, high):
    """Powers of ten, spread evenly in the exponent."""
    return st.floats(low, high).map(lambda t: 10**t)


def random_cost(rng, n, barred=0.0):
    """A cost of mean 1 that is not symmetric; the diagonal is never barred."""
    walls = (rng.uniform(size=(n, n)) < barred) & ~np.eye(n, dtype=bool)
    return np.where(walls, np.inf, rng.exponential(size=(n, n)))


def random_data(rng, shape=SHAPE):
    """Samples with some zeros."""
    return rng.exponential(size=shape) * (rng.uniform(size=shape) < 0.8) + 1e-3 * np.eye(*shape)


def random_dual(rng, lam, shape=SHAPE):
    """Dual variables below lam."""
    return np.minimum(rng.normal(size=shape), 0.9 * lam)


def xlogx(a):
    return a * np.log(np.where(a > 0, a, 1.0))


def entropy_of(a):
    return np.sum(xlogx(a) - a)


def kl(a, b):
    """KL(a|b) of positive b."""
    return np.sum(xlogx(a) - a * np.log(b) - a + b)


def free(u, lam):
    return u if math.isinf(lam) else -lam * np.log1p(-u / lam)


def dense_plans(x, g, cost, eps):
    """The plan ``a_i K_ij f_j`` of every sample, whose rows sum to x."""
    logs = g[:, None, :] / eps - cost[None] / eps
    weights = np.exp(logs - logs.max(axis=2, keepdims=True))
    return x[:, :, None] * weights / weights.sum(axis=2, keepdims=True)


def plan_value(plan, cost, eps):
    """``eps H(G|K) = eps <G, log G - 1> + <C, G>``."""
    return eps * entropy_of(plan) + np.sum(
        np.where(plan > 0, plan * np.where(plan > 0, cost, 0), 0)
    )


def central_differences(function, x, step):
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        move = np.zeros_like(x)
        move[index] = step
        gradient[index] = (function(x + move) - function(x - move)) / (2 * step)
    return gradient


def evaluate(loss, X, U, array, dtype="float64"):
    """Value and gradient of the conjugate, as a float and a NumPy array."""
    value, gradient = loss.conjugate(array(X, dtype), array(U, dtype))
    assert value.dtype == gradient.dtype == array(0.0, dtype).dtype
    return float(value), to_numpy(gradient)


def assert_same(first, second, rtol=1e-13):
    assert first[0] == pytest.approx(second[0], rel=rtol, abs=rtol)
    np.testing.assert_allclose(first[1], second[1], rtol=rtol, atol=rtol)


class TestWassersteinConjugate:
    @every_lam
    @pytest.mark.parametrize("eps", [0.02, 0.3, 5.0])
    def test_is_the_closed_form(self, array, lam, eps):
        rng = np.random.default_rng(0)
        cost, X, U = random_cost(rng, 6, barred=0.2), random_data(rng), random_dual(rng, lam)
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
    def test_gradient_is_the_derivative(self, array, lam):
        rng = np.random.default_rng(1)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, lam)
        loss = wtf.Wasserstein(cost, 0.2, lam)
        slope = central_differences(lambda u: evaluate(loss, X, u, array)[0], U, 1e-5)
        np.testing.assert_allclose(evaluate(loss, X, U, array)[1], slope, rtol=2e-7, atol=1e-8)

    @every_lam
    def test_is_torch_autograd(self, array, xp, lam):
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
    def test_scaling_law(self, array, lam, scale, seed):
        rng = np.random.default_rng(seed)
        cost, X, U = random_cost(rng, 6, barred=0.2), random_data(rng), random_dual(rng, lam)
        value, gradient = evaluate(wtf.Wasserstein(cost, 0.1, lam), X, U, array)
        scaled = wtf.Wasserstein(scale * cost, scale * 0.1, scale * lam)
        other, same = evaluate(scaled, X, scale * U, array)
        assert_same((other / scale, same), (value, gradient), rtol=1e-12)

    @every_lam
    def test_permuted_samples(self, array, lam):
        rng = np.random.default_rng(4)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, lam)
        loss, order = wtf.Wasserstein(cost, 0.1, lam), [2, 0, 1]
        value, gradient = evaluate(loss, X, U, array)
        assert_same(evaluate(loss, X[order], U[order], array), (value, gradient[order]))

    @every_lam
    def test_slices_apart_are_slices_together(self, array, lam):
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
    def test_zero_samples_give_nothing(self, array, lam):
        rng = np.random.default_rng(7)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, lam)
        X[1] = 0.0
        loss = wtf.Wasserstein(cost, 0.1, lam)
        value, gradient = evaluate(loss, X, U, array)
        keep = [0, 2]
        assert_same((value, gradient[keep]), evaluate(loss, X[keep], U[keep], array))
        np.testing.assert_array_equal(gradient[1], 0.0)

    @every_lam
    def test_single_pixels_and_small_eps(self, array, lam):
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
    def test_nothing_may_move(self, array, lam):
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
    def test_refuses_a_dual_of_lam_or_more(self, array, value):
        U = np.zeros(SHAPE)
        U[1, 4] = value
        loss = wtf.Wasserstein(np.ones((6, 6)), 0.1, 2.0)
        with pytest.raises(ValueError, match=r"U is .* at index \(1, 4\): expected .*lam"):
            loss.conjugate(array(np.ones(SHAPE)), array(U))

    def test_refuses_a_dual_of_another_shape_or_dtype(self, array):
        loss, X = wtf.Wasserstein(np.ones((6, 6)), 0.1), array(np.ones(SHAPE))
        with pytest.raises(ValueError, match=r"U has shape \(2, 6\): expected \(3, 6\)"):
            loss.conjugate(X, array(np.ones((2, 6))))
        with pytest.raises(TypeError, match=r"U has dtype .*float32"):
            loss.conjugate(X, array(np.ones(SHAPE), "float32"))


class TestWassersteinModes:
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
    def test_is_the_permuted_problem(self, array, modes, order, sizes):
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

    def test_one_cost_or_a_list_of_one(self, array):
        rng = np.random.default_rng(1)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, math.inf)
        one, several = wtf.Wasserstein(cost, 0.1), wtf.Wasserstein([cost], 0.1)
        assert_same(evaluate(one, X, U, array), evaluate(several, X, U, array), rtol=0)

    def test_stack_is_undone_by_unstack(self, array):
        X = np.random.default_rng(2).exponential(size=(3, 4, 5))
        loss = wtf.Wasserstein([np.ones((5, 5)), np.ones((3, 3))], 0.1, modes=(2, 0))
        bound = loss.bind(array(X))
        assert_close(stack(bound, array(X)), array(np.transpose(X, (1, 2, 0))), rtol=0)
        assert_close(unstack(bound, stack(bound, array(X)), X.shape), array(X), rtol=0)

    @pytest.mark.parametrize("modes", [(0, 0), (1, -2), (1, 3), (1,), ((), 1)])
    def test_refuses_modes_that_do_not_fit(self, array, modes):
        with pytest.raises(ValueError, match="modes is"):
            wtf.Wasserstein([np.ones((4, 4))] * 2, 0.1, modes=modes).bind(array(np.ones((4, 4, 4))))

    def test_refuses_a_cost_of_another_size(self, array):
        with pytest.raises(ValueError, match=r"costs\[0\] has shape \(4, 4\): expected \(5, 5\)"):
            wtf.Wasserstein(np.ones((4, 4)), 0.1).bind(array(np.ones((4, 5))))

    def test_costs_of_the_data_s_own_library(self, array):
        rng = np.random.default_rng(3)
        cost, X, U = random_cost(rng, 6), random_data(rng), random_dual(rng, math.inf)
        own, numpy = wtf.Wasserstein(array(cost), 0.1), wtf.Wasserstein(cost, 0.1)
        assert_same(evaluate(own, X, U, array), evaluate(numpy, X, U, array), rtol=0)


class TestBoundWasserstein:
    """The fast conjugate in the free variable never gives a wrong finite number."""

    @few
    @given(
        eps=exponent(-3, 0),
        spread=exponent(-2, 4),
        dtype=st.sampled_from(["float32", "float64"]),
        barred=st.sampled_from([0.0, 0.6]),
        seed=some_seed,
    )
    def test_fast_is_safe_or_nan(self, array, eps, spread, dtype, barred, seed):
        rng = np.random.default_rng(seed)
        costs = [random_cost(rng, 3, barred), random_cost(rng, 4, barred)]
        X = random_data(rng, (4, 12)).reshape(4, 3, 4)
        X[1] *= 1e6
        X[2] *= 1e-6
        g = rng.uniform(-spread, spread, size=X.shape)
        self.check(wtf.Wasserstein(costs, eps), X, g, array, dtype)

    @staticmethod
    def check(loss, X, g, array, dtype):
        bound = loss.bind(array(X, dtype))
        fast, q = (to_numpy(a).astype("float64") for a in bound.conjugate(array(g, dtype)))
        safe, safe_q = (
            to_numpy(a).astype("float64") for a in bound.safe_conjugate(array(g, dtype))
        )
        assert np.all(np.isfinite(safe))
        assert np.all(np.isfinite(safe_q))
        known = ~np.isnan(fast)
        # Values of the exponents g/eps, C/eps and what a plain product can hold.
        info = np.finfo(dtype)
        largest = np.abs(g).max() + 10.0 - loss.eps * np.log(float(info.tiny))
        mass = X.sum(axis=(1, 2))
        size = mass * largest + loss.eps * np.abs(xlogx(X)).sum(axis=(1, 2))
        assert np.all(np.abs(fast - safe)[known] <= 10 * info.eps * size[known])
        error = np.abs(q - safe_q).max(axis=(1, 2))
        bound_q = 3 * info.eps * mass * (1.0 + largest / loss.eps)
        assert np.all(error[known] <= bound_q[known])
        np.testing.assert_allclose(safe_q.sum(axis=(1, 2)), mass, rtol=bound_q.max() / mass.max())
        return known

    def test_both_outcomes_occur(self, array):
        rng = np.random.default_rng(0)
        X, g = random_data(rng, (4, 12)).reshape(4, 3, 4), rng.normal(size=(4, 3, 4))
        g[:2] *= 1e-2
        g[2:] *= 1e2
        loss = wtf.Wasserstein([random_cost(rng, 3), random_cost(rng, 4)], 2e-3)
        known = self.check(loss, X, g, array, "float64")
        np.testing.assert_array_equal(known, [True, True, False, False])

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_the_edge_of_underflow(self, array, dtype):
        """One sample a shift, from where all is well to where all is lost."""
        rng = np.random.default_rng(1)
        eps, cost = 0.1, random_cost(rng, 6)
        cost[0, 1:] = np.inf  # what is at 0 stays there
        edge = -eps * math.log(float(np.finfo(dtype).tiny))
        g = rng.normal(size=(41, 1, 6)) * 0.1
        g[:, 0, 0] -= np.linspace(0.5, 1.5, 41) * edge
        loss = wtf.Wasserstein([np.zeros((1, 1)), cost], eps)
        known = self.check(loss, rng.exponential(size=g.shape), g, array, dtype)
        assert known[0]
        assert not known[-1]
        assert np.all(np.diff(known.astype(int)) <= 0)

    @few
    @given(spread=exponent(-2, 4), dtype=st.sampled_from(["float32", "float64"]), seed=some_seed)
    def test_where_no_digit_can_be_lost(self, array, spread, dtype, seed):
        """There fast products are not checked, and are right for every g, -inf included."""
        rng = np.random.default_rng(seed)
        costs = [random_cost(rng, 3), random_cost(rng, 4)]
        X = random_data(rng, (4, 12)).reshape(4, 3, 4)
        longest = sum(float(cost.max()) for cost in costs)
        # exp(-longest/eps) is as small as it may be: some 1e-25 in float32, 1e-280 in float64.
        eps = longest / (55.0 if dtype == "float32" else 645.0)
        loss = wtf.Wasserstein(costs, eps)
        bound = loss.bind(array(X, dtype))
        assert bound.never_lost
        assert not wtf.Wasserstein(costs, 0.8 * eps).bind(array(X, dtype)).never_lost
        g = rng.uniform(-spread, spread, size=X.shape)
        assert np.all(self.check(loss, X, g, array, dtype))
        g[0, 1:] = -math.inf
        fast, log_q = bound.marginal(array(g, dtype), safe=False)
        safe, safe_log_q = bound.marginal(array(g, dtype), safe=True)
        assert not np.any(to_numpy(fast.lost))
        rounding = 10 * np.finfo(dtype).eps * (spread / eps + 1000.0)
        assert_close(log_q, safe_log_q, rtol=0, atol=rounding)
        assert_close(fast.q, safe.q, rtol=rounding, atol=float(np.finfo(dtype).eps * X.sum()))

    def test_an_ignored_sample_is_lost(self, array):
        g = np.zeros((2, 6))
        g[1] = -math.inf
        bound = wtf.Wasserstein(wtf.grid_cost(6), 1.0).bind(array(np.ones((2, 6))))
        assert bound.never_lost
        with np.errstate(invalid="ignore"):  # -inf less its own maximum
            lost = bound.marginal(array(g), safe=False)[0].lost
        np.testing.assert_array_equal(to_numpy(lost), [False, True])

    @few
    @given(eps=exponent(-3, 1), spread=exponent(-1, 3), seed=some_seed)
    def test_convex_along_segments(self, array, eps, spread, seed):
        rng = np.random.default_rng(seed)
        bound = wtf.Wasserstein(random_cost(rng, 6), eps).bind(array(random_data(rng)))
        start, end = rng.normal(size=(2, *SHAPE)) * spread
        first, last = (to_numpy(bound.safe_conjugate(array(g))[0]) for g in (start, end))
        for t in (0.1, 0.5, 0.8):
            middle = to_numpy(bound.safe_conjugate(array((1 - t) * start + t * end))[0])
            mass = to_numpy(bound.mass)
            slack = 1e-14 * mass * (4 * spread + 10 + 10 * eps)
            assert np.all(middle <= (1 - t) * first + t * last + slack)

    def test_gradient_is_the_derivative(self, array):
        rng = np.random.default_rng(2)
        bound = wtf.Wasserstein(random_cost(rng, 6), 0.2, 3.0).bind(array(random_data(rng)))
        g = rng.normal(size=SHAPE)
        slope = central_differences(lambda h: to_numpy(bound.conjugate(array(h))[0]).sum(), g, 1e-4)
        for method in (bound.conjugate, bound.safe_conjugate):
            np.testing.assert_allclose(to_numpy(method(array(g))[1]), slope, rtol=1e-6, atol=1e-8)

    @every_lam
    def test_is_the_conjugate_in_the_paper_s_variable(self, array, lam):
        rng = np.random.default_rng(3)
        X, U = random_data(rng), random_dual(rng, lam)
        loss = wtf.Wasserstein(random_cost(rng, 6), 0.1, lam)
        values, _ = loss.bind(array(X)).conjugate(array(free(U, lam)))
        assert to_numpy(values).sum() == pytest.approx(evaluate(loss, X, U, array)[0], rel=1e-13)

    def test_minus_infinity_empties_a_bin(self, array):
        rng = np.random.default_rng(4)
        X, g, cost = random_data(rng), rng.normal(size=SHAPE), random_cost(rng, 6)
        g[:, 2] = -np.inf
        value, q = wtf.Wasserstein(cost, 0.1).bind(array(X)).safe_conjugate(array(g))
        plan = dense_plans(X, g, cost, 0.1)
        assert_close(q, array(plan.sum(axis=1)), rtol=1e-12)
        log_Kf = np.log(np.exp(g / 0.1) @ np.exp(-cost / 0.1).T)
        expected = 0.1 * (X * log_Kf - xlogx(X) + X).sum(axis=1)
        assert_close(value, array(expected), rtol=1e-12)


def rounded_bound(X, Y, g, cost, eps):
    """One sample: the two bounds of the rounded plan, U1 and U2, and the rounded plan itself."""
    plan = dense_plans(X[None], g[None], cost, eps)[0]
    q = plan.sum(axis=0)
    kept = plan * np.minimum(1.0, Y / q)
    rr, rc = X - kept.sum(axis=1), Y - kept.sum(axis=0)
    m, mR = X.sum(), rr.sum()
    m1 = m - mR
    log_a = np.log(X) - np.log(np.exp(-cost / eps) @ np.exp(g / eps))
    t = m / m1
    log_s = np.minimum(0.0, np.log(Y / q))
    U1 = t * (kept.sum(axis=1) @ log_a + kept.sum(axis=0) @ (g / eps + log_s) + m1 * np.log(t))
    t = m / mR
    entropies = xlogx(rr).sum() + xlogx(rc).sum() - mR * np.log(mR) + mR * np.log(t)
    U2 = t * (eps * entropies + rr @ cost @ rc / mR) - eps * m
    bound = m1 / m * eps * (U1 - m) + mR / m * U2
    return bound, kept + np.outer(rr, rc) / mR


class TestWassersteinGap:
    @few
    @given(
        lam=st.sampled_from(LAMS),
        eps=exponent(-3, 1),
        spread=exponent(-2, 2),
        distance=exponent(-8, 1),
        dtype=st.sampled_from(["float32", "float64"]),
        seed=some_seed,
    )
    def test_is_never_negative(self, array, lam, eps, spread, distance, dtype, seed):
        rng = np.random.default_rng(seed)
        X, g = random_data(rng), np.maximum(spread * rng.normal(size=SHAPE), -20 * lam)
        mass = X.sum(axis=1, keepdims=True)
        bound = wtf.Wasserstein(random_cost(rng, 6), eps, lam).bind(array(X, dtype))
        _, q = bound.safe_conjugate(array(g, dtype))
        Y = to_numpy(q).astype("float64") * np.exp(distance * rng.normal(size=SHAPE))
        Y *= (
            mass / Y.sum(axis=1, keepdims=True)
            if math.isinf(lam)
            else np.exp(np.minimum(g / lam, 20))
        )
        gaps = to_numpy(bound.gap(array(g, dtype), q, array(Y, dtype)))
        # The mass of q is as exact as the exponents g/eps and C/eps.
        largest = np.abs(g).max() + 1.0
        lost_mass = np.finfo(dtype).eps * (1.0 + largest / eps) * mass[:, 0]
        assert np.all(gaps >= (-lost_mass * (30 * eps + largest) if math.isinf(lam) else 0.0))

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_a_trace_of_mass_in_the_wrong_place(self, array, dtype):
        """Both rows prefer bin 0; bin 1 gets less than a normal number, and Y has none there."""
        info = np.finfo(dtype)
        eps = 1.0 / (math.log(70.0) - math.log(float(info.smallest_subnormal)))
        loss = wtf.Wasserstein(np.array([[0.0, 1.0], [0.0, 1.0]]), eps)
        bound = loss.bind(array([[100.0, 100.0]], dtype))
        g = array([[0.0, 0.0]], dtype)
        _, q = bound.safe_conjugate(g)
        Y = array([[200.0 * (1.0 + info.eps), 0.0]], dtype)
        gap = float(bound.gap(g, q, Y)[0])
        assert abs(gap) <= 200.0 * info.eps

    @pytest.mark.parametrize("lam", [0.5, 5.0])
    def test_unbalanced_is_primal_minus_dual(self, array, lam):
        rng = np.random.default_rng(1)
        X, Y, eps, cost = random_data(rng), rng.exponential(size=SHAPE), 0.2, random_cost(rng, 6)
        g = rng.normal(size=SHAPE)
        bound = wtf.Wasserstein(cost, eps, lam).bind(array(X))
        values, q = bound.conjugate(array(g))
        gaps = to_numpy(bound.gap(array(g), q, array(Y)))
        u, plans = -lam * np.expm1(-g / lam), dense_plans(X, g, cost, eps)
        for k in range(3):
            primal = plan_value(plans[k], cost, eps) + lam * kl(plans[k].sum(axis=0), Y[k])
            expected = primal + float(values[k]) - u[k] @ Y[k]
            assert gaps[k] == pytest.approx(expected, rel=1e-11)

    @pytest.mark.parametrize("distance", [3.0, 0.1, 1e-3])
    def test_balanced_is_the_rounded_plan_s(self, array, distance):
        rng = np.random.default_rng(2)
        X, g, eps, cost = (
            rng.exponential(size=SHAPE),
            rng.normal(size=SHAPE),
            0.3,
            random_cost(rng, 6),
        )
        bound = wtf.Wasserstein(cost, eps).bind(array(X))
        values, q = bound.conjugate(array(g))
        Y = to_numpy(q) * np.exp(distance * rng.normal(size=SHAPE))
        Y *= X.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
        gaps = to_numpy(bound.gap(array(g), q, array(Y)))
        for k in range(3):
            dual = g[k] @ Y[k] - float(values[k])
            primal, plan = rounded_bound(X[k], Y[k], g[k], cost, eps)
            assert gaps[k] == pytest.approx(primal - dual, rel=1e-10, abs=1e-13)
            np.testing.assert_allclose(plan.sum(axis=0), Y[k], rtol=1e-12)
            np.testing.assert_allclose(plan.sum(axis=1), X[k], rtol=1e-12)
            assert gaps[k] >= plan_value(plan, cost, eps) - dual - 1e-13

    def test_separable_and_dense_costs_agree(self, array):
        rng = np.random.default_rng(3)
        shape = (3, 2, 4)
        X, Y = rng.exponential(size=(2, *shape))
        Y *= X.sum(axis=(1, 2), keepdims=True) / Y.sum(axis=(1, 2), keepdims=True)
        g, costs = rng.normal(size=shape), [random_cost(rng, 2), random_cost(rng, 4)]
        full = (costs[0][:, None, :, None] + costs[1][None, :, None, :]).reshape(8, 8)
        separable, dense = wtf.Wasserstein(costs, 0.3), wtf.Wasserstein(full, 0.3, modes=((1, 2),))
        gaps = []
        for loss in (separable, dense):
            bound = loss.bind(array(X))
            h, model = stack(bound, array(g)), stack(bound, array(Y))
            gaps.append(bound.gap(h, bound.conjugate(h)[1], model))
        assert_close(gaps[0], gaps[1], rtol=1e-12)

    @every_lam
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_vanishes_at_the_optimum(self, array, lam, dtype):
        rng = np.random.default_rng(4)
        X, U = random_data(rng), random_dual(rng, lam)
        loss = wtf.Wasserstein(random_cost(rng, 6), 0.1, lam)
        bound = loss.bind(array(X, dtype))
        g = array(free(U, lam), dtype)
        _, q = bound.safe_conjugate(g)
        _, Y = loss.conjugate(array(X, dtype), array(U, dtype))
        tiny = 100 * np.finfo(dtype).eps
        assert to_numpy(bound.gap(g, q, Y)).max() <= tiny * X.sum(axis=1).max()
        previous = math.inf
        for distance in (0.1, 1e-2, 1e-3):
            near = to_numpy(Y) * np.exp(distance * rng.normal(size=SHAPE))
            if math.isinf(lam):
                near *= X.sum(axis=1, keepdims=True) / near.sum(axis=1, keepdims=True)
            gap = to_numpy(bound.gap(g, q, array(near, dtype))).max()
            assert gap <= 0.2 * previous
            previous = gap


class TestFrobenius:
    def test_value_and_gradient(self, array):
        X, U = np.abs(np.random.default_rng(0).normal(size=(2, 3, 4)))
        expected = np.sum(X * U) + 0.5 * np.sum(U**2), X + U
        assert_same(evaluate(wtf.Frobenius(), X, U, array), expected, rtol=1e-14)

    @few
    @given(seed=some_seed)
    def test_is_the_supremum(self, array, seed):
        rng = np.random.default_rng(seed)
        X, U = random_data(rng), rng.normal(size=SHAPE)
        value, best = evaluate(wtf.Frobenius(), X, U, array)

        def below(Y):
            return np.sum(U * Y) - 0.5 * np.sum((X - Y) ** 2)

        assert below(best) == pytest.approx(value, rel=1e-12, abs=1e-12)
        for amount in (1e-3, 1.0):
            assert below(best + amount * rng.normal(size=SHAPE)) <= value

    def test_gradient_is_the_derivative(self, array):
        rng = np.random.default_rng(1)
        X, U = random_data(rng), rng.normal(size=SHAPE)
        slope = central_differences(lambda u: evaluate(wtf.Frobenius(), X, u, array)[0], U, 1e-3)
        np.testing.assert_allclose(evaluate(wtf.Frobenius(), X, U, array)[1], slope, rtol=1e-10)

    def test_gap_is_the_primal_minus_the_dual(self, array):
        rng = np.random.default_rng(2)
        X, Y, g = random_data(rng), random_data(rng), rng.normal(size=SHAPE)
        bound = wtf.Frobenius().bind(array(X))
        values, marginal = bound.conjugate(array(g))
        expected = 0.5 * np.sum((X - Y) ** 2, axis=1) + to_numpy(values) - np.sum(g * Y, axis=1)
        assert_close(bound.gap(array(g), marginal, array(Y)), array(expected), rtol=1e-12)


class TestKullbackLeibler:
    def test_value_and_gradient(self, array):
        rng = np.random.default_rng(0)
        X, U = random_data(rng), random_dual(rng, 1.0)
        expected = -np.sum(X * np.log(1 - U)), X / (1 - U)
        assert_same(evaluate(wtf.KullbackLeibler(), X, U, array), expected, rtol=1e-14)

    @few
    @given(seed=some_seed)
    def test_is_the_supremum(self, array, seed):
        rng = np.random.default_rng(seed)
        X, U = rng.exponential(size=SHAPE), random_dual(rng, 1.0)
        value, best = evaluate(wtf.KullbackLeibler(), X, U, array)
        size = np.sum(best) + abs(value)
        assert np.sum(U * best) - kl(X, best) == pytest.approx(value, abs=1e-13 * size)
        for amount in (1e-2, 1.0):
            Y = best * np.exp(amount * rng.normal(size=SHAPE))
            assert np.sum(U * Y) - kl(X, Y) <= value + 1e-13 * size

    def test_gradient_is_the_derivative(self, array):
        rng = np.random.default_rng(1)
        loss, X, U = wtf.KullbackLeibler(), random_data(rng), random_dual(rng, 1.0)
        slope = central_differences(lambda u: evaluate(loss, X, u, array)[0], U, 1e-5)
        np.testing.assert_allclose(evaluate(loss, X, U, array)[1], slope, rtol=1e-7, atol=1e-9)

    def test_gap_is_the_primal_minus_the_dual(self, array):
        rng = np.random.default_rng(2)
        X, Y, g = random_data(rng), rng.exponential(size=SHAPE), rng.normal(size=SHAPE)
        bound = wtf.KullbackLeibler().bind(array(X))
        values, marginal = bound.conjugate(array(g))
        u = -np.expm1(-g)
        primal = np.array([kl(x, y) for x, y in zip(X, Y, strict=True)])
        expected = primal + to_numpy(values) - np.sum(u * Y, axis=1)
        assert_close(bound.gap(array(g), marginal, array(Y)), array(expected), rtol=1e-12)

    def test_refuses_a_dual_of_one_or_more(self, array):
        with pytest.raises(ValueError, match=r"U is 1.0 at index \(1,\): expected values below 1"):
            wtf.KullbackLeibler().conjugate(array([1.0, 2.0]), array([0.0, 1.0]))


@pytest.mark.parametrize("loss", [wtf.Frobenius(), wtf.KullbackLeibler()], ids=repr)
class TestBaselinesOnTorch:
    def test_is_torch_autograd(self, array, xp, loss):
        if not array_api_compat.is_torch_namespace(xp):
            pytest.skip("torch's own derivative needs --backend torch")
        rng = np.random.default_rng(0)
        X, U = array(random_data(rng)), array(random_dual(rng, 1.0)).requires_grad_()
        if isinstance(loss, wtf.Frobenius):
            value = xp.sum(X * U + 0.5 * U**2)
        else:
            value = -xp.sum(X * xp.log(1 - U))
        value.backward()
        result, gradient = loss.conjugate(X, U.detach())
        assert_close(result, value.detach(), rtol=1e-13)
        assert_close(gradient, U.grad, rtol=1e-13)
