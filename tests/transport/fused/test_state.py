"""What machine code gets of a problem."""

import math

import numpy as np
import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

import wtfarray as wtf
from wtfarray._transport.fused.state import (
    as_rows,
    copy_of,
    first_state,
    new_result,
    samples_of,
)


def test_samples_of_a_problem(array):
    X = np.random.default_rng(0).random((3, 4, 2))
    loss = wtf.Wasserstein(wtf.grid_cost(4, 2), eps=0.1, lam=2.0)
    problem = loss.bind(array(X))
    samples = samples_of(problem)
    np.testing.assert_array_equal(samples.X, X.reshape(3, 8))
    np.testing.assert_allclose(samples.mass, X.sum(axis=(1, 2)))
    assert (samples.eps, samples.lam) == (0.1, 2.0)
    assert samples.damping == pytest.approx(1.0 / (1.0 / 0.1 + 1.0 / 2.0))
    assert samples.floor == pytest.approx(problem.plain_range.floor)
    assert samples.threshold == pytest.approx(problem.plain_range.threshold)
    np.testing.assert_array_equal(samples.kernel.sizes, [4, 2])


@pytest.mark.parametrize("symmetric", [True, False])
def test_kernel_and_its_transpose(array, symmetric):
    costs = [np.random.default_rng(1).random((n, n)) for n in (3, 2)]
    if symmetric:
        costs = [cost + cost.T for cost in costs]
    problem = wtf.Wasserstein(costs, eps=0.5, lam=1.0).bind(array(np.ones((1, 3, 2))))
    kernel = samples_of(problem).kernel
    exponents = [-cost / 0.5 for cost in costs]
    forward = np.concatenate([matrix.ravel() for matrix in exponents])
    adjoint = np.concatenate([matrix.T.ravel() for matrix in exponents])
    np.testing.assert_allclose(kernel.exponents, forward)
    np.testing.assert_allclose(kernel.transposed_exponents, adjoint)
    np.testing.assert_allclose(kernel.matrices, np.exp(forward))
    np.testing.assert_allclose(kernel.transposes, np.exp(adjoint))
    assert (kernel.matrices is kernel.transposes) == symmetric


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_are_in_c_order_and_copied(order):
    stack = np.asarray(np.random.default_rng(2).random((3, 2, 4)), order=order)
    rows = as_rows(stack)
    assert rows.flags.c_contiguous
    assert not np.shares_memory(rows, stack)
    np.testing.assert_array_equal(rows, stack.reshape(3, 8))


def test_first_state_has_no_pairs():
    state = first_state(2, 5, 3)
    assert state.moves.shape == state.changes.shape == (2, 3, 5)
    np.testing.assert_allclose(state.inverse[1], np.eye(3) / 1.001)
    np.testing.assert_array_equal(state.size, -1.0)
    assert not state.safe.any()


def test_copied_result_begins_to_count_anew():
    result = new_result(2, 5)
    result.g[...] = 3.0
    result.iterations[...] = 7
    copied = copy_of(result)
    assert not np.shares_memory(copied.g, result.g)
    np.testing.assert_array_equal(copied.g, 3.0)
    np.testing.assert_array_equal(copied.iterations, 0)
    np.testing.assert_array_equal(result.iterations, 7)
    assert not math.isnan(copied.g[0, 0])
