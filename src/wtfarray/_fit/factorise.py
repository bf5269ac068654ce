"""The three factorisations: CP, Tucker and NMF."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Unpack

from wtfarray._arrays.axes import Axis, check_last_labels, checked_axes
from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.containers import without_labels
from wtfarray._arrays.stored import is_larger_than_a_chunk
from wtfarray._arrays.sums import failing_together
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import known_options, positive_integer
from wtfarray._fit.absent_samples import mean_coefficients, present_samples, with_absent
from wtfarray._fit.default_rho import DUAL_SHARE, ENTROPY_SHARE
from wtfarray._fit.options import FitOptions, solver_options
from wtfarray._fit.restarts import best_of
from wtfarray._fit.result import Factorisation
from wtfarray._fit.specification import Kind, Weights, specify
from wtfarray._fit.team import Interrupts, shared_generator, team_of
from wtfarray._losses.labels import check_cost_labels
from wtfarray._losses.protocol import Loss


def cp(
    X: Array,
    /,
    rank: int,
    loss: Loss,
    *,
    weights: Weights = None,
    **options: Unpack[FitOptions],
) -> Factorisation:
    """
    Non-negative CP decomposition: a sum of ``rank`` rank-one tensors.

    Parameters
    ----------
    X : array (n_0, ..., n_{d-1})
        Non-negative data, of any library that follows the Array API standard, a DataFrame of
        pandas, a DataArray of xarray or a sparse matrix. A ``numpy.memmap``, an array of zarr or
        h5py, or anything else with ``shape`` and ``dtype`` that can be sliced, may be larger than
        memory: it is read in chunks of samples.
    rank : int
        Number of components.
    loss : Loss
        `Wasserstein`, `Frobenius`, `KullbackLeibler`, a `LossSum`, or one of your own.
    weights : {None, "learned", "fixed"}
        Weights of the components. None: learned if every factor is normalised by columns, ones
        otherwise. "learned": non-negative, with the mass of X as their sum. "fixed": all equal,
        with the mass of X as their sum.
    **options
        rho : float or sequence of float, optional
            Weight of the entropy of each factor; the last entry is that of the core or the weights.
            By default in proportion to the loss, so small that quantities are not biased; see
            "Choosing eps, lambda, rho and the rank" in the documentation.
        constraints : sequence of {None, "rows", "columns", "all"}
            What sums to one in each factor. By default each column. If the first mode indexes
            samples, the default of the first factor is "rows" if all samples have mass one, and
            None otherwise.
        fixed : sequence of int
            Factors that keep the values given in ``init``.
        init : {"kl", "random", "nnsvd"} or factors
            Initialisation. "kl": random factors, followed by multiplicative updates for the
            Kullback-Leibler divergence. "random": random factors. "nnsvd": non-negative SVD.
            Factors: a list, or a pair ``(weights, factors)`` or ``(core, factors)``, such as a fit
            or TensorLy's CPTensor and TuckerTensor. They are copied and normalised; their scales go
            into the weights, the core or a factor without constraint. Entries below 1e-8 of the
            mean are raised to that value, because an exact zero would remain zero. By default "kl",
            or "random" if most of X is zero.
        n_init : int, default 1
            Number of initialisations; the best result is returned. With "envelope", those that
            fall behind are stopped early, and 8 take about as long as 3 fits.
        rng : int or numpy.random.Generator
            Seed of the initialisation.
        solver : {"envelope", "dual", "online"}
            L-BFGS over all blocks at once, the paper's block coordinate descent in the dual, or
            passes over small batches of very many samples.
        tol : float, default 1e-6
            Tolerance on the relative decrease of the objective, at which the fit stops; if the
            model is close to X, on the decrease relative to what the loss exceeds its minimum. For
            "online", default 1e-2, the accuracy below which the result counts as converged.
        max_iter : int, default 300
            Largest number of iterations (of sweeps for "dual"; of passes for "online", default 1).
            Preliminary iterations at larger
            smoothing and on coarser grids are not counted. Prox-linear steps at kinks of the loss
            have a limit of their own, of the same size.
        sample_weight : array (n_0,)
            Weight of the loss of each sample along the first mode.
        mask : array of bool
            True where X was observed; broadcasts against X, which may have any values (NaN)
            elsewhere. A bin that was not observed does not exist for its sample. If a sample lacks
            some of its bins, the ``lam`` of a Wasserstein loss must be finite, and the default
            constraint of the first factor is None. `Factorisation.to_tensor` fills what is missing.
            For data in files it may be stored in a file as well.
        batch : int
            Number of samples that are processed at once, to save memory.
        chunk : int
            Number of samples of a file that are read at once; a fit takes at most six times their
            memory, whatever the size of X. By default 32 MB of float64. An array in memory is
            divided into such chunks as well, to save memory, if it is given.
        scratch : path
            Folder for temporary files of the size of X, used if X is read in chunks: about three
            for each Wasserstein loss. By default that of the system.
        callback : callable
            Called with a `FitState` after every step; returning True ends the fit.
        progress : bool
            Show a progress bar with objective and gap (needs tqdm).
        checkpoint : path
            File to which the state is written every ten steps. If the file exists, the fit
            continues from it.
        axes : sequence of Axis, str or None
            Labels of the modes of X, one entry per mode: an `Axis`, a name, or None for the labels
            of a DataFrame or DataArray. They stay with the result.
        comm : Communicator
            A team of processes that share the samples, of `wtfarray.distributed`. Each process
            passes its own samples, and gets its own rows of the first factor; everything else is
            the same on all of them. All other arguments have to be the same.

    Returns
    -------
    Factorisation
        Unpacks as ``weights, factors``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.dirichlet(np.ones(36), 8).reshape(8, 6, 6)
    >>> loss = wtf.Wasserstein(wtf.grid_cost(6, 6), eps=0.05, lam=10.0)
    >>> fit = wtf.cp(X, 2, loss, rho=1e-2, rng=0)
    >>> weights, factors = fit
    >>> [factor.shape for factor in factors], fit.converged
    ([(8, 2), (6, 2), (6, 2)], True)
    """
    return _fit("cp", X, rank, loss, weights, options)


def tucker(
    X: Array, /, rank: Sequence[int], loss: Loss, **options: Unpack[FitOptions]
) -> Factorisation:
    """
    Non-negative Tucker decomposition: a core and one factor per mode.

    Parameters
    ----------
    X : array (n_0, ..., n_{d-1})
        Non-negative data.
    rank : sequence of int
        Size of the core, one number per mode.
    loss : Loss
        `Wasserstein`, `Frobenius`, `KullbackLeibler`, a `LossSum`, or one of your own.
    **options
        As for `cp`; ``constraints`` may have one more entry, None or "all", for the core.

    Returns
    -------
    Factorisation
        Unpacks as ``core, factors``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.dirichlet(np.ones(36), 8).reshape(8, 6, 6)
    >>> loss = wtf.Wasserstein(wtf.grid_cost(6, 6), eps=0.05, lam=10.0)
    >>> core, factors = wtf.tucker(X, (2, 3, 3), loss, rho=1e-2, rng=0)
    >>> core.shape
    (2, 3, 3)
    """
    return _fit("tucker", X, rank, loss, None, options)


def nmf(X: Array, /, rank: int, loss: Loss, **options: Unpack[FitOptions]) -> Factorisation:
    """
    Non-negative matrix factorisation, ``X ~ factors[0] @ factors[1].T``.

    If both factors are normalised by columns, the components have weights, as in `cp`.

    Parameters
    ----------
    X : array (samples, features) or (samples, n_1, ..., n_t)
        Non-negative data. If there are several feature modes, the loss may use their grid; the
        columns of ``factors[1]`` are the flattened atoms.
    rank : int
        Number of atoms.
    loss : Loss
        `Wasserstein`, `Frobenius`, `KullbackLeibler`, a `LossSum`, or one of your own.
    **options
        As for `cp`.

    Returns
    -------
    Factorisation
        Unpacks as ``weights, factors``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
    >>> loss = wtf.Wasserstein(wtf.grid_cost(12), eps=0.05, lam=10.0)
    >>> fit = wtf.nmf(X, 2, loss, rho=1e-2, rng=0)
    >>> fit.factors[0].shape, fit.factors[1].shape
    ((8, 2), (12, 2))
    """
    return _fit("nmf", X, rank, loss, None, options)


def _fit(
    kind: Kind,
    X: Array,
    rank: int | Sequence[int],
    loss: Loss,
    weights: Weights,
    given: FitOptions,
) -> Factorisation:
    known = list(FitOptions.__annotations__)
    known = [*known, "weights"] if kind == "cp" else known
    comm, interrupts = team_of(given.get("comm")), Interrupts()
    if comm is None:
        known_options(kind, given, known)
        best = fit_model(kind, X, rank, loss, weights, given)
    else:
        with interrupts.held(), failing_together(comm):
            known_options(kind, given, known)  # tells the others if it fails
            best = fit_model(kind, X, rank, loss, weights, given, comm, interrupts)
    if not best.converged and (comm is None or comm.rank == 0):
        warnings.warn(f"{kind}: {best.message}", stacklevel=3)
    return best


def fit_model(
    kind: Kind,
    X: Array,
    rank: int | Sequence[int],
    loss: Loss,
    weights: Weights,
    given: FitOptions,
    comm: Communicator | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Factorisation:
    """Check the arguments and fit; an error of all processes is an `AgreedError`."""
    X, found = without_labels("X", X, in_chunks=True)
    weight, weight_labels = without_labels("sample_weight", given.get("sample_weight"))
    mask, mask_labels = without_labels("mask", given.get("mask"))
    present = None
    if given.get("chunk") is None and not is_larger_than_a_chunk(X):
        present = present_samples(mask, X, loss, shared=comm is not None)
    if present is not None:
        X, mask, weight = (present.take(array) for array in (X, mask, weight))
        given = {**given, "init": present.of_init(given.get("init"))}
    spec = specify(
        kind,
        X,
        rank,
        loss,
        rho=given.get("rho"),
        constraints=given.get("constraints"),
        weights=weights,
        fixed=given.get("fixed", ()),
        sample_weight=weight,
        mask=mask,
        comm=comm,
        interrupted=interrupted,
        chunk=given.get("chunk"),
        scratch=given.get("scratch"),
        entropy_share=DUAL_SHARE if given.get("solver") == "dual" else ENTROPY_SHARE,
    )

    def check() -> tuple[tuple[Axis, ...], int]:
        whole = tuple(spec.X.shape) if present is None else present.shape
        axes = checked_axes(given.get("axes"), found, whole)
        check_cost_labels(loss, axes)
        check_last_labels("mask", mask_labels, axes)
        check_last_labels("sample_weight", weight_labels, axes[:1])
        return axes, _starts(given)

    sums = spec.shards.sums
    axes, starts = sums.agree(check)
    options = solver_options(spec, given)
    rng = shared_generator(given.get("rng"), sums)
    fit = Factorisation.of(best_of(starts, spec, options, rng))
    if sums.any(present is not None):
        mean = mean_coefficients(fit.factors[0], fit.constraints[0], sums)
        fit = fit if present is None else with_absent(fit, present, mean)
    return replace(fit, axes=axes)


def _starts(given: FitOptions) -> int:
    """The number of initialisations."""
    starts = positive_integer("n_init", given.get("n_init", 1))
    if starts > 1 and given.get("checkpoint") is not None:
        msg = f"checkpoint was given with n_init = {starts}: expected a single start"
        raise ValueError(msg)
    return starts
