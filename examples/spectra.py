"""
Known spectra: the proportions of known components in a mixture whose lines have shifted.

Each component has a few Lorentzian lines. In the mixture every line is a little elsewhere than in
the reference spectrum, as in NMR where the solvent changes; there is noise, and a contaminant that
no reference explains. The proportions are found by non-negative least squares, by the plain and by
the debiased Wasserstein loss, and by the debiased loss that may leave mass of the mixture behind.
Run with ``python examples/spectra.py --out results``.
"""

from __future__ import annotations

import numpy as np
from _common import COLOURS, command_line, new_figure, plain, save, table
from matplotlib.figure import Figure
from scipy.optimize import nnls

import wtfarray as wtf

BINS, COMPONENTS, LINES = 2000, 5, 6
WIDTH = 8.0
"""Full width of a line at half of its height, in bins."""
SHIFTS = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Standard deviations of the shifts of the lines, in widths."""
NOISE = 2e-3
"""Standard deviation of the noise, relative to the highest line."""
CONTAMINANT = 0.01
"""Mass of the contaminant, relative to that of the components."""
REACH = 10.0
"""In widths."""
SETTINGS = {
    "plain loss": {"eps": 3.0, "lam": 16.0},
    "debiased loss": {"eps": 3.0, "lam": 16.0, "debias": True},
    "with source_lam": {"eps": 1.0, "lam": 4.0, "debias": True, "source_lam": 1.0},
}
"""In squared widths: the same for every draw, shift and contaminant."""
METHODS = ("least squares", *SETTINGS)


def lines(centres: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """A spectrum of Lorentzian lines."""
    distance = (np.arange(BINS) - centres[:, None]) / (0.5 * WIDTH)
    return heights @ (1.0 / (1.0 + distance**2))


def mixtures(
    seed: int, contaminant: float = CONTAMINANT
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """References, (5, bins), the mixture at each shift, (5, bins), and its proportions, (5,)."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(40, BINS - 40, (COMPONENTS, LINES))
    heights = rng.uniform(0.2, 1.0, (COMPONENTS, LINES))
    references = np.stack([lines(c, h) for c, h in zip(centres, heights, strict=True)])
    mass = references.sum(axis=1)
    proportions = rng.dirichlet(np.full(COMPONENTS, 2.0))
    moves = rng.normal(0.0, WIDTH, (COMPONENTS, LINES))
    foreign = lines(rng.uniform(40, BINS - 40, 3), np.ones(3))
    found = []
    for shift in SHIFTS:
        parts = [lines(c + shift * m, h) for c, m, h in zip(centres, moves, heights, strict=True)]
        mixture = (proportions / mass) @ np.stack(parts) + contaminant * foreign / foreign.sum()
        found.append(mixture + rng.normal(0.0, NOISE * mixture.max(), BINS))
    return references / mass[:, None], np.stack(found), proportions


def losses() -> dict[str, wtf.Wasserstein]:
    """The losses, with costs in squared widths; no line moves farther than the reach."""
    cost = wtf.grid_cost(BINS, scale=None, spacing=1.0 / WIDTH, reach=REACH)
    return {name: wtf.Wasserstein(cost, **setting) for name, setting in SETTINGS.items()}


def proportions_of(references: np.ndarray, X: np.ndarray) -> dict[str, np.ndarray]:
    """The proportions that each method finds in each mixture, (mixtures, components)."""
    found = {METHODS[0]: np.stack([nnls(references.T, x)[0] for x in X])}
    for name, loss in losses().items():
        # Spectra have to be non-negative: negative noise is set to 0.
        found[name] = wtf.unmix(np.clip(X, 0.0, None), references, loss).coefficients
    return {name: C / C.sum(axis=1, keepdims=True) for name, C in found.items()}


def picture(seed: int, errors: dict[str, np.ndarray]) -> Figure:
    """A mixture beside its references, and the error of each method against the shift."""
    references, X, proportions = mixtures(seed)
    figure = new_figure(9.0, 3.4)
    spectrum, summary = figure.subplots(1, 2, width_ratios=(2, 1))
    window = slice(0, BINS // 2)
    at = np.arange(BINS)[window]
    for k, (share, reference) in enumerate(zip(proportions, references, strict=True)):
        label = f"reference {k + 1}, {share:.0%}"
        part = share * reference[window]
        spectrum.fill_between(at, part, color=COLOURS[k], alpha=0.6, label=label)
    shown = SHIFTS.index(1.0)
    spectrum.plot(at, X[shown, window], color="black", lw=0.8, label="mixture")
    spectrum.set(xlabel="bin", ylabel="intensity", title="Lines shifted by about one width")
    spectrum.set_yticks([])
    spectrum.legend(fontsize=7)
    for colour, (name, values) in zip(COLOURS, errors.items(), strict=False):
        spread = values.std(axis=0) / np.sqrt(len(values))
        summary.errorbar(SHIFTS, values.mean(axis=0), spread, color=colour, marker="o", label=name)
    summary.set(
        xlabel="shift of the lines, in widths",
        ylabel="summed error of the proportions",
        title=f"Mean of {len(next(iter(errors.values())))} draws",
    )
    summary.set_ylim(bottom=0)
    summary.legend()
    for ax in (spectrum, summary):
        plain(ax)
    return figure


def main() -> None:
    """Print the errors, and draw them."""
    parser = command_line(__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument(
        "--contaminant", type=float, default=CONTAMINANT, help="its mass, relative to the rest"
    )
    args = parser.parse_args()
    draws = 3 if args.quick else args.draws
    collected: dict[str, list[np.ndarray]] = {name: [] for name in METHODS}
    for seed in range(args.seed, args.seed + draws):
        references, X, proportions = mixtures(seed, args.contaminant)
        for name, found in proportions_of(references, X).items():
            collected[name].append(np.abs(found - proportions).sum(axis=1))
    errors = {name: np.stack(values) for name, values in collected.items()}
    rows = [
        [str(shift), *(float(errors[name][:, k].mean()) for name in METHODS)]
        for k, shift in enumerate(SHIFTS)
    ]
    table(["shift, in widths", *METHODS], rows)
    save(picture(args.seed, errors), args.out, "spectra.png")


if __name__ == "__main__":
    main()
