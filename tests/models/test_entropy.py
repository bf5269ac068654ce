"""Entropies and their conjugates against the definitions, and KL against exact decimals."""

import math
import sys
from decimal import Decimal, localcontext

import numpy as np
import pytest
from helpers import assert_close, to_numpy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from oracles import central_differences, entropy_of

import wtfarray as wtf
from wtfarray._models.entropy import kl_divergence

CONSTRAINTS = [None, "rows", "columns", "all"]


GROUPS = {"rows": 1, "columns": 0, "all": None}


few = settings(
    # JAX compiles every operation anew for every shape.
    max_examples=8 if "jax" in sys.modules else 25,
    suppress_health_check=[HealthCheck.differing_executors],
)


every_constraint = pytest.mark.parametrize("constraint", CONSTRAINTS)


some_shape = st.sampled_from([(1, 1), (1, 4), (3, 2)])


some_constraint = st.sampled_from(CONSTRAINTS)


some_seed = st.integers(0, 1000)


def feasible(a, constraint):
    """Scale positive numbers into the constraint set."""
    return a if constraint is None else a / a.sum(axis=GROUPS[constraint], keepdims=True)


class TestEntropy:
    @pytest.mark.parametrize("shape", [(1,), (5,), (2, 3), (2, 1, 3)], ids=str)
    def test_value_and_gradient_follow_the_definition(self, array, shape):
        a = np.random.default_rng(0).uniform(0.1, 3.0, size=shape)
        value, gradient = wtf.entropy(array(a))
        assert_close(value, array(entropy_of(a)), rtol=1e-14)
        assert_close(gradient, array(np.log(a)), rtol=1e-15)

    def test_gradient_agrees_with_central_differences(self, array):
        a = np.random.default_rng(0).uniform(0.1, 3.0, size=(2, 3))
        expected = central_differences(lambda x: float(wtf.entropy(array(x))[0]), a, 1e-5)
        np.testing.assert_allclose(to_numpy(wtf.entropy(array(a))[1]), expected, atol=1e-8)

    def test_zeros_add_nothing_and_have_gradient_minus_infinity(self, array):
        value, gradient = wtf.entropy(array([0.0, 2.0, 0.0]))
        assert_close(value, array(2.0 * math.log(2.0) - 2.0))
        assert_close(gradient, array([-np.inf, math.log(2.0), -np.inf]))

    def test_float32_is_kept(self, array):
        value, gradient = wtf.entropy(array([0.5, 2.0], "float32"))
        assert_close(value, array(1.5 * math.log(2.0) - 2.5, "float32"), rtol=1e-6)
        assert_close(gradient, array([-math.log(2.0), math.log(2.0)], "float32"), rtol=1e-6)

    @pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
    def test_negative_or_non_finite_values_are_refused(self, array, value):
        with pytest.raises(ValueError, match=r"a is .* at index \(1,\)"):
            wtf.entropy(array([1.0, value]))


class TestEntropyConjugate:
    @few
    @given(shape=some_shape, constraint=some_constraint, seed=some_seed)
    def test_is_the_supremum_over_the_constraint_set(self, array, shape, constraint, seed):
        rng = np.random.default_rng(seed)
        u = rng.normal(size=shape, scale=3.0)
        value, gradient = wtf.entropy_conjugate(array(u), constraint)
        best, value = to_numpy(gradient), float(value)
        size = 1.0 + np.sum(np.abs(u))
        for _ in range(20):
            near = feasible(best * np.exp(rng.normal(size=shape, scale=0.3)), constraint)
            assert np.sum(u * near) - entropy_of(near) <= value + 1e-14 * (size + near.sum())
        attained = np.sum(u * best) - entropy_of(best)
        assert attained == pytest.approx(value, rel=1e-14, abs=1e-14 * size)

    @every_constraint
    def test_maximiser_is_the_normalised_exponential(self, array, constraint):
        u = np.random.default_rng(0).normal(size=(4, 3), scale=30.0)
        best = to_numpy(wtf.entropy_conjugate(array(u), constraint)[1])
        np.testing.assert_allclose(best, feasible(np.exp(u), constraint), rtol=1e-13)

    @few
    @given(shape=some_shape, constraint=some_constraint, seed=some_seed)
    def test_gradient_agrees_with_central_differences(self, array, shape, constraint, seed):
        u = np.random.default_rng(seed).normal(size=shape)
        gradient = to_numpy(wtf.entropy_conjugate(array(u), constraint)[1])
        expected = central_differences(
            lambda x: float(wtf.entropy_conjugate(array(x), constraint)[0]), u, 1e-4
        )
        np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-9)

    def test_values_at_zero_are_known(self, array):
        u = array(np.zeros((2, 3)))
        values = {c: float(wtf.entropy_conjugate(u, c)[0]) for c in CONSTRAINTS}
        expected = {
            None: 6.0,
            "rows": 2 * (math.log(3) + 1),
            "columns": 3 * (math.log(2) + 1),
            "all": math.log(6) + 1,
        }
        assert values == pytest.approx(expected, rel=1e-15)

    @pytest.mark.parametrize("shape", [(5,), (2, 3, 2)], ids=str)
    @pytest.mark.parametrize("constraint", [None, "all"])
    def test_arrays_may_have_any_number_of_modes(self, array, shape, constraint):
        u = np.random.default_rng(0).normal(size=shape)
        value, gradient = wtf.entropy_conjugate(array(u), constraint)
        total = np.exp(u).sum()
        assert_close(value, array(total if constraint is None else math.log(total) + 1), rtol=1e-14)
        assert_close(gradient, array(np.exp(u) / (1 if constraint is None else total)), rtol=1e-14)

    @pytest.mark.parametrize("constraint", ["rows", "columns", "all"])
    @pytest.mark.parametrize(("dtype", "huge"), [("float64", 1e300), ("float32", 1e30)])
    def test_constrained_conjugate_does_not_overflow(self, array, constraint, dtype, huge):
        u = array([[huge, -huge], [-huge, huge]], dtype)
        value, gradient = wtf.entropy_conjugate(u, constraint)
        groups = 1 if constraint == "all" else 2
        assert_close(value, array(groups * huge, dtype), rtol=1e-6)
        best = np.eye(2) / (2 if constraint == "all" else 1)
        assert_close(gradient, array(best, dtype), rtol=1e-6)

    @pytest.mark.parametrize(("dtype", "huge"), [("float64", 1e3), ("float32", 1e2)])
    def test_unconstrained_conjugate_overflows_to_infinity(self, array, dtype, huge):
        value, _ = wtf.entropy_conjugate(array([[0.0, huge], [1.0, -huge]], dtype))
        assert_close(value, array(np.inf, dtype))

    @every_constraint
    def test_float32_is_kept(self, array, constraint):
        u = np.random.default_rng(0).normal(size=(3, 2))
        value, gradient = wtf.entropy_conjugate(array(u, "float32"), constraint)
        exact_value, exact = (to_numpy(x) for x in wtf.entropy_conjugate(array(u), constraint))
        assert_close(value, array(exact_value, "float32"), rtol=1e-6)
        assert_close(gradient, array(exact, "float32"), rtol=1e-6)

    def test_unknown_constraint_is_refused(self, array):
        with pytest.raises(ValueError, match="constraint is 'row': expected"):
            wtf.entropy_conjugate(array([[0.0]]), "row")

    @pytest.mark.parametrize("constraint", ["rows", "columns"])
    def test_rows_and_columns_need_a_matrix(self, array, constraint):
        with pytest.raises(ValueError, match=f"constraint is '{constraint}' for an array with 3"):
            wtf.entropy_conjugate(array(np.zeros((2, 2, 2))), constraint)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_non_finite_values_are_refused(self, array, value):
        with pytest.raises(ValueError, match=r"u is .* at index \(0, 1\)"):
            wtf.entropy_conjugate(array([[0.0, value]]))


def exact_kl(a, b):
    """KL of two floats in exact decimals."""
    with localcontext(prec=150):
        x, y = Decimal(float(a)), Decimal(float(b))
        return x * (x / y).ln() - x + y


def relative_errors(array, xp, a, b, dtype):
    result = to_numpy(kl_divergence(array(a, dtype), array(b, dtype), xp))
    exact = [exact_kl(x, y) for x, y in zip(a, b, strict=True)]
    return np.array(
        [
            abs(float((Decimal(float(r)) - e) / e)) if e else abs(r)
            for r, e in zip(result, exact, strict=True)
        ]
    )


class TestKlDivergence:
    @pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-12), ("float32", 5e-4)])
    def test_relative_error_is_small_at_every_ratio(self, array, xp, dtype, rtol):
        closest = -12 if dtype == "float64" else -5
        distance = np.concatenate([np.logspace(closest, -0.01, 30), [0.0999, 0.1001]])
        ratio = np.concatenate([1 - distance, 1 + distance, np.logspace(-5, 5, 11)])
        for scale in (1e-5, 1.0, 7e4):
            b = (scale * np.linspace(1.0, 2.0, ratio.size)).astype(dtype)
            a = (b * ratio).astype(dtype)
            assert relative_errors(array, xp, a, b, dtype).max() < rtol

    @few
    @given(
        start=st.floats(1e-3, 1e3),
        excess=st.floats(-1e-7, 1e-7),
    )
    @example(start=1.0, excess=1e-7)
    @example(start=1.0, excess=-1e-7)
    @example(start=0.3, excess=2e-16)
    def test_relative_error_is_small_for_nearly_equal_numbers(self, array, xp, start, excess):
        b = np.array([start])
        a = b * (1.0 + excess)
        assert relative_errors(array, xp, a, b, "float64").max() < 5e-15

    def test_zeros_follow_the_limits(self, array, xp):
        a, b = array([0.0, 0.0, 2.0]), array([0.0, 3.0, 0.0])
        assert_close(kl_divergence(a, b, xp), array([0.0, 3.0, np.inf]))

    def test_divergence_of_equal_numbers_is_exactly_zero(self, array, xp):
        a = array([1e-300, 0.1, 1.0, 1e300])
        assert_close(kl_divergence(a, a, xp), array(np.zeros(4)))

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_is_positive_unless_equal(self, array, xp, dtype):
        rng = np.random.default_rng(0)
        b = rng.exponential(size=500).astype(dtype)
        a = (b * (1 + rng.normal(size=500) * 10.0 ** rng.uniform(-17, -1, size=500))).astype(dtype)
        entries = to_numpy(kl_divergence(array(a, dtype), array(b, dtype), xp))
        assert np.all(entries[a != b] > 0)
        assert np.all(entries[a == b] == 0)
