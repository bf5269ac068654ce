"""Factors as labelled tables: DataFrames of pandas, Datasets of xarray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wtfarray._arrays.axes import Axis
from wtfarray._arrays.host import to_host
from wtfarray._arrays.typing import Array

COMPONENT = "component"


def factor_frame(
    factor: Array, modes: Sequence[int], axes: Sequence[Axis], sizes: Sequence[int]
) -> Any:
    """
    A factor as a DataFrame; its rows run over the bins of ``modes``, in C order.

    ``axes`` and ``sizes`` are the labels and sizes of these modes.
    """
    try:
        import pandas as pd
    except ImportError:
        msg = "to_frame needs pandas: pip install pandas"
        raise ImportError(msg) from None
    names = _dimensions(axes, modes)
    levels = [
        range(size) if axis.values is None else list(axis.values)
        for axis, size in zip(axes, sizes, strict=True)
    ]
    if len(modes) == 1:
        index: Any = pd.Index(levels[0], name=names[0])
    else:
        index = pd.MultiIndex.from_product(levels, names=names)
    columns = pd.RangeIndex(factor.shape[1], name=COMPONENT)
    return pd.DataFrame(to_host(factor), index=index, columns=columns)


def dataset(
    factors: Sequence[Array],
    core: Array | None,
    weights: Array | None,
    axes: Sequence[Axis],
    shape: Sequence[int],
    facts: dict[str, Any],
) -> Any:
    """All blocks of a model as a Dataset; ``axes`` and ``shape`` are those of the data."""
    try:
        import xarray as xr
    except ImportError:
        msg = "to_xarray needs xarray: pip install xarray"
        raise ImportError(msg) from None
    names = _dimensions(axes, range(len(axes)))
    shared = core is None
    variables: dict[str, Any] = {}
    components = [COMPONENT if shared else f"{COMPONENT}_{k}" for k in range(len(factors))]
    for k, factor in enumerate(factors):
        last = len(factors) < len(shape) and k == 1  # the flattened features of a matrix model
        modes = slice(1, None) if last else slice(k, k + 1)
        values = to_host(factor).reshape(*shape[modes], factor.shape[1])
        variables[f"factor_{k}"] = ([*names[modes], components[k]], values)
    if core is not None:
        variables["core"] = (components, to_host(core))
    elif weights is not None:
        variables["weights"] = ([COMPONENT], to_host(weights))
    coordinates = {}
    for name, axis in zip(names, axes, strict=True):
        if axis.values is not None:
            units = {} if axis.unit is None else {"units": axis.unit}
            coordinates[name] = ([name], list(axis.values), units)
    # Files of xarray hold no bool attributes.
    facts = {k: int(v) if isinstance(v, bool) else v for k, v in facts.items()}
    return xr.Dataset(variables, coords=coordinates, attrs=facts)


def _dimensions(axes: Sequence[Axis], modes: Sequence[int]) -> list[str]:
    """A name for each mode; its number if it has none of its own."""
    names = [axis.name for axis in axes]
    return [
        name if name and names.count(name) == 1 and not name.startswith(COMPONENT) else f"mode_{k}"
        for k, name in zip(modes, names, strict=True)
    ]
