"""
A distribution on a cube: recover its three separable components from 1315 samples.

The first experiment of the paper. The truth is a mixture of three products of Gaussians on a grid
of 128^3 points, the data are an empirical distribution drawn from it. WTF transports mass in all of
the cube, SWIFT (Afshar et al. 2020) along the fibres of one mode at a time, and Frobenius-CP
compares bin by bin. Run with ``python examples/three_mode.py --out results``.
"""

from __future__ import annotations

import argparse
import io
import itertools
import time
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
from _common import COLOURS, FROBENIUS, arrays, command_line, new_figure, plain, save, table, timed
from matplotlib.figure import Figure

import wtfarray as wtf

from _data import sampled_tensor  # isort: skip
from _reference import import_reference  # isort: skip
from _trace import convert  # isort: skip

CENTRES = ((-0.25, -0.5, 0.5), (0.0, -0.5, 0.5), (0.5, -0.5, 0.5))
WIDTHS = ((0.25, 0.25, 0.25), (0.25, 0.25, 0.25), (0.1, 0.1, 0.25))
"""Of each component, mode by mode."""
SAMPLES, RANK = 1315, 3
EPS, LAM = 1e-2, 25.0
DEBIASED_EPS = 3e-2
"""Of the debiased loss, whose kernel should be about as wide as the narrowest feature."""
Factors = list[np.ndarray]


def true_atoms(n: int) -> Factors:
    """The atoms (n, RANK) of each mode."""
    x = np.linspace(-1, 1, n)[:, None]
    found = [
        np.exp(-(((x - np.asarray(c)) / np.asarray(h)) ** 2))
        for c, h in zip(CENTRES, WIDTHS, strict=True)
    ]
    return [a / a.sum(0) for a in found]


def draw_sample(truth: Factors, rng: np.random.Generator) -> np.ndarray:
    """An empirical distribution of SAMPLES points."""
    n = truth[0].shape[0]
    X = np.zeros((n, n, n))
    for r in rng.integers(RANK, size=SAMPLES):
        X[tuple(rng.choice(n, p=a[:, r]) for a in truth)] += 1 / SAMPLES
    return X


def data_of(arguments: argparse.Namespace) -> tuple[np.ndarray, Factors, Factors | None]:
    """The tensor, the true atoms, and SWIFT's published ones if they are stored."""
    if arguments.data is not None:
        path = arguments.data
        stored = np.load(path / "three_mode.npz" if path.is_dir() else path)
        truth = [stored[f"true_{name}"] for name in ("alpha", "beta", "gamma")]
        X, swift = sampled_tensor(stored), [stored[f"swift_A{k}"] for k in range(3)]
    else:
        truth, swift = true_atoms(128), None
        X = draw_sample(truth, np.random.default_rng(arguments.seed))
    if not arguments.quick:
        return X, truth, swift
    n = X.shape[0] // 4
    X = X.reshape(n, 4, n, 4, n, 4).sum((1, 3, 5))
    pooled = [[a.reshape(n, 4, -1).sum(1) for a in some] for some in (truth, swift) if some]
    return X, pooled[0], pooled[1] if swift else None


def methods(n: int, rho: float, seed: int) -> dict[str, tuple[wtf.Loss, dict[str, object]]]:
    """The loss and the options of every fit."""
    (cost,) = wtf.grid_cost(n)
    fibres = [wtf.Wasserstein(cost, eps=EPS, lam=LAM, modes=(k,)) for k in range(3)]
    atoms = {"constraints": ("columns",) * 3, "weights": "fixed", "rho": rho, "rng": seed}
    sharp = wtf.Wasserstein([cost] * 3, eps=DEBIASED_EPS, lam=LAM, debias=True)
    return {
        "WTF": (wtf.Wasserstein([cost] * 3, eps=EPS, lam=LAM), atoms),
        "WTF, debiased": (sharp, atoms),
        "SWIFT": (wtf.LossSum(*fibres), {**atoms, "tol": 1e-5}),
        "Frobenius-CP": (wtf.Frobenius(), {"init": "nnsvd", "rng": seed, **FROBENIUS}),
    }


def cosines(found: Factors, truth: Factors) -> np.ndarray:
    """Cosine between each atom and each true one of the same mode, (mode, found, true)."""
    pairs = zip(found, truth, strict=True)
    return np.stack(
        [(a / np.linalg.norm(a, axis=0)).T @ (t / np.linalg.norm(t, axis=0)) for a, t in pairs]
    )


def matched(factors: Factors, truth: Factors) -> Factors:
    """The atoms, of mass one, in the order of the components that fits the truth best."""
    table_of = cosines(factors, truth)
    orders = itertools.permutations(range(RANK))
    best = max(orders, key=lambda order: table_of[:, order, range(RANK)].sum())
    return [(a / a.sum(0))[:, best] for a in factors]


def distances(found: Factors, truth: Factors) -> np.ndarray:
    """Wasserstein-1 distance of each atom to the true one on [-1, 1], (mode, component)."""
    step = 2 / (truth[0].shape[0] - 1)
    pairs = zip(found, truth, strict=True)
    return np.stack([np.abs(np.cumsum(a - t, 0)).sum(0) * step for a, t in pairs])


def reference_seconds(checkout: Path, X: np.ndarray, rho: float, steps: int) -> float:
    """Seconds a step of the paper's code, in its notebook's settings: Adam on the block dual."""
    import torch

    paper = import_reference(checkout)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        n = X.shape[0]
        cost = torch.asarray(wtf.grid_cost(n)[0])
        core = torch.zeros((RANK,) * 3)
        core[range(RANK), range(RANK), range(RANK)] = 1 / RANK
        rng = np.random.default_rng(0)
        factors = [torch.asarray(a / a.sum(0)) for a in rng.random((3, n, RANK))]
        settings = [np.full(3, value) for value in (rho, EPS, LAM)]
        block = paper.FactorsModel(
            torch.asarray(X), 0, [cost] * 3, core, factors, *settings, ot_mode="full", norm="col"
        )
        begin = time.perf_counter()
        with redirect_stdout(io.StringIO()):
            paper.solve(block, lr=3e-4, mode="adam", max_iter=steps, check_iter=100)
        return (time.perf_counter() - begin) / steps
    finally:
        torch.set_default_dtype(before)


def draw_atoms(truth: Factors, found: dict[str, Factors]) -> Figure:
    """True and recovered atoms, a row a method and a column a mode."""
    x = np.linspace(-1, 1, truth[0].shape[0])
    figure = new_figure(7.5, 1.5 * (1 + len(found)))
    panels = figure.subplots(1 + len(found), 3, sharex=True, sharey="col")
    for row, (name, factors) in zip(panels, {"truth": truth, **found}.items(), strict=True):
        for k, ax in enumerate(row):
            for r in range(RANK):
                ax.plot(x, truth[k][:, r], ":", color=COLOURS[r], linewidth=1, alpha=0.8)
                ax.plot(x, factors[k][:, r], color=COLOURS[r], linewidth=1.2)
            ax.set_ylim(0, 1.6 * truth[k].max())  # the spikes of some go beyond
            plain(ax)
        row[0].set_ylabel(name)
    for k, ax in enumerate(panels[0]):
        ax.set_title(f"mode {k}", loc="left")
    figure.supxlabel("dotted: truth", fontsize=9)
    return figure


def draw_projections(X: np.ndarray, truth: Factors, found: dict[str, np.ndarray]) -> Figure:
    """The tensors summed over the third mode."""
    shown = {"truth": wtf.cp_to_tensor(truth) / RANK, "sample": X, **found}
    figure = new_figure(1.9 * len(shown), 2.3)
    panels = figure.subplots(1, len(shown), sharex=True, sharey=True)
    top = 1.2 * shown["truth"].sum(2).max()
    for ax, (name, tensor) in zip(panels, shown.items(), strict=True):
        ax.imshow(
            tensor.sum(2), cmap="cividis", vmin=0, vmax=top, extent=(-1, 1, 1, -1), origin="upper"
        )
        ax.set_title(name, loc="left")
        ax.set_xlabel("mode 1")
    panels[0].set_ylabel("mode 0")
    return figure


def main() -> None:
    """Fit, print and draw."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, help="the stored sample, three_mode.npz")
    parser.add_argument("--rho", type=float, default=2.5e-4, help="the paper's text has 1e-3")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["WTF", "SWIFT", "Frobenius-CP"],
        help='also "WTF, debiased"',
    )
    parser.add_argument("--steps", type=int, default=100, help="of the paper's code, to time one")
    arguments = parser.parse_args()
    X, truth, published = data_of(arguments)
    n = X.shape[0]
    found, tensors, rows = {}, {}, []
    for name, (loss, options) in methods(n, arguments.rho, arguments.seed).items():
        if name in arguments.methods:
            data = convert(X, arguments.backend)
            fit, seconds = timed(name, wtf.cp, data, RANK, loss, **options)
            found[name] = matched(arrays(fit), truth)
            tensors[name] = np.asarray(fit.to_tensor())
            rows.append((name, f"{seconds:.1f}", str(fit.converged)))
    if published is not None:
        found["SWIFT, published"] = matched(published, truth)
        tensors["SWIFT, published"] = wtf.cp_to_tensor(found["SWIFT, published"]) / RANK
        rows.append(("SWIFT, published", "", ""))
    print(f"\n{np.count_nonzero(X)} bins of {n}^3 are filled; on {arguments.backend}")
    errors = []
    for name, factors in found.items():
        diagonal = cosines(factors, truth)[:, range(RANK), range(RANK)]
        far = distances(factors, truth)
        errors += [
            (name, k, *(float(c) for c in diagonal[k]), *(float(w) for w in far[k]))
            for k in range(3)
        ]
        rows = [
            (*row, float(diagonal.min()), float(diagonal.mean()), float(far.mean()))
            if row[0] == name
            else row
            for row in rows
        ]
    table(("method", "mode", *["cosine"] * RANK, *["W1"] * RANK), errors)
    head = ("method", "seconds", "converged", "least cosine", "mean cosine", "mean W1")
    table(head, rows)
    if arguments.reference is not None:
        step = reference_seconds(arguments.reference, X, arguments.rho, arguments.steps)
        print(f"the paper's code: {step:.3f} s a step of Adam; its notebook makes 15,000, which")
        print(f"would take {15_000 * step:.0f} s (extrapolated from {arguments.steps} steps)")
    save(draw_atoms(truth, found), arguments.out, "three_mode_atoms.png")
    save(draw_projections(X, truth, tensors), arguments.out, "three_mode_projections.png")


if __name__ == "__main__":
    main()
