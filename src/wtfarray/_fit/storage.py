"""Fits on disk: `.npz` files without pickle, written atomically."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from wtfarray._arrays.host import to_host
from wtfarray._arrays.typing import Array
from wtfarray._losses.frobenius import Frobenius
from wtfarray._losses.kullback_leibler import KullbackLeibler
from wtfarray._losses.loss_sum import LossSum
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein


def to_dtype_name(array: Array) -> str:
    """The name of the dtype, the same for every library."""
    xp = array_namespace(array)
    return "float32" if array.dtype == xp.float32 else "float64"


def write_atomically(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an npz file; if writing fails, an existing file is left unchanged."""
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with part.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def reading(
    name: str, path: str | os.PathLike[str], key: str, expected: str
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open an npz file whose header has ``key``; the error message names argument ``name``."""
    import zipfile  # not at the top: it would take a tenth of the import time of the library

    msg = f"{name} is {os.fspath(path)!r}: expected {expected}"
    if zipfile.is_zipfile(path) or not Path(path).exists():  # NumPy raises for a missing file
        with np.load(path, allow_pickle=False) as stored:
            header = {}
            if "header" in stored.files:
                header = json.loads(bytes(stored["header"]).decode())
            if key in header:
                try:
                    yield stored, header
                except zipfile.BadZipFile as error:
                    msg = f"{msg}, undamaged"
                    raise ValueError(msg) from error
                return
    raise ValueError(msg)


def describe_loss(loss: Loss, prefix: str = "cost") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A loss as JSON and its costs as arrays; for a user-defined loss only the type's name."""
    if isinstance(loss, LossSum):
        parts = [describe_loss(part, f"{prefix}_{k}") for k, part in enumerate(loss.losses)]
        described = {"name": "LossSum", "losses": [part[0] for part in parts]}
        return described, {name: cost for part in parts for name, cost in part[1].items()}
    if isinstance(loss, Frobenius | KullbackLeibler):
        return {"name": type(loss).__name__}, {}
    if not isinstance(loss, Wasserstein):
        return {"name": "own", "type": type(loss).__name__}, {}
    costs = {f"{prefix}_{k}": to_host(cost) for k, cost in enumerate(loss.costs)}
    lam = None if math.isinf(loss.lam) else loss.lam
    return {
        "name": "Wasserstein",
        "eps": loss.eps,
        "lam": lam,
        "modes": loss.modes,
        "costs": list(costs),
    }, costs


def rebuild_loss(described: dict[str, Any], stored: Any, given: Loss | None) -> Loss:
    """The loss described by `describe_loss`, or the user-defined one given to `load`."""
    own = _own_type(described)
    if (own is None) != (given is None):
        expected = "None, the loss is in the file" if own is None else f"the {own} of the fit"
        found = "None" if given is None else f"a {type(given).__name__}"
        msg = f"loss is {found}: expected {expected}"
        raise ValueError(msg)
    return _rebuild(described, stored) if given is None else given


def _own_type(described: dict[str, Any]) -> str | None:
    """The type of the loss, or of a summand, if it is user-defined."""
    if described["name"] == "LossSum":
        return next(filter(None, map(_own_type, described["losses"])), None)
    return described["type"] if described["name"] == "own" else None


def _rebuild(described: dict[str, Any], stored: Any) -> Loss:
    name = described["name"]
    if name == "LossSum":
        return LossSum(*(_rebuild(part, stored) for part in described["losses"]))
    if name == "Frobenius":
        return Frobenius()
    if name == "KullbackLeibler":
        return KullbackLeibler()
    lam = math.inf if described["lam"] is None else described["lam"]
    costs = [stored[cost] for cost in described["costs"]]
    return Wasserstein(costs, described["eps"], lam, described["modes"])
