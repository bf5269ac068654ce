"""Products of one sample with a kernel, axis by axis: plain, and of logarithms."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wtfarray._transport.fused.exponentials import exp, log
from wtfarray._transport.fused.machine_code import machine_code
from wtfarray._transport.fused.state import Vector

Index = np.uintp
"""Numba takes a negative index for one from the end; of unsigned numbers it knows better."""


@machine_code
def multiply(
    A: Vector, a: int, B: Vector, b: int, out: Vector, o: int, rows: int, inner: int, columns: int
) -> None:
    """
    Write the matrix product of A, (rows, inner), and B, (inner, columns), to ``out``.

    The matrices are in C order in vectors, from the entries a, b and o on. All numbers are of the
    type `Index`.
    """
    zero, two, three, four = Index(0), Index(2), Index(3), Index(4)
    blocks, whole = rows - rows % four, inner - inner % four
    for j in range(o, o + rows * columns):
        out[j] = 0.0
    # Blocks of 4 x 4 entries of A, which the processor holds in registers.
    for i in range(zero, blocks, four):
        p = o + i * columns
        q, r, s = p + columns, p + two * columns, p + three * columns
        first = a + i * inner
        second, third, fourth = first + inner, first + two * inner, first + three * inner
        for k in range(zero, whole, four):
            a0, a1, a2, a3 = _four(A, first + k)
            b0, b1, b2, b3 = _four(A, second + k)
            c0, c1, c2, c3 = _four(A, third + k)
            d0, d1, d2, d3 = _four(A, fourth + k)
            u = b + k * columns
            v, w, x = u + columns, u + two * columns, u + three * columns
            for j in range(zero, columns):
                B0, B1, B2, B3 = B[u + j], B[v + j], B[w + j], B[x + j]
                out[p + j] += a0 * B0 + a1 * B1 + a2 * B2 + a3 * B3
                out[q + j] += b0 * B0 + b1 * B1 + b2 * B2 + b3 * B3
                out[r + j] += c0 * B0 + c1 * B1 + c2 * B2 + c3 * B3
                out[s + j] += d0 * B0 + d1 * B1 + d2 * B2 + d3 * B3
        for k in range(whole, inner):
            a0, b0, c0, d0 = A[first + k], A[second + k], A[third + k], A[fourth + k]
            u = b + k * columns
            for j in range(zero, columns):
                out[p + j] += a0 * B[u + j]
                out[q + j] += b0 * B[u + j]
                out[r + j] += c0 * B[u + j]
                out[s + j] += d0 * B[u + j]
    for i in range(blocks, rows):
        _multiply_row(A, a + i * inner, B, b, out, o + i * columns, inner, columns)


@machine_code
def _multiply_row(
    A: Vector, a: int, B: Vector, b: int, out: Vector, o: int, inner: int, columns: int
) -> None:
    """Add the product of one row with B to ``out``."""
    zero, four, eight = Index(0), Index(4), Index(8)
    whole = inner - inner % eight
    for k in range(zero, whole, eight):
        a0, a1, a2, a3 = _four(A, a + k)
        a4, a5, a6, a7 = _four(A, a + k + four)
        p = b + k * columns
        q, r, s = p + columns, p + Index(2) * columns, p + Index(3) * columns
        t = p + four * columns
        u, v, w = t + columns, t + Index(2) * columns, t + Index(3) * columns
        for j in range(zero, columns):
            first = a0 * B[p + j] + a1 * B[q + j] + a2 * B[r + j] + a3 * B[s + j]
            second = a4 * B[t + j] + a5 * B[u + j] + a6 * B[v + j] + a7 * B[w + j]
            out[o + j] += first + second
    for k in range(whole, inner):
        a0, p = A[a + k], b + k * columns
        for j in range(zero, columns):
            out[o + j] += a0 * B[p + j]


@machine_code
def _four(A: Vector, i: int) -> tuple[float, float, float, float]:
    """Four entries, from the given one on."""
    return A[i], A[i + Index(1)], A[i + Index(2)], A[i + Index(3)]


@machine_code
def product(
    sizes: NDArray[np.intp],
    matrices: Vector,
    transposes: Vector,
    stack: Vector,
    out: Vector,
    spare: Vector,
) -> None:
    """
    ``K f`` of a sample f, (m,), on a grid of ``sizes``.

    ``matrices`` holds the kernel matrix of every axis, one after the other, and ``transposes`` the
    transposed ones: exchanged, they make it ``K^T f``. ``out`` and ``spare``, (m,), are
    overwritten.
    """
    source, target, other = stack, out, spare
    axes, zero, bins = sizes.shape[0], Index(0), Index(stack.shape[0])
    if axes % 2 == 0:  # so that the last product ends in `out`
        target, other = spare, out
    right, end = Index(1), Index(matrices.shape[0])
    for back in range(axes):
        n = Index(sizes[axes - 1 - back])
        first, size = end - n * n, n * right
        if right == Index(1):
            multiply(source, zero, transposes, first, target, zero, bins // n, n, n)
        else:
            for start in range(zero, bins, size):
                multiply(matrices, first, source, start, target, start, n, n, right)
        end, right = first, size
        source = target
        target, other = other, target


@machine_code
def log_product(
    sizes: NDArray[np.intp], exponents: Vector, logs: Vector, out: Vector, spare: Vector
) -> None:
    """
    ``log(K exp(logs))`` of a sample, (m,), accurate to rounding; entries may be -inf.

    ``exponents`` holds ``-C/eps`` of every axis, one after the other, or the transposed ones.
    """
    source, target, other = logs, out, spare
    axes, bins = sizes.shape[0], logs.shape[0]
    if axes % 2 == 0:
        target, other = spare, out
    right, end = 1, exponents.shape[0]
    for back in range(axes):
        n = sizes[axes - 1 - back]
        first, size = end - n * n, n * right
        for start in range(0, bins, size):
            for i in range(n):
                row = exponents[first + i * n : first + (i + 1) * n]
                for r in range(right):
                    target[start + i * right + r] = _log_sum(source, row, start + r, right)
        end, right = first, size
        source = target
        target, other = other, target


@machine_code
def _log_sum(logs: Vector, exponents: Vector, start: int, step: int) -> float:
    """``log sum_k exp(exponents_k + logs_k)`` over the fibre of logs that begins at ``start``."""
    top = -math.inf
    for k in range(exponents.shape[0]):
        top = max(top, logs[start + k * step] + exponents[k])
    if top == -math.inf:
        return top
    total = 0.0
    for k in range(exponents.shape[0]):
        total += exp(logs[start + k * step] + exponents[k] - top)
    return log(total) + top
