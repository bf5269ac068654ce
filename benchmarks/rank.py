"""
Whether `rank_scan` suggests the planted rank: ten made-up data sets of rank 2 to 6.

usage: python benchmarks/rank.py [--seeds N]

Five sets are trilinear, with noise of 6 % of the mean entry, and fitted by CP with the
Kullback-Leibler loss. Five are mixtures of bumps whose positions vary, with noise of 5 % of each
entry, and fitted by NMF with the Wasserstein loss. The table has the suggested rank of each, and
the smallest ratio of decreases by which one was chosen.
"""

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np

import wtfarray as wtf

RANKS = range(2, 7)


def trilinear(rank: int, seed: int, shape: tuple[int, ...] = (24, 14, 12)) -> np.ndarray:
    """Concentrations times emission and excitation spectra that overlap, with noise."""
    rng = np.random.default_rng(seed)
    factors = [rng.gamma(2.0, size=(shape[0], rank))]
    for n in shape[1:]:
        centre = (rng.permutation(rank) + 0.5 + rng.uniform(-0.15, 0.15, rank)) / rank
        width = 0.12 + 0.1 * rng.random(rank)
        spectra = np.exp(-(((np.linspace(0, 1, n)[:, None] - centre) / width) ** 2))
        factors.append(spectra / spectra.sum(axis=0))
    X = wtf.cp_to_tensor(factors)
    return np.clip(X + 0.06 * X.mean() * rng.normal(size=shape), 0, None)


def shifted_bumps(rank: int, seed: int, samples: int = 30) -> np.ndarray:
    """Mixtures of bumps 10 bins apart whose positions vary by one bin, with noise."""
    rng = np.random.default_rng(seed)
    bins = 10 * rank
    position = 10 * np.arange(rank) + 5 + rng.normal(size=(samples, rank))
    bumps = np.exp(-(((np.arange(bins) - position[:, :, None]) / 2.5) ** 2))
    X = np.einsum("nr,nrb->nb", rng.dirichlet(np.full(rank, 0.6), samples), bumps)
    X *= rng.uniform(0.95, 1.05, X.shape)
    return X / X.sum(axis=1, keepdims=True)


def scan_trilinear(rank: int, seed: int, n_seeds: int = 2) -> wtf.RankScan:
    """A scan up to two ranks above the planted one."""
    X, ranks = trilinear(rank, seed), range(1, rank + 3)
    loss = wtf.KullbackLeibler()
    return wtf.rank_scan(X, ranks, loss, model="cp", rho=1e-4, n_seeds=n_seeds)


def scan_bumps(rank: int, seed: int, n_seeds: int = 2) -> wtf.RankScan:
    """A scan up to two ranks above the planted one."""
    X, ranks = shifted_bumps(rank, seed), range(1, rank + 3)
    loss = wtf.Wasserstein(wtf.grid_cost(X.shape[1]), eps=0.1 / rank, lam=10.0)
    return wtf.rank_scan(X, ranks, loss, rho=1e-2, n_seeds=n_seeds)


SCANS: dict[str, Callable[..., wtf.RankScan]] = {
    "trilinear, CP, Kullback-Leibler": scan_trilinear,
    "shifted bumps, NMF, Wasserstein": scan_bumps,
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--seeds", type=int, default=1, help="data sets of each kind and rank")
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    print("| data | planted rank | suggested | CPU seconds |\n|---|---|---|---|")
    right = total = 0
    for name, scan in SCANS.items():
        for rank in RANKS:
            begin = time.process_time()
            found = [scan(rank, 10 * seed + rank).suggested for seed in range(seeds)]
            seconds = time.process_time() - begin
            right, total = right + found.count(rank), total + seeds
            print(f"| {name} | {rank} | {', '.join(map(str, found))} | {seconds:.1f} |", flush=True)
    print(f"\n{right} of {total} planted ranks were suggested.")


if __name__ == "__main__":
    main()
