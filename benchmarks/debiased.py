"""
What the debiased loss buys; benchmarks/README.md says what each command shows.

usage: python benchmarks/debiased.py {bumps,images,three-mode,evaluations} [--draws 10]
    [--data PATH] [--quick]
"""

import argparse
import itertools
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from _data import sampled_tensor, stacked_images

import wtfarray as wtf
from wtfarray._losses.debiased_term import DebiasedTerm

CENTRES, WIDTH, JITTER = (10.0, 25.0, 38.0), 1.5, 1.0
"""Of the three bumps, in bins."""


def bumps(
    seed: int, samples: int = 30, bins: int = 50
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Histograms of three bumps that shift from sample to sample, their shares, the true atoms."""
    rng = np.random.default_rng(seed)
    x = np.arange(bins)
    shares = rng.dirichlet(np.ones(3), samples)
    X = np.zeros((samples, bins))
    for k, centre in enumerate(CENTRES):
        shift = rng.normal(0.0, JITTER, (samples, 1))
        bump = np.exp(-0.5 * ((x - centre - shift) / WIDTH) ** 2)
        X += shares[:, [k]] * bump / bump.sum(axis=1, keepdims=True)
    atoms = np.exp(-0.5 * ((x[:, None] - np.asarray(CENTRES)) / WIDTH) ** 2)
    return X / X.sum(axis=1, keepdims=True), shares, atoms / atoms.sum(axis=0)


def width(atom: np.ndarray) -> float:
    """The distance between the quartiles of a histogram, in bins: little mass elsewhere counts."""
    below = np.concatenate([[0.0], np.cumsum(atom / atom.sum())])
    low, high = np.interp([0.25, 0.75], below, np.arange(below.size))
    return float(high - low)


def mean_emd(X: np.ndarray, Y: np.ndarray, cost: np.ndarray) -> float:
    """The mean exact transport cost between samples and their reconstructions."""
    import ot

    pairs = zip(X.reshape(len(X), -1), Y.reshape(len(Y), -1), strict=True)
    return float(np.mean([ot.emd2(y / y.sum(), x / x.sum(), cost) for x, y in pairs]))


def settings() -> list[tuple[str, float, bool]]:
    """Name, eps and whether it is debiased, of the losses to compare."""
    return [("plain", 0.05, False), ("plain", 0.01, False), ("debiased", 0.05, True)]


def compare_bumps(arguments: argparse.Namespace) -> None:
    """Three bumps in 1-D: EMD, width of the atoms, error of the shares, CPU seconds."""
    (cost,) = wtf.grid_cost(50)
    print(
        f"{'loss':10s} {'eps':>5s} {'EMD':>8s} {'width/true':>23s} {'|shares|':>9s} {'CPU s':>6s}"
    )
    for name, eps, debias in settings():
        loss = wtf.Wasserstein(cost, eps, 20.0, debias=debias)
        rows = []
        for draw in range(arguments.draws):
            X, shares, truth = bumps(draw)
            begin = time.process_time()
            fit = wtf.nmf(X, 3, loss, rho=arguments.rho, rng=0)
            seconds = time.process_time() - begin
            coefficients, atoms = fit.factors
            order = np.argsort(atoms.argmax(axis=0))
            emd = mean_emd(X, fit.to_tensor(), cost)
            ratios = [width(atoms[:, k]) / width(t) for k, t in zip(order, truth.T, strict=True)]
            ratio = np.mean(ratios)
            error = float(np.abs(coefficients[:, order] - shares).mean())
            rows.append((emd, ratio, min(ratios), max(ratios), error, seconds))
        emd, ratio, _, _, error, seconds = np.mean(rows, axis=0)
        low, high = np.min(rows, axis=0)[2], np.max(rows, axis=0)[3]
        found = f"{ratio:6.2f} ({low:.2f} to {high:.2f})"
        print(
            f"{name:10s} {eps:5.2f} {emd:8.5f} {found:>23s} {error:9.4f} {seconds:6.2f}", flush=True
        )


def compare_images(arguments: argparse.Namespace) -> None:
    """The stacked images of the paper's second experiment: EMD, unimodal marginals, CPU seconds."""
    side = 32
    rows, columns = wtf.grid_cost(side, side)
    cost = (rows[:, None, :, None] + columns[None, :, None, :]).reshape(side**2, side**2)
    X = stacked_images(20 if arguments.quick else 100)
    print(f"{'loss':10s} {'eps':>6s} {'EMD':>8s} {'unimodal':>8s} {'CPU s':>6s}")
    for name, eps, debias in [
        ("plain", 0.01, False),
        ("plain", 0.01 / 3, False),
        ("debiased", 0.01, True),
        ("debiased", 0.03, True),
    ]:
        loss = wtf.Wasserstein((rows, columns), eps, 25.0, debias=debias)
        begin = time.process_time()
        fit = wtf.cp(X, 3, loss, rho=arguments.rho, rng=0)
        seconds = time.process_time() - begin
        emd = mean_emd(X, fit.to_tensor(), cost)
        modes = sum(_is_unimodal(a[:, k]) for a in fit.factors[1:] for k in range(3))
        print(f"{name:10s} {eps:6.4f} {emd:8.5f} {modes:5d}/6 {seconds:9.1f}", flush=True)


def _is_unimodal(atom: np.ndarray) -> bool:
    """Whether an atom rises to one maximum and falls, up to 1 % of it."""
    top = int(atom.argmax())
    slack = 0.01 * float(atom.max())
    rising, falling = atom[: top + 1], atom[top:]
    return bool(
        np.all(rising >= np.maximum.accumulate(rising) - slack)
        and np.all(falling <= np.minimum.accumulate(falling) + slack)
    )


def compare_three_mode(arguments: argparse.Namespace) -> None:
    """The paper's first experiment: total variation and widths of the atoms, CPU seconds."""
    stored = np.load(arguments.data)
    X = sampled_tensor(stored)
    truth = [stored[f"true_{name}"] for name in ("alpha", "beta", "gamma")]
    (cost,) = wtf.grid_cost(X.shape[0])
    print(f"{'loss':10s} {'eps':>5s} {'mean TV':>8s} {'narrow atoms / truth':>21s} {'CPU s':>6s}")
    for name, eps, debias in [("plain", 0.01, False), ("debiased", 0.03, True)]:
        loss = wtf.Wasserstein([cost] * 3, eps, 25.0, debias=debias)
        begin = time.process_time()
        fit = wtf.cp(
            X,
            3,
            loss,
            rho=2.5e-4,
            rng=0,
            constraints=("columns",) * 3,
            weights="fixed",
        )
        seconds = time.process_time() - begin
        orders = itertools.permutations(range(3))
        best = min(orders, key=lambda order: float(np.sum(_variation(fit.factors, truth, order))))
        variation = np.mean(_variation(fit.factors, truth, best))
        narrow = _narrow_widths(fit.factors, truth, best)
        widths = f"{narrow[0]:.2f}, {narrow[1]:.2f}"
        print(f"{name:10s} {eps:5.2f} {variation:8.4f} {widths:>21s} {seconds:6.1f}", flush=True)


def _narrow_widths(
    factors: list[np.ndarray], truth: list[np.ndarray], order: tuple[int, ...]
) -> list[float]:
    """The widths of the atoms that belong to the two narrowest true ones, divided by theirs."""
    pairs = [
        (width(t[:, r]), width(a[:, order[r]]))
        for a, t in zip(factors, truth, strict=True)
        for r in range(len(order))
    ]
    return [found / true for true, found in sorted(pairs)[:2]]


def _variation(
    factors: list[np.ndarray], truth: list[np.ndarray], order: tuple[int, ...]
) -> np.ndarray:
    """Total variation between atoms and true ones, (mode, component)."""
    pairs = zip(factors, truth, strict=True)
    return np.stack([0.5 * np.abs(a[:, order] - t).sum(axis=0) for a, t in pairs])


def count_applications(arguments: argparse.Namespace) -> None:
    """Kernel applications of a fit: in the symmetric problem beside those in the plain one."""
    made = _remember_terms()
    X = stacked_images(20 if arguments.quick else 100)
    print(f"{'data':7s} {'eps':>5s} {'lam':>5s} {'plain':>7s} {'symmetric':>9s} {'ratio':>6s}")
    for eps, lam in itertools.product((0.01, 0.03, 0.05), (1.0, 20.0, math.inf)):
        losses = {
            "bumps": (wtf.nmf, bumps(0)[0], wtf.grid_cost(50)),
            "images": (wtf.cp, X / X.sum(axis=(1, 2), keepdims=True), wtf.grid_cost(32, 32)),
        }
        for name, (fit, data, cost) in losses.items():
            made.clear()
            loss = wtf.Wasserstein(cost, eps, lam, debias=True)
            fit(data, 3, loss, rho=1e-3, rng=0)
            # The last term is that of the given grid; others are of coarser ones.
            plain, symmetric = 2 * made[-1].evaluations, made[-1].symmetric_applications
            ratio = symmetric / plain
            print(f"{name:7s} {eps:5.2f} {lam:5.0f} {plain:7d} {symmetric:9d} {ratio:6.2f}")


def _remember_terms() -> list[DebiasedTerm]:
    """A list to which every debiased term adds itself."""
    made: list[DebiasedTerm] = []
    begin = DebiasedTerm.__init__

    def remember(self: DebiasedTerm, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(self)

    DebiasedTerm.__init__ = remember
    return made


COMMANDS = {
    "bumps": compare_bumps,
    "images": compare_images,
    "three-mode": compare_three_mode,
    "evaluations": count_applications,
}


def main() -> None:
    """Run one comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--draws", type=int, default=10, help="data sets of the bumps")
    parser.add_argument("--rho", type=float, default=None, help="weight of the entropies")
    parser.add_argument("--data", type=Path, help="the stored sample, three_mode.npz")
    parser.add_argument("--quick", action="store_true", help="fewer images")
    arguments = parser.parse_args()
    if arguments.rho is None:
        arguments.rho = 1e-2 if arguments.command == "images" else 1e-3
    print("python", *sys.argv)
    COMMANDS[arguments.command](arguments)


if __name__ == "__main__":
    main()
