"""The result of a coupled factorisation: one fit per data set, with shared coefficients."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.axes import Axis, check_all_labels, check_last_labels
from wtfarray._arrays.containers import without_labels
from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.stored import like as like_of
from wtfarray._arrays.sums import asarray_like
from wtfarray._arrays.typing import Array, Device, Namespace
from wtfarray._arrays.validation import follow, positive_integer, positive_number
from wtfarray._fit.absent_samples import Present, mean_coefficients, with_absent
from wtfarray._fit.coupled_chunks import sources_of, without_absent
from wtfarray._fit.coupled_specification import (
    CoupledSpecification,
    specify_coupled,
)
from wtfarray._fit.driver import FitSolution, certify, solve
from wtfarray._fit.journal import Journal, Record
from wtfarray._fit.loading import load
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.progress_bar import ProgressBar
from wtfarray._fit.result import Factorisation
from wtfarray._fit.starts import feasible, kl_steps
from wtfarray._fit.storage import (
    as_number,
    get,
    get_count,
    read_records,
    reading,
    write_atomically,
    write_records,
)
from wtfarray._losses.protocol import Loss


@dataclass(frozen=True, eq=False, repr=False)
class CoupledFactorisation:
    """
    Matrix models of several data sets with the same samples and one factor of coefficients.

    The objective lies between ``objective`` and ``objective + gap``. Unpacks as ``coefficients,
    atoms``, with one array of atoms per data set.
    """

    fits: list[Factorisation]
    """
    One model per data set: ``factors[0]`` are the shared coefficients, ``factors[1]`` its atoms,
    ``weights`` the mean mass of its samples, if that is not one. Its objective is that of the data
    set alone, without its weight.
    """
    weights: tuple[float, ...]
    """The weight of the loss of each data set."""
    objective: float
    gap: float
    converged: bool
    message: str
    n_iter: int
    history: list[Record]
    stopped: bool = False
    """Whether the callback or an interrupt ended the fit."""

    @property
    def coefficients(self) -> Array:
        """The coefficients of the samples, (n, r), which all data sets share."""
        return self.fits[0].factors[0]

    def __iter__(self) -> Iterator[Any]:
        """Unpack as ``coefficients, atoms``."""
        return iter((self.coefficients, [fit.factors[1] for fit in self.fits]))

    def __repr__(self) -> str:
        """A summary: shapes, rank, objective, gap and the message."""
        sizes = ", ".join(" x ".join(map(str, fit.shape)) for fit in self.fits)
        state = "converged" if self.converged else "NOT converged"
        return (
            f"<coupled factorisation of {sizes}, rank {self.coefficients.shape[1]}: objective "
            f"{self.objective:.6g}, gap {self.gap:.1e}, {state} after {self.n_iter} iterations>\n"
            f"{self.message}"
        )

    @classmethod
    def of(
        cls, solution: FitSolution, axes: Sequence[tuple[Axis, ...]], batch: int | None = None
    ) -> CoupledFactorisation:
        """The result that belongs to a solution; ``axes`` are the labels of each data set."""
        spec, blocks = solution.spec, solution.blocks
        assert isinstance(spec, CoupledSpecification)
        options = SolverOptions(tol=1.0, max_iter=1)
        fits = []
        for k, labels in enumerate(axes):
            part = spec.part(k)
            with ProgressBar("coupled", visible=False) as bar:
                alone = certify(
                    part,
                    spec.part_problem(k, batch),
                    [blocks[0], blocks[1 + k]],
                    solution.reason,
                    options,
                    Journal(None, bar, spec.shards),
                )
            found = Factorisation.of(replace(alone, n_iter=solution.n_iter))
            fits.append(replace(found, axes=labels, message=solution.message))
        return cls(
            fits=fits,
            weights=tuple(source.weight for source in spec.sources),
            objective=solution.objective,
            gap=solution.gap,
            converged=solution.converged,
            message=solution.message,
            n_iter=solution.n_iter,
            history=solution.history,
            stopped=solution.reason.by_caller,
        )

    def project(
        self,
        X: Sequence[Array | None],
        /,
        *,
        tol: float = 1e-9,
        max_iter: int = 1000,
        progress: bool = False,
        mask: Sequence[Array | None] | None = None,
    ) -> Array:
        """
        The coefficients of new samples, (n, r), from some or all of the data sets.

        Parameters
        ----------
        X : sequence of arrays or None
            The new samples in each data set, None for those that are not at hand.
        tol : float
            Tolerance on the relative decrease of the objective, at which the solver stops.
        max_iter : int
            Largest number of iterations.
        progress : bool
            Show a progress bar (needs tqdm).
        mask : sequence of arrays of bool or None, optional
            True where X was observed, as for `coupled`.

        Returns
        -------
        array (n, r)
            Coefficients of the new samples.
        """
        found, present = self._project(X, tol, max_iter, mask, progress=progress)
        if not found.converged:
            warnings.warn(f"project: {found.message}", stacklevel=2)
        rows = found.blocks[0]
        if present is None:
            return rows
        mean = mean_coefficients(self.coefficients, self.fits[0].constraints[0])
        return present.spread(rows, asarray_like(to_host(mean), rows))

    def _project(
        self,
        X: Sequence[Array | None],
        tol: float,
        max_iter: int,
        mask: Sequence[Array | None] | None,
        *,
        progress: bool,
    ) -> tuple[FitSolution, Present | None]:
        if not isinstance(X, Sequence) or len(X) != len(self.fits):
            msg = f"X is a {type(X).__name__}: expected a list of {len(self.fits)} arrays or None"
            raise ValueError(msg)
        given = [k for k, array in enumerate(X) if array is not None]
        if not given:
            msg = "X is None for every data set: expected the samples of at least one"
            raise ValueError(msg)
        if mask is not None:
            sequence_of("mask", mask, len(self.fits), "an array of bool or None")
        fits = [self.fits[k] for k in given]
        pairs = [without_labels(f"X[{k}]", X[k], in_chunks=True) for k in given]
        arrays = [array for array, _ in pairs]
        for k, fit, (array, labels) in zip(given, fits, pairs, strict=True):
            if tuple(getattr(array, "shape", fit.shape)[1:]) != fit.shape[1:]:
                sizes = ", ".join(map(str, fit.shape[1:]))
                msg = f"X[{k}] has shape {tuple(array.shape)}: expected (n, {sizes})"
                raise ValueError(msg)
            check_all_labels(f"X[{k}]", labels[1:], fit.axes[1:], "the fit", first=1)
        masks = [without_labels(f"mask[{k}]", None if mask is None else mask[k]) for k in given]
        for k, (_, seen), (_, labels) in zip(given, masks, pairs, strict=True):
            check_last_labels(f"mask[{k}]", seen, labels, f"X[{k}]")
        sources = sources_of(
            arrays,
            [fit.loss for fit in fits],
            [self.weights[k] for k in given],
            [seen for seen, _ in masks],
        )
        sources, present = without_absent(sources)
        like = like_of(sources[0].X)
        xp = array_namespace(like)
        atoms = [follow("the fit", fit.factors[1], xp, like.dtype, device_of(like)) for fit in fits]
        first = self.fits[0]
        spec = specify_coupled(
            sources,
            atoms[0].shape[1],
            rho=(first.rho[0], *(fit.rho[1] for fit in fits)),
            constraints=(first.constraints[0], *(fit.constraints[1] for fit in fits)),
            free=(0,),
            sample_weight=None,
            scales=tuple(_scale(fit) for fit in fits),
        )
        ones = xp.ones(spec.shapes[0], dtype=like.dtype, device=device_of(like))
        start = [feasible(ones, spec.constraints[0]), *atoms]
        start = kl_steps(spec.model, spec.X, start, spec.constraints, (0,), mask=spec.mask)
        options = SolverOptions(
            init=start,
            tol=positive_number("tol", tol),
            max_iter=positive_integer("max_iter", max_iter),
            progress=progress,
        )
        return solve(spec, options, np.random.default_rng(0)), present

    def save(self, path: str | os.PathLike[str], /) -> None:
        """
        Write the fit to an ``.npz`` file, without pickle; `CoupledFactorisation.load` reads it.

        Parameters
        ----------
        path : path
            The file; ``.npz`` is appended if it has no suffix.
        """
        path = Path(path)
        path = path if path.suffix else path.with_suffix(".npz")
        arrays = {"history": write_records(self.history)}
        with tempfile.TemporaryDirectory() as folder:
            for k, fit in enumerate(self.fits):
                part = Path(folder, f"{k}.npz")
                fit.save(part)
                arrays[f"fit_{k}"] = np.frombuffer(part.read_bytes(), dtype=np.uint8)
        header = {
            "kind": "coupled",
            "fits": len(self.fits),
            "weights": self.weights,
            "objective": self.objective,
            "gap": self.gap,
            "converged": self.converged,
            "message": self.message,
            "n_iter": self.n_iter,
            "stopped": self.stopped,
        }
        write_atomically(path, header, arrays)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        /,
        *,
        losses: Sequence[Loss | None] | None = None,
        xp: Namespace | None = None,
        device: Device | None = None,
    ) -> CoupledFactorisation:
        """
        Read a fit written by `CoupledFactorisation.save`.

        Parameters
        ----------
        path : path
            The ``.npz`` file.
        losses : sequence of Loss or None, optional
            The losses that are user-defined, None for those that are stored in the file.
        xp, device
            Namespace and device of the arrays; by default NumPy, whichever library was fitted.

        Returns
        -------
        CoupledFactorisation
            The stored fit.
        """
        expected = "a file written by `save` of a coupled fit"
        if losses is not None:
            with reading("path", path, expected) as archive:
                count = get_count(archive.header, "fits")
            sequence_of("losses", losses, count, "a loss or None")
        with reading("path", path, expected) as archive, tempfile.TemporaryDirectory() as folder:
            header = archive.header
            if get(header, "kind", str) != "coupled":
                msg = f"it holds a {header['kind']} fit, which `load` reads"
                raise ValueError(msg)
            count = get_count(header, "fits")
            weights = [as_number("weights", w, 0.0) for w in get(header, "weights", list)]
            if len(weights) != count or count == 0:
                msg = f"it has {len(weights)} weights for {count} fits"
                raise ValueError(msg)
            fits = []
            for k in range(count):
                part = Path(folder, f"{k}.npz")
                part.write_bytes(archive.read(f"fit_{k}", (None,), "u1").tobytes())
                loss = None if losses is None else losses[k]
                fits.append(load(part, loss=loss, xp=xp, device=device))
            first = fits[0].factors[0]
            if any(tuple(fit.factors[0].shape) != tuple(first.shape) for fit in fits):
                msg = "its fits have coefficients of different shapes"
                raise ValueError(msg)
            found = cls(
                fits=[replace(fit, factors=[first, *fit.factors[1:]]) for fit in fits],
                weights=tuple(weights),
                objective=as_number("objective", get(header, "objective", (int, float))),
                gap=as_number("gap", get(header, "gap", (int, float)), 0.0, infinite=True),
                converged=get(header, "converged", bool),
                message=get(header, "message", str),
                n_iter=get_count(header, "n_iter"),
                history=read_records(archive),
                stopped=get(header, "stopped", bool),
            )
            archive.finish()
        return found


def blocks_of(fit: CoupledFactorisation) -> list[Array]:
    """The coefficients, then the atoms of each data set."""
    return [fit.coefficients, *(part.factors[1] for part in fit.fits)]


def with_absent_samples(fit: CoupledFactorisation, present: Present) -> CoupledFactorisation:
    """The fit with mean coefficients for samples of which nothing was observed."""
    mean = mean_coefficients(fit.coefficients, fit.fits[0].constraints[0])
    fits = [
        with_absent(part, replace(present, shape=(present.shape[0], *part.shape[1:])), mean)
        for part in fit.fits
    ]
    first = fits[0].factors[0]
    return replace(fit, fits=[replace(part, factors=[first, *part.factors[1:]]) for part in fits])


def sequence_of(name: str, given: object, count: int, entry: str) -> None:
    """Refuse anything but a list or tuple with one entry per data set."""
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != count:
        found = f"has {len(given)} entries" if isinstance(given, (list, tuple)) else None
        found = found or f"is a {type(given).__name__}"
        msg = f"{name} {found}: expected a list of {count}, for each data set {entry}"
        raise ValueError(msg)


def _scale(fit: Factorisation) -> float:
    """The mean mass of the samples of a data set, by which its model is multiplied."""
    return 1.0 if fit.weights is None else float(fit.weights[0])
