"""The result of a factorisation, and reading it from a file."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.axes import (
    Axis,
    check_labels,
    check_last_labels,
    check_order,
    checked_axes,
)
from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.containers import without_labels
from wtfarray._arrays.host import to_host
from wtfarray._arrays.masks import as_mask, observed
from wtfarray._arrays.scratch import FileArray
from wtfarray._arrays.stored import StoredData, like
from wtfarray._arrays.sums import Sums, asarray_like, failing_together
from wtfarray._arrays.typing import Array, Device, Namespace
from wtfarray._arrays.validation import (
    as_nonnegative,
    as_shard,
    axis_index,
    common_namespace,
    follow,
    instance_of,
    one_of,
    positive_integer,
    positive_number,
)
from wtfarray._fit.absent_samples import mean_coefficients, present_samples, with_absent
from wtfarray._fit.chunked_projection import is_separable, project_chunks, stored_or_read
from wtfarray._fit.driver import FitSolution
from wtfarray._fit.export import dataset, factor_frame
from wtfarray._fit.journal import Record
from wtfarray._fit.projection import project_samples, project_together
from wtfarray._fit.specification import is_sampled
from wtfarray._fit.storage import (
    as_number,
    check_finite,
    choose_loss,
    describe_axes,
    describe_loss,
    get,
    get_count,
    has_unit_sums,
    read_axes,
    read_blocks,
    read_constraints,
    read_loss,
    read_records,
    read_shape,
    reading,
    to_dtype_name,
    write_atomically,
    write_records,
)
from wtfarray._fit.team import team_of
from wtfarray._losses.protocol import Loss
from wtfarray._models.entropy import Constraint, entropy_value
from wtfarray._models.models import CPModel, atoms_of
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
            found, advice = self._project(
                X, tol, max_iter, mask, team, progress=progress, keeps_dual=False
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
        with failing_together(team):
            found, advice = self._project(X, tol, max_iter, mask, team, progress=progress)
        for message in advice:
            warnings.warn(message, stacklevel=2)
        return found

    def _project(
        self,
        X: Array,
        tol: float,
        max_iter: int,
        mask: Array | None,
        team: Communicator | None,
        *,
        progress: bool,
        keeps_dual: bool = True,
    ) -> tuple[Factorisation, list[str]]:
        """The projection, and the messages of its warnings."""
        sums = Sums(team)
        X, mask, axes = sums.agree(lambda: self._checked(X, mask, shared=sums.shared))
        present = present_samples(mask, X, self.loss, shared=sums.shared)
        if present is not None:
            X, mask = present.take(X), present.take(mask)
        data = like(X)
        atoms = atoms_of(self.factors, self.core, self.weights)
        atoms = follow("the fit", atoms, array_namespace(data), data.dtype, device_of(data))
        options: dict[str, Any] = {
            "constraint": self.constraints[0],
            "rho": self.rho[0],
            "reference": self.references[0],
            "tol": positive_number("tol", tol),
            "max_iter": positive_integer("max_iter", max_iter),
            "progress": progress and sums.leads,
        }
        if isinstance(X, StoredData):
            found = project_chunks(X, atoms, self.loss, **options, keeps_dual=keeps_dual)
        elif team is None:
            found = project_samples(X, atoms, self.loss, **options, mask=mask)
        else:
            found = project_together(sums, X, atoms, self.loss, **options, mask=mask)
        advice = [] if found.mass_advice is None else [f"project: {found.mass_advice}"]
        if not found.converged and sums.leads:
            advice.append(f"project: {found.message}")
        entropy = self._entropy_of_atoms()
        projected = replace(
            self,
            factors=[found.coefficients, *self.factors[1:]],
            objective=found.objective + entropy,
            gap=found.gap,
            converged=found.converged,
            message=found.message,
            n_iter=found.n_iter,
            history=[replace(r, objective=r.objective + entropy) for r in found.history],
            dual=found.dual,
            shape=tuple(X.shape),
            stopped=found.stopped,
            axes=axes,
        )
        if present is not None:
            mean = mean_coefficients(self.factors[0], self.constraints[0])
            projected = with_absent(projected, present, asarray_like(to_host(mean), data))
        return projected, advice

    def _checked(
        self, X: Array, mask: Array | None, *, shared: bool
    ) -> tuple[Array, Array | None, tuple[Axis, ...]]:
        """New samples, what was observed of them, and their labels."""
        X, labels = without_labels("X", X, in_chunks=True)
        mask, mask_labels = without_labels("mask", mask)
        alone = mask is None and not shared
        X = stored_or_read(X, separable=alone and is_separable(self.loss, self.constraints[0]))
        if not isinstance(X, StoredData):
            xp = common_namespace(X=X)
            mask = as_mask("mask", mask, X, shared=shared)
            X = (as_shard if shared else as_nonnegative)("X", observed(X, mask), xp)
        sizes = ", ".join(map(str, self.shape[1:]))
        if tuple(X.shape[1:]) != self.shape[1:]:
            msg = f"X has shape {tuple(X.shape)}: expected (n, {sizes})"
            raise ValueError(msg)
        if not is_sampled(self.loss, self.shape):
            msg = (
                "the loss transports the first mode: expected a fit whose first mode indexes "
                "samples"
            )
            raise ValueError(msg)
        axes = self._axes_of_new(labels, tuple(X.shape))
        check_last_labels("mask", mask_labels, axes)
        return X, mask, axes

    def _axes_of_new(self, labels: tuple[Axis, ...], shape: tuple[int, ...]) -> tuple[Axis, ...]:
        """The labels of new samples; refuse features with other labels than the fitted ones."""
        if not labels:
            first = (Axis(self.axes[0].name, None, self.axes[0].unit),) if self.axes else ()
            return checked_axes(None, (*first, *self.axes[1:]), shape)
        for k in range(1, len(shape)):
            check_labels("X", labels[k], k, self.axis(k), "the fit")
        check_order("X", labels, self.axes, "the fit")
        return checked_axes((*labels[:1], *self.axes[1:]) if self.axes else None, labels, shape)

    def _entropy_of_atoms(self) -> float:
        """``sum_k rho_k E(A_k)`` over all blocks but the first."""
        blocks = list(self.factors)
        if self.core is not None:
            blocks.append(self.core)
        elif self.weights is not None and len(self.rho) > len(self.factors):
            blocks.append(self.weights / float(array_namespace(self.weights).sum(self.weights)))
        parts = zip(self.rho[1:], self.references[1:], blocks[1:], strict=True)
        return math.fsum(
            rho * s * float(entropy_value(b / s, array_namespace(b))) for rho, s, b in parts
        )

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
        path = Path(path)
        path = path if path.suffix else path.with_suffix(".npz")
        arrays = {f"factor_{k}": to_host(f) for k, f in enumerate(self.factors)}
        arrays["dual"] = _host_dual(self.dual)
        for name in ("core", "weights"):
            block = getattr(self, name)
            if block is not None:
                arrays[name] = to_host(block)
        described, costs = describe_loss(self.loss)
        arrays |= costs
        dtype = to_dtype_name(self.factors[0])
        blocks = self.factors if self.core is None else [*self.factors, self.core]
        header = {
            "kind": self.kind,
            "objective": self.objective,
            "gap": self.gap,
            "converged": self.converged,
            "message": self.message,
            "n_iter": self.n_iter,
            "rho": self.rho,
            "references": self.references,
            "constraints": self.constraints,
            "shape": self.shape,
            "stopped": self.stopped,
            "axes": describe_axes(self.axes),
            "loss": described,
            "dtype": dtype,
            "normalised": [
                has_unit_sums(to_host(block), constraint, dtype)
                for block, constraint in zip(blocks, self.constraints, strict=False)
            ],
        }
        arrays["history"] = write_records(self.history)
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
        write_atomically(path, arrays)


def _host_dual(dual: Array) -> NDArray[np.float64]:
    """The dual variable as NumPy's float64; in a file of that type it is mapped, not read."""
    if isinstance(dual, FileArray):
        return dual.memmap() if dual.dtype == np.float64 else np.asarray(dual, dtype=np.float64)
    return to_host(dual)


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
