"""The fit of a team as a whole, on one process."""

from __future__ import annotations

from dataclasses import replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.axes import Axis
from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.host import to_host
from wtfarray._arrays.samples import slices_of
from wtfarray._arrays.scratch import FileArray
from wtfarray._arrays.sums import asarray_like
from wtfarray._arrays.typing import Array
from wtfarray._fit.coupled_result import CoupledFactorisation
from wtfarray._fit.result import Factorisation
from wtfarray._fit.team import counts_of

CHUNK = 2**20
"""Numbers in one message."""


@overload
def gather(fit: Factorisation, comm: Communicator, /) -> Factorisation | None: ...


@overload
def gather(fit: CoupledFactorisation, comm: Communicator, /) -> CoupledFactorisation | None: ...


def gather(
    fit: Factorisation | CoupledFactorisation, comm: Communicator, /
) -> Factorisation | CoupledFactorisation | None:
    """
    The fit to the samples of all processes, on rank 0.

    Parameters
    ----------
    fit : Factorisation or CoupledFactorisation
        The result of this process.
    comm : Communicator
        The team of the fit. All of its processes have to call this.

    Returns
    -------
    Factorisation, CoupledFactorisation or None
        With all rows of the first factor and of the dual variable, in the order of the ranks; the
        labels of the samples are dropped. None on all ranks but 0.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> from wtfarray.distributed import gather, run_threads
    >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
    >>> def fit(comm):
    ...     mine = np.array_split(X, comm.size)[comm.rank]
    ...     return gather(wtf.nmf(mine, 2, wtf.KullbackLeibler(), rng=0, comm=comm), comm)
    >>> whole, other = run_threads(fit, 2)
    >>> whole.factors[0].shape, other is None
    ((8, 2), True)
    """
    if isinstance(fit, CoupledFactorisation):
        whole = [gather(part, comm) for part in fit.fits]
        fits = [part for part in whole if part is not None]
        # All data sets share their coefficients.
        fits = [replace(part, factors=[fits[0].factors[0], part.factors[1]]) for part in fits]
        return replace(fit, fits=fits) if fits else None
    rows = _rows(fit.factors[0], comm)
    dual = fit.dual
    if isinstance(dual, FileArray):
        dual = asarray_like(np.asarray(dual, dtype=np.float64), fit.factors[0])
    dual = _rows(dual, comm)
    if comm.rank != 0:
        return None
    axes = fit.axes and (Axis(fit.axes[0].name), *fit.axes[1:])
    shape = (rows.shape[0], *fit.shape[1:])
    return replace(fit, factors=[rows, *fit.factors[1:]], dual=dual, shape=shape, axes=axes)


def _rows(mine: Array, comm: Communicator) -> Array:
    """The rows of all processes on rank 0, an array without rows elsewhere."""
    ends = np.cumsum(counts_of(mine.shape[0], comm))
    begin, host = int(ends[comm.rank]) - mine.shape[0], to_host(mine)
    step = max(1, CHUNK // max(1, int(np.prod(mine.shape[1:]))))
    parts: list[NDArray[np.float64]] = [host[:0]]
    for part in slices_of(int(ends[-1]), step):
        chunk = np.zeros((part.stop - part.start, *mine.shape[1:]))
        first, last = max(part.start, begin), min(part.stop, begin + mine.shape[0])
        if first < last:
            chunk[first - part.start : last - part.start] = host[first - begin : last - begin]
        # Infinite where the model is 0: they pass as they are, because the others add 0.
        chunk = comm.sum(chunk)
        if comm.rank == 0:
            parts.append(chunk)
    whole = np.concatenate(parts)
    return asarray_like(whole, mine)
