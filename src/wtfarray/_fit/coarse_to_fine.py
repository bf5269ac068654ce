"""Coarser grids: a first fit where a bin is two bins wide costs a small part of the real one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import can_be_halved
from wtfarray._fit.journal import Journal
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.specification import Specification
from wtfarray._fit.starts import Start, start_on_grid
from wtfarray._losses.loss_sum import LossSum
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._solvers.envelope import Progress, minimise
from wtfarray._solvers.objective import FactorisationProblem, JointObjective
from wtfarray._solvers.stop_reason import StopReason

TOL = 1e-4
"""Tolerance on coarser grids, which only have to bring the blocks near."""
MAX_ITER = 100
"""Iterations on a coarser grid at most."""


def first_start(
    spec: Specification,
    problem: FactorisationProblem,
    options: SolverOptions,
    rng: np.random.Generator,
    journal: Journal,
    to_finest: Callable[[list[Array]], list[Array]] = list,
) -> Start:
    """
    Where to start on the grid of the data: on a fine grid, where a coarser one leads to.

    ``to_finest`` refines blocks of this grid to that of the data, for reports.
    """
    coarse = coarser(spec) if options.has_named_start and options.solver == "envelope" else None
    if coarse is None:
        return start_on_grid(spec, options.init, rng)
    if options.checkpoint is not None and options.checkpoint.path.exists():
        # It holds more than the coarse grid could tell.
        return Start(start_on_grid(spec, options.init, rng).blocks, (1.0,))
    below = coarse.problem(options.batch)

    def lift(blocks: list[Array]) -> list[Array]:
        return to_finest(refine(spec, blocks))

    start = first_start(coarse, below, options, rng, journal, lift)
    if start.ended is not None:
        return start
    objective = JointObjective(below, start.blocks)

    def report(progress: Progress, _: CurvaturePairs) -> bool:
        point = progress.current.point
        return journal.step(
            point.value,
            progress.current.gap,
            math.inf,
            below.evaluations,
            lambda: lift(objective.blocks(point.x)),
        )

    try:
        found = minimise(
            objective,
            objective.pack(start.blocks),
            start.levels,
            tol=TOL,
            max_iter=MAX_ITER,
            report=report,
            curvature=start.curvature,
        )
    except KeyboardInterrupt:
        _hand_over(below, problem)
        return Start(journal.latest() or lift(start.blocks), (1.0,), StopReason.INTERRUPTED)
    _hand_over(below, problem)
    blocks = objective.blocks(found.x)
    if found.reason.by_caller:
        return Start(lift(blocks), (1.0,), found.reason)
    curvature = None
    if found.accepted:
        curvature = refine_pairs(spec, coarse, found.pairs.export())
    return Start(refine(spec, blocks), (1.0,), curvature=curvature)


def _hand_over(coarse: FactorisationProblem, fine: FactorisationProblem) -> None:
    """Start the inner problems of a grid from those of the coarser one."""
    for term, old in zip(fine.terms, coarse.terms, strict=True):
        term.start_from(refine_potential(old.potential, tuple(term.potential.shape)))


def coarser(spec: Specification) -> Specification | None:
    """
    The same problem with pairs of neighbouring bins added up, or None where that makes no sense.

    It does if every cost is that of a regular grid, and a step on the coarser grid costs no more
    than eps: what is lost is then below the smoothing. The losses of a sum must transport the same
    modes: what is a mode to one and samples to the other would be another problem when coarser.
    """
    if spec.kind == "nmf":
        return None
    shape = tuple(spec.X.shape)
    found = [_grid_modes(loss, shape) for loss in spec.losses]
    if not all(found):
        return None
    modes = set(found[0])
    if any(set(some) != modes for some in found):
        return None
    xp = array_namespace(spec.X)
    X = spec.X
    for mode in modes:
        n = X.shape[mode]
        X = xp.reshape(X, (*X.shape[:mode], n // 2, 2, *X.shape[mode + 1 :]))
        X = xp.sum(X, axis=mode + 1)
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
    )


def refine(spec: Specification, blocks: Sequence[Array]) -> list[Array]:
    """Blocks of the coarser problem on the grid of ``spec``: every bin is shared out in two."""
    xp = array_namespace(spec.X)
    fine = list(blocks)
    for k in range(spec.modes):
        if fine[k].shape[0] != spec.shapes[k][0]:
            fine[k] = xp.repeat(fine[k], 2, axis=0) * _share(spec, k)
    return fine


def refine_potential(g: Array, shape: tuple[int, ...]) -> Array:
    """The potential, stacked, on the finer grid: its values stay."""
    xp = array_namespace(g)
    for axis, n in enumerate(shape):
        if g.shape[axis] != n:
            g = xp.repeat(g, 2, axis=axis)
    return g


def refine_pairs(
    spec: Specification, coarse: Specification, pairs: dict[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """
    The curvature that was found on the coarser grid, as `CurvaturePairs.export` gives it.

    On the spheres `refine` is a linear map P, and the finer objective at P x is about that at x: a
    step s becomes P s, and a change y of the gradient ``P (P^T P)^-1 y``.
    """
    parts, start = [], 0
    for k in spec.free:
        n, rank = coarse.shapes[k][0], math.prod(coarse.shapes[k][1:])
        part = pairs["rows"][:, start : start + n * rank]
        start += n * rank
        if spec.shapes[k][0] != n:
            root = math.sqrt(_share(spec, k))
            part = np.repeat(part.reshape(-1, n, rank), 2, axis=1) * root
            part[1::2] *= 0.5 / root**2
        parts.append(part.reshape(part.shape[0], -1))
    rows = np.concatenate(parts, axis=1)
    return {**pairs, "rows": rows, "gram": rows @ rows.T}


def _share(spec: Specification, k: int) -> float:
    """What each of two bins gets of the one that it was made from."""
    return 1.0 if spec.constraints[k] == "rows" else 0.5


def _grid_modes(loss: Loss, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The transported modes, if all of them can be made coarser."""
    if not isinstance(loss, Wasserstein):
        return ()
    modes = loss.transported(shape)
    if len(modes) != len(loss.costs):
        return ()  # a cost over several modes together
    for mode, cost in zip(modes, loss.costs, strict=True):
        n = shape[mode]
        if not can_be_halved(n):
            return ()
        table = to_host(cost)
        if not np.isfinite(table).all():
            return ()  # transport that is forbidden here may be allowed on a coarser grid
        steps = table[0, :]
        distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        regular = np.allclose(table, steps[distance], rtol=1e-6) and np.all(np.diff(steps) > 0)
        if not regular or steps[2] > loss.eps:
            return ()
    return modes


def _coarser_loss(loss: Loss) -> Loss:
    """The loss on every second point; `_grid_modes` has found that it has points to spare."""
    if not isinstance(loss, Wasserstein):
        return loss
    costs = [cost[::2, ::2] for cost in loss.costs]
    return Wasserstein(costs, loss.eps, loss.lam, loss.modes)
