"""
What one value-and-gradient of a block dual costs, in units of the bare kernel products.

usage: python benchmarks/block_dual.py [numpy] [torch]

Prints, for 200x32x32 (rank 50) and 128^3 (rank 3) in float64: the time of one evaluation divided
by that of two applications of K on the same arrays, the peak memory in arrays of the size of X, and
how much faster the separable kernel is than the dense one. For 200x32x32 also what the formulas
take when they are written out for this one case, without checks and into given buffers (`by_hand`):
how near to the bare products the library can come at all on this machine.
"""

import importlib
import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
from _trace import best

import wtfarray as wtf
from wtfarray._arrays.typing import Array, Namespace

Evaluation = Callable[[Array], tuple[Array, Array]]


def problem(name: str, xp: Namespace) -> tuple[wtf.BlockDual, list[Array], Array]:
    """Build the dual of the second factor, and a point at which to evaluate it."""
    rng = np.random.default_rng(0)
    if name == "200x32x32":
        X, rank = rng.random((200, 32, 32)), 50
        X /= X.sum((1, 2), keepdims=True)
        loss = wtf.Wasserstein(wtf.grid_cost(32, 32), eps=1e-2, lam=10.0)
        constraints = ("rows", "columns", "columns")
    else:
        X, rank = rng.random((128, 128, 128)), 3
        X /= X.sum()
        loss = wtf.Wasserstein(wtf.grid_cost(128, 128, 128), eps=1e-2, lam=25.0)
        constraints = ("columns", "columns", "columns")
    factors = []
    for n, constraint in zip(X.shape, constraints, strict=True):
        _, factor = wtf.entropy_conjugate(rng.normal(size=(n, rank)), constraint)
        factors.append(xp.asarray(factor))
    dual = wtf.cp_dual(xp.asarray(X), factors, 1, loss, rho=1e-2, constraint="columns")
    return dual, factors, xp.asarray(0.01 * rng.normal(size=tuple(dual.bound.data.shape)))


def by_hand(dual: wtf.BlockDual, factors: list[Array], xp: Namespace) -> Evaluation:
    """Write the dual of 200x32x32 out: three buffers, every pass into one of them, no checks."""
    X, kernel, lam, rho = dual.bound.data, dual.bound.kernel, dual.bound.lam, dual.rho
    (samples, n, m), rank = X.shape, factors[0].shape[1]
    K1, K2 = (axis.matrix for axis in kernel.axes)
    K2_rows = xp.asarray(K2.T.reshape(-1)).reshape(m, m)  # both orders of memory, as the library
    first, last = xp.asarray(factors[0].T.reshape(-1)).reshape(rank, samples), factors[2]
    scaling = -float(xp.sum(X * xp.log(X) - X)) * kernel.eps
    mass = X.sum((1, 2))
    f, a, b = (xp.zeros_like(X) for _ in range(3))

    def evaluate(g: Array) -> tuple[Array, Array]:
        top = xp.amax(g, (1, 2), keepdims=True)
        xp.subtract(g, top, out=f)
        xp.multiply(f, 1.0 / kernel.eps, out=f)
        xp.exp(f, out=f)
        xp.matmul(f.reshape(-1, m), K2_rows, out=a.reshape(-1, m))
        xp.matmul(K1, a, out=b)
        xp.log(b, out=a)
        value = (X.reshape(-1) @ a.reshape(-1)) * kernel.eps + mass @ top.reshape(-1) + scaling
        xp.divide(X, b, out=b)
        xp.matmul(b.reshape(-1, m), K2, out=a.reshape(-1, m))
        xp.matmul(K1.T, a, out=b)
        xp.multiply(f, b, out=f)
        xp.multiply(g, -1.0 / lam, out=a)
        xp.exp(a, out=a)
        xp.subtract(a, 1.0, out=b)
        half = xp.matmul(first, b.reshape(samples, -1)).reshape(rank, n, m)
        xi = xp.matmul(half, last.T[:, :, None])[:, :, 0].T * (lam / rho)
        highest = xp.amax(xi, 0)
        factor = xp.exp(xi - highest)
        total = factor.sum(0)
        value = value + rho * (xp.log(total) + highest + 1.0).sum()
        atoms = ((factor / total)[:, None, :] * last[None, :, :]).reshape(-1, rank)
        xp.matmul(factors[0], atoms.T, out=b.reshape(samples, -1))
        xp.multiply(b, a, out=b)
        xp.subtract(f, b, out=f)
        return value, f

    return evaluate


def memory(dual: wtf.BlockDual, g: Array) -> float:
    """Peak of one evaluation beyond X and g, in arrays of the size of X (NumPy only)."""
    tracemalloc.start()
    dual.value_and_gradient(g)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / g.nbytes


def measure(backend: str, name: str, xp: Namespace) -> None:
    """One line a case."""
    dual, factors, g = problem(name, xp)
    kernel, f = dual.bound.kernel, xp.exp(g)
    bare = best(lambda: kernel.apply_adjoint(kernel.apply(f)))
    full = best(lambda: dual.value_and_gradient(g))
    line = f"{backend:6s} {name:10s} bare {bare * 1e3:7.2f} ms  dual {full * 1e3:7.2f} ms"
    line += f"  ratio {full / bare:.2f}"
    if backend == "numpy":
        line += f"  memory {memory(dual, g):.1f} arrays"
    print(line, flush=True)
    if name == "200x32x32":
        written_out = by_hand(dual, factors, xp)
        for ours, theirs in zip(dual.value_and_gradient(g), written_out(g), strict=True):
            np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-9, atol=1e-12)
        least = best(lambda: written_out(g))
        print(
            f"{backend:6s} {name:10s} written out by hand {least * 1e3:.2f} ms"
            f"  ratio {least / bare:.2f}"
        )
        rows, columns = (axis.matrix for axis in kernel.axes)
        dense = (rows[:, None, :, None] * columns[None, :, None, :]).reshape(1024, 1024)
        flat = f.reshape(200, 1024)
        slow = best(lambda: flat @ dense.T)
        fast = best(lambda: kernel.apply(f))
        print(
            f"{backend:6s} {name:10s} separable kernel {slow / fast:.1f}x as fast as the dense one"
        )


def main(names: list[str]) -> None:
    """Run every case on every backend asked for."""
    # glibc hands freed memory back beyond twice the largest array freed so far, and page faults
    # were measured. A fit has few (some 5000 a second); so has this once 32 MB have been freed.
    np.empty(2**22 - 2**10)
    for backend in names:
        xp = importlib.import_module(backend)
        for name in ("200x32x32", "128^3"):
            measure(backend, name, xp)


if __name__ == "__main__":
    main(sys.argv[1:] or ["numpy", "torch"])
