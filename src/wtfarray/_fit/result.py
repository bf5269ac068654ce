"""The result of a factorisation."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from wtfarray._arrays.axes import (
    Axis,
)
from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import failing_together
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    axis_index,
)
from wtfarray._fit.driver import FitSolution
from wtfarray._fit.export import dataset, factor_frame
from wtfarray._fit.journal import Record
from wtfarray._fit.new_samples import project_onto
from wtfarray._fit.saving import write_fit
from wtfarray._fit.team import team_of
from wtfarray._losses.protocol import Loss
from wtfarray._models.entropy import Constraint
from wtfarray._models.models import CPModel
from wtfarray._models.tensor import cp_to_tensor, tucker_to_tensor


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
    """
    The dual variable u of the first loss, in the shape of X.

    If X was read in chunks, it is in a temporary file, which is deleted with it: ``dual[a:b]``
    reads some samples, ``numpy.asarray(dual)`` all of them.
    """
    loss: Loss
    rho: tuple[Any, ...]
    constraints: tuple[Constraint, ...]
    shape: tuple[int, ...] = field(default=())
    """The shape of the data."""
    stopped: bool = False
    """Whether the callback or an interrupt ended the fit."""
    references: tuple[float, ...] = ()
    """
    For each block the mass s to which its entropy ``<A, log(A / s) - 1>`` is relative.

    It is the mean mass of a sample of the fitted data for the first factor, or core, without
    constraint, which carries the mass of the data; and 1 for all others.
    """
    axes: tuple[Axis, ...] = ()
    """The labels of the modes of the data; empty if there are none."""

    def __post_init__(self) -> None:
        """Fill in the references that were not given."""
        if not self.references:
            object.__setattr__(self, "references", (1.0,) * len(self.rho))

    def __iter__(self) -> Iterator[Any]:
        """Unpack like the decompositions of TensorLy."""
        return iter((self.core if self.kind == "tucker" else self.weights, self.factors))

    def __repr__(self) -> str:
        """A summary: shape, rank, objective, gap, the message and the labels."""
        sizes = " x ".join(str(n) for n in self.shape)
        rank: object = tuple(f.shape[1] for f in self.factors)
        if self.kind != "tucker":
            rank = self.factors[0].shape[1]
        state = "converged" if self.converged else "NOT converged"
        labelled = ((k, axis) for k, axis in enumerate(self.axes) if axis != Axis())
        labels = "".join(f"\nmode {k}: {axis.describe()}" for k, axis in labelled)
        return (
            f"<{self.kind} of {sizes}, rank {rank}: objective {self.objective:.6g}, "
            f"gap {self.gap:.1e}, {state} after {self.n_iter} iterations>\n{self.message}{labels}"
        )

    def axis(self, mode: int, /) -> Axis:
        """
        The labels of a mode of the data; an empty `Axis` if it has none.

        Parameters
        ----------
        mode : int
            A mode of the data.
        """
        mode = axis_index("mode", mode, len(self.shape))
        return self.axes[mode] if self.axes else Axis()

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

        The arrays are not copied. Both types are accepted as ``init`` of a fit.

        Returns
        -------
        tensorly.tucker_tensor.TuckerTensor or tensorly.cp_tensor.CPTensor
            Requires TensorLy, with its backend set to the library of the arrays.

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

    def to_frame(self, mode: int, /) -> Any:
        """
        The factor of a mode as a DataFrame of pandas, with the labels of its bins as the index.

        Parameters
        ----------
        mode : int
            The factor. For `nmf`, the atoms are factor 1; if the features have several modes, the
            index has one level per mode.

        Returns
        -------
        pandas.DataFrame
            One column per component.

        Examples
        --------
        >>> import numpy as np
        >>> import wtfarray as wtf
        >>> X = np.random.default_rng(0).dirichlet(np.ones(3), 8)
        >>> genes = wtf.Axis("gene", ["CD3E", "MS4A1", "LYZ"])
        >>> fit = wtf.nmf(X, 2, wtf.KullbackLeibler(), rng=0, axes=["cell", genes])
        >>> list(fit.to_frame(1).index)
        ['CD3E', 'MS4A1', 'LYZ']
        """
        mode = axis_index("mode", mode, len(self.factors))
        last = self.kind == "nmf" and mode == 1
        modes = range(1, len(self.shape)) if last else (mode,)
        axes, sizes = [self.axis(k) for k in modes], [self.shape[k] for k in modes]
        return factor_frame(self.factors[mode], modes, axes, sizes)

    def to_xarray(self) -> Any:
        """
        The fit as a Dataset of xarray: factors, weights or core, with the labels as coordinates.

        Returns
        -------
        xarray.Dataset
            Variables ``factor_0``, ``factor_1``, ... and ``weights`` or ``core``; objective, gap
            and convergence are attributes.

        Examples
        --------
        >>> fit.to_xarray()["factor_1"].dims  # doctest: +SKIP
        ('wavelength', 'component')
        """
        facts = ("kind", "objective", "gap", "converged", "message", "n_iter")
        return dataset(
            self.factors,
            self.core,
            self.weights,
            [self.axis(k) for k in range(len(self.shape))],
            self.shape,
            {name: getattr(self, name) for name in facts},
        )

    @classmethod
    def of(cls, solution: FitSolution) -> Factorisation:
        """The result that belongs to a solution."""
        spec, model = solution.spec, solution.spec.model
        blocks = spec.in_units_of_data(solution.blocks)
        weights = model.weights(blocks) if isinstance(model, CPModel) else None
        if weights is not None and spec.carrier is not None:
            weights = array_namespace(weights).ones_like(weights)  # a factor carries the mass
        return cls(
            kind=spec.kind,
            factors=blocks[: spec.modes],
            core=None if isinstance(model, CPModel) else blocks[spec.modes],
            weights=weights,
            objective=solution.objective,
            gap=solution.gap,
            converged=solution.converged,
            message=solution.message,
            n_iter=solution.n_iter,
            history=solution.history,
            dual=solution.dual,
            loss=spec.loss,
            rho=spec.rho,
            references=spec.references,
            constraints=spec.constraints,
            shape=tuple(spec.X.shape),
            stopped=solution.reason.by_caller,
        )

    def project(
        self,
        X: Array,
        /,
        *,
        tol: float = 1e-9,
        max_iter: int = 1000,
        progress: bool = False,
        mask: Array | None = None,
        comm: Communicator | None = None,
    ) -> Array:
        """
        The coefficients of new samples: the first factor of `projection`.

        Parameters
        ----------
        X : array (n, ...)
            New samples along the first mode; the other modes as in the fitted data. Large sparse
            matrices and data in files are read in chunks, as by `cp`.
        tol, max_iter, progress, mask, comm
            As for `projection`.

        Returns
        -------
        array (n, r)
            Coefficients of the new samples.
        """
        team = team_of(comm)
        with failing_together(team):
            found, advice = project_onto(
                self, X, tol, max_iter, mask, team, progress=progress, keeps_dual=False
            )
        for message in advice:
            warnings.warn(message, stacklevel=2)
        return found.factors[0]

    def projection(
        self,
        X: Array,
        /,
        *,
        tol: float = 1e-9,
        max_iter: int = 1000,
        progress: bool = False,
        mask: Array | None = None,
        comm: Communicator | None = None,
    ) -> Factorisation:
        """
        Project new samples: a convex problem in the first factor, with all others fixed.

        Parameters
        ----------
        X : array (n, ...)
            New samples along the first mode; the other modes as in the fitted data. Large sparse
            matrices and data in files are read in chunks, as by `cp`.
        tol : float
            Tolerance on the relative decrease of the objective, at which the solver stops.
        max_iter : int
            Largest number of iterations.
        progress : bool
            Show a progress bar (needs tqdm).
        mask : array of bool, optional
            True where X was observed, as for `cp`.

        comm : Communicator, optional
            A team of processes, of `wtfarray.distributed`, each of which projects its own samples;
            objective, gap and convergence are those of all.

        Returns
        -------
        Factorisation
            The coefficients of the new samples are ``factors[0]``; the other factors are those of
            this fit. Objective, gap and convergence are those of the projection.

        Examples
        --------
        >>> import numpy as np
        >>> import wtfarray as wtf
        >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
        >>> loss = wtf.Wasserstein(wtf.grid_cost(12), eps=0.05, lam=10.0)
        >>> fit = wtf.nmf(X[:6], 2, loss, rng=0)
        >>> new = fit.projection(X[6:])
        >>> new.factors[0].shape, new.converged
        ((2, 2), True)
        """
        team = team_of(comm)
        found: Factorisation
        with failing_together(team):
            found, advice = project_onto(self, X, tol, max_iter, mask, team, progress=progress)
        for message in advice:
            warnings.warn(message, stacklevel=2)
        return found

    def save(self, path: str | os.PathLike[str], /) -> None:
        """
        Write the fit to an ``.npz`` file, without pickle; `load` reads it back.

        Parameters
        ----------
        path : path
            The file; ``.npz`` is appended if it has no suffix.

        Raises
        ------
        OSError
            If the file cannot be written; an existing file is left unchanged.
        """
        write_fit(Path(path), self)
