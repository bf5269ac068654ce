"""Reading a fit from a file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.typing import Array, Device, Namespace
from wtfarray._arrays.validation import instance_of, one_of
from wtfarray._fit.result import Factorisation
from wtfarray._fit.storage import (
    as_number,
    check_finite,
    choose_loss,
    get,
    get_count,
    read_axes,
    read_blocks,
    read_constraints,
    read_loss,
    read_records,
    read_shape,
    reading,
)
from wtfarray._losses.protocol import Loss


def load(
    path: str | os.PathLike[str],
    /,
    *,
    loss: Loss | None = None,
    xp: Namespace | None = None,
    device: Device | None = None,
) -> Factorisation:
    """
    Read a fit written by `Factorisation.save`.

    Parameters
    ----------
    path : path
        The ``.npz`` file.
    loss : Loss, optional
        The loss of the fit if it is user-defined; other losses are stored in the file.
    xp, device
        Namespace and device of the arrays; by default NumPy, whichever library was fitted.

    Returns
    -------
    Factorisation
        The stored fit.

    Raises
    ------
    ValueError
        If the file is damaged or was not written by `Factorisation.save`.
    """
    with reading("path", path, "a file written by `save` of a fit") as archive:
        header = archive.header
        kind = get(header, "kind", str)
        if kind == "coupled":
            msg = "it holds a coupled fit, which `CoupledFactorisation.load` reads"
            raise ValueError(msg)
        dtype = get(header, "dtype", str)
        one_of("kind", kind, ("cp", "tucker", "nmf"))
        one_of("dtype", dtype, ("float32", "float64"))
        shape = read_shape(header, kind)
        factors, core, weights = read_blocks(archive, kind, shape, dtype)
        blocks = factors if core is None else [*factors, core]
        constraints, rho, references = read_constraints(header, blocks, kind, dtype)
        stored = read_loss(get(header, "loss", dict), archive, shape)
        dual = archive.read("dual", shape)
        # It is -inf where the model is 0; user-defined losses may return NaN.
        usual = np.isinf(dual) | (np.isnan(dual) & isinstance(stored, str))
        check_finite("dual", np.where(usual, 0.0, dual), dtype)
        axes = read_axes(header, shape)
        history = read_records(archive)
        objective = as_number("objective", get(header, "objective", (int, float)))
        gap = as_number("gap", get(header, "gap", (int, float)), 0.0, infinite=True)
        converged, stopped = get(header, "converged", bool), get(header, "stopped", bool)
        message, n_iter = get(header, "message", str), get_count(header, "n_iter")
        archive.finish()
    if loss is not None:
        instance_of("loss", loss, Loss, "a loss of wtfarray, or an object with value_and_gradient")
    chosen = choose_loss(stored, loss)
    space: Any = np if xp is None else xp

    def place(array: NDArray[np.float64]) -> Array:
        return space.asarray(array, dtype=getattr(space, dtype), device=device)

    return Factorisation(
        kind=kind,
        factors=[place(factor) for factor in factors],
        core=None if core is None else place(core),
        weights=None if weights is None else place(weights),
        objective=objective,
        gap=gap,
        converged=converged,
        message=message,
        n_iter=n_iter,
        history=history,
        dual=place(dual),
        loss=chosen,
        rho=rho,
        references=references,
        constraints=constraints,
        shape=shape,
        stopped=stopped,
        axes=axes,
    )
