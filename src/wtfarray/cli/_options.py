"""Options of the commands: how they are parsed, and the loss that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import wtfarray as wtf
from wtfarray.cli import _data

TOL_HELP = "Tolerance on the relative decrease of the objective."


def sizes(separator: str) -> Any:
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


def numbers(ctx: Any, param: Any, value: str | None) -> float | tuple[float, ...] | None:
    """Parse a number, or several numbers separated by commas."""
    if value is None:
        return None
    try:
        found = tuple(float(part) for part in value.split(","))
    except ValueError:
        msg = f"{value!r}: expected numbers, separated by ','."
        raise click.BadParameter(msg, ctx, param) from None
    return found if len(found) > 1 else found[0]


def data_options(command: Any) -> Any:
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


def is_default(option: str) -> bool:
    """Whether an option was not given."""
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.DEFAULT


def chosen_loss(
    name: str,
    shape: tuple[int, ...],
    grid: tuple[int, ...] | None,
    cost: Path | None,
    reach: float | tuple[float, ...] | None,
    eps: float,
    lam: float,
    **options: Any,
) -> wtf.Loss:
    """The loss that the options of `fit` name, for data of this shape."""
    if name != "wasserstein":
        for option in ("cost", "reach", "eps", "lam", *options):
            if not is_default(option):
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
