"""Containers of other packages, labelled or sparse: recognised without importing them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from wtfarray._arrays.axes import Axis
from wtfarray._arrays.sparse import SparseSamples, is_mostly_zero, is_sparse, to_dense
from wtfarray._arrays.typing import Array

UNNAMED = re.compile(r"dim_\d+")
"""The names that xarray gives to modes without a name."""


def is_a(value: object, package: str, kind: str) -> bool:
    """Whether a value is an instance of a class of a package, or of one derived from it."""
    return any(
        c.__name__ == kind and c.__module__.partition(".")[0] == package
        for c in type(value).__mro__
    )


def without_labels(
    name: str, array: Any, *, in_chunks: bool = False
) -> tuple[Array, tuple[Axis, ...]]:
    """
    The array in a container, and its labels; anything else as it is, without labels.

    Parameters
    ----------
    name : str
        The argument, for messages.
    array : array or container
        A DataFrame or Series of pandas, a DataArray of xarray, a sparse matrix of SciPy or a sparse
        tensor of pydata, or anything else.
    in_chunks : bool
        Whether a sparse array may stay one, and be read in chunks of samples.
    """
    if is_a(array, "pandas", "DataFrame"):
        return _values_of_frame(name, array), (_index(array.index), _index(array.columns))
    if is_a(array, "pandas", "Series"):
        return _values_of_frame(name, array.to_frame())[:, 0], (_index(array.index),)
    if is_a(array, "xarray", "DataArray"):
        axes = tuple(_coordinate(array, dim) for dim in array.dims)
        return without_labels(name, array.data, in_chunks=in_chunks)[0], axes
    if not is_sparse(array):
        return array, ()
    stays = in_chunks and len(array.shape) > 1 and is_mostly_zero(array)
    return SparseSamples(array) if stays else to_dense(array), ()


def _values_of_frame(name: str, frame: Any) -> Array:
    """The numbers of a DataFrame; refuse columns of anything else."""
    others = [str(column) for column, dtype in frame.dtypes.items() if dtype.kind not in "biuf"]
    if others:
        shown = ", ".join(repr(column) for column in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        msg = (
            f"{name} has columns that are not numbers, {shown}{more}: expected numbers only; drop "
            f"these columns, or make one of them the index"
        )
        raise TypeError(msg)
    values = frame.to_numpy()
    if values.dtype == object:  # of columns that mark missing entries with pandas.NA
        values = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.ascontiguousarray(values)


def _index(index: Any) -> Axis:
    """The labels of rows or columns; counting from 0 is no label."""
    name = None if index.name is None else str(index.name)
    counts = is_a(index, "pandas", "RangeIndex") and index.start == 0 and index.step == 1
    return Axis(name, None if counts else index.to_numpy())


def _coordinate(array: Any, dim: Any) -> Axis:
    """The labels of one dimension of a DataArray."""
    name = None if UNNAMED.fullmatch(str(dim)) else str(dim)
    if dim not in array.coords:
        return Axis(name)
    coordinate = array.coords[dim]
    unit = coordinate.attrs.get("units", coordinate.attrs.get("unit"))
    return Axis(name, coordinate.to_numpy(), None if unit is None else str(unit))
