"""What the commands write: fits, coefficients, tables and figures, and what they show."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import wtfarray as wtf
from wtfarray._fit.storage import replace_file, try_to_write
from wtfarray.cli._group import EXPECTED, say
from wtfarray.cli._tables import factor_tables, write_table


def check_outputs(
    out: Path, checkpoint: Path | None, figure: Path | None, tables: Path | None
) -> None:
    """Refuse files that cannot be written, before the fit."""
    check_output("--out", out, [".npz"])
    check_output("--checkpoint", checkpoint, [".npz"])
    if figure is not None:
        check_output("--plot", figure, figure_suffixes())
    if tables is not None:
        tables.mkdir(parents=True, exist_ok=True)
        check_output("--csv", tables / "factor_0.csv", [".csv"])


def show(rows: Table) -> bool:
    """Print a table; returns whether stdout could be written to."""
    try:
        Console().print(rows)
    except OSError as error:
        say(f"the table cannot be shown: {error.strerror or error}")
        # Otherwise Python would fail to flush the buffer again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def write_fit(
    result: wtf.Factorisation, out: Path, figure: Path | None, tables: Path | None
) -> tuple[list[Path], list[Path | None]]:
    """The files that were asked for, and those that were written in their place."""
    asked, written = [out], [write_output(out, result.save)]
    if figure is not None:
        asked.append(figure)
        written.append(_draw(result, figure))
    for name, table_of in factor_tables(result).items() if tables is not None else ():
        assert tables is not None
        asked.append(tables / name)
        write = partial(_write_table, table_of)
        written.append(write_output(tables / name, write))
    return asked, written


def figure_suffixes() -> list[str]:
    """Suffixes of the figures that Matplotlib can write."""
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
        return write_output(path, partial(_draw_atoms, result))
    except EXPECTED as error:
        say(f"{path} cannot be drawn: {error}")
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


def _write_table(table_of: tuple[Any, ...], path: Path) -> None:
    write_table(path, *table_of)


def write_coefficients(coefficients: NDArray[Any], samples: wtf.Axis, path: Path) -> None:
    """Write coefficients to an ``.npy`` file or, with the labels of the samples, to a table."""

    def write(part: Path) -> None:
        with part.open("wb") as stream:
            np.save(stream, coefficients)

    if path.suffix.lower() == ".csv":
        named = samples if samples.name else wtf.Axis("sample", samples.values, samples.unit)
        write_table(path, coefficients, [0], [named], [len(coefficients)])
    else:
        replace_file(path, write)


def check_output(name: str, path: Path | None, suffixes: Sequence[str]) -> None:
    """Refuse an output file that cannot be written, before the fit."""
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        msg = f"{name} is {path}: expected a file with suffix {' or '.join(suffixes)}"
        raise ValueError(msg)
    folder = path.absolute().parent
    if not folder.is_dir():
        msg = f"{name} is {path}, but folder {path.parent} does not exist"
        raise ValueError(msg)
    try:
        try_to_write(path)
    except OSError as error:
        msg = f"{name} is {path}, but the folder is not writable: {error.strerror or error}"
        raise ValueError(msg) from None


def write_output(path: Path, write: Callable[[Path], object]) -> Path | None:
    """
    Write a result, to a temporary folder if the requested place cannot be written to.

    Then a message says which file was written instead.

    Parameters
    ----------
    path : Path
        The requested file.
    write : callable
        Writes the result to a path.

    Returns
    -------
    Path or None
        The file that was written; None if there is none.
    """
    try:
        write(path)
    except OSError as error:
        cause = error.strerror or str(error)
    else:
        return path
    for folder in _other_folders():
        try:
            elsewhere = Path(tempfile.mkdtemp(prefix="wtfarray-unwritten-", dir=folder))
        except OSError:
            continue
        try:
            write(elsewhere / path.name)
        except OSError:
            with suppress(OSError):
                elsewhere.rmdir()
            continue
        say(f"{path} cannot be written: {cause}; written to {elsewhere / path.name} instead")
        return elsewhere / path.name
    say(f"{path} cannot be written: {cause}; neither can other folders, the result is lost")
    return None


def _other_folders() -> list[Path]:
    """The folders that are tried if the requested one cannot be written to."""
    folders: list[Path] = []
    with suppress(OSError):  # there is none
        folders.append(Path(tempfile.gettempdir()))
    with suppress(OSError, RuntimeError):
        folders.append(Path.home())
    with suppress(OSError):
        folders.append(Path.cwd())
    return folders
