"""
Long spectra: time and memory of `unmix` on 54,259 bins with a reach of 2,000.

Run with ``python benchmarks/long_spectra.py``. The second table compares one kernel application,
per bin, with that of a dense kernel of as many bins as the reach. ``--agreement`` compares a banded
cost of 4,000 bins with the dense one that is infinite beyond the reach instead.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import numpy as np

import wtfarray as wtf

COMPONENTS, LINES = 5, 12
WIDTH = 0.02
"""Half the width of a line, relative to the reach."""


def spectra(bins: int, reach: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reference spectra, (5, bins), a mixture of them with shifted lines, and its proportions."""
    rng = np.random.default_rng(seed)
    width = max(1.0, WIDTH * reach)
    centres = rng.uniform(0.05, 0.95, (COMPONENTS, LINES)) * bins
    heights = rng.uniform(0.2, 1.0, (COMPONENTS, LINES))
    at = np.arange(bins)

    def lines(moved: np.ndarray, k: int) -> np.ndarray:
        shapes = [1.0 / (1.0 + ((at - centre) / width) ** 2) for centre in moved]
        return heights[k] @ np.stack(shapes)

    references = np.stack([lines(centres[k], k) for k in range(COMPONENTS)])
    mass = references.sum(axis=1)
    proportions = rng.dirichlet(np.full(COMPONENTS, 2.0))
    moved = centres + rng.normal(0.0, width, centres.shape)
    mixture = (proportions / mass) @ np.stack([lines(moved[k], k) for k in range(COMPONENTS)])
    noisy = mixture + rng.normal(0.0, 2e-3 * mixture.max(), bins)
    return references / mass[:, None], np.clip(noisy, 0.0, None), proportions


def seconds_of(function: Callable[[], object], repeats: int = 5) -> float:
    """The shortest time of a few calls."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--bins", type=int, default=54_259)
    parser.add_argument("--reach", type=int, default=2_000)
    parser.add_argument("--eps", type=float, default=1.0, help="in squared half widths")
    parser.add_argument("--lam", type=float, default=25.0)
    parser.add_argument("--debias", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agreement", action="store_true", help="compare with a dense cost")
    args = parser.parse_args()
    if args.agreement:
        _compare_with_dense(4_000, 400)
        return
    references, X, proportions = spectra(args.bins, args.reach, args.seed)
    spacing = 1.0 / max(1.0, WIDTH * args.reach)
    cost = wtf.grid_cost(args.bins, scale=None, spacing=spacing, reach=args.reach * spacing)
    loss = wtf.Wasserstein(cost, args.eps, args.lam, debias=args.debias)
    begin, cpu = time.perf_counter(), time.process_time()
    found = wtf.unmix(X, references, loss)
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kB on Linux
    error = float(np.abs(found.shares - proportions).sum())
    print(f"{args.bins} bins, reach of {args.reach}, eps {args.eps:g}, lam {args.lam:g}\n")
    print("| unmix | |\n|---|--:|")
    print(f"| wall-clock seconds | {wall:.1f} |\n| seconds of all cores | {cpu:.1f} |")
    print(f"| peak memory of the process, MB | {memory:.0f} |")
    gap = found.gap / abs(found.objective)
    print(f"| converged, relative gap | {found.converged}, {gap:.1e} |")
    print(f"| summed error of the proportions | {error:.4f} |\n")
    _compare_kernels(loss, X, args)


def _compare_with_dense(bins: int, reach: int) -> None:
    """Print how far products, losses and gradients are from those of the dense cost."""
    references, X, proportions = spectra(bins, reach, 0)
    spacing = 1.0 / max(1.0, WIDTH * reach)
    (banded,) = wtf.grid_cost(bins, scale=None, spacing=spacing, reach=reach * spacing)
    X, Y = X[None, :] / X.sum(), (proportions @ references)[None, :]
    print(f"{bins} bins, reach of {reach}\n\n| largest relative difference | |\n|---|--:|")
    losses = [wtf.Wasserstein(cost, 1.0, 25.0) for cost in (banded, banded.to_dense())]
    kernels = [loss.bind(X).kernel for loss in losses]
    plain = [kernel.apply(X) for kernel in kernels]
    logs = [kernel.log_apply(np.log(X + 1e-9)) for kernel in kernels]
    found = [wtf.wasserstein(X, Y, loss, tol=1e-12) for loss in losses]
    for name, (a, b) in {
        "kernel product": plain,
        "kernel product, logarithms": logs,
        "loss": [np.asarray(result.value) for result in found],
        "gradient": [result.gradient for result in found],
    }.items():
        print(f"| {name} | {float(np.max(np.abs(a - b)) / np.max(np.abs(b))):.1e} |")


def _compare_kernels(loss: wtf.Wasserstein, X: np.ndarray, args: argparse.Namespace) -> None:
    """Time one application of the banded kernel and of a dense one of ``reach`` bins."""
    banded = loss.bind(X[None, :]).kernel
    dense_cost = wtf.grid_cost(args.reach, scale=None)
    few = np.ascontiguousarray(X[None, : args.reach])
    dense = wtf.Wasserstein(dense_cost, 1e3, args.lam).bind(few + 1e-9).kernel
    print("| one application | nanoseconds per bin |\n|---|--:|")
    for name, kernel, stack in (
        (f"banded, {args.bins} bins", banded, X[None, :]),
        (f"dense, {args.reach} bins", dense, few),
    ):
        for how, function, data in (
            ("plain", kernel.apply, stack),
            ("logarithms", kernel.log_apply, np.log(stack + 1e-9)),
        ):
            taken = seconds_of(lambda function=function, data=data: function(data))
            print(f"| {name}, {how} | {1e9 * taken / stack.shape[1]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
