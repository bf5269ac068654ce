"""
The figures of three pages: ``python docs/figures.py`` draws them in ``_static``.

Arguments select some of ``gallery`` (``plots.md``), ``parameters`` and ``ranks`` (``rank.md``) and
``layers`` (``architecture.md``). Needs Matplotlib, and takes a minute or two on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import numpy as np

import wtfarray as wtf
from wtfarray import plot

mpl.use("Agg")

from matplotlib import pyplot as plt

STATIC = Path(__file__).parent / "_static"
BINS, SIDE = 40, 16
CENTRES = (8.0, 20.0, 31.0)
LAYERS = (
    ("wtfarray", "public: cp, tucker, nmf, losses; .sklearn .cli .plot .torch .jax"),
    ("_fit", "one fit from arguments to result: driver, starts, checkpoint, projection, rank scan"),
    ("_solvers", "minimise over the blocks: envelope, block dual, prox-linear"),
    ("_losses", "value and gradient in the model: Wasserstein, Frobenius, KL, sums"),
    ("_transport", "one stack of samples: kernels, conjugate, Sinkhorn, Newton, certificate"),
    ("_models", "CP and Tucker as linear maps, n-mode products, entropies"),
    ("_optimize", "L-BFGS, accelerated gradient descent, line search"),
    ("_arrays", "validation, transfers to the host, stacks of samples"),
    ("_dispatch.py", "every choice of method, as functions of plain numbers"),
)


def histograms(samples: int = 40, seed: int = 0) -> np.ndarray:
    """Mixtures (samples, BINS) of three bumps whose positions vary from sample to sample."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(3, 0.6), samples)
    x = np.arange(BINS)
    X = np.zeros((samples, BINS))
    for centre, share in zip(CENTRES, shares.T, strict=True):
        position = centre + rng.normal(0, 1, (samples, 1))
        X += share[:, None] * np.exp(-(((x - position) / 2.5) ** 2))
    return X / X.sum(axis=1, keepdims=True)


def images(samples: int = 30, seed: int = 0) -> np.ndarray:
    """Sums (samples, SIDE, SIDE) of three separable bumps whose positions vary."""
    rng = np.random.default_rng(seed)
    x = np.linspace(-1, 1, SIDE)
    X = np.zeros((samples, SIDE, SIDE))
    for centre, width in zip((0.0, 0.5, -0.5), (0.3, 0.2, 0.15), strict=True):
        down, across = (
            np.exp(-(((x - centre - rng.normal(0, 0.1, (samples, 1))) / width) ** 2))
            for _ in range(2)
        )
        X += down[:, :, None] * across[:, None, :]
    return X / X.sum(axis=(1, 2), keepdims=True)


def genes(samples: int = 30, seed: int = 0) -> wtf.Factorisation:
    """A fit to mixtures of three profiles of 60 genes, in no order."""
    rng = np.random.default_rng(seed)
    X = rng.dirichlet(np.ones(3), samples) @ rng.dirichlet(np.full(60, 0.1), 3)
    axes = ["cell", wtf.Axis("gene", [f"GENE{k}" for k in range(60)])]
    return wtf.nmf(X, 3, wtf.KullbackLeibler(), rho=1e-5, rng=0, axes=axes)


def line_loss(eps: float = 2e-2, lam: float = 10.0) -> wtf.Wasserstein:
    """The transport loss along the bins of a histogram."""
    return wtf.Wasserstein(wtf.grid_cost(BINS), eps=eps, lam=lam)


def save(figure: plt.Figure, name: str) -> None:
    """Write a figure to ``_static``."""
    figure.savefig(STATIC / f"{name}.png", dpi=80)
    plt.close(figure)


def gallery() -> None:
    """One figure for each function of `wtfarray.plot`."""
    X = histograms()
    axes = ["sample", wtf.Axis("wavelength", np.linspace(400, 700, BINS), "nm")]
    fit = wtf.nmf(X, 3, line_loss(), rho=1e-2, rng=0, axes=axes)
    save(plot.atoms(fit).figure, "plot_atoms")
    save(plot.reconstruction(fit, X).figure, "plot_reconstruction")
    save(plot.convergence(fit).figure, "plot_convergence")
    save(plot.top_features(genes(), n=8).figure, "plot_top_features")
    Y = images()
    loss = wtf.Wasserstein(wtf.grid_cost(SIDE, SIDE), eps=1e-2, lam=10.0)
    fit = wtf.cp(Y, 3, loss, rho=1e-3, rng=0)
    save(plot.atoms(fit).figure, "plot_mosaic")
    save(plot.reconstruction(fit, Y).figure, "plot_rows")
    save(plot.core(wtf.tucker(Y, (3, 3, 3), loss, rho=1e-2, rng=0, tol=1e-4)).figure, "plot_core")


def compare(name: str, fits: Iterable[tuple[str, wtf.Factorisation]]) -> None:
    """The atoms of several fits, side by side."""
    fits = list(fits)
    figure, axes = plt.subplots(
        1, len(fits), figsize=(3.0 * len(fits), 2.4), sharex=True, sharey=True, layout="constrained"
    )
    for ax, (title, fit) in zip(axes, fits, strict=True):
        plot.atoms(fit, ax=ax)
        ax.get_legend().remove()
        ax.set_title(title, fontsize="medium")
        ax.label_outer()
        for centre in CENTRES:
            ax.axvline(centre, color="0.7", linewidth=0.8, zorder=0)
    save(figure, name)


def parameters() -> None:
    """The effect of eps, lam and rho on the atoms."""
    X = histograms()
    compare(
        "choose_eps",
        (
            (f"eps = {eps:g}", wtf.nmf(X, 3, line_loss(eps=eps), rho=1e-2, rng=0, tol=1e-4))
            for eps in (1e-2, 4e-2, 2e-1)
        ),
    )
    compare(
        "choose_rho",
        (
            (f"rho = {rho:g}", wtf.nmf(X, 3, line_loss(), rho=rho, rng=0, tol=1e-4))
            for rho in (1e-3, 1e-1, 1.0)
        ),
    )
    # A fifth of the mass of every sample is noise that belongs to no bump.
    Z = 0.8 * X + 0.2 * np.random.default_rng(1).dirichlet(np.full(BINS, 0.05), len(X))
    compare(
        "choose_lam",
        (
            (f"lam = {lam:g}", wtf.nmf(Z, 3, line_loss(lam=lam), rho=1e-2, rng=0, tol=1e-4))
            for lam in (1e-2, 1e-1, 10.0)
        ),
    )


def losses() -> None:
    """The same fit with the plain and with the debiased loss."""
    X, cost = histograms(), wtf.grid_cost(BINS)
    compare(
        "losses",
        (
            (
                f"{'debiased' if debias else 'plain'}, eps = {eps:g}",
                wtf.nmf(
                    X, 3, wtf.Wasserstein(cost, eps, 10.0, debias=debias), rho=1e-3, rng=0, tol=1e-5
                ),
            )
            for eps, debias in ((5e-2, False), (1e-2, False), (5e-2, True))
        ),
    )


def ranks() -> None:
    """The criteria of a rank scan, and the atoms of three ranks."""
    scan = wtf.rank_scan(histograms(), range(1, 6), line_loss(eps=4e-2), held_out=3, rho=1e-2)
    sys.stdout.write(f"{scan}\n")
    save(plot.rank_scan(scan).figure, "choose_rank")
    compare("choose_rank_atoms", ((f"rank {r}", scan.fits[r - 1]) for r in (2, 3, 4)))


def layers() -> None:
    """The packages from top to bottom, as SVG."""
    width, height, step = 760, 34, 46
    size = f"0 0 {width} {step * len(LAYERS) + 4}"
    tip = '<path d="M0,0 L8,4 L0,8 z" fill="#555555"/>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-size="14"',
        'font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="4" refY="4"',
        f'orient="auto">{tip}</marker></defs>',
    ]
    for k, (name, text) in enumerate(LAYERS):
        y = 4 + k * step
        fill = "#cfe8f7" if k == 0 else "#f4f4f4"
        parts.append(
            f'<rect x="4" y="{y}" width="{width - 8}" height="{height}" rx="4" fill="{fill}" '
            'stroke="#555555"/>'
        )
        parts.append(
            f'<text x="16" y="{y + 22}" font-family="monospace" font-weight="bold">{name}</text>'
        )
        parts.append(f'<text x="140" y="{y + 22}">{text}</text>')
        if k + 1 < len(LAYERS):
            parts.append(
                f'<path d="M70,{y + height} L70,{y + step - 4}" stroke="#555555" '
                'marker-end="url(#tip)"/>'
            )
    (STATIC / "layers.svg").write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")


if __name__ == "__main__":
    for step in (gallery, parameters, losses, ranks, layers):
        if len(sys.argv) < 2 or step.__name__ in sys.argv[1:]:
            step()
