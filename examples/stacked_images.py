"""
Stacked images: a hundred images of three shifting bumps, factorised as a tensor and as a matrix.

The second experiment of the paper. Every image is a mixture of three separable bumps, each a little
elsewhere than in the last image. WTF and Frobenius-CP look for separable atoms, W-NMF and
Frobenius-NMF for any. Run with ``python examples/stacked_images.py --out results``.
"""

from __future__ import annotations

import argparse

import numpy as np
from _common import COLOURS, FROBENIUS, arrays, command_line, new_figure, plain, save, table, timed
from matplotlib.figure import Figure

import wtfarray as wtf

from _data import bumps, random_factors, stacked_images  # isort: skip
from _reference import reference  # isort: skip
from _trace import convert  # isort: skip

SIDE, RANK = 32, 3
EPS, LAM, RHO = 1e-2, 25.0, 1e-2
DEBIASED_EPS = 3e-2
"""Of the debiased loss, whose kernel should be about as wide as the narrowest feature."""
GRID = np.linspace(-1, 1, SIDE)


def fits_of(
    X: np.ndarray, seed: int, *, debias: bool
) -> dict[str, tuple[wtf.Factorisation, float]]:
    """Every method's fit and seconds."""
    costs = wtf.grid_cost(SIDE, SIDE)
    semi = wtf.Wasserstein(costs, eps=EPS, lam=LAM)
    balanced = wtf.Wasserstein(costs, eps=EPS)
    sharp = wtf.Wasserstein(costs, eps=DEBIASED_EPS, lam=LAM, debias=True)
    exact = {"rng": seed, "constraints": (None, *["columns"] * 2), **FROBENIUS}
    flat = {**exact, "constraints": (None, "columns")}
    plan = {
        "WTF": (wtf.cp, semi, {"rho": RHO, "rng": seed}),
        "WTF, balanced": (wtf.cp, balanced, {"rho": RHO, "rng": seed}),
        **({"WTF, debiased": (wtf.cp, sharp, {"rho": RHO, "rng": seed})} if debias else {}),
        "Frobenius-CP": (wtf.cp, wtf.Frobenius(), {"init": "nnsvd", **exact}),
        "W-NMF": (wtf.nmf, semi, {"rho": RHO, "rng": seed}),
        "W-NMF, balanced": (wtf.nmf, balanced, {"rho": RHO, "rng": seed}),
        "Frobenius-NMF": (wtf.nmf, wtf.Frobenius(), {"init": "nnsvd", **flat}),
    }
    return {
        name: timed(name, fit, X, RANK, loss, **options)
        for name, (fit, loss, options) in plan.items()
    }


def atoms(factors: list[np.ndarray]) -> np.ndarray:
    """The atoms as images of mass one, from the upper left to the lower right."""
    if len(factors) == 2:
        images = factors[1].T.reshape(-1, SIDE, SIDE)
    else:
        images = np.einsum("ir,jr->rij", *factors[1:])
    images = images / images.sum((1, 2), keepdims=True)
    return images[np.argsort(np.einsum("rij,ij->r", images, GRID[:, None] + GRID))]


def mean_emd(X: np.ndarray, Y: np.ndarray) -> float:
    """The mean exact transport cost between images and their reconstructions."""
    import ot

    rows, columns = wtf.grid_cost(SIDE, SIDE)
    cost = (rows[:, None, :, None] + columns[None, :, None, :]).reshape(SIDE**2, SIDE**2)
    Y = Y / Y.sum((1, 2), keepdims=True)
    pairs = zip(X.reshape(-1, SIDE**2), Y.reshape(-1, SIDE**2), strict=True)
    return float(np.mean([ot.emd2(y / y.sum(), x / x.sum(), cost) for x, y in pairs]))


def run_reference(
    arguments: argparse.Namespace, X: np.ndarray
) -> tuple[np.ndarray, float, str] | None:
    """Reconstruction and seconds of the paper's code, and how far it came."""
    loss = wtf.Wasserstein(wtf.grid_cost(SIDE, SIDE), eps=EPS, lam=LAM)
    checkout, start, last = arguments.reference, random_factors(X.shape, RANK), None
    for name, seconds, factors in reference(checkout, X, start, loss, RHO, sweeps=arguments.sweeps):
        last = (wtf.cp_to_tensor(factors), seconds, name)
        print(f"the paper's code: {name}, {seconds:.1f} s", flush=True)
    return last


def draw_atoms(parts: np.ndarray, found: dict[str, list[np.ndarray]]) -> Figure:
    """The marginals of the data, and the separable atoms of the tensor methods, as curves."""
    names = [name for name, factors in found.items() if len(factors) == 3]
    figure = new_figure(2.5 * (1 + len(names)), 3.8)
    panels = figure.subplots(2, 1 + len(names), sharex=True, sharey="row")
    parts = parts / parts.sum(-1, keepdims=True)
    for axis in range(2):
        for k, colour in enumerate(COLOURS[:RANK]):
            panels[axis, 0].plot(GRID, parts[:, k, axis].T, color=colour, alpha=0.08)
            for j, name in enumerate(names):
                curves = atoms(found[name]).sum(2 - axis)
                # The bumps are given from the middle, the atoms from the upper left.
                panels[axis, j + 1].plot(GRID, curves[(1, 2, 0)[k]], color=colour)
        panels[axis, 0].set_ylabel(("down", "across")[axis])
    for ax, name in zip(panels[0], [f"{len(parts)} images: the bumps", *names], strict=True):
        ax.set_title(name, loc="left")
    for ax in panels.flat:
        plain(ax)
    return figure


def draw_images(X: np.ndarray, found: dict[str, list[np.ndarray]]) -> Figure:
    """Some images and the mean one, and the atoms of every method as images."""
    rows = {"images": X[: RANK - 1], **{name: atoms(factors) for name, factors in found.items()}}
    del rows["W-NMF, balanced"]  # looks like the other
    lines = (len(rows) + 1) // 2
    figure = new_figure(7.2, 1.37 * lines)
    grids = figure.subfigures(lines, 2).ravel()
    for (name, images), part in zip(rows.items(), grids, strict=False):
        shown = [*images, X.mean(0)] if name == "images" else images
        title = "two images, and the mean of all" if name == "images" else f"atoms of {name}"
        panels = part.subplots(1, RANK)
        part.suptitle(title, fontsize=9)
        for ax, image in zip(panels, shown, strict=True):
            ax.imshow(image, cmap="cividis", interpolation="nearest")
            ax.set_xticks([])
            ax.set_yticks([])
    return figure


def main() -> None:
    """Fit, print and draw."""
    parser = command_line(__doc__)
    parser.add_argument("--sweeps", type=int, default=5, help="of the paper's code")
    parser.add_argument("--debias", action="store_true", help="also with the debiased loss")
    arguments = parser.parse_args()
    samples = 20 if arguments.quick else 100
    X = stacked_images(samples, arguments.seed)
    results = fits_of(convert(X, arguments.backend), arguments.seed, debias=arguments.debias)
    rows = []
    for name, (fit, seconds) in results.items():
        emd = mean_emd(X, np.asarray(fit.to_tensor()))
        rows.append((name, emd, fit.objective, fit.gap, str(fit.converged), f"{seconds:.1f}"))
    if arguments.reference is not None:
        last = run_reference(arguments, X)
        if last is not None:
            tensor, seconds, name = last
            emd = mean_emd(X, tensor)
            rows.append((f"the paper's code, {name}", emd, "", "", "", f"{seconds:.1f}"))
    print(f"\n{samples} images of {SIDE} x {SIDE} pixels, rank {RANK}, on {arguments.backend}")
    table(("method", "mean exact EMD", "objective", "gap", "converged", "seconds"), rows)
    found = {name: arrays(fit) for name, (fit, _) in results.items()}
    save(draw_atoms(bumps(samples, arguments.seed), found), arguments.out, "stacked_atoms.png")
    save(draw_images(X, found), arguments.out, "stacked_images.png")


if __name__ == "__main__":
    main()
