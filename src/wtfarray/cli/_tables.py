"""CSV files of the command line: numbers with the names of rows and columns."""

from __future__ import annotations

import csv
import itertools
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import wtfarray as wtf
from wtfarray._arrays.host import to_host
from wtfarray._arrays.typing import Array
from wtfarray._fit.storage import replace_file

ENCODING = "utf-8-sig"
"""Skips the byte order mark that spreadsheets write."""


def read_table(path: Path, *, missing: bool = False) -> tuple[NDArray[Any], tuple[wtf.Axis, ...]]:
    """
    The numbers of a CSV file, and the labels of its rows and columns.

    The first line is a header if its first field is no number. The first column then names the
    rows if that field is empty, or if the column does not hold numbers. With ``missing``, a field
    may be empty or NA, which is NaN.
    """
    try:
        return _read_table(path, missing=missing)
    except ValueError as error:
        if missing or not any(f"string {gap!r}" in str(error) for gap in ("", "NA")):
            raise
        msg = f"{error}: expected numbers; --missing nan takes empty fields and NA as missing"
        raise ValueError(msg) from None


def _read_table(path: Path, *, missing: bool) -> tuple[NDArray[Any], tuple[wtf.Axis, ...]]:
    """The numbers and labels of a table, see `read_table`."""
    with path.open(encoding=ENCODING, newline="") as file:
        first, second = itertools.islice(itertools.chain(csv.reader(file), [[], []]), 2)
    header = bool(first) and not _is_number(first[0])
    named = header and bool(second) and (first[0] == "" or not _is_number(second[0]))
    if not named:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty file is refused later
            values = np.loadtxt(
                path,
                delimiter=",",
                ndmin=2,
                skiprows=int(header),
                encoding=ENCODING,
                converters=_number_or_nan if missing else None,
            )
        fits = header and len(first) == values.shape[1]
        return values, (wtf.Axis(), wtf.Axis(values=_labels(first))) if fits else ()
    with path.open(encoding=ENCODING, newline="") as file:
        rows = [row for row in itertools.islice(csv.reader(file), 1, None) if row]
    for k, row in enumerate(rows):
        if len(row) != len(first):
            msg = f"the number of columns changed from {len(first)} to {len(row)} at row {k + 1}"
            raise ValueError(msg)
    values = np.asarray([_numbers(k, row[1:], missing=missing) for k, row in enumerate(rows)])
    names = wtf.Axis(first[0] or None, _labels([row[0] for row in rows]))
    return values, (names, wtf.Axis(values=_labels(first[1:])))


def _numbers(k: int, fields: Sequence[str], *, missing: bool) -> list[float]:
    """The numbers of row k."""
    number, found = _number_or_nan if missing else float, []
    for column, field in enumerate(fields):
        try:
            found.append(number(field))
        except ValueError:
            msg = f"could not convert string {field!r} at row {k + 1}, column {column + 2}"
            raise ValueError(msg) from None
    return found


def _number_or_nan(field: str) -> float:
    return math.nan if field.strip().upper() in ("", "NA") else float(field)


def _labels(fields: Sequence[str]) -> list[Any]:
    """Numbers if all fields are, such as wavelengths; text otherwise."""
    return [float(f) for f in fields] if all(map(_is_number, fields)) else list(fields)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def write_table(
    path: Path, factor: Array, modes: Sequence[int], axes: Sequence[wtf.Axis], sizes: Sequence[int]
) -> None:
    """
    Write a factor, with a header and the labels of its rows.

    The rows run over the bins of ``modes`` in C order; ``axes`` and ``sizes`` are their labels and
    sizes.
    """
    levels = [axis.values or range(size) for axis, size in zip(axes, sizes, strict=True)]
    names = [axis.title or f"mode {mode}" for axis, mode in zip(axes, modes, strict=True)]
    values = to_host(factor).tolist()

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow([*names, *(f"component {r}" for r in range(len(values[0])))])
            for labels, row in zip(itertools.product(*levels), values, strict=True):
                lines.writerow([*labels, *row])

    replace_file(path, write)


def factor_tables(fit: wtf.Factorisation) -> dict[str, tuple[Any, ...]]:
    """The arguments of `write_table` for each factor of a fit, by the name of its file."""
    found: dict[str, tuple[Any, ...]] = {}
    for k, factor in enumerate(fit.factors):
        features = fit.kind == "nmf" and k == 1
        modes = tuple(range(1, len(fit.shape))) if features else (k,)
        axes, sizes = [fit.axis(m) for m in modes], [fit.shape[m] for m in modes]
        found[f"factor_{k}.csv"] = (factor, modes, axes, sizes)
    return found
