"""
Fluorescence landscapes with Rayleigh scatter: the lines are masked, the model fills them in.

Every sample is a landscape of excitation x emission wavelengths, a mixture of three fluorophores.
Light that is scattered and not absorbed makes a bright line where both wavelengths are equal, and
another where the emission has twice the wavelength. It says nothing about the sample, and it covers
part of the signal. Run with ``python examples/landscapes.py --out results``.
"""

from __future__ import annotations

import numpy as np
from _common import command_line, new_figure, save, table, timed
from matplotlib.figure import Figure

import wtfarray as wtf

EXCITATION = np.linspace(240.0, 420.0, 24)
EMISSION = np.linspace(250.0, 520.0, 32)
PEAKS = ((275.0, 305.0, 18.0, 26.0), (320.0, 355.0, 22.0, 30.0), (370.0, 410.0, 20.0, 28.0))
"""Excitation and emission maximum of each fluorophore, and the widths, in nm."""
LINE = 14.0
"""Half the width of a scatter line that is masked, in nm of emission."""
RANK = len(PEAKS)


def landscapes(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Measured landscapes, the truth without scatter, concentrations, and what is not scatter."""
    rng = np.random.default_rng(seed)
    down = [np.exp(-(((EXCITATION - x) / w) ** 2)) for x, _, w, _ in PEAKS]
    across = [np.exp(-(((EMISSION - m) / w) ** 2)) for _, m, _, w in PEAKS]
    concentrations = rng.gamma(2.0, 0.5, (samples, RANK))
    truth = wtf.cp_to_tensor([concentrations, np.stack(down, axis=1), np.stack(across, axis=1)])
    offset = EMISSION[None, :] - EXCITATION[:, None]
    second = EMISSION[None, :] - 2.0 * EXCITATION[:, None]
    scatter = 3.0 * np.exp(-((offset / 7.0) ** 2)) + np.exp(-((second / 7.0) ** 2))
    noise = rng.normal(0.0, 0.01, truth.shape)
    X = truth + scatter * rng.uniform(0.8, 1.2, (samples, 1, 1)) + noise
    observed = (np.abs(offset) > LINE) & (np.abs(second) > LINE)
    return np.clip(X, 0.0, None), truth, concentrations, observed


def matched(found: np.ndarray, truth: np.ndarray) -> float:
    """The smallest correlation of a true concentration with the best of those found."""
    table_of = np.corrcoef(found.T, truth.T)[: found.shape[1], found.shape[1] :]
    return float(table_of.max(axis=0).min())


def draw(X: np.ndarray, truth: np.ndarray, observed: np.ndarray, Y: np.ndarray) -> Figure:
    """One sample: measured, masked, the model, and the truth."""
    figure = new_figure(9.0, 2.6)
    shown = {
        "measured": X[0],
        "observed": np.where(observed, X[0], np.nan),
        "model": Y[0],
        "truth": truth[0],
    }
    extent = (EMISSION[0], EMISSION[-1], EXCITATION[0], EXCITATION[-1])
    for ax, (name, image) in zip(figure.subplots(1, 4, sharey=True), shown.items(), strict=True):
        ax.imshow(
            image,
            cmap="cividis",
            origin="lower",
            extent=extent,
            aspect="auto",
            vmin=0.0,
            vmax=float(truth[0].max()),
        )
        ax.set_title(name, loc="left")
        ax.set_xlabel("emission (nm)")
    figure.axes[0].set_ylabel("excitation (nm)")
    return figure


def main() -> None:
    """Fit with and without the mask, print and draw."""
    arguments = command_line(__doc__).parse_args()
    samples = 8 if arguments.quick else 20
    X, truth, concentrations, observed = landscapes(samples, arguments.seed)
    losses = {
        "Wasserstein": wtf.Wasserstein(wtf.grid_cost(24, 32), eps=5e-4, lam=1.0, debias=True),
        "KullbackLeibler": wtf.KullbackLeibler(),
    }
    rows, filled = [], truth
    for name, loss in losses.items():
        for masked in (True, False):
            mask = observed if masked else None
            label = f"{name}, {'masked' if masked else 'with scatter'}"
            options = {"rho": 1e-4, "rng": arguments.seed, "tol": 1e-4, "mask": mask}
            constraints = (None, "columns", "columns")
            fit, seconds = timed(label, wtf.cp, X, RANK, loss, constraints=constraints, **options)
            Y, hidden = np.asarray(fit.to_tensor()), ~observed
            filled = Y if label == "Wasserstein, masked" else filled
            error = np.abs(Y - truth)[:, hidden].sum() / truth[:, hidden].sum()
            same = matched(np.asarray(fit.factors[0]), concentrations)
            rows.append((label, float(error), same, str(fit.converged), f"{seconds:.1f}"))
    share = truth[:, ~observed].sum() / truth.sum()
    print(
        f"\n{samples} landscapes of 24 x 32 wavelengths; {100 * share:.0f} % of the signal masked"
    )
    head = ("fit", "error under the mask", "least correlation", "converged", "seconds")
    table(head, rows)
    save(draw(X, truth, observed, filled), arguments.out, "landscapes.png")


if __name__ == "__main__":
    main()
