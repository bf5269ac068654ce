"""What a factorisation returns, and how it is kept on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace

from wtfarray._arrays.host import to_host
from wtfarray._arrays.typing import Array, Device, Namespace
from wtfarray._fit.storage import _describe, _rebuild, reading, to_dtype_name, write_atomically
from wtfarray._losses.protocol import Loss
from wtfarray._models.entropy import Constraint
from wtfarray._models.tensor import cp_to_tensor, tucker_to_tensor


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
        from wtfarray._fit.projection import project

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
