"""Products of one sample with a kernel, against those with the whole matrix."""

from functools import reduce

import numpy as np
import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

from wtfarray._transport.fused.products import Index, log_product, multiply, product

SHAPES = [(1,), (5,), (13,), (3, 4), (9, 8), (2, 3, 5), (8, 1, 4)]


def matrices_of(shape, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.1, 1.0, size=(n, n)) for n in shape]


def joined(matrices):
    return np.concatenate([np.ascontiguousarray(matrix).ravel() for matrix in matrices])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product(shape):
    matrices, f = matrices_of(shape), np.random.default_rng(1).random(np.prod(shape))
    forward, adjoint = joined(matrices), joined([matrix.T for matrix in matrices])
    whole, sizes = reduce(np.kron, matrices), np.asarray(shape)
    out, spare, before = np.full_like(f, 9.0), np.full_like(f, 9.0), f.copy()
    product(sizes, forward, adjoint, f, out, spare)
    np.testing.assert_allclose(out, whole @ f, rtol=1e-13)
    product(sizes, adjoint, forward, f, out, spare)
    np.testing.assert_allclose(out, whole.T @ f, rtol=1e-13)
    np.testing.assert_array_equal(f, before)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product_of_logarithms(shape):
    """With kernels and samples that underflow."""
    rng = np.random.default_rng(2)
    exponents = [-1e4 * rng.random((n, n)) for n in shape]
    logs = -1e4 * rng.random(np.prod(shape))
    logs[::3] = -np.inf
    whole = exponents[0]
    for other in exponents[1:]:
        size = len(whole) * len(other)
        whole = (whole[:, None, :, None] + other[None, :, None, :]).reshape(size, size)
    out, spare = np.empty_like(logs), np.empty_like(logs)
    log_product(np.asarray(shape), joined(exponents), logs, out, spare)
    np.testing.assert_allclose(out, np.logaddexp.reduce(whole + logs, axis=1), rtol=1e-14)


def test_product_of_logarithms_of_nothing():
    logs, out = np.full(3, -np.inf), np.empty(3)
    log_product(np.asarray([3]), -np.ones(9), logs, out, np.empty(3))
    np.testing.assert_array_equal(out, -np.inf)


@pytest.mark.parametrize("rows", [1, 3, 4, 7])
@pytest.mark.parametrize("inner", [1, 4, 8, 11])
def test_matrices_within_vectors(rows, inner):
    """Blocks of four, and what is left of them; nothing is written beside the result."""
    rng = np.random.default_rng(3)
    A, B, out = rng.random(2 + rows * inner), rng.random(1 + inner * 5), np.full(rows * 5 + 6, 7.0)
    numbers = (Index(n) for n in (2, 1, 3, rows, inner, 5))
    a, b, o, *shape = numbers
    multiply(A, a, B, b, out, o, *shape)
    expected = A[2:].reshape(rows, inner) @ B[1:].reshape(inner, 5)
    np.testing.assert_allclose(out[3:-3].reshape(rows, 5), expected, rtol=1e-14)
    np.testing.assert_array_equal(out[:3], 7.0)
    np.testing.assert_array_equal(out[-3:], 7.0)
