"""Projection of samples that are read in chunks: sparse matrices, and data larger than memory."""

from __future__ import annotations

import time

import numpy as np
from array_api_compat import is_array_api_obj

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import slices_of
from wtfarray._arrays.scratch import Scratch
from wtfarray._arrays.stored import StoredData, is_stored
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import projected_at_once
from wtfarray._fit.journal import Record
from wtfarray._fit.progress_bar import ProgressBar
from wtfarray._fit.projection import Projection, mass_advice, project_samples
from wtfarray._losses.frobenius import Frobenius
from wtfarray._losses.kullback_leibler import KullbackLeibler
from wtfarray._losses.loss_sum import losses_of
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint

SUMS_OVER_SAMPLES = (Wasserstein, Frobenius, KullbackLeibler)
"""Losses that are sums over samples; a loss of the user need not be one."""


def is_separable(loss: Loss, constraint: Constraint) -> bool:
    """Whether the coefficients of one sample do not depend on any other sample."""
    summed = all(isinstance(part, SUMS_OVER_SAMPLES) for part in losses_of(loss))
    return summed and constraint in (None, "rows")


def stored_or_read(X: Array, *, separable: bool) -> Array:
    """
    New samples: an array in memory as it is, other data in chunks.

    Data that fit into one chunk, or whose samples have to be projected together, are read into
    memory.
    """
    if not is_stored(X):
        return X
    if 0 in X.shape:
        part = X[0 : X.shape[0]]
        return part if is_array_api_obj(part) else np.asarray(part)
    data = StoredData(X)
    if separable and data.chunk < data.samples:
        return data
    return data.read(slice(0, data.samples))


def project_chunks(
    data: StoredData,
    atoms: Array,
    loss: Loss,
    *,
    constraint: Constraint,
    rho: float,
    tol: float,
    max_iter: int,
    progress: bool = False,
    keeps_dual: bool = True,
    reference: float = 1.0,
) -> Projection:
    """
    As `project_samples`, for separable problems: a few samples at a time.

    The objective and the gap are sums over the samples. The dual variable is written to a file; if
    ``keeps_dual`` is False, it is lost.
    """
    begin = time.perf_counter()
    mass = data.masses("X")
    xp = array_namespace(data.like)
    dual = None
    if keeps_dual:
        dual = Scratch(data.scratch).zeros(data.shape, data.dtype_name)
    size = projected_at_once(data.chunk)
    parts = sum(len(slices_of(rows.stop - rows.start, size)) for rows in data.slices())
    coefficients: list[Array] = []
    objective, gap, n_iter, evaluations = 0.0, 0.0, 0, 0
    message, converged, stopped = "", True, False
    with ProgressBar("project", visible=progress, total=parts) as bar:
        for chunk, X in data.chunks():
            for rows in slices_of(X.shape[0], size):
                found = project_samples(
                    X[rows, ...],
                    atoms,
                    loss,
                    constraint=constraint,
                    rho=rho,
                    tol=tol,
                    max_iter=1 if stopped else max_iter,  # after an interrupt, only what it takes
                    reference=reference,
                )
                coefficients.append(found.coefficients)
                if dual is not None:
                    dual.write(chunk.start + rows.start, to_host(found.dual))
                objective, gap = objective + found.objective, gap + found.gap
                n_iter += found.n_iter
                evaluations += found.history[-1].evaluations
                if not message or (converged and not found.converged):
                    message = found.message
                converged, stopped = converged and found.converged, stopped or found.stopped
                bar.step(objective, gap)
            del X
    return Projection(
        coefficients=xp.concat(coefficients),
        objective=objective,
        gap=gap,
        converged=converged,
        message=message,
        stopped=stopped,
        n_iter=n_iter,
        history=[Record(time.perf_counter() - begin, objective, gap, evaluations)],
        dual=dual,
        mass_advice=mass_advice(mass, atoms) if constraint == "rows" else None,
    )
