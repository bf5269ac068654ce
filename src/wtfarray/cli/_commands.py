"""The commands ``fit``, ``project``, ``info`` and ``demo``."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import wtfarray as wtf
from wtfarray._arrays.axes import check_all_labels
from wtfarray._arrays.host import to_host
from wtfarray._fit.storage import replace_file
from wtfarray.cli import _data
from wtfarray.cli._report import Watch, summary, table
from wtfarray.cli._stored import SamplesInFile
from wtfarray.cli._tables import factor_tables, write_table
from wtfarray.distributed import gather

CONVERGED, BAD_INPUT, NOT_CONVERGED, NOT_WRITTEN, INTERRUPTED = 0, 2, 3, 4, 130
EXIT_CODES = """
Exit codes: 0 converged or done; 2 bad input or a missing package, nothing was computed; 3 not
converged, the result was written; 4 computed, but an output could not be written where it was asked
for, stderr says where it is instead; 130 interrupted, the factors found so far were written.
"""
TOL_HELP = "Tolerance on the relative decrease of the objective."
EXPECTED = (OSError, ValueError, TypeError, ImportError, MemoryError, RuntimeError)
"""Errors that are reported in one line, without a traceback."""


class CommandGroup(click.Group):
    """A group that prints errors as one line on stderr; commands return their exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run and exit."""
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = BAD_INPUT
        except click.UsageError as error:
            where = "wtfarray" if error.ctx is None else error.ctx.command_path
            code = _print_error(f"{error.format_message()} See {where} --help.")
        except click.ClickException as error:
            code = _print_error(error.format_message())
        except click.Abort:
            _print_error("interrupted, nothing was written")
            code = INTERRUPTED
        except EXPECTED as error:
            code = _print_error(str(error) or type(error).__name__)
        sys.exit(code)


def _print_error(message: str) -> int:
    _say(" ".join(message.split()))
    return BAD_INPUT


def _say(message: str) -> None:
    with suppress(OSError):  # the exit code does not depend on stderr
        click.echo(f"wtfarray: {message}", err=True)


def _sizes(separator: str) -> Any:
    """A callback that parses positive integers with a separator between them."""

    def read(ctx: Any, param: Any, value: str | None) -> tuple[int, ...] | None:
        if value is None:
            return None
        parts = value.split(separator)
        if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            msg = f"{value!r}: expected positive integers, separated by {separator!r}."
            raise click.BadParameter(msg, ctx, param)
        return tuple(int(part) for part in parts)

    return read


def _numbers(ctx: Any, param: Any, value: str | None) -> float | tuple[float, ...] | None:
    """Parse a number, or several numbers separated by commas."""
    if value is None:
        return None
    try:
        numbers = tuple(float(part) for part in value.split(","))
    except ValueError:
        msg = f"{value!r}: expected numbers, separated by ','."
        raise click.BadParameter(msg, ctx, param) from None
    return numbers if len(numbers) > 1 else numbers[0]


def _data_options(command: Any) -> Any:
    """Add the options for the data and the array library."""
    path = click.Path(path_type=Path, exists=True)
    for option in (
        click.option("--quiet", "-q", is_flag=True, help="Print no progress and no table."),
        click.option("--dtype", type=click.Choice(["float64", "float32"]), default="float64"),
        click.option("--device", metavar="NAME", help="Device of the backend, for example cuda."),
        click.option("--backend", type=click.Choice(_data.BACKENDS), default="numpy"),
        click.option("--normalise", is_flag=True, help="Divide every sample by its sum."),
        click.option("--key", metavar="NAME", help="Name of the array in an .npz or .mat file."),
        click.option(
            "--missing",
            type=float,
            metavar="VALUE",
            help="Value of missing entries: a number, or nan, which empty fields of a table and "
            "transparent pixels of images are as well.",
        ),
        click.argument("data", type=path),
    ):
        command = option(command)
    return command


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
@_data_options
@click.option("--rank", required=True, callback=_sizes(","), help="Such as 5; for tucker 3,4,4.")
@click.option("--model", type=click.Choice(["cp", "nmf", "tucker"]), default="cp")
@click.option(
    "--loss", type=click.Choice(["wasserstein", "frobenius", "kl"]), default="wasserstein"
)
@click.option(
    "--grid",
    callback=_sizes("x"),
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
    callback=_numbers,
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
    "--rho", callback=_numbers, help="Weight of the entropies; by default small beside the loss."
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
    _check_outputs(out, options["checkpoint"], figure, tables)
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
    chosen = _loss(loss, shape, grid, cost, reach, eps, lam, debias=debias, source_lam=source_lam)
    if is_online:
        max_iter = 1 if _is_default("max_iter") else max_iter
        options |= {"tol": 1e-2} if _is_default("tol") else {}
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
        warnings.showwarning = lambda message, *_, **__: _say(str(message))
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
    asked, written = _written(result, out, figure, tables)
    whole = written == asked
    if not quiet:
        whole &= _show(summary(result, *filter(None, written)))
    if interrupted and written[0] is not None:
        advice = _how_to_continue(options["checkpoint"], options["solver"], written[0])
        _say(f"interrupted; {advice}")
    if not whole:
        return NOT_WRITTEN
    if interrupted:
        return INTERRUPTED
    return CONVERGED if result.converged else NOT_CONVERGED


def _written(
    result: wtf.Factorisation, out: Path, figure: Path | None, tables: Path | None
) -> tuple[list[Path], list[Path | None]]:
    """The files that were asked for, and those that were written in their place."""
    asked, written = [out], [_data.write_output(out, result.save, _say)]
    if figure is not None:
        asked.append(figure)
        written.append(_draw(result, figure))
    for name, table_of in factor_tables(result).items() if tables is not None else ():
        assert tables is not None
        asked.append(tables / name)
        write = partial(_write_table, table_of)
        written.append(_data.write_output(tables / name, write, _say))
    return asked, written


def _is_default(option: str) -> bool:
    """Whether an option was not given."""
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.DEFAULT


def _check_outputs(
    out: Path, checkpoint: Path | None, figure: Path | None, tables: Path | None
) -> None:
    """Refuse files that cannot be written, before the fit."""
    _data.check_output("--out", out, [".npz"])
    _data.check_output("--checkpoint", checkpoint, [".npz"])
    if figure is not None:
        _data.check_output("--plot", figure, _figure_suffixes())
    if tables is not None:
        tables.mkdir(parents=True, exist_ok=True)
        _data.check_output("--csv", tables / "factor_0.csv", [".csv"])


def _show(rows: Table) -> bool:
    """Print a table; returns whether stdout could be written to."""
    try:
        Console().print(rows)
    except OSError as error:
        _say(f"the table cannot be shown: {error.strerror or error}")
        # Otherwise Python would fail to flush the buffer again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _loss(
    name: str,
    shape: tuple[int, ...],
    grid: tuple[int, ...] | None,
    cost: Path | None,
    reach: float | tuple[float, ...] | None,
    eps: float,
    lam: float,
    **options: Any,
) -> wtf.Loss:
    if name != "wasserstein":
        for option in ("cost", "reach", "eps", "lam", *options):
            if not _is_default(option):
                given = option.replace("_", "-")
                msg = f"--{given} was given with --loss {name}: expected --loss wasserstein"
                raise ValueError(msg)
        return wtf.Frobenius() if name == "frobenius" else wtf.KullbackLeibler()
    if len(shape) < 2 and grid is None:
        msg = f"the data have shape {shape}: expected samples and at least one more mode"
        raise ValueError(msg)
    if cost is None:
        return wtf.Wasserstein(
            wtf.grid_cost(*(grid or shape[1:]), reach=reach), eps, lam, **options
        )
    if reach is not None:
        msg = "--reach was given with --cost, a matrix: expected inf in that matrix, or no --cost"
        raise ValueError(msg)
    matrix = _data.read_array(cost, None, None)
    modes = (tuple(range(1, len(shape))),)
    return wtf.Wasserstein(matrix, eps, lam, modes=modes, **options)


def _how_to_continue(checkpoint: Path | None, solver: str, out: Path) -> str:
    if checkpoint is not None and checkpoint.exists():
        return "the same command continues from the checkpoint"
    advice = f"to continue from these factors, add --init {out}"
    return advice if solver == "dual" else f"{advice}; to save the whole state, use --checkpoint"


def _figure_suffixes() -> list[str]:
    try:
        import matplotlib as mpl
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        msg = "figures need Matplotlib: pip install 'wtfarray[plot]'"
        raise ImportError(msg) from None
    mpl.use("Agg")  # opens no window
    return [f".{suffix}" for suffix in FigureCanvasBase.get_supported_filetypes()]


def _draw(result: wtf.Factorisation, path: Path) -> Path | None:
    """Save a figure of the atoms and return its path; errors are printed."""
    try:
        return _data.write_output(path, partial(_draw_atoms, result), _say)
    except EXPECTED as error:
        _say(f"{path} cannot be drawn: {error}")
        return None


def _draw_atoms(result: wtf.Factorisation, path: Path) -> None:
    """Save a figure of the atoms, with one panel per factor if they have more than two modes."""
    from matplotlib import pyplot as plt

    from wtfarray import plot

    few = len(result.shape) in (2, 3)
    figure: Any = plot.atoms(result).figure if few else plot.factors(result)[0].figure
    try:
        replace_file(path, partial(figure.savefig, dpi=150, format=path.suffix[1:].lower()))
    finally:
        plt.close(figure)


@command.command(epilog=EXIT_CODES)
@click.argument("fitted", metavar="FIT", type=click.Path(path_type=Path, exists=True))
@_data_options
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
    _data.check_output("--out", out, [".npy", ".csv"])
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
    write = partial(_write_coefficients, coefficients, samples)
    written = _data.write_output(out, write, _say)
    whole = written == out
    if not quiet:
        rows = [("samples", str(coefficients.shape[0])), ("atoms", str(coefficients.shape[1]))]
        rows += [] if written is None else [("written", str(written))]
        whole &= _show(table(rows))
    for warning in caught:
        _say(str(warning.message))
    if not whole:
        return NOT_WRITTEN
    if projected.stopped:
        return INTERRUPTED
    return CONVERGED if projected.converged else NOT_CONVERGED


def _write_table(table_of: tuple[Any, ...], path: Path) -> None:
    write_table(path, *table_of)


def _write_coefficients(coefficients: NDArray[Any], samples: wtf.Axis, path: Path) -> None:
    def write(part: Path) -> None:
        with part.open("wb") as stream:
            np.save(stream, coefficients)

    if path.suffix.lower() == ".csv":
        named = samples if samples.name else wtf.Axis("sample", samples.values, samples.unit)
        write_table(path, coefficients, [0], [named], [len(coefficients)])
    else:
        replace_file(path, write)


@command.command()
@click.argument("fitted", metavar="FIT", type=click.Path(path_type=Path, exists=True))
def info(fitted: Path) -> int:
    """Summarise FIT, a file written by `wtfarray fit`."""
    return CONVERGED if _show(summary(_data.read_fit(fitted))) else NOT_WRITTEN


@command.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("demo.png"),
    help="File for the figure.",
)
def demo(out: Path) -> int:
    """Fit images of displaced sources with two losses, and plot the atoms."""
    _data.check_output("--out", out, _figure_suffixes())
    from wtfarray.cli import _demo

    written = _demo.run(
        out,
        click.echo,
        progress=importlib.util.find_spec("tqdm") is not None,
        save=lambda path, save: _data.write_output(path, save, _say),
    )
    return CONVERGED if written == out else NOT_WRITTEN
