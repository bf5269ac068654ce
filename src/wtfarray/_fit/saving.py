"""Writing a fit to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.scratch import FileArray
from wtfarray._arrays.typing import Array
from wtfarray._fit.storage import (
    describe_axes,
    describe_loss,
    has_unit_sums,
    to_dtype_name,
    write_atomically,
    write_records,
)


def write_fit(path: Path, fit: Any) -> None:
    """Write a `Factorisation`; ``.npz`` is appended if the path has no suffix."""
    path = path if path.suffix else path.with_suffix(".npz")
    arrays = {f"factor_{k}": to_host(f) for k, f in enumerate(fit.factors)}
    arrays["dual"] = _host_dual(fit.dual)
    for name in ("core", "weights"):
        block = getattr(fit, name)
        if block is not None:
            arrays[name] = to_host(block)
    described, costs = describe_loss(fit.loss)
    arrays |= costs
    dtype = to_dtype_name(fit.factors[0])
    blocks = fit.factors if fit.core is None else [*fit.factors, fit.core]
    header = {
        "kind": fit.kind,
        "objective": fit.objective,
        "gap": fit.gap,
        "converged": fit.converged,
        "message": fit.message,
        "n_iter": fit.n_iter,
        "rho": fit.rho,
        "references": fit.references,
        "constraints": fit.constraints,
        "shape": fit.shape,
        "stopped": fit.stopped,
        "axes": describe_axes(fit.axes),
        "loss": described,
        "dtype": dtype,
        "normalised": [
            has_unit_sums(to_host(block), constraint, dtype)
            for block, constraint in zip(blocks, fit.constraints, strict=False)
        ],
    }
    arrays["history"] = write_records(fit.history)
    write_atomically(path, header, arrays)


def _host_dual(dual: Array) -> NDArray[np.float64]:
    """The dual variable as NumPy's float64; in a file of that type it is mapped, not read."""
    if isinstance(dual, FileArray):
        return dual.memmap() if dual.dtype == np.float64 else np.asarray(dual, dtype=np.float64)
    return to_host(dual)
