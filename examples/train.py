"""
A small network learns to place a bump: Wasserstein loss and squared error.

The network reads two numbers and answers with a place, at which a bump is drawn; the loss compares
that bump with the true one. Bumps that do not overlap are equally wrong to the squared error,
wherever they are, and it gives no direction. The Wasserstein loss sees how far the mass has to go.
Run with ``python examples/train.py``; the picture goes to ``docs/_static/train.png``.

With ``--shapes`` the network also answers with the width of the bump, and the losses are the plain
and the debiased Wasserstein loss: the plain one is least at bumps that are blurred.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from tqdm import tqdm

import wtfarray as wtf
from wtfarray.torch import wasserstein_loss

mpl.use("Agg")

BINS, TRAINED, TESTED, STEPS, STARTS = 64, 32, 128, 80, 3
WIDTH = 0.015
"""Standard deviation of a bump, on a line of length 1."""
SHAPE_STEPS, SHAPE_EPS, SHAPE_WIDTH, WIDEST = 150, 0.05, 0.04, 0.2
"""If the networks also answer with the width of the bump, up to the widest."""
# Okabe and Ito's colours can be told apart by colour-blind readers.
COLOURS = {"Wasserstein": "#0072B2", "squared error": "#D55E00"}
FIGURE = Path(__file__).parent.parent / "docs" / "_static" / "train.png"
LINE = torch.linspace(0, 1, BINS)

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def bumps_at(places: torch.Tensor, widths: torch.Tensor | None = None) -> torch.Tensor:
    """Histograms (n, BINS) of mass one."""
    width = WIDTH if widths is None else widths[:, None]
    bumps = torch.exp(-0.5 * ((LINE - places[:, None]) / width) ** 2)
    return bumps / bumps.sum(dim=1, keepdim=True)


def draw_data(count: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """What the network reads, (n, 2): cosine and sine of an angle; and the places, (n,)."""
    places = torch.asarray(rng.uniform(0.1, 0.9, count), dtype=torch.float32)
    return torch.stack([torch.cos(5.0 * places), torch.sin(5.0 * places)], dim=1), places


@dataclass(frozen=True)
class Trained:
    """A network's answers to the test inputs, and how it came there."""

    truth: torch.Tensor
    places: torch.Tensor
    errors: list[float]
    """Mean distance of answer and truth on the test data, after each step."""
    seconds: float


def train(name: str, loss: Loss, seed: int) -> Trained:
    """The same data, network, start and optimiser for every loss."""
    rng = np.random.default_rng(seed)
    inputs, places = draw_data(TRAINED, rng)
    test_inputs, truth = draw_data(TESTED, rng)
    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        *(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)),
        *(torch.nn.Sigmoid(), torch.nn.Flatten(0)),
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-2)
    target = bumps_at(places)
    errors = []
    begin = time.perf_counter()
    with tqdm(range(STEPS), desc=f"{name:<13}, start {seed + 1} of {STARTS}") as bar:
        for _ in bar:
            optimiser.zero_grad()
            value = loss(target, bumps_at(network(inputs)))
            value.backward()
            optimiser.step()
            with torch.no_grad():
                answers = network(test_inputs)
            errors.append(float((answers - truth).abs().mean()))
            bar.set_postfix_str(f"loss {value.item():.4f}, place error {errors[-1]:.3f}")
    return Trained(truth, answers, errors, time.perf_counter() - begin)


def train_shapes(loss: wtf.Wasserstein, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Test histograms, and those of a network that answers with a place and a width."""
    rng = np.random.default_rng(seed)
    inputs, places = draw_data(TRAINED, rng)
    test_inputs, truth = draw_data(TESTED, rng)
    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        *(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2), torch.nn.Sigmoid())
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-2)
    target, potential = bumps_at(places, SHAPE_WIDTH + 0.0 * places), None
    name = "debiased" if loss.debias else "plain"
    for _ in tqdm(range(SHAPE_STEPS), desc=f"{name:<8}, start {seed + 1} of {STARTS}"):
        optimiser.zero_grad()
        place, width = network(inputs).T
        value, potential = wasserstein_loss(
            *(target, bumps_at(place, WIDEST * width), loss),
            reduction="mean",
            potential=potential,
            return_potential=True,
        )
        value.backward()
        optimiser.step()
    with torch.no_grad():
        place, width = network(test_inputs).T
        return bumps_at(truth, SHAPE_WIDTH + 0.0 * truth), bumps_at(place, WIDEST * width)


def spread_of(histograms: torch.Tensor) -> torch.Tensor:
    """Standard deviations of histograms, (n,)."""
    mean = histograms @ LINE
    return (histograms * (LINE - mean[:, None]) ** 2).sum(dim=1).sqrt()


def compare_shapes(out: Path) -> None:
    """Print and draw what the plain and the debiased loss make of the same network."""
    mpl.rcParams.update({"font.size": 9, "axes.titlesize": 9})
    figure = Figure(figsize=(8, 2.6), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    rows = []
    for ax, debias in zip(panels, (False, True), strict=True):
        loss = wtf.Wasserstein(wtf.grid_cost(BINS), eps=SHAPE_EPS, debias=debias)
        name = "debiased" if debias else "plain"
        answers = [train_shapes(loss, seed) for seed in range(STARTS)]
        ratios = [float((spread_of(found) / spread_of(truth)).median()) for truth, found in answers]
        errors = [float((found - truth).abs().sum(dim=1).mean()) for truth, found in answers]
        rows.append(f"{name:<10}{np.mean(ratios):>14.2f}{np.mean(errors):>16.3f}")
        truth, found = answers[0]
        for k, colour in enumerate(("#0072B2", "#D55E00", "#009E73")):
            ax.plot(LINE, truth[k], ":", color=colour)
            ax.plot(LINE, found[k], color=colour)
        ax.set_title(f"{name} loss, eps = {SHAPE_EPS}; dotted: truth", loc="left")
        ax.spines[["top", "right"]].set_visible(False)
    print(f"\n{'loss':<10}{'width / true':>14}{'sum of |error|':>16}", *rows, sep="\n")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
    print(f"\nFigure: {out}")


def draw(results: dict[str, list[Trained]]) -> Figure:
    """What the networks answer, and how their errors fell."""
    mpl.rcParams.update({"font.size": 9, "axes.titlesize": 9})
    figure = Figure(figsize=(10, 3.4), dpi=150, layout="constrained")
    *panels, curve = figure.subplots(1, 3)
    for ax, (name, starts) in zip(panels, results.items(), strict=True):
        ax.plot([0, 1], [0, 1], color="0.7", zorder=0)
        for k, result in enumerate(starts):
            ax.plot(result.truth, result.places, ".", color=COLOURS[name], markersize=3)
            label = None if k else name
            curve.semilogy(result.errors, color=COLOURS[name], label=label)
        ax.set_title(f"Answers on test data, {name}", loc="left")
        ax.set_xlabel("true place")
        ax.set_ylabel("answer")
        ax.set_aspect("equal")
    curve.set_title(f"Learning, from {STARTS} starts", loc="left")
    curve.set_xlabel("step")
    curve.set_ylabel("mean error of the place")
    curve.legend(frameon=False)
    for ax in (*panels, curve):
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    """Train, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the picture goes")
    parser.add_argument("--shapes", action="store_true", help="plain against debiased loss")
    arguments = parser.parse_args()
    if arguments.shapes:
        compare_shapes(arguments.out or FIGURE.with_name("train_shapes.png"))
        return
    out = arguments.out or FIGURE

    transport = wtf.Wasserstein(wtf.grid_cost(BINS), eps=0.05)
    losses: dict[str, Loss] = {
        "Wasserstein": lambda X, Y: wasserstein_loss(X, Y, transport, reduction="mean"),
        "squared error": lambda X, Y: ((X - Y) ** 2).sum(dim=1).mean(),
    }
    results = {
        name: [train(name, loss, seed) for seed in range(STARTS)] for name, loss in losses.items()
    }

    print(f"\n{TRAINED} examples, {STEPS} steps, {STARTS} starts; a bump is {WIDTH} wide\n")
    print(f"{'loss':<15}{'mean error of the place':>25}{'worst start':>13}{'s a start':>11}")
    for name, starts in results.items():
        errors, seconds = [r.errors[-1] for r in starts], [r.seconds for r in starts]
        print(f"{name:<15}{np.mean(errors):>25.4f}{max(errors):>13.4f}{np.mean(seconds):>11.1f}")

    out.parent.mkdir(parents=True, exist_ok=True)
    draw(results).savefig(out)
    print(f"\nFigure: {out}")


if __name__ == "__main__":
    main()
