"""The problem that the estimators solve: at once, or one mini-batch after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from array_api_compat import array_namespace
from array_api_compat import device as device_of

from wtfarray._arrays.typing import Array
from wtfarray._fit.driver import FitSolution, best_of
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.specification import Kind, Specification, specify
from wtfarray._fit.starts import feasible, kl_steps
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint
from wtfarray._solvers.envelope import minimise
from wtfarray._solvers.objective import JointObjective
from wtfarray.sklearn._samples import Samples

PULL = 0.03
"""
Share of eps by which a sample seen before holds the atoms.

With more, what the first batches got wrong is slow to go. With less, the atoms follow every batch.
On shifted bumps, 0.03 with the running mean came closest to the full fit, of 0.03, 0.1, 0.3 and 1.
"""
BATCH_TOL = 0.1
"""A batch is solved to this share of the tolerance, for errors add up over the batches."""


def mean_problem(
    kind: Kind,
    samples: Samples,
    rank: int | Sequence[int],
    loss: Wasserstein,
    rho_coefs: float,
    rho_atoms: float,
) -> Specification:
    """
    The library's problem for an objective that is a mean.

    The library adds up the samples. Multiplied by their number, the weighted mean over the samples
    of ``loss + rho_coefs E(coefficients)`` plus ``rho_atoms`` times the mean over the columns of
    ``E(column)``, for every factor of the features, is such a sum.
    """
    X = samples.data
    n, modes = X.shape[0], 2 if kind == "nmf" else X.ndim
    columns: Constraint = "columns"
    spec = specify(
        kind,
        X,
        rank,
        loss,
        rho=1.0,
        constraints=("rows", *(columns for _ in range(modes - 1))),
        weights=None,
        fixed=(),
        sample_weight=samples.weights,
    )
    first = rho_coefs if samples.weights is None else rho_coefs * samples.weights[:, None]
    # The core counts as the columns of the samples' factor: its slices are what they stand for.
    counts = [shape[1] for shape in spec.shapes[1:modes]]
    counts += [shape[0] for shape in spec.shapes[modes:]]
    return replace(spec, rho=(first, *(rho_atoms * n / count for count in counts)))


def fit_all(
    spec: Specification,
    *,
    init: str | None,
    n_init: int,
    max_iter: int,
    tol: float,
    rng: np.random.Generator,
) -> FitSolution:
    """The best of several starts."""
    options = SolverOptions(init=init, tol=tol, max_iter=max_iter)
    return best_of(n_init, spec, options, rng)


def proximal_step(
    spec: Specification,
    atoms: Sequence[Array],
    eps: float,
    past: float,
    *,
    max_iter: int,
    tol: float,
) -> tuple[list[Array], int]:
    """
    Fit a batch, all blocks at once, and hold the atoms to what they were.

    To the mean objective of the batch is added, in place of the samples seen before, which are
    ``past`` times as many, ``PULL eps past`` times the mean of KL(atom | what it was): the loss is
    eps strongly convex relative to the entropy. So steps shrink like one over the number of
    samples seen, a stochastic proximal point method in the geometry of the entropy.

    Returns the blocks and the number of iterations. See `running_share` for what to do with them.
    """
    X = spec.X
    xp = array_namespace(X)
    n, modes = X.shape[0], spec.modes
    pull = PULL * eps * past
    before = [
        feasible(xp.astype(block, X.dtype), constraint)
        for block, constraint in zip(atoms, spec.constraints[1:], strict=True)
    ]
    first = xp.ones(spec.shapes[0], dtype=X.dtype, device=device_of(X))
    start = [feasible(first, spec.constraints[0]), *before]
    start = kl_steps(spec.model, X, start, spec.constraints, (0,))
    # rho E(A) + pull KL(A|B) = (rho + pull) H(A | B^(pull / (rho + pull))) + constant
    rho: list[float | Array] = [spec.rho[0]]
    references: list[Array | None] = [None]
    for k, block in enumerate(before, start=1):
        weight = pull * n / (block.shape[1] if k < modes else block.shape[0])
        rho.append(spec.rho[k] + weight)
        references.append(block ** (weight / (spec.rho[k] + weight)))
    problem = replace(spec.problem(), rho=tuple(rho), references=tuple(references))
    objective = JointObjective(problem, start)
    found = minimise(
        objective,
        objective.pack(start),
        (1.0,),
        tol=BATCH_TOL * tol,
        max_iter=max_iter,
        report=lambda *_: False,
    )
    return objective.blocks(found.x), found.n_iter


def running_share(past: float) -> float:
    """
    The weight of the last atoms in the running mean of all, after ``past`` batches of their size.

    The atoms themselves go on moving with every batch. Their mean, in which the late ones count
    more (polynomial-decay averaging, Shamir and Zhang 2013), comes to rest.
    """
    return 4.0 / (past + 4.0)
