"""The terms of transport on the same data: equal values and gradients, whatever solves them."""

import math

import numpy as np
import pytest
from exact_transport import exact_values, samples_with_zeros
from fitting import spare_jax
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._losses.sparse_samples import SparseSamplesTerm
from wtfarray._losses.sparse_tensor import SparseTensorTerm
from wtfarray._losses.transport_term import TransportTerm

COST, EPS = wtf.grid_cost(6)[0], 0.3
LAMS = [1.0, math.inf]
some_lam = pytest.mark.parametrize("lam", LAMS)


@pytest.fixture(autouse=True)
def not_on_jax(xp):
    spare_jax(xp)


def transport_term(array, lam, weights=None, batch=None):
    X, Y = samples_with_zeros(lam)
    problem = wtf.Wasserstein(COST, EPS, lam).bind(array(X))
    weights = None if weights is None else array(weights)
    return TransportTerm(problem, X.shape, weights, batch), array(Y), X, Y


def other_model(Y):
    """Another model of the same masses."""
    other = Y * np.exp(np.cos(np.arange(6.0)))
    return other * (Y.sum(axis=1) / other.sum(axis=1))[:, None]


def finite(gradient, Y):
    return np.where(Y > 0, to_numpy(gradient), 0.0)


def centred(gradient, Y, lam):
    """Balanced, a gradient is known up to a constant in each sample."""
    gradient = finite(gradient, Y)
    if not math.isinf(lam):
        return gradient
    axes = tuple(range(1, Y.ndim))
    mean = np.sum(gradient * Y, axis=axes, keepdims=True) / np.sum(Y, axis=axes, keepdims=True)
    return np.where(Y > 0, gradient - mean, 0.0)


class TestTransportTerm:
    @some_lam
    def test_value_is_the_sum_of_the_losses(self, array, lam):
        term, Y, X, host = transport_term(array, lam)
        exact = exact_values(X, host, COST, EPS, lam).sum()
        found = term.evaluate(Y, 1e-10, 500)
        assert found.converged
        assert found.error <= 1e-10
        assert float(found.value) == pytest.approx(exact, abs=1e-9)
        found = term.certify(Y, 1e-8, 500)
        assert found.converged
        assert float(found.gap) <= 1e-8
        assert exact - float(found.gap) - 1e-12 <= float(found.value) <= exact + 1e-12

    @some_lam
    def test_weights_multiply_values_and_gradients(self, array, lam):
        weights = np.asarray([0.5, 1.0, 3.0])
        term, Y, X, host = transport_term(array, lam, weights)
        plain = transport_term(array, lam)[0].certify(Y, 1e-9, 500)
        exact = exact_values(X, host, COST, EPS, lam)
        for found in (term.evaluate(Y, 1e-10, 500), term.certify(Y, 1e-8, 500)):
            assert found.converged
            assert float(found.value) == pytest.approx(float(exact @ weights), abs=1e-7)
            expected = weights[:, None] * centred(plain.gradient, host, lam)
            np.testing.assert_allclose(centred(found.gradient, host, lam), expected, atol=1e-4)
        assert term.scale == pytest.approx(EPS * float(X.sum(axis=1) @ weights))

    def test_certified_gradient_of_a_sample_of_weight_zero_is_not_nan(self, array):
        term, Y, *_ = transport_term(array, 1.0, np.asarray([0.0, 1.0, 1.0]))
        found = term.certify(Y, 1e-8, 500)
        assert not np.any(np.isnan(to_numpy(found.gradient)))

    @some_lam
    @pytest.mark.parametrize("batch", [1, 2, 3, 100])
    def test_batches_change_nothing(self, array, lam, batch):
        whole, Y, _, host = transport_term(array, lam)
        term, *_ = transport_term(array, lam, batch=batch)
        for method, tolerance in (("evaluate", 1e-10), ("certify", 1e-8)):
            found, expected = (getattr(t, method)(Y, tolerance, 500) for t in (term, whole))
            assert found.converged
            assert float(found.value) == pytest.approx(float(expected.value), abs=2 * tolerance)
            np.testing.assert_allclose(
                *(centred(f.gradient, host, lam) for f in (found, expected)), atol=1e-4
            )
        assert tuple(term.potential.shape) == host.shape

    def test_weights_of_batches_are_those_of_their_samples(self, array):
        weights = np.asarray([0.5, 1.0, 3.0])
        expected = transport_term(array, 1.0, weights)[0]
        term, Y, *_ = transport_term(array, 1.0, weights, batch=2)
        values = [t.certify(Y, 1e-9, 500).value for t in (expected, term)]
        assert values[1] == pytest.approx(values[0], abs=2e-9)

    @some_lam
    def test_restored_state_repeats_an_evaluation(self, array, lam):
        """Without its history a term is where its state is: to the last digit."""
        term, Y, _, host = transport_term(array, lam)
        term.evaluate(Y, 1e-3, 4)
        state = term.state
        results = []
        for _ in range(2):
            term.state = state
            term.drop_history()
            found = term.evaluate(Y, 1e-300, 3)
            results.append((float(found.value), found.error, to_numpy(found.gradient)))
            term.evaluate(array(other_model(host)), 1e-6, 50)
        assert results[0][:2] == results[1][:2]
        np.testing.assert_array_equal(results[0][2], results[1][2])

    @some_lam
    def test_restored_state_is_a_warm_start(self, array, lam):
        term, Y, _, host = transport_term(array, lam)
        first = term.evaluate(Y, 1e-9, 500)
        state, cold = term.state, term.evaluations
        term.evaluate(array(other_model(host)), 1e-9, 500)
        before = term.evaluations
        term.state = state
        again = term.evaluate(Y, 1e-9, 500)
        assert float(again.value) == pytest.approx(float(first.value), abs=1e-8)
        assert term.evaluations - before < cold

    @some_lam
    def test_restored_state_is_where_the_next_solve_starts(self, array, lam):
        """Not where the secants lead from the last potential, which here is the solution."""
        fresh, Y, _, host = transport_term(array, lam)
        first = fresh.evaluate(Y, 1e-300, 1)
        term, *_ = transport_term(array, lam)
        solved = term.evaluate(Y, 1e-12, 500)
        term.state = array(np.zeros(host.shape))
        again = term.evaluate(Y, 1e-300, 1)
        assert float(again.value) == pytest.approx(float(first.value), rel=1e-12)
        assert float(again.value) < float(solved.value) - 1e-3

    def test_level_multiplies_the_smoothing(self, array):
        term, Y, X, host = transport_term(array, 1.0)
        for level in (3.0, 1.0):
            term.set_level(level)
            exact = exact_values(X, host, COST, level * EPS, 1.0).sum()
            assert term.certify(Y, 1e-9, 500).value == pytest.approx(exact, abs=1e-8)

    def test_guess_is_where_it_starts(self, array):
        term, Y, _, _ = transport_term(array, 1.0)
        term.certify(Y, 1e-10, 500)
        again, *_ = transport_term(array, 1.0)
        again.start_from(term.potential)
        assert again.evaluate(Y, 1e-6, 500).converged
        assert again.evaluations == 2  # the fewest: one iterate is never trusted

    def test_evaluations_are_counted_once_for_all_samples(self, array):
        term, Y, _, _ = transport_term(array, 1.0, batch=1)
        term.evaluate(Y, 1e-300, 5)
        assert term.evaluations == 5
        work = term.work
        term.count_evaluations(2, 3.0)
        assert term.evaluations == 7
        assert term.work == work + 6.0

    def test_too_few_iterations_do_not_converge(self, array):
        term, Y, X, host = transport_term(array, 1.0)
        exact = exact_values(X, host, COST, EPS, 1.0).sum()
        for found in (term.evaluate(Y, 1e-12, 1), term.certify(Y, 1e-13, 2)):
            assert not found.converged
            assert float(found.value) <= exact <= float(found.value) + float(found.gap)


class TestSparseTensor:
    SHAPE = (12, 10)

    def problem(self, array, lam, *, zeros=False):
        rng = np.random.default_rng(0)
        X = np.zeros(self.SHAPE)
        X.ravel()[rng.choice(X.size, 6, replace=False)] = rng.uniform(0.1, 1.0, 6)
        Y = rng.uniform(0.01, 1.0, self.SHAPE) / 20
        if zeros:
            Y[4, :] = 0.0
        if math.isinf(lam):
            Y *= X.sum() / Y.sum()
        loss = wtf.Wasserstein(wtf.grid_cost(*self.SHAPE), eps=0.2, lam=lam, modes=(0, 1))
        return loss.bind(array(X)), Y

    @pytest.mark.parametrize(
        ("lam", "zeros"),
        [
            (1.0, False),
            (1.0, True),
            (math.inf, False),
            (math.inf, True),
        ],
    )
    def test_agrees_with_the_transport_term(self, array, lam, zeros):
        problem, Y = self.problem(array, lam, zeros=zeros)
        terms = [kind(problem, self.SHAPE) for kind in (SparseTensorTerm, TransportTerm)]
        found, expected = (term.certify(array(Y), 1e-8, 2000) for term in terms)
        assert found.converged
        assert expected.converged
        assert abs(found.value - expected.value) <= max(found.gap, expected.gap) + 1e-12
        gradients = [centred(f.gradient[None, ...], Y[None], lam) for f in (found, expected)]
        np.testing.assert_allclose(*gradients, atol=1e-3)
        for result in (found, expected):
            np.testing.assert_array_equal(np.isneginf(to_numpy(result.gradient)), Y == 0)

    def test_restored_state_repeats_an_evaluation(self, array):
        problem, Y = self.problem(array, 1.0)
        term = SparseTensorTerm(problem, self.SHAPE)
        term.evaluate(array(Y), 1e-3, 4)
        state, values = term.state, []
        for _ in range(2):
            term.state = state
            term.drop_history()
            values.append(term.evaluate(array(Y), 1e-300, 3).value)
            term.evaluate(array(2.0 * Y), 1e-6, 50)
        assert values[0] == values[1]

    def test_guess_of_the_potential_is_a_warm_start(self, array):
        problem, Y = self.problem(array, 1.0)
        solved = SparseTensorTerm(problem, self.SHAPE)
        solved.certify(array(Y), 1e-10, 2000)
        term = SparseTensorTerm(problem, self.SHAPE)
        term.start_from(solved.potential)
        assert term.evaluate(array(Y), 1e-6, 500).converged
        assert term.evaluations <= 3


class TestSparseSamples:
    SHAPE = (30, 40)

    def problem(self, array, lam=1.0):
        rng = np.random.default_rng(0)
        X = np.zeros(self.SHAPE)
        for i in range(0, 30, 3):
            X[i, rng.choice(40, 1 + i % 4, replace=False)] = rng.uniform(0.1, 1.0, 1 + i % 4)
        Y = rng.uniform(0.01, 1.0, self.SHAPE) / 20
        return wtf.Wasserstein(wtf.grid_cost(40), eps=0.05, lam=lam).bind(array(X)), Y

    @pytest.mark.parametrize("lam", [1.0, 25.0])
    def test_agrees_with_the_transport_term(self, array, lam):
        problem, Y = self.problem(array, lam)
        terms = [kind(problem, self.SHAPE) for kind in (SparseSamplesTerm, TransportTerm)]
        found, expected = (term.certify(array(Y), 1e-8, 3000) for term in terms)
        assert found.converged
        assert expected.converged
        assert abs(found.value - expected.value) <= max(found.gap, expected.gap) + 1e-11
        np.testing.assert_allclose(
            to_numpy(found.gradient), to_numpy(expected.gradient), rtol=0, atol=1e-3
        )

    def test_restored_state_repeats_an_evaluation(self, array):
        problem, Y = self.problem(array)
        term = SparseSamplesTerm(problem, self.SHAPE)
        term.evaluate(array(Y), 1e-3, 2)
        state, values = term.state, []
        for _ in range(2):
            term.state = state
            values.append(term.evaluate(array(Y), 1e-300, 2).value)
            term.evaluate(array(2.0 * Y), 1e-6, 50)
        assert values[0] == values[1]

    def test_guess_of_the_potential_is_a_warm_start(self, array):
        problem, Y = self.problem(array)
        solved = SparseSamplesTerm(problem, self.SHAPE)
        solved.certify(array(Y), 1e-10, 200)
        term = SparseSamplesTerm(problem, self.SHAPE)
        term.start_from(solved.potential)
        assert term.evaluate(array(Y), 1e-6, 100).converged
        assert term.evaluations <= 2
