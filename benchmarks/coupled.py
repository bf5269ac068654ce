"""
Two modalities of the same cells, factorised together: `wtfarray.coupled`, beside Mowgli.

Mowgli (Huizing, Deutschmann, Peyre and Cantini 2023) minimises the same objective, balanced
transport in every modality and entropies of coefficients and atoms, block by block in the dual. Run
with ``python benchmarks/coupled.py --reference PATH``, where PATH holds the package ``mowgli``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import math
import sys
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import wtfarray as wtf

Array = np.ndarray


@dataclass(frozen=True)
class Settings:
    """The rank, and the parameters by the names and with the defaults of Mowgli."""

    rank: int
    w_regularization: float = 1e-3
    h_regularization: float = 1e-2
    eps: float = 5e-2


def paired_data(cells: int, sizes: tuple[int, ...], kinds: int, seed: int) -> list[Array]:
    """Counts of two modalities of mixtures of cell types, each cell divided by its sum."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(kinds, 0.3), cells)
    data = []
    for size in sizes:
        profiles = rng.dirichlet(np.full(size, 0.2), kinds)
        counts = rng.poisson(2000.0 * shares @ profiles).astype(float) + 1e-6
        data.append(counts / counts.sum(axis=1, keepdims=True))
    return data


def problem(
    data: list[Array], settings: Settings
) -> tuple[list[Array], list[wtf.Wasserstein], list[float]]:
    """Cosine costs with maximum one, balanced losses, and the weights of the entropies."""
    costs = [np.asarray(wtf.feature_cost(X, metric="cosine")) for X in data]
    costs = [cost / cost.max() for cost in costs]
    losses = [wtf.Wasserstein(cost, eps=settings.eps) for cost in costs]
    n, rank = data[0].shape[0], settings.rank
    # Mowgli's objective times the number of cells, as a sum over them.
    rho = [len(data) * settings.w_regularization / math.log(rank)]
    rho += [n * settings.h_regularization / (rank * math.log(X.shape[1])) for X in data]
    return costs, losses, rho


def objective(
    data: list[Array], losses: list[wtf.Wasserstein], rho: list[float], blocks: list[Array]
) -> float:
    """The objective from its definition, each loss solved again on its own."""
    total = 0.0
    for X, loss, atoms in zip(data, losses, blocks[1:], strict=True):
        Y = blocks[0] @ atoms.T
        Y = Y / Y.sum(axis=1, keepdims=True)
        total += float(wtf.wasserstein(X, Y, loss, tol=1e-6, max_iter=5000).value)
    for weight, block in zip(rho, blocks, strict=True):
        total += weight * float(wtf.entropy(block)[0])
    return total


def run_coupled(
    data: list[Array], settings: Settings, clock: Callable[[], float]
) -> tuple[wtf.CoupledFactorisation, list[tuple[float, float]], float]:
    """The fit, its objective against time, and the time of the whole."""
    _, losses, rho = problem(data, settings)
    steps: list[tuple[float, float]] = []
    begin = clock()

    def record(state: wtf.FitState) -> None:
        if state.level == 1.0:
            steps.append((clock() - begin, state.objective))

    fit = wtf.coupled(data, settings.rank, losses, rho=rho, rng=0, callback=record)
    return fit, steps, clock() - begin


def import_mowgli(folder: Path) -> types.ModuleType:
    """Its module of models alone; the rest of it needs packages that play no part here."""
    package = types.ModuleType("mowgli")
    package.__path__ = [str(folder / "mowgli")]
    sys.modules["mowgli"] = package
    if importlib.util.find_spec("mudata") is None:
        sys.modules["mudata"] = types.SimpleNamespace(MuData=object)  # type: ignore[assignment]
    return importlib.import_module("mowgli.models")


def run_mowgli(
    folder: Path,
    data: list[Array],
    settings: Settings,
    sweeps: int,
    clock: Callable[[], float],
) -> list[tuple[float, list[Array]]]:
    """The blocks of Mowgli after every update, with the seconds until then."""
    import torch

    models, names = import_mowgli(folder), [f"modality {k}" for k in range(len(data))]
    costs, _, _ = problem(data, settings)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        paths = {name: Path(temporary, f"{k}.npy") for k, name in enumerate(names)}
        for cost, path in zip(costs, paths.values(), strict=True):
            np.save(path, cost)
        model = models.MowgliModel(
            latent_dim=settings.rank,
            eps=settings.eps,
            w_regularization=settings.w_regularization,
            h_regularization=settings.h_regularization,
            cost_path={name: str(path) for name, path in paths.items()},
        )
        cells = _Cells(dict(zip(names, data, strict=True)))
        steps: list[tuple[float, list[Array]]] = []
        total, spent, begin = model.total_dual_loss, 0.0, clock()

        def record() -> object:
            nonlocal spent, begin
            spent += clock() - begin
            blocks = [model.W.T, *(model.H[name] for name in names)]
            steps.append((spent, [block.cpu().numpy().copy() for block in blocks]))
            value = total()
            begin = clock()
            return value

        model.total_dual_loss = record
        with contextlib.redirect_stderr(io.StringIO()):
            model.train(cells, max_iter=sweeps)
    return steps


class _Column:
    """A column of all True, as pandas would give it."""

    def __init__(self, size: int) -> None:
        self._size = size

    def to_numpy(self) -> Array:
        return np.ones(self._size, dtype=bool)


class _Modality:
    """What Mowgli asks of an AnnData."""

    def __init__(self, X: Array) -> None:
        self.X = X
        self.var = {"highly_variable": _Column(X.shape[1])}
        self.uns: dict[str, Array] = {}


class _Cells(dict[str, _Modality]):
    """What Mowgli asks of a MuData."""

    def __init__(self, data: dict[str, Array]) -> None:
        super().__init__({name: _Modality(X) for name, X in data.items()})
        self.mod = self
        self.n_mod = len(data)
        self.n_obs = next(iter(data.values())).shape[0]
        self.uns: dict[str, Array] = {}
        self.obsm: dict[str, Array] = {}


def main() -> None:
    """Fit, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--features", type=int, nargs=2, default=(300, 260))
    parser.add_argument("--rank", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sweeps", type=int, default=20, help="most sweeps of Mowgli")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--w", type=float, default=1e-3, help="entropy of the coefficients")
    parser.add_argument("--atoms", type=float, default=1e-2, help="entropy of the atoms")
    parser.add_argument("--quick", action="store_true", help="small data, to try the script")
    parser.add_argument("--reference", type=Path, help="folder with the package mowgli")
    arguments = parser.parse_args()
    cells, sizes = arguments.cells, tuple(arguments.features)
    if arguments.quick:
        cells, sizes = 40, (20, 12)
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    data = paired_data(cells, sizes, arguments.rank, arguments.seed)
    settings = Settings(arguments.rank, arguments.w, arguments.atoms)
    _, losses, rho = problem(data, settings)
    fit, steps, seconds = run_coupled(data, settings, clock)
    coefficients, atoms = fit
    own = objective(data, losses, rho, [coefficients, *atoms])
    print(f"{cells} cells, {' and '.join(map(str, sizes))} features, rank {arguments.rank}")
    print("| method | J | seconds | seconds to Mowgli's best J |")
    print("|---|---:|---:|---:|")
    if arguments.reference is None:
        print(f"| coupled | {own:.6g} | {seconds:.2f} | needs --reference |")
        return
    found = run_mowgli(arguments.reference, data, settings, arguments.sweeps, clock)
    values = [(spent, objective(data, losses, rho, blocks)) for spent, blocks in found]
    when, best = min(values, key=lambda value: value[1])
    reached = next((t for t, value in steps if value <= best), math.nan)
    print(f"| coupled | {own:.6g} | {seconds:.2f} | {reached:.2f} |")
    print(f"| Mowgli, {len(values) // 2} sweeps | {best:.6g} | {values[-1][0]:.2f} | {when:.2f} |")


if __name__ == "__main__":
    main()
