"""
Faces: atoms learned from 200 photographs, and who is recognised on 200 others by them.

The third experiment of the paper. Half of the Olivetti faces (AT&T Laboratories Cambridge) is
factorised at several ranks, the other half projected onto the atoms and classified by the nearest
neighbour in cosine distance. Every result is written as it comes, and a run that is started again
goes on from there. Run with ``python examples/faces.py --quick --out results``.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from _common import COLOURS, FROBENIUS, command_line, new_figure, plain, save, table
from matplotlib.figure import Figure
from tqdm import tqdm

import wtfarray as wtf

from _data import random_factors, small_faces  # isort: skip
from _reference import reference  # isort: skip
from _trace import convert, quiet  # isort: skip

METHODS = ("WTF", "F-CP", "WNMF", "F-NMF", "PCA")
SIDE, EPS, LAM = 32, 1e-3, 10.0
CLUSTERS = 9
NUMBERS = ("accuracy", "accuracy_fitted", "seconds", "objective", "gap", "iterations")
"""Accuracy with the training images projected as the test images are, or as they were fitted."""
FIELDS = ("method", "rank", "split", *NUMBERS)
Result = dict[str, str]


def load_data(
    arguments: argparse.Namespace,
) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Images (400, 32, 32) of mass one, who they show, and ten pairs of training and test sets."""
    if arguments.data is not None:
        stored = np.load(arguments.data / "olivetti.npz")
        images, labels = stored["images"], stored["labels"]
        splits = np.load(arguments.data / "paper_faces_splits.npz")
        pairs = list(zip(splits["train_idx"], splits["test_idx"], strict=True))
        return small_faces(images), labels, pairs
    from sklearn.datasets import fetch_olivetti_faces
    from sklearn.model_selection import StratifiedShuffleSplit

    fetched = fetch_olivetti_faces()
    halves = StratifiedShuffleSplit(10, train_size=0.5, random_state=arguments.seed)
    pairs = list(halves.split(fetched.target, fetched.target))
    return small_faces(fetched.images), fetched.target, pairs


def fit_faces(
    method: str, X: np.ndarray, rank: int, arguments: argparse.Namespace
) -> wtf.Factorisation:
    """The fit of one of the four factorisations."""
    fit = wtf.nmf if "NMF" in method else wtf.cp
    data = convert(X, arguments.backend)
    modes = 2 if "NMF" in method else 3
    if method.startswith("W"):
        costs, debias = wtf.grid_cost(SIDE, SIDE), arguments.debias
        eps = EPS if arguments.eps is None else arguments.eps
        loss: wtf.Loss = wtf.Wasserstein(costs, eps=eps, lam=LAM, debias=debias)
        options = {
            "rho": 0.005 / rank,
            "tol": arguments.tol,
            "max_iter": arguments.max_iter,
            "init": arguments.init,
        }
    else:
        loss = wtf.Frobenius()
        constraints = (None, *["columns"] * (modes - 1))
        options = {"init": "nnsvd", "constraints": constraints, **FROBENIUS}
    with quiet():
        return fit(data, rank, loss, rng=arguments.seed, progress=True, **options)


def accuracy(train: np.ndarray, test: np.ndarray, known: np.ndarray, true: np.ndarray) -> float:
    """Share of the test images whose nearest training image, by cosine, shows the same person."""
    from sklearn.neighbors import KNeighborsClassifier

    nearest = KNeighborsClassifier(1, metric="cosine", algorithm="brute")
    return float(nearest.fit(train, known).score(test, true))


def run_one(
    method: str,
    rank: int,
    X: tuple[np.ndarray, np.ndarray],
    y: tuple[np.ndarray, np.ndarray],
    arguments: argparse.Namespace,
    path: Path,
) -> Result:
    """Fit, project and classify; the fit goes to ``path``, or comes from there."""
    if method == "PCA":
        from sklearn.decomposition import PCA

        begin = time.perf_counter()
        pca = PCA(rank).fit(X[0].reshape(len(X[0]), -1))
        train, test = (pca.transform(part.reshape(len(part), -1)) for part in X)
        fitted, rest = train, (time.perf_counter() - begin, 0.0, 0.0, 0)
    else:
        if not path.exists():
            fit_faces(method, X[0], rank, arguments).save(path)
        fit = wtf.load(path)
        with quiet():
            train, test = (np.asarray(fit.project(part, tol=1e-6, max_iter=300)) for part in X)
        fitted = np.asarray(fit.factors[0])
        rest = (fit.history[-1].time, fit.objective, fit.gap, fit.n_iter)
    if not all(np.isfinite(part).all() for part in (train, test, fitted, rest)):
        msg = f"{method}, rank {rank}: the result is not finite"
        raise ArithmeticError(msg)
    found = (accuracy(train, test, *y), accuracy(fitted, test, *y), *rest)
    return {name: f"{value:.6g}" for name, value in zip(NUMBERS, found, strict=True)}


def run_all(arguments: argparse.Namespace) -> list[Result]:
    """Everything that was asked for; what the file of results has is not run again."""
    images, labels, pairs = load_data(arguments)
    path = arguments.out / "faces.csv"
    (arguments.out / "fits").mkdir(parents=True, exist_ok=True)
    results = read_results(path)
    known = {(r["method"], int(r["rank"]), int(r["split"])) for r in results}
    wanted = itertools.product(arguments.splits, arguments.ranks, arguments.methods)
    missing = [
        (method, rank, split)
        for split, rank, method in wanted
        if (method, rank, split) not in known
    ]
    for method, rank, split in tqdm(missing, desc="runs"):
        train, test = pairs[split]
        kept = arguments.out / "fits" / f"{method}-{rank}-{split}.npz"
        numbers = run_one(
            method,
            rank,
            (images[train], images[test]),
            (labels[train], labels[test]),
            arguments,
            kept,
        )
        results.append({"method": method, "rank": str(rank), "split": str(split), **numbers})
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            writer.writerow(results[-1])
    return results


def read_results(path: Path) -> list[Result]:
    """The rows of an earlier run, or none."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def scores(rows: Iterable[Result], method: str, rank: int, field: str = "accuracy") -> np.ndarray:
    """Accuracies over the splits, in per cent."""
    return 100 * np.asarray(
        [float(r[field]) for r in rows if (r["method"], int(r["rank"])) == (method, rank)]
    )


def spread(values: np.ndarray) -> str:
    """Mean and standard deviation, for the table; one value has none."""
    if values.size < 2:
        return f"{values[0]:.2f}" if values.size else ""
    return f"{values.mean():.2f} ± {values.std():.2f}"


def print_results(results: list[Result], paper: list[Result]) -> None:
    """Accuracy by rank and method, beside the paper's."""
    pairs = sorted({(METHODS.index(r["method"]), int(r["rank"])) for r in results})
    rows = []
    for place, rank in pairs:
        method = METHODS[place]
        ours = [r for r in results if (r["method"], int(r["rank"])) == (method, rank)]
        seconds = np.mean([float(r["seconds"]) for r in ours])
        both = [spread(scores(ours, method, rank, field)) for field in NUMBERS[:2]]
        # The paper counts its splits from one.
        splits = {int(r["split"]) + 1 for r in ours}
        theirs = [spread(scores(paper, method, rank))]
        same = [r for r in paper if int(r["split"]) in splits]
        theirs.append(spread(scores(same, method, rank)))
        rows.append((method, rank, len(ours), *both, *theirs, f"{seconds:.1f}"))
    print("Accuracy in per cent, mean and standard deviation over the splits: the training images")
    print("projected as the test images are, or as they were fitted.")
    head = ("method", "rank", "splits", "projected", "fitted", "paper, all", "paper, same splits")
    table((*head, "seconds a fit"), rows)


def draw_accuracy(results: list[Result], paper: list[Result]) -> Figure:
    """Accuracy against the rank: tensor methods left, matrix methods right, PCA in both."""
    figure = new_figure(8, 3.4)
    panels = figure.subplots(1, 2, sharey=True)
    sides = (("tensor factorisations", METHODS[:2]), ("matrix factorisations", METHODS[2:4]))
    for ax, (title, methods) in zip(panels, sides, strict=True):
        for method in (*methods, "PCA"):
            colour = COLOURS[METHODS.index(method)]
            for rows, style in ((paper, "--"), (results, "o-")):
                ranks = sorted({int(r["rank"]) for r in rows if r["method"] == method})
                if not ranks:
                    continue
                found = [scores(rows, method, rank) for rank in ranks]
                mean = np.asarray([v.mean() for v in found])
                deviation = np.asarray([v.std() for v in found])
                if rows is paper:
                    ax.plot(ranks, mean, style, color=colour, linewidth=1)
                    ax.fill_between(
                        ranks, mean - deviation, mean + deviation, color=colour, alpha=0.12
                    )
                else:
                    bars = {"capsize": 2, "markersize": 4, "label": method}
                    ax.errorbar(ranks, mean, deviation, fmt=style, color=colour, **bars)
        ax.set_title(title, loc="left")
        ax.set_xlabel("rank")
        ax.legend(frameon=False, loc="lower left")
        plain(ax)
    panels[0].set_ylabel("accuracy [%]")
    if paper:
        figure.supxlabel("points: wtfarray; dashed and shaded: the paper's runs", fontsize=9)
    return figure


def atoms_of(fit: wtf.Factorisation) -> np.ndarray:
    """Atoms as images, (rank, SIDE, SIDE)."""
    factors = [np.asarray(f) for f in fit.factors]
    if len(factors) == 2:
        return factors[1].T.reshape(-1, SIDE, SIDE)
    return np.einsum("ir,jr->rij", *factors[1:])


def clusters_of(atoms: np.ndarray, seed: int) -> list[np.ndarray]:
    """Superpositions of atoms that lie in the same place, by spectral clustering."""
    from sklearn.cluster import SpectralClustering

    flat = atoms.reshape(len(atoms), -1)
    flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    count = min(CLUSTERS, len(atoms) - 1)
    with quiet():
        labels = SpectralClustering(count, affinity="precomputed", random_state=seed).fit_predict(
            flat @ flat.T
        )
    return [atoms[labels == k] for k in range(count)]


def draw_atoms(folder: Path, ranks: list[int], split: int, seed: int) -> Figure | None:
    """Clusters of separable atoms at the middle rank, atoms of the matrices at the smallest."""
    middle, least = ranks[len(ranks) // 2], ranks[0]
    rows: list[tuple[str, list[np.ndarray], list[str]]] = []
    for method, rank in (("WTF", middle), ("F-CP", middle), ("WNMF", least), ("F-NMF", least)):
        path = folder / "fits" / f"{method}-{rank}-{split}.npz"
        if not path.exists():
            continue
        atoms = atoms_of(wtf.load(path))
        if "NMF" in method:
            rows.append((f"{method}, rank {rank}: atoms", list(atoms[:CLUSTERS]), []))
        else:
            groups = sorted(clusters_of(atoms, seed), key=len, reverse=True)
            title = f"{method}, rank {rank}: clusters of atoms and how many are in each"
            sums = [(g / g.sum((1, 2), keepdims=True)).sum(0) for g in groups]
            rows.append((title, sums, [str(len(g)) for g in groups]))
    if not rows:
        return None
    figure = new_figure(8, 1.3 * len(rows))
    for part, (title, images, notes) in zip(
        np.atleast_1d(figure.subfigures(len(rows), 1)), rows, strict=True
    ):
        part.suptitle(title, fontsize=9)
        strip(part, images, notes)
    return figure


def strip(part: Figure, images: list[np.ndarray], notes: list[str]) -> None:
    """A row of images."""
    panels = part.subplots(1, CLUSTERS)
    for ax in panels:
        ax.set_axis_off()
    for k, (ax, image) in enumerate(zip(panels, images, strict=False)):
        ax.imshow(image, cmap="gray", interpolation="nearest", vmin=0)
        if notes:
            ax.set_title(notes[k], fontsize=8, pad=2)


def draw_reconstructions(arguments: argparse.Namespace, split: int) -> Figure:
    """Some training images and what the methods make of them at the largest rank that was run."""
    from sklearn.decomposition import PCA

    images, _, pairs = load_data(arguments)
    X = images[pairs[split][0]]
    shown = list(range(0, len(X), len(X) // CLUSTERS))[:CLUSTERS]
    rows = {"data": X}
    for method in METHODS[:-1]:
        for rank in sorted(arguments.ranks, reverse=True):
            path = arguments.out / "fits" / f"{method}-{rank}-{split}.npz"
            if path.exists():
                fit = wtf.load(path)
                rows[f"{method}, rank {rank}"] = np.asarray(fit.to_tensor()).reshape(X.shape)
                break
    rank = max(arguments.ranks)
    flat = X.reshape(len(X), -1)
    pca = PCA(rank).fit(flat)
    rows[f"PCA, rank {rank}"] = pca.inverse_transform(pca.transform(flat)).reshape(X.shape)
    figure = new_figure(8, 1.15 * len(rows))
    for part, (title, tensor) in zip(figure.subfigures(len(rows), 1), rows.items(), strict=True):
        part.suptitle(title, fontsize=9)
        strip(part, [tensor[i] for i in shown], [])
    return figure


def time_reference(arguments: argparse.Namespace) -> None:
    """Run the paper's code on the first split at the first rank, as long as it is finite."""
    images, _, pairs = load_data(arguments)
    X, rank = images[pairs[0][0]], arguments.ranks[0]
    loss = wtf.Wasserstein(wtf.grid_cost(SIDE, SIDE), eps=EPS, lam=LAM)
    start = random_factors(X.shape, rank)
    checkout, sweeps = arguments.reference, arguments.sweeps
    for name, seconds, _ in reference(checkout, X, start, loss, 0.005 / rank, sweeps=sweeps):
        print(f"the paper's code, rank {rank}: {name}, {seconds:.1f} s", flush=True)


def main() -> None:
    """Run, print and draw."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, help="folder of olivetti.npz and the paper's splits")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(range(10, 101, 10)))
    parser.add_argument("--splits", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--tol", type=float, default=1e-4, help="of the Wasserstein fits")
    parser.add_argument("--max-iter", type=int, default=300)
    parser.add_argument("--eps", type=float, help=f"of the Wasserstein losses; {EPS} by default")
    parser.add_argument("--debias", action="store_true", help="debiased Wasserstein losses")
    parser.add_argument("--init", choices=("kl", "nnsvd", "random"), default="kl")
    parser.add_argument("--sweeps", type=int, default=1, help="of the paper's code")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.ranks, arguments.splits = arguments.ranks[:1], arguments.splits[:1]
    arguments.ranks = sorted(arguments.ranks)
    results = run_all(arguments)
    paper = []
    if arguments.data is not None and (arguments.data / "paper_faces_accuracy.csv").exists():
        paper = read_results(arguments.data / "paper_faces_accuracy.csv")
    print_results(results, paper)
    if arguments.reference is not None:
        time_reference(arguments)
    save(draw_accuracy(results, paper), arguments.out, "faces_accuracy.png")
    atoms = draw_atoms(arguments.out, arguments.ranks, arguments.splits[0], arguments.seed)
    if atoms is not None:
        save(atoms, arguments.out, "faces_atoms.png")
    figure = draw_reconstructions(arguments, arguments.splits[0])
    save(figure, arguments.out, "faces_reconstructions.png")


if __name__ == "__main__":
    main()
