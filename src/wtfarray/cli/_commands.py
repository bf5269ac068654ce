"""The commands ``fit``, ``project``, ``info`` and ``demo``."""

from __future__ import annotations

import importlib.util
import math
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import wtfarray as wtf
from wtfarray._arrays.axes import check_all_labels
from wtfarray._arrays.host import to_host
from wtfarray.cli import _data
from wtfarray.cli._group import (
    CONVERGED,
    EXIT_CODES,
    INTERRUPTED,
    NOT_CONVERGED,
    NOT_WRITTEN,
    CommandGroup,
    say,
)
from wtfarray.cli._options import (
    TOL_HELP,
    chosen_loss,
    data_options,
    is_default,
    numbers,
    sizes,
)
from wtfarray.cli._outputs import (
    check_output,
    check_outputs,
    figure_suffixes,
    show,
    write_coefficients,
    write_fit,
    write_output,
)
from wtfarray.cli._report import Watch, summary, table
from wtfarray.cli._stored import SamplesInFile
from wtfarray.distributed import gather


@click.group(
    cls=CommandGroup,
    no_args_is_help=True,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(wtf.__version__, prog_name="wtfarray")
def command() -> None:
    """Factorise non-negative matrices and tensors with a smoothed Wasserstein loss."""


@command.command(epilog=EXIT_CODES)
@data_options
@click.option("--rank", required=True, callback=sizes(","), help="Such as 5; for tucker 3,4,4.")
@click.option("--model", type=click.Choice(["cp", "nmf", "tucker"]), default="cp")
@click.option(
    "--loss", type=click.Choice(["wasserstein", "frobenius", "kl"]), default="wasserstein"
)
@click.option(
    "--grid",
    callback=sizes("x"),
    metavar="AxB",
    help="The grid of the last modes; rows of a table are reshaped to it. By default all modes but "
    "the first.",
)
@click.option(
    "--cost",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with a square matrix of costs between all features, instead of a grid.",
)
@click.option(
    "--reach",
    callback=numbers,
    metavar="D",
    help="Largest distance of transport on the grid, in bins, or one per axis, such as 50,inf.",
)
@click.option("--eps", type=float, default=1e-2, help="Smoothing of the loss.")
@click.option(
    "--lam",
    type=float,
    default=10.0,
    help="Cost per unit of mass that is created or destroyed; inf: balanced.",
)
@click.option(
    "--source-lam",
    type=float,
    default=math.inf,
    help="Cost per unit of mass of the data that is left behind; inf: none is.",
)
@click.option("--debias", is_flag=True, help="Without the blur of the smoothing: see the docs.")
@click.option(
    "--rho", callback=numbers, help="Weight of the entropies; by default small beside the loss."
)
@click.option(
    "--solver",
    type=click.Choice(["envelope", "dual", "online"]),
    default="envelope",
    help="online: passes over small batches of very many samples.",
)
@click.option("--tol", type=float, default=1e-6, help=f"{TOL_HELP} For online, 1e-2 by default.")
@click.option(
    "--max-iter",
    type=click.IntRange(min=1),
    default=300,
    help="Largest number of iterations; of passes for online, 1 by default.",
)
@click.option(
    "--chunk",
    type=click.IntRange(min=1),
    help="Samples of DATA, an .npy file, that are read at once, if it is larger than memory.",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder for temporary files of a few times the size of DATA, with --chunk.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the initialisation.")
@click.option(
    "--init",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Saved fit for the initialisation.",
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the state of the fit; if it exists, the fit continues from it.",
)
@click.option(
    "--comm",
    "launcher",
    type=click.Choice(["mpi", "torch"]),
    help="Fit together with the other processes of mpiexec or torchrun: each reads some rows of "
    "DATA, an .npy file, and the first one writes the result.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("fit.npz"),
    help="File for the fit.",
)
@click.option(
    "--csv",
    "tables",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the factors as CSV files, with the labels of the data.",
)
@click.option(
    "--plot",
    "figure",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for a figure of the atoms, such as atoms.png.",
)
def fit(
    data: Path,
    rank: tuple[int, ...],
    model: str,
    loss: str,
    grid: tuple[int, ...] | None,
    cost: Path | None,
    reach: float | tuple[float, ...] | None,
    eps: float,
    lam: float,
    source_lam: float,
    out: Path,
    tables: Path | None,
    figure: Path | None,
    key: str | None,
    missing: float | None,
    backend: str,
    device: str | None,
    dtype: str,
    init: Path | None,
    seed: int,
    max_iter: int,
    launcher: str | None,
    chunk: int | None,
    scratch: Path | None,
    *,
    debias: bool,
    normalise: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Fit DATA, an .npy, .npz, .csv or .mat file or a folder of images; samples come first."""
    check_outputs(out, options["checkpoint"], figure, tables)
    comm = _data.team(launcher)
    is_online = options["solver"] == "online"
    library = (backend, device, dtype)
    converted: Any
    mask: Any
    if chunk is not None or (is_online and data.suffix.lower() == ".npy"):
        converted = SamplesInFile(data, grid, missing, *library, comm, normalise=normalise)
        mask = converted.mask()
    else:
        X = _data.read_samples(data, key, grid, comm, gaps=missing is not None)
        X = _data.on_grid(X, grid)
        mask = _data.observed(X, missing)
        X = _data.normalised(X, mask) if normalise else X
        converted = _data.to_backend(X, *library)
    shape = tuple(converted.shape)
    chosen = chosen_loss(
        loss, shape, grid, cost, reach, eps, lam, debias=debias, source_lam=source_lam
    )
    if is_online:
        max_iter = 1 if is_default("max_iter") else max_iter
        options |= {"tol": 1e-2} if is_default("tol") else {}
    options |= {
        "axes": _data.read_axes(data, shape),
        "mask": mask,
        "chunk": chunk,
        "scratch": scratch,
        "rng": seed,
        "max_iter": max_iter,
        "init": init and _data.read_fit(init),
        "comm": comm,
    }
    quiet = quiet or (comm is not None and comm.rank > 0)
    solve: Any = {"cp": wtf.cp, "nmf": wtf.nmf, "tucker": wtf.tucker}[model]
    size: object = rank if model == "tucker" or len(rank) > 1 else rank[0]
    screen = Console(stderr=True)
    with (
        Watch(
            screen,
            f"{model}, rank {','.join(map(str, rank))}",
            None if is_online else max_iter,
            visible=not quiet,
        ) as w,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)  # the table shows the message
        warnings.filterwarnings("always", "checkpoint ", UserWarning)
        warnings.showwarning = lambda message, *_, **__: say(str(message))
        result: wtf.Factorisation = solve(converted, size, chosen, callback=w.step, **options)
    # After a Ctrl-C in the last step, the fit may have converged all the same.
    interrupted = w.interrupted and not result.converged
    if interrupted:
        why = result.message.replace("stopped by the callback", "interrupted: the best so far")
        result = replace(result, message=why)
    whole_fit = result if comm is None else gather(result, comm)
    if whole_fit is None:
        return CONVERGED  # rank 0 has all of it
    result = whole_fit
    asked, written = write_fit(result, out, figure, tables)
    whole = written == asked
    if not quiet:
        whole &= show(summary(result, *filter(None, written)))
    if interrupted and written[0] is not None:
        advice = _how_to_continue(options["checkpoint"], options["solver"], written[0])
        say(f"interrupted; {advice}")
    if not whole:
        return NOT_WRITTEN
    if interrupted:
        return INTERRUPTED
    return CONVERGED if result.converged else NOT_CONVERGED


def _how_to_continue(checkpoint: Path | None, solver: str, out: Path) -> str:
    if checkpoint is not None and checkpoint.exists():
        return "the same command continues from the checkpoint"
    advice = f"to continue from these factors, add --init {out}"
    return advice if solver == "dual" else f"{advice}; to save the whole state, use --checkpoint"


@command.command(epilog=EXIT_CODES)
@click.argument("fitted", metavar="FIT", type=click.Path(path_type=Path, exists=True))
@data_options
@click.option("--tol", type=float, default=1e-9, help=TOL_HELP)
@click.option("--max-iter", type=click.IntRange(min=1), default=1000)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("coefficients.npy"),
    help="File for the coefficients, .npy or .csv.",
)
def project(
    fitted: Path,
    data: Path,
    key: str | None,
    missing: float | None,
    backend: str,
    device: str | None,
    dtype: str,
    out: Path,
    *,
    normalise: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Project the samples of DATA onto the atoms of FIT, a file written by `wtfarray fit`."""
    check_output("--out", out, [".npy", ".csv"])
    saved = _data.read_fit(fitted)
    grid = saved.shape[1:]
    X = _data.read_array(data, key, grid, gaps=missing is not None)
    if X.shape[1:] != grid and X.ndim == 2 and X.shape[1] == math.prod(grid):
        X = X.reshape(-1, *grid)
    axes = _data.read_axes(data, X.shape)
    if axes is not None and X.ndim == len(saved.shape):
        check_all_labels(str(data), axes[1:], saved.axes[1:], "the fit", first=1)
    mask = _data.observed(X, missing)
    X = _data.normalised(X, mask) if normalise else X
    screen = Console(stderr=True, quiet=quiet)
    with warnings.catch_warnings(record=True) as caught, screen.status("projecting"):
        warnings.simplefilter("always")
        converted = _data.to_backend(X, backend, device, dtype)
        projected = saved.projection(converted, mask=mask, **options)
    coefficients = to_host(projected.factors[0])
    samples = projected.axis(0) if axes is None else axes[0]
    write = partial(write_coefficients, coefficients, samples)
    written = write_output(out, write)
    whole = written == out
    if not quiet:
        rows = [("samples", str(coefficients.shape[0])), ("atoms", str(coefficients.shape[1]))]
        rows += [] if written is None else [("written", str(written))]
        whole &= show(table(rows))
    for warning in caught:
        say(str(warning.message))
    if not whole:
        return NOT_WRITTEN
    if projected.stopped:
        return INTERRUPTED
    return CONVERGED if projected.converged else NOT_CONVERGED


@command.command()
@click.argument("fitted", metavar="FIT", type=click.Path(path_type=Path, exists=True))
def info(fitted: Path) -> int:
    """Summarise FIT, a file written by `wtfarray fit`."""
    return CONVERGED if show(summary(_data.read_fit(fitted))) else NOT_WRITTEN


@command.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("demo.png"),
    help="File for the figure.",
)
def demo(out: Path) -> int:
    """Fit images of displaced sources with two losses, and plot the atoms."""
    check_output("--out", out, figure_suffixes())
    from wtfarray.cli import _demo

    written = _demo.run(
        out,
        click.echo,
        progress=importlib.util.find_spec("tqdm") is not None,
        save=write_output,
    )
    return CONVERGED if written == out else NOT_WRITTEN
