"""Fits of increasing rank, with criteria for the choice of the rank."""

from __future__ import annotations

import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.axes import Axis, check_last_labels, checked_axes
from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.containers import without_labels
from wtfarray._arrays.masks import as_mask, observed
from wtfarray._arrays.sparse import SparseSamples
from wtfarray._arrays.sums import Sums, failing_together
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_data,
    as_shard,
    common_namespace,
    instance_of,
    known_options,
    one_of,
    positive_integer,
)
from wtfarray._fit.journal import wants_to_stop
from wtfarray._fit.left_out import left_out_blocks, left_out_samples
from wtfarray._fit.matching import matched_cosine
from wtfarray._fit.progress_bar import ProgressBar
from wtfarray._fit.rank_chain import Chain, ScanOptions
from wtfarray._fit.rank_losses import (
    core_consistency_of_fit,
    loss_of_left_out_entries,
    loss_of_left_out_samples,
    mean_excess,
    unstructured_loss,
)
from wtfarray._fit.rank_records import Rank, RankRecord, RankScan
from wtfarray._fit.result import Factorisation
from wtfarray._fit.sample_parts import (
    sparse_or_dense,
)
from wtfarray._fit.specification import Kind, is_sampled
from wtfarray._fit.team import (
    Interrupts,
    check_same,
    seed_identity,
    shared_generator,
    team_of,
)
from wtfarray._losses.labels import check_cost_labels
from wtfarray._losses.protocol import Loss


def rank_scan(
    X: Array,
    /,
    ranks: Sequence[int] | Sequence[Sequence[int]],
    loss: Loss,
    *,
    model: Kind = "nmf",
    n_seeds: int = 3,
    held_out: float | None = 0.2,
    held_out_entries: float | None = None,
    rng: int | np.random.Generator | None = 0,
    axes: Sequence[Axis | str | None] | None = None,
    callback: Callable[[RankRecord], object] | None = None,
    progress: bool = False,
    mask: Array | None = None,
    comm: Communicator | None = None,
    **options: Unpack[ScanOptions],
) -> RankScan:
    """
    Fit models of several ranks, to choose the rank that the data support.

    For every rank there are ``n_seeds`` fits to all samples, and one fit to the remaining samples
    of each fold. Each fit is initialised with the fit of the next smaller rank, with components
    added from its residual.

    Parameters
    ----------
    X : array (n_0, ..., n_{d-1})
        Non-negative data.
    ranks : sequence of int, for "tucker" of sequences of int
        The ranks, in any order.
    loss : Loss
        `Wasserstein`, `Frobenius`, `KullbackLeibler` or a `LossSum`.
    model : {"nmf", "cp", "tucker"}
        The model to fit.
    n_seeds : int
        Number of fits with different initialisations, whose atoms are compared; 1: none.
    held_out : float, int or None
        A fraction below one: leave out this fraction of the samples, once. An integer: the number
        of folds, each of which is left out in turn. None: leave out no samples; required if the
        loss transports the first mode.
    held_out_entries : float or None
        A fraction below one: also leave out a block of this fraction of the entries of every
        sample, and compute their loss. It needs a loss that supports a mask.
    rng : int or numpy.random.Generator
        Seed of the initialisations and of the choice of left-out samples.
    axes : sequence of Axis, str or None
        Labels of the modes of X, as for `cp`.
    callback : callable
        Called with the `RankRecord` of each rank; returning True ends the scan.
    progress : bool
        Show a progress bar (needs tqdm).
    mask : array of bool, optional
        True where X was observed, as for `cp`.
    comm : Communicator, optional
        A team of processes that share the samples, as for `cp`. All get the same records.
    **options
        ``rho``, ``constraints``, ``solver``, ``tol``, ``max_iter`` and ``batch``, as for `cp`.

    Returns
    -------
    RankScan
        Records and fits of the completed ranks, and a suggested rank. Ctrl-C ends the scan early.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> rng = np.random.default_rng(0)
    >>> centre = rng.choice([4, 11], (20, 1)) + rng.normal(0, 0.5, (20, 1))
    >>> X = np.exp(-((np.arange(16) - centre) ** 2))
    >>> X /= X.sum(axis=1, keepdims=True)
    >>> loss = wtf.Wasserstein(wtf.grid_cost(16), eps=0.02, lam=10.0)
    >>> scan = wtf.rank_scan(X, [1, 2, 3], loss, n_seeds=2)
    >>> scan.suggested, scan.fits[1].factors[1].shape
    (2, (16, 2))
    >>> scan.records[1].held_out < 0.1 * scan.records[0].held_out
    True
    """
    named = ["model", "n_seeds", "held_out", "held_out_entries", "rng", "axes", "callback"]
    named += ["progress", "mask", "comm", *ScanOptions.__annotations__]
    team, interrupts = team_of(comm), Interrupts()
    arguments = (ranks, loss, model, n_seeds, held_out, held_out_entries, rng, axes, callback)
    # Filters of warnings are those of all threads of a process: only one rank changes them.
    catches = team is None or team.rank == 0
    with (
        nullcontext() if team is None else interrupts.held(),
        failing_together(team),
        warnings.catch_warnings(record=True) if catches else nullcontext([]) as caught,
    ):
        if catches:
            warnings.simplefilter("always", UserWarning)
        known_options("rank_scan", options, named)
        scan = _scan(X, mask, *arguments, options, Sums(team), interrupts, progress=progress)
    # One warning per scan instead of one per fit.
    caught = caught or []
    if len(caught) == 1:
        warnings.warn(f"rank_scan: {caught[0].message}", stacklevel=2)
    elif caught:
        msg = f"rank_scan: {caught[0].message} (the first of {len(caught)} warnings)"
        warnings.warn(msg, stacklevel=2)
    return scan


def _scan(
    X: Array,
    mask: Array | None,
    ranks: Sequence[int] | Sequence[Sequence[int]],
    loss: Loss,
    model: Kind,
    n_seeds: int,
    held_out: float | None,
    held_out_entries: float | None,
    rng: int | np.random.Generator | None,
    axes: Sequence[Axis | str | None] | None,
    callback: Callable[[RankRecord], object] | None,
    options: ScanOptions,
    sums: Sums,
    interrupted: Callable[[], bool],
    *,
    progress: bool,
) -> RankScan:
    """Check the arguments and fit one rank after the other."""

    def check() -> tuple[Array, Array | None, tuple[Axis, ...], list[Rank]]:
        data, found = without_labels("X", X, in_chunks=not sums.shared)
        seen, seen_labels = without_labels("mask", mask)
        data, seen = _checked_data(data, seen, loss, held_out_entries, shared=sums.shared)
        labels = checked_axes(axes, found, tuple(data.shape))
        one_of("model", model, ("nmf", "cp", "tucker"))
        instance_of("loss", loss, Loss, "a loss of wtfarray, or an object with value_and_gradient")
        check_cost_labels(loss, labels)
        check_last_labels("mask", seen_labels, labels)
        positive_integer("n_seeds", n_seeds)
        return data, seen, labels, _sorted_ranks(ranks, model)

    X, mask, labels, order = sums.agree(check)
    same: dict[str, object] = {"model": model, "ranks": order, "n_seeds": n_seeds}
    same |= {"held_out": held_out, "held_out_entries": held_out_entries}
    check_same(sums, {**same, "rng": seed_identity(rng)})
    generator = shared_generator(rng, sums)
    sampled = is_sampled(loss, tuple(X.shape))
    first, samples = sums.place(int(X.shape[0]))

    def draw() -> tuple[
        list[NDArray[np.intp]], list[np.random.Generator], NDArray[np.bool_] | None
    ]:
        """Left-out samples and entries, of which others have some, and streams for the fits."""
        folds = left_out_samples(samples, held_out, generator, sampled=sampled)
        streams, blocks = generator.spawn(n_seeds + len(folds)), None
        if held_out_entries is not None:
            streams += generator.spawn(1)
            blocks = left_out_blocks((samples, *X.shape[1:]), held_out_entries, streams[-1])
            blocks = blocks[first : first + X.shape[0]]
        return folds, streams, blocks

    folds, streams, blocks = sums.agree(draw)
    here = [fold[(fold >= first) & (fold < first + X.shape[0])] - first for fold in folds]
    whole = [Chain(X, mask, stream, sums) for stream in streams[:n_seeds]]
    parts = [
        Chain(X, mask, stream, sums, fold)
        for stream, fold in zip(streams[n_seeds : n_seeds + len(folds)], here, strict=True)
    ]
    if blocks is not None:
        parts.append(Chain.without_entries(X, mask, streams[-1], sums, blocks))
    unstructured = None
    if order[0] == 1:
        unstructured = unstructured_loss(loss, X, mask, sums, sampled=sampled)
    scan = RankScan(model, [], [], unstructured)
    total = len(order) * len(streams)
    with ProgressBar("rank scan", visible=progress and sums.leads, total=total) as bar:
        for rank in order:
            try:
                record, fit = _fit_rank(
                    model, rank, loss, whole, parts, options, bar, interrupted, sampled=sampled
                )
            except KeyboardInterrupt:
                break
            scan.records.append(record)
            scan.fits.append(replace(fit, axes=labels))
            if sums.any(callback is not None and wants_to_stop(callback(record))):
                break
    return scan


def _checked_data(
    X: Array, mask: Array | None, loss: Loss, entries: float | None, *, shared: bool
) -> tuple[Array, Array | None]:
    """The data, 0 where nothing was observed, and their mask; large sparse ones stay sparse."""
    X = sparse_or_dense(X)
    if isinstance(X, SparseSamples):
        _refuse_for_sparse(X, loss, mask, entries)
        return X, None
    xp = common_namespace(X=X)
    mask = as_mask("mask", mask, X, shared=shared)
    return (as_shard if shared else as_data)("X", observed(X, mask), xp), mask


def _fit_rank(
    model: Kind,
    rank: Rank,
    loss: Loss,
    whole: list[Chain],
    parts: list[Chain],
    options: ScanOptions,
    bar: ProgressBar,
    interrupted: Callable[[], bool],
    *,
    sampled: bool,
) -> tuple[RankRecord, Factorisation]:
    """Fit one rank; returns its record and the best fit."""
    begin = time.perf_counter()
    converged, sums = True, whole[0].sums
    fits: list[Factorisation] = []
    for chain in (*whole, *parts):
        fits.append(chain.fit_next(model, rank, loss, options, interrupted))
        if fits[-1].stopped:  # an interrupted fit returns instead of raising
            raise KeyboardInterrupt
        bar.step(fits[-1].objective, fits[-1].gap)
        converged = converged and fits[-1].converged
    fits = fits[: len(whole)]
    best = min(fits, key=lambda fit: fit.objective)
    held_out = [
        loss_of_left_out_samples(chain, loss) for chain in parts if chain.left_out is not None
    ]
    entries = [
        loss_of_left_out_entries(chain, loss) for chain in parts if chain.entries is not None
    ]
    modes = range(1 if sampled else 0, len(best.factors))
    pairs = [matched_cosine(a, b, modes) for a, b in itertools.combinations(fits, 2)]
    record = RankRecord(
        rank=rank,
        objective=best.objective,
        gap=best.gap,
        loss=mean_excess(loss, whole[0].X, best, whole[0].mask, sums),
        held_out=statistics.fmean(held_out) if held_out else None,
        held_out_error=_standard_error(held_out) if len(held_out) > 1 else None,
        stability=statistics.fmean(pairs) if pairs else None,
        held_out_entries=entries[0] if entries else None,
        core_consistency=core_consistency_of_fit(best, whole[0], loss) if model == "cp" else None,
        converged=converged,
        seconds=time.perf_counter() - begin,
    )
    if sums.any(interrupted()):
        raise KeyboardInterrupt
    return record, best


def _refuse_for_sparse(
    X: SparseSamples, loss: Loss, mask: Array | None, entries: float | None
) -> None:
    """Refuse what sparse samples that are read in chunks do not support."""
    unsupported = None
    if mask is not None:
        unsupported = "mask was given"
    elif entries is not None:
        unsupported = "held_out_entries was given"
    elif isinstance(loss, Loss) and not is_sampled(loss, X.shape):
        unsupported = "loss transports the first mode"
    if unsupported is not None:
        size = " x ".join(map(str, X.shape))
        msg = (
            f"{unsupported} for a sparse X of {size}, which is read in chunks of samples: expected "
            "X in memory, X.toarray()"
        )
        raise ValueError(msg)


def _sorted_ranks(ranks: object, model: Kind) -> list[Rank]:
    """The distinct ranks in increasing order."""
    if isinstance(ranks, str) or not isinstance(ranks, Iterable):
        msg = f"ranks is {ranks!r}: expected several ranks, for example range(1, 6)"
        raise TypeError(msg)
    checked: set[Any] = set()
    for i, rank in enumerate(ranks):
        if model != "tucker":
            checked.add(positive_integer(f"ranks[{i}]", rank))
        elif not isinstance(rank, Sequence):
            msg = f"ranks[{i}] is {rank!r}: expected a sequence of integers, one for each mode"
            raise TypeError(msg)
        else:
            checked.add(tuple(positive_integer(f"ranks[{i}][{k}]", r) for k, r in enumerate(rank)))
    if not checked:
        msg = "ranks is empty: expected at least one rank"
        raise ValueError(msg)
    return sorted(checked)


def _standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))
