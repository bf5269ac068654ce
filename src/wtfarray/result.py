"""What a factorisation returns, and how it is kept on disk."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace

from wtfarray._host import to_host
from wtfarray._typing import Array, Device, Namespace
from wtfarray.legendre import Constraint
from wtfarray.losses import Frobenius, KullbackLeibler, Loss, LossSum, Wasserstein
from wtfarray.tensor import cp_to_tensor, tucker_to_tensor


@dataclass(frozen=True)
class Record:
    """One accepted step of a fit."""

    time: float
    """Seconds since the start."""
    objective: float
    gap: float
    """What the objective can lack; balanced: an estimate, but in the last record."""
    evaluations: int
    """Of the inner problem, or of the block dual."""


@dataclass(frozen=True, eq=False, repr=False)
class Factorisation:
    """
    A fitted model; unpacks as ``core, factors`` or ``weights, factors``.

    The objective of the factors lies between ``objective`` and ``objective + gap``.
    """

    kind: Literal["cp", "tucker", "nmf"]
    factors: list[Array]
    core: Array | None
    weights: Array | None
    objective: float
    gap: float
    converged: bool
    message: str
    n_iter: int
    history: list[Record]
    dual: Array
    """The dual variable u of the (first) loss, of the shape of X."""
    loss: Loss
    rho: tuple[float, ...]
    constraints: tuple[Constraint, ...]
    shape: tuple[int, ...] = field(default=())
    """Of the data."""
    stopped: bool = False
    """Whether the callback or an interrupt ended the fit."""

    def __iter__(self) -> Iterator[Any]:
        """Unpack as TensorLy's decompositions do."""
        return iter((self.core if self.kind == "tucker" else self.weights, self.factors))

    def __repr__(self) -> str:
        """Say what a person wants to know first."""
        sizes = " x ".join(str(n) for n in self.shape)
        rank: object = tuple(f.shape[1] for f in self.factors)
        if self.kind != "tucker":
            rank = self.factors[0].shape[1]
        state = "converged" if self.converged else "NOT converged"
        return (
            f"<{self.kind} of {sizes}, rank {rank}: objective {self.objective:.6g}, "
            f"gap {self.gap:.1e}, {state} after {self.n_iter} iterations>\n{self.message}"
        )

    def to_tensor(self) -> Array:
        """The model tensor, of the shape of the data."""
        if self.core is not None:
            tensor = tucker_to_tensor(self.core, self.factors)
        else:
            tensor = cp_to_tensor(self.factors, self.weights)
        return array_namespace(tensor).reshape(tensor, self.shape)

    def to_tensorly(self) -> Any:
        """
        The model as TensorLy's ``TuckerTensor``, or ``CPTensor`` for `cp` and `nmf`.

        The arrays stay those of the fit. Both kinds are accepted as ``init`` of a fit.

        Returns
        -------
        tensorly.tucker_tensor.TuckerTensor or tensorly.cp_tensor.CPTensor
            Needs TensorLy, with its backend set to the library of the arrays.

        Examples
        --------
        >>> import numpy as np
        >>> import wtfarray as wtf
        >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
        >>> fit = wtf.nmf(X, 2, wtf.KullbackLeibler(), rng=0)
        >>> fit.to_tensorly()
        (weights, factors) : rank-2 CPTensor of shape (8, 12)
        """
        try:
            from tensorly.cp_tensor import CPTensor
            from tensorly.tucker_tensor import TuckerTensor
        except ImportError:
            msg = "to_tensorly needs TensorLy: pip install 'wtfarray[tensorly]'"
            raise ImportError(msg) from None
        if self.core is not None:
            return TuckerTensor((self.core, list(self.factors)))
        weights = self.weights
        if weights is None:
            first = self.factors[0]
            weights = array_namespace(first).ones_like(first[0, :])
        return CPTensor((weights, list(self.factors)))

    def project(self, X: Array, /, **options: Any) -> Array:
        """
        The sample factor of new data, all else held: a convex problem.

        Parameters
        ----------
        X : array (n, ...)
            New samples along the first mode, otherwise of the shape of the fitted data.
        **options
            ``tol``, ``max_iter``, ``progress``.

        Returns
        -------
        array (n, r)
            Coefficients of the new samples.
        """
        from wtfarray.projection import project

        return project(self, X, **options)

    def save(self, path: str | os.PathLike[str], /) -> None:
        """
        Write the fit to an ``.npz`` file, without pickle; `load` reads it back.

        Parameters
        ----------
        path : path
            Where to; ``.npz`` is added if it has no suffix.
        """
        path = Path(path)
        path = path if path.suffix else path.with_suffix(".npz")
        arrays = {f"factor_{k}": to_host(f) for k, f in enumerate(self.factors)}
        arrays["dual"] = to_host(self.dual)
        for name in ("core", "weights"):
            block = getattr(self, name)
            if block is not None:
                arrays[name] = to_host(block)
        described, costs = _describe(self.loss)
        arrays |= costs
        history = [[r.time, r.objective, r.gap, r.evaluations] for r in self.history]
        header = {
            "kind": self.kind,
            "objective": self.objective,
            "gap": self.gap,
            "converged": self.converged,
            "message": self.message,
            "n_iter": self.n_iter,
            "rho": self.rho,
            "constraints": self.constraints,
            "shape": self.shape,
            "stopped": self.stopped,
            "loss": described,
            "dtype": str(to_dtype_name(self.factors[0])),
        }
        arrays["history"] = np.asarray(history, dtype=np.float64).reshape(-1, 4)
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
        write_atomically(path, arrays)


def to_dtype_name(array: Array) -> str:
    """The dtype by a name that every library understands."""
    xp = array_namespace(array)
    return "float32" if array.dtype == xp.float32 else "float64"


def write_atomically(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an npz file that is either whole or not there, whatever happens meanwhile."""
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
    """Open an npz file with a header that has ``key``, or say that argument ``name`` is wrong."""
    import zipfile  # here, for it would be a tenth of the time of importing the library

    msg = f"{name} is {os.fspath(path)!r}: expected {expected}"
    if zipfile.is_zipfile(path) or not Path(path).exists():  # that it is missing NumPy says
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


def load(
    path: str | os.PathLike[str], /, *, xp: Namespace | None = None, device: Device | None = None
) -> Factorisation:
    """
    Read a fit that `Factorisation.save` wrote.

    Parameters
    ----------
    path : path
        The ``.npz`` file.
    xp, device
        Namespace and device of the arrays; NumPy when absent, whatever they were fitted with.

    Returns
    -------
    Factorisation
        The same fit.
    """
    space: Any = np if xp is None else xp
    with reading("path", path, "kind", "a file that `save` of a fit has written") as opened:
        stored, header = opened
        dtype = getattr(space, header["dtype"])

        def array(name: str) -> Array:
            return space.asarray(stored[name], dtype=dtype, device=device)

        count = sum(name.startswith("factor_") for name in stored.files)
        return Factorisation(
            kind=header["kind"],
            factors=[array(f"factor_{k}") for k in range(count)],
            core=array("core") if "core" in stored.files else None,
            weights=array("weights") if "weights" in stored.files else None,
            objective=header["objective"],
            gap=header["gap"],
            converged=header["converged"],
            message=header["message"],
            n_iter=header["n_iter"],
            history=[Record(t, j, gap, int(n)) for t, j, gap, n in stored["history"].tolist()],
            dual=array("dual"),
            loss=_rebuild(header["loss"], stored),
            rho=tuple(header["rho"]),
            constraints=tuple(header["constraints"]),
            shape=tuple(header["shape"]),
            stopped=header["stopped"],
        )


def _describe(loss: Loss, prefix: str = "cost") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A loss as JSON, and its costs as arrays."""
    if isinstance(loss, LossSum):
        parts = [_describe(part, f"{prefix}_{k}") for k, part in enumerate(loss.losses)]
        described = {"name": "LossSum", "losses": [part[0] for part in parts]}
        return described, {name: cost for part in parts for name, cost in part[1].items()}
    if not isinstance(loss, Wasserstein):
        return {"name": type(loss).__name__}, {}
    costs = {f"{prefix}_{k}": to_host(cost) for k, cost in enumerate(loss.costs)}
    lam = None if math.isinf(loss.lam) else loss.lam
    return {
        "name": "Wasserstein",
        "eps": loss.eps,
        "lam": lam,
        "modes": loss.modes,
        "costs": list(costs),
    }, costs


def _rebuild(described: dict[str, Any], stored: Any) -> Loss:
    """The loss that `_describe` described."""
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
