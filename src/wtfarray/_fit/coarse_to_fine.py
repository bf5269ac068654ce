"""
Coarse-to-fine initialisation: a fit on a grid with bins twice as wide initialises the next.

A grid is fine enough for a level of smoothing if neighbouring bins are little more than its eps
apart. Each level is therefore solved on the coarsest grid that is fine enough for it, where a step
takes a fraction of the time, and only what is left of the smoothing is solved on the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.host import to_host
from wtfarray._arrays.masks import observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.stored import StoredData
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import can_be_halved, is_fine_enough
from wtfarray._fit.given_factors import is_named
from wtfarray._fit.journal import Journal
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.specification import Specification
from wtfarray._fit.starts import Start, method_and_levels, start_on_grid
from wtfarray._losses.loss_sum import LossSum
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._solvers.envelope import SETTINGS, Progress, minimise
from wtfarray._solvers.objective import JointObjective
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason
from wtfarray._solvers.streamed import StreamedProblem
from wtfarray._transport.banded import BandedCost

TOL = 1e-5
"""Tolerance on coarser grids, which only provide initial blocks."""
MAX_ITER = 300
"""Largest number of iterations on a coarser grid."""


def first_start(
    spec: Specification,
    problem: FactorisationProblem,
    options: SolverOptions,
    rng: np.random.Generator,
    journal: Journal,
    *,
    tol: float = TOL,
) -> Start:
    """
    The initial point on the grid of ``spec``; on a fine grid, the solution on a coarser one.

    ``tol`` is the tolerance there.
    """
    if not is_named(options.init) or options.solver != "envelope":
        return start_on_grid(spec, options.init, rng)
    init, levels = method_and_levels(spec, options.init)
    options = replace(options, init=init, tol=tol)
    return _start(spec, problem, options, levels, rng, journal)


def _start(
    spec: Specification,
    problem: FactorisationProblem,
    options: SolverOptions,
    levels: tuple[float, ...],
    rng: np.random.Generator,
    journal: Journal,
    to_finest: Callable[[list[Array]], list[Array]] = list,
) -> Start:
    """
    As `first_start`, for the given levels of smoothing; ``options`` has the tolerance.

    ``to_finest`` refines blocks of this grid to the grid of the data, for the callback.
    """
    coarse = coarser(spec, levels[0])
    if coarse is None:
        return replace(start_on_grid(spec, options.init, rng), levels=levels)
    there, here = _divided(levels, coarse)
    if options.checkpoint is not None and options.checkpoint.exists:
        # The checkpoint replaces the solution on the coarse grid.
        return Start(start_on_grid(spec, options.init, rng).blocks, here or (1.0,))
    coarse_problem = coarse.problem(options.batch)

    def lift(blocks: list[Array]) -> list[Array]:
        return to_finest(refine(spec, blocks))

    start = _start(coarse, coarse_problem, options, there, rng, journal, lift)
    if start.ended is not None:
        return start
    objective = JointObjective(coarse_problem, start.blocks)

    def report(progress: Progress, _: CurvaturePairs) -> bool:
        point = progress.current.point
        return journal.step(
            point.value + objective.offset,
            progress.current.gap,
            math.inf,
            coarse_problem.evaluations,
            lambda: lift(objective.blocks(point.x)),
            objective.news(),
        )

    try:
        found = minimise(
            objective,
            objective.pack(start.blocks),
            start.levels,
            tol=SETTINGS.level_tol if here else options.tol,
            max_iter=SETTINGS.level_iterations if here else MAX_ITER,
            report=report,
            curvature=start.curvature,
        )
        objective.raise_interrupt()
    except KeyboardInterrupt:
        _transfer_potentials(coarse_problem, problem)
        return Start(journal.latest() or lift(start.blocks), (1.0,), StopReason.INTERRUPTED)
    _transfer_potentials(coarse_problem, problem)
    blocks = objective.blocks(found.x)
    if found.reason.by_caller:
        return Start(lift(blocks), (1.0,), found.reason)
    curvature = None
    if found.accepted:
        curvature = refine_pairs(spec, coarse, found.pairs.export())
    return Start(refine(spec, blocks), here or (1.0,), curvature=curvature)


def _divided(
    levels: tuple[float, ...], coarse: Specification
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The levels of smoothing for which a coarser grid is fine enough, and all others."""
    spacings = [
        (float(cost[0, 1]), loss.eps)
        for loss in coarse.losses
        if isinstance(loss, Wasserstein)
        for cost in loss.costs
    ]
    there = tuple(
        level
        for level in levels
        if all(is_fine_enough(spacing, level * eps) for spacing, eps in spacings)
    )
    return there, levels[len(there) :]


def _transfer_potentials(coarse: FactorisationProblem, fine: FactorisationProblem) -> None:
    """Initialise the potentials of a grid with those of the coarser one."""
    # The potential of a missing bin says nothing about its neighbours.
    refined = partial(refine_potential, smooth=fine.mask is None)
    if isinstance(fine, StreamedProblem) and isinstance(coarse, StreamedProblem):
        fine.losses.start_from(coarse.losses, refined)
        return
    for term, old in zip(fine.terms, coarse.terms, strict=True):
        term.start_from(refined(old.potential, tuple(term.potential.shape)))


def coarser(spec: Specification, level: float = 1.0) -> Specification | None:
    """
    The same problem with pairs of neighbouring bins merged, or None if that is not possible.

    It is possible if every cost is that of a regular grid and the cost between neighbouring bins of
    the coarser grid is small enough for the smoothed eps, ``level`` times that of the loss: the
    lost detail is of the order of the smoothing. The losses of a sum must transport the same modes:
    merging bins of a mode that indexes samples in another loss would change that loss. A
    merged bin is missing if any of its parts is; if that hides more than half of what was observed
    of some sample, or if the mask is read in chunks, there is no coarser problem.
    """
    if spec.kind == "nmf":
        return None
    shape = tuple(spec.X.shape)
    found = [_grid_modes(loss, shape, level) for loss in spec.losses]
    if not all(found):
        return None
    modes = tuple(sorted(found[0]))
    if any(set(transported) != set(modes) for transported in found):
        return None
    if isinstance(spec.X, StoredData) and spec.mask is not None:
        return None
    X, mask, summary = spec.X, spec.mask, None
    if isinstance(X, StoredData):
        X = X.prepared(partial(_merged, modes=modes))
        summary = X.summary("X", shared=spec.shards.shared)
    else:
        X = _merged(X, modes)
    if mask is not None:
        xp = array_namespace(X)
        for mode in modes:
            mask = xp.all(_pairs(mask, mode), axis=mode + 1)
        X = observed(X, mask)
        axes = tuple(k for k in range(X.ndim) if k in modes)
        lost = xp.sum(X, axis=axes) < 0.5 * xp.sum(spec.X, axis=axes)
        if spec.shards.sums.any(bool(xp.any(lost))):
            return None
    shapes = [
        (rows // 2, *rest) if k in modes else (rows, *rest)
        for k, (rows, *rest) in enumerate(spec.shapes[: spec.modes])
    ]
    losses = [_coarser_loss(loss) for loss in spec.losses]
    return replace(
        spec,
        X=X,
        loss=LossSum(*losses) if isinstance(spec.loss, LossSum) else losses[0],
        shapes=(*shapes, *spec.shapes[spec.modes :]),
        mask=mask,
        summary=summary,
    )


@compiled(static=("modes",))
def _merged(X: Array, modes: tuple[int, ...]) -> Array:
    """The data with pairs of neighbouring bins of some modes merged."""
    for mode in modes:
        X = array_namespace(X).sum(_pairs(X, mode), axis=mode + 1)
    return X


def _pairs(array: Array, mode: int) -> Array:
    """The array with pairs of neighbours along ``mode`` in a mode of their own after it."""
    shape = (*array.shape[:mode], array.shape[mode] // 2, 2, *array.shape[mode + 1 :])
    return array_namespace(array).reshape(array, shape)


def refine(spec: Specification, blocks: Sequence[Array]) -> list[Array]:
    """
    Blocks of the coarser problem on the grid of ``spec``: each bin is split into two.

    In the variables of the spheres, the roots, values are interpolated between the centres of the
    bins. The sums of the columns are those of split bins; rows that sum to one go on to do so.
    """
    fine = list(blocks)
    for k in range(spec.modes):
        if fine[k].shape[0] != spec.shapes[k][0]:
            fine[k] = _refined(fine[k], by_rows=spec.constraints[k] == "rows")
    return fine


@compiled(static=("by_rows",))
def _refined(coarse: Array, *, by_rows: bool) -> Array:
    """A factor on the finer grid."""
    xp = array_namespace(coarse)
    root = _interpolated(xp.sqrt(coarse), 0)
    block = root * root
    total = xp.sum(block, axis=int(by_rows), keepdims=True)
    wanted = 1.0 if by_rows else xp.sum(coarse, axis=0, keepdims=True)
    return block * (wanted / xp.where(total > 0, total, 1.0))


@compiled(static=("shape", "smooth"))
def refine_potential(g: Array, shape: tuple[int, ...], *, smooth: bool = True) -> Array:
    """The stacked potential on the finer grid, interpolated if ``smooth``, otherwise repeated."""
    xp = array_namespace(g)
    for axis, n in enumerate(shape):
        if g.shape[axis] != n:
            g = _interpolated(g, axis) if smooth else xp.repeat(g, 2, axis=axis)
    return g


def _interpolated(array: Array, axis: int) -> Array:
    """Values at the centres of the halves of the bins: linear between, constant at the ends."""
    xp = array_namespace(array)
    array = xp.moveaxis(array, axis, 0)
    before = xp.concat([array[:1, ...], array[:-1, ...]])
    after = xp.concat([array[1:, ...], array[-1:, ...]])
    halves = xp.stack([0.75 * array + 0.25 * before, 0.75 * array + 0.25 * after], axis=1)
    return xp.moveaxis(xp.reshape(halves, (-1, *array.shape[1:])), 0, axis)


def refine_pairs(
    spec: Specification, coarse: Specification, pairs: dict[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """
    Curvature pairs of the coarser grid, as `CurvaturePairs.export` returns them, on the finer one.

    In the variables of the spheres, splitting bins into halves is a linear map P, close to
    `refine`, and the finer objective at P x is approximately the coarser one at x. A step s becomes
    P s, and a gradient difference y becomes ``P (P^T P)^-1 y``. The diagonal follows from both.
    Inner products have to be renewed.
    """
    parts, diagonals, start = [], [], 0
    for k in spec.free:
        n, rank = coarse.shapes[k][0], math.prod(coarse.shapes[k][1:])
        here = slice(start, start + n * rank)
        part, diagonal = pairs["rows"][:, here], pairs["diagonal"][here]
        start += n * rank
        if spec.shapes[k][0] != n:
            root = math.sqrt(_share(spec, k))
            part = np.repeat(part.reshape(-1, n, rank), 2, axis=1) * root
            part[1::2] *= 0.5 / root**2
            diagonal = np.repeat(diagonal.reshape(n, rank), 2, axis=0) * 2.0 * root**2
        parts.append(part.reshape(part.shape[0], -1))
        diagonals.append(diagonal.reshape(-1))
    rows = np.concatenate(parts, axis=1)
    return {**pairs, "rows": rows, "diagonal": np.concatenate(diagonals)}


def _share(spec: Specification, k: int) -> float:
    """The factor from the value of a bin to that of each of its halves."""
    return 1.0 if spec.constraints[k] == "rows" else 0.5


def _grid_modes(loss: Loss, shape: tuple[int, ...], level: float) -> tuple[int, ...]:
    """The transported modes if all of them can be made coarser, else an empty tuple."""
    if not isinstance(loss, Wasserstein):
        return ()
    modes = loss.transported(shape)
    if len(modes) != len(loss.costs):
        return ()  # a cost over several modes together
    for mode, cost in zip(modes, loss.costs, strict=True):
        n = shape[mode]
        if not can_be_halved(n) or isinstance(cost, BandedCost):
            return ()
        table = to_host(cost)
        if not np.isfinite(table).all():
            return ()  # transport forbidden on this grid may be allowed on a coarser one
        steps = table[0, :]
        distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        regular = np.allclose(table, steps[distance], rtol=1e-6) and np.all(np.diff(steps) > 0)
        if not regular or not is_fine_enough(float(steps[2]), level * loss.eps):
            return ()
    return modes


def _coarser_loss(loss: Loss) -> Loss:
    """The loss on every second grid point; `_grid_modes` has checked that this is possible."""
    if not isinstance(loss, Wasserstein):
        return loss
    return replace(loss, costs=tuple(cost[::2, ::2] for cost in loss.costs))
