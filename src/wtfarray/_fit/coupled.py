"""Factorisation of several data sets with the same samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, TypedDict, Unpack, cast

import numpy as np

from wtfarray._arrays.axes import (
    Axis,
    check_all_labels,
    check_last_labels,
    checked_axes,
)
from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.containers import without_labels
from wtfarray._arrays.masks import filled_with_means
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.sums import Sums, failing_together, refusal
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    axis_index,
    known_options,
    positive_integer,
    sequence_of_arrays,
)
from wtfarray._fit.coupled_chunks import sources_of, without_absent
from wtfarray._fit.coupled_result import (
    CoupledFactorisation,
    blocks_of,
    sequence_of,
    with_absent_samples,
)
from wtfarray._fit.coupled_specification import (
    CoupledSpecification,
    Source,
    shared_sources,
    specify_coupled,
)
from wtfarray._fit.journal import FitState
from wtfarray._fit.options import FitOptions, solver_options
from wtfarray._fit.restarts import best_of
from wtfarray._fit.specification import checked_sample_weight
from wtfarray._fit.svd_start import svd_factor
from wtfarray._fit.team import Interrupts, check_same, shared_generator, team_of
from wtfarray._losses.labels import check_cost_labels
from wtfarray._losses.protocol import Loss
from wtfarray._models.entropy import Constraint, constrained_axes


class CoupledOptions(TypedDict, total=False):
    """Keywords of `coupled`; documented in `cp`."""

    rho: float | Sequence[float] | None
    constraints: Sequence[Constraint] | None
    fixed: Sequence[int]
    init: object
    n_init: int
    rng: int | np.random.Generator | None
    tol: float
    max_iter: int
    sample_weight: Array | None
    batch: int | None
    callback: Callable[[FitState], object] | None
    progress: bool
    checkpoint: str | PathLike[str] | None
    comm: Communicator | None
    axes: Sequence[Sequence[Axis | str | None] | None] | None


def coupled(
    X: Sequence[Array],
    /,
    rank: int,
    losses: Sequence[Loss],
    *,
    weights: Sequence[float] | None = None,
    mask: Sequence[Array | None] | None = None,
    **options: Unpack[CoupledOptions],
) -> CoupledFactorisation:
    """
    Factorise several data sets with the same samples, which share their coefficients.

    ``X[s] ~ c_s A B_s^T`` minimises ``sum_s w_s Phi_s(X[s], c_s A B_s^T)`` plus the entropies of
    the coefficients A and of the atoms B_s. The scale c_s is the mean mass of a sample of X[s], or
    1 if all samples of all data sets have mass one.

    Parameters
    ----------
    X : sequence of arrays (n, ...)
        The data sets, matrices or tensors whose first mode indexes the same n samples.
    rank : int
        Number of components.
    losses : sequence of Loss
        The loss of each data set.
    weights : sequence of float, optional
        The weight of each loss, by default one.
    mask : sequence of arrays of bool or None, optional
        For each data set None, or True where it was observed, as for `cp`. A sample that a data set
        lacks is masked as a whole; its entries in X may have any values.
    **options
        As for `cp`, without ``solver``: ``rho`` and ``constraints`` have one entry for the
        coefficients and one for the atoms of each data set, in this order, and so does ``init`` if
        it is given as a list of factors. ``axes`` has one entry per data set, the labels of its
        modes or None. The default of ``rho`` is that of a fit to each data set. By default the
        coefficients of a sample and every atom sum to one if all samples have mass one. Otherwise
        the atoms of the first data set do, and a component may have another mass in the others.

    Returns
    -------
    CoupledFactorisation
        Unpacks as ``coefficients, atoms``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> rng = np.random.default_rng(0)
    >>> A = rng.dirichlet(np.ones(2), 10)
    >>> spectra = A @ rng.dirichlet(np.ones(12), 2)
    >>> counts = A @ rng.dirichlet(np.ones(7), 2)
    >>> loss = wtf.Wasserstein(wtf.grid_cost(12), eps=0.02, lam=10.0)
    >>> fit = wtf.coupled([spectra, counts], 2, [loss, wtf.KullbackLeibler()], rng=0)
    >>> coefficients, atoms = fit
    >>> coefficients.shape, [b.shape for b in atoms]
    ((10, 2), [(12, 2), (7, 2)])
    >>> fit.project([spectra[:3], None]).shape
    (3, 2)
    """
    known = [*CoupledOptions.__annotations__, "weights", "mask"]
    comm, interrupts = team_of(options.get("comm")), Interrupts()
    if comm is None:
        known_options("coupled", options, known)
        best = fit_coupled(X, rank, losses, weights, mask, options)
    else:
        with interrupts.held(), failing_together(comm):
            known_options("coupled", options, known)  # tells the others if it fails
            best = fit_coupled(X, rank, losses, weights, mask, options, comm, interrupts)
    if not best.converged and (comm is None or comm.rank == 0):
        warnings.warn(f"coupled: {best.message}", stacklevel=2)
    return best


def fit_coupled(
    X: Sequence[Array],
    rank: int,
    losses: Sequence[Loss],
    weights: Sequence[float] | None,
    mask: Sequence[Array | None] | None,
    options: CoupledOptions,
    comm: Communicator | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    *,
    weights_entropy: bool = False,
) -> CoupledFactorisation:
    """
    Check the arguments and fit; an error of all processes is an `AgreedError`.

    With ``weights_entropy``, ``sample_weight`` weights the entropies of the coefficients as well.
    """
    sums = Sums(comm)
    sources, axes, sample_weight = sums.agree(
        lambda: _checked(X, losses, weights, mask, options, shared=sums.shared)
    )
    shards, present = WHOLE, None
    if comm is None:
        sources, present = without_absent(sources)
    else:
        same = ("rho", "constraints", "fixed")
        check_same(sums, {"rank": rank, **{name: options.get(name) for name in same}})
        sources, shards = shared_sources(sources, sample_weight, comm, interrupted)
    if present is not None:
        sample_weight = present.take(sample_weight)
        init = options.get("init")
        init = blocks_of(init) if isinstance(init, CoupledFactorisation) else init
        options = {**options, "init": present.of_init(init)}
    try:
        spec = _specified(sources, rank, options, sample_weight, shards)
    except Exception as error:  # noqa: BLE001 -- the same on every rank, as the arguments are
        raise refusal(sums, error) from None
    if weights_entropy and sample_weight is not None:
        spec = replace(spec, rho=(spec.rho[0] * sample_weight[:, None], *spec.rho[1:]))
    starts = sums.agree(lambda: _starts(options))
    rng = shared_generator(options.get("rng"), sums)
    given = cast("FitOptions", {**options, "init": _init(spec, options.get("init"), rng)})
    checked = solver_options(spec, given)
    solution = best_of(starts, spec, checked, rng)
    fit = CoupledFactorisation.of(solution, axes, checked.batch)
    return fit if present is None else with_absent_samples(fit, present)


def _checked(
    X: Sequence[Array],
    losses: Sequence[Loss],
    weights: Sequence[float] | None,
    mask: Sequence[Array | None] | None,
    options: CoupledOptions,
    *,
    shared: bool,
) -> tuple[tuple[Source, ...], list[tuple[Axis, ...]], Array | None]:
    """The data sets, their labels and the weights of the samples."""
    sequence_of_arrays("X", X)
    pairs = [without_labels(f"X[{k}]", array, in_chunks=not shared) for k, array in enumerate(X)]
    masks: list[tuple[Array, tuple[Axis, ...]]] = []
    if isinstance(mask, Sequence):
        masks = [without_labels(f"mask[{k}]", m) for k, m in enumerate(mask)]
        mask = [array for array, _ in masks]
    arrays = [array for array, _ in pairs]
    sources = sources_of(arrays, losses, weights, mask, shared=shared)
    given_axes = options.get("axes")
    if given_axes is not None:
        sequence_of("axes", given_axes, len(sources), "the labels of its modes or None")
    axes = [
        checked_axes(
            None if given_axes is None else given_axes[k],
            pairs[k][1],
            tuple(source.X.shape),
            f"axes[{k}]",
        )
        for k, source in enumerate(sources)
    ]
    for k, (source, named) in enumerate(zip(sources, axes, strict=True)):
        check_cost_labels(source.loss, named)
        check_all_labels(f"X[{k}]", named[:1], axes[0][:1], "X[0]")
        if masks:
            check_last_labels(f"mask[{k}]", masks[k][1], named, f"X[{k}]")
    given, labels = without_labels("sample_weight", options.get("sample_weight"))
    check_last_labels("sample_weight", labels, axes[0][:1], "X[0]")
    return sources, axes, checked_sample_weight(given, sources[0].X, shared=shared)


def _specified(
    sources: tuple[Source, ...],
    rank: int,
    options: CoupledOptions,
    sample_weight: Array | None,
    shards: Shards,
) -> CoupledSpecification:
    """The problem, of which at least one block is free."""
    fixed = {axis_index("fixed", k, 1 + len(sources)) for k in options.get("fixed", ())}
    spec = specify_coupled(
        sources,
        rank,
        rho=options.get("rho"),
        constraints=options.get("constraints"),
        free=tuple(k for k in range(1 + len(sources)) if k not in fixed),
        sample_weight=sample_weight,
        shards=shards,
    )
    if not spec.free:
        msg = f"fixed is {tuple(options['fixed'])}: expected at least one block to be left free"
        raise ValueError(msg)
    return spec


def _starts(options: CoupledOptions) -> int:
    """The number of initialisations."""
    starts = positive_integer("n_init", options.get("n_init", 1))
    if starts > 1 and options.get("checkpoint") is not None:
        msg = f"checkpoint was given with n_init = {starts}: expected a single start"
        raise ValueError(msg)
    return starts


def _init(spec: CoupledSpecification, init: Any, rng: np.random.Generator) -> object:
    """The initialisation for blocks side by side: given factors, normalised, or a name."""
    xp = array_namespace(spec.like)
    if isinstance(init, CoupledFactorisation):
        init = blocks_of(init)
    elif isinstance(init, str) and init == "nnsvd":
        if spec.summary is not None:
            msg = "init is 'nnsvd', which needs X in memory: expected 'kl', 'random' or factors"
            raise ValueError(msg)
        shards, r = spec.shards, spec.shapes[0][1]
        complete = spec.X
        if spec.mask is not None:
            complete = filled_with_means(spec.X, spec.mask, shards.sums)
        atoms = svd_factor(complete, 1, r, rng, shards)
        start, init = 0, [svd_factor(complete, 0, r, rng, shards)]
        for features, _ in spec.shapes[1:]:
            init.append(atoms[start : start + features, :])
            start += features
    if not isinstance(init, (list, tuple)) or len(init) != spec.modes:
        return init
    # The scales of two sets of atoms cannot both go into the coefficients: drop them.
    blocks = [init[0]]
    for k in range(1, spec.modes):
        block, axes = init[k], constrained_axes(spec.constraints[k], 2)
        if axes is not None and k in spec.free:
            total = xp.sum(block, axis=axes, keepdims=True)
            block = block / xp.where(total > 0, total, 1.0)
        blocks.append(block)
    return blocks
