"""
The online solver beside the joint one, on images of thick lines.

usage: python benchmarks/online.py [--samples 10000] [--rank 10] [--passes 1] [--seed 0]
"""

import argparse
import sys
import time

from _data import strokes

import wtfarray as wtf


def main() -> None:
    """Fit with both solvers and print their objectives and CPU times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print("python", *sys.argv, flush=True)
    X = strokes(arguments.samples)
    loss = wtf.Wasserstein(wtf.grid_cost(28, 28), eps=0.01, lam=10.0)
    found = []
    for name, options in (
        ("online", {"solver": "online", "max_iter": arguments.passes}),
        ("envelope", {}),
    ):
        begin = time.process_time()
        fit = wtf.nmf(X, arguments.rank, loss, rho=1e-3, rng=arguments.seed, **options)
        seconds = time.process_time() - begin
        found.append((seconds, fit.objective))
        print(
            f"{name:10s} {seconds:8.1f} s of CPU time, J = {fit.objective:.4f}, gap {fit.gap:.1e}"
        )
        print(f"{'':10s} {fit.message}", flush=True)
    (online, lower), (joint, reference) = found
    above = (lower - reference) / abs(reference)
    print(
        f"online: {joint / online:.1f} times sooner, J above that of the joint solver {above:.1e}"
    )


if __name__ == "__main__":
    main()
