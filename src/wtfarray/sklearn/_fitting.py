"""The optimisation problem of the estimators, for all samples or for mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array
from wtfarray._fit.driver import FitSolution
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.progress_bar import ProgressBar
from wtfarray._fit.proximal import PROXIMAL_WEIGHT, proximal_problem
from wtfarray._fit.restarts import best_of
from wtfarray._fit.specification import Kind, Specification, specify
from wtfarray._fit.starts import feasible, kl_steps
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint
from wtfarray._solvers.envelope import Progress, minimise
from wtfarray._solvers.objective import JointObjective
from wtfarray.sklearn._samples import Samples

BATCH_TOL = 0.1
"""Fraction of the tolerance used for a batch, because errors accumulate over the batches."""


def mean_problem(
    kind: Kind,
    samples: Samples,
    rank: int | Sequence[int],
    loss: Wasserstein,
    rho_coefs: float,
    rho_atoms: float,
    comm: Communicator | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Specification:
    """
    The factorisation problem whose objective is a mean over samples.

    The objective is the weighted mean over the samples of ``loss + rho_coefs E(coefficients)``,
    plus ``rho_atoms`` times the mean over the columns of ``E(column)`` for every factor of the
    features. Multiplied by the number of samples, it is a sum over samples as in `specify`. If
    entries are missing, the coefficients of a sample need not sum to one: its mass is not known.
    """
    X = samples.data
    n, modes = X.shape[0], 2 if kind == "nmf" else X.ndim
    columns: Constraint = "columns"
    first_constraint: Constraint = "rows" if samples.mask is None else None
    spec = specify(
        kind,
        X,
        rank,
        loss,
        rho=1.0,
        constraints=(first_constraint, *(columns for _ in range(modes - 1))),
        weights=None,
        fixed=(),
        sample_weight=samples.weights,
        mask=samples.mask,
        comm=comm,
        interrupted=interrupted,
    )
    n = spec.shards.total(n)
    first = rho_coefs if samples.weights is None else rho_coefs * samples.weights[:, None]
    # The core has one slice per column of the sample factor.
    counts = [shape[1] for shape in spec.shapes[1:modes]]
    counts += [shape[0] for shape in spec.shapes[modes:]]
    return replace(spec, rho=(first, *(rho_atoms * n / count for count in counts)))


def with_unit_components(spec: Specification, blocks: Sequence[Array]) -> list[Array]:
    """
    The blocks of the same model, with components of mass one.

    They have it already if the coefficients of each sample sum to one, but for a core whose scale
    the coefficients share, as they do if entries are missing.
    """
    if spec.kind != "tucker" or spec.mask is None:
        return list(blocks)
    core = blocks[-1]
    xp = array_namespace(core)
    scale = xp.sum(core, axis=tuple(range(1, core.ndim)), keepdims=True)
    return [blocks[0] * xp.reshape(scale, (1, -1)), *blocks[1:-1], core / scale]


def fit_all(
    spec: Specification,
    *,
    init: str | None,
    n_init: int,
    max_iter: int,
    tol: float,
    rng: np.random.Generator,
    progress: bool = False,
) -> FitSolution:
    """The best of several initialisations."""
    options = SolverOptions(init=init, tol=tol, max_iter=max_iter, progress=progress)
    return best_of(n_init, spec, options, rng)


def proximal_step(
    spec: Specification,
    atoms: Sequence[Array],
    eps: float,
    past: float,
    *,
    max_iter: int,
    tol: float,
    progress: bool = False,
) -> tuple[list[Array], int, str | None]:
    """
    Fit a batch, over all blocks at once, with a proximal term on the atoms.

    The samples seen before, ``past`` times as many as in the batch, are replaced by the proximal
    term ``PROXIMAL_WEIGHT eps past`` times the mean of KL(atom | previous atom), because the loss
    is eps strongly convex relative to the entropy. Steps then decrease like one over the number of
    samples seen: a stochastic proximal point method in the geometry of the entropy.

    Returns the blocks, to be averaged with `running_share`, the number of iterations, and why it
    stopped if it did not converge.
    """
    X = spec.X
    xp = array_namespace(X)
    n = X.shape[0]
    proximal = PROXIMAL_WEIGHT * eps * past
    previous = [
        feasible(xp.astype(block, X.dtype), constraint)
        for block, constraint in zip(atoms, spec.constraints[1:], strict=True)
    ]
    first = xp.ones(spec.shapes[0], dtype=X.dtype, device=device_of(X))
    start = [feasible(first, spec.constraints[0]), *previous]
    start = kl_steps(spec.model, X, start, spec.constraints, (0,), mask=spec.mask)
    problem = proximal_problem(spec, previous, proximal * n)
    objective = JointObjective(problem, start)
    with ProgressBar("batch", visible=progress, total=max_iter) as bar:

        def report(step: Progress, _: object) -> bool:
            bar.step(step.current.point.value, step.current.gap)
            return False

        found = minimise(
            objective,
            objective.pack(start),
            (1.0,),
            tol=BATCH_TOL * tol,
            max_iter=max_iter,
            report=report,
        )
    reason = found.reason
    message = None
    if not reason.is_optimal:
        message = reason.message("envelope", BATCH_TOL * tol, max_iter)
    return objective.blocks(found.x), found.n_iter, message
