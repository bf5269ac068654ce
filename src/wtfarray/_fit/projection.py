"""New samples on the atoms of a fit: the convex problem in the sample factor alone."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.samples import per_sample, take_samples
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_data,
    common_namespace,
    follow,
    positive_integer,
    positive_number,
)
from wtfarray._fit.driver import solve
from wtfarray._fit.options import Plan
from wtfarray._fit.specification import Setup, is_sampled
from wtfarray._fit.starts import feasible, kl_steps
from wtfarray._losses.loss_sum import LossSum
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.models import CPModel
from wtfarray._models.tensor import khatri_rao, mode_products

if TYPE_CHECKING:
    from wtfarray._fit.result import Factorisation


def project(
    fit: Factorisation,
    X: Array,
    /,
    *,
    tol: float = 1e-9,
    max_iter: int = 1000,
    progress: bool = False,
) -> Array:
    """`Factorisation.project`."""
    xp = common_namespace(X=X)
    tol, max_iter = positive_number("tol", tol), positive_integer("max_iter", max_iter)
    X = as_data("X", X, xp)
    losses = fit.loss.losses if isinstance(fit.loss, LossSum) else (fit.loss,)
    if tuple(X.shape[1:]) != fit.shape[1:]:
        msg = f"X has shape {tuple(X.shape)}: expected (n, {', '.join(map(str, fit.shape[1:]))})"
        raise ValueError(msg)
    if not is_sampled(losses, fit.shape):
        msg = "the loss transports the first mode: expected a fit whose first mode counts samples"
        raise ValueError(msg)
    atoms = follow("the fit", fitted_atoms(fit), xp, X.dtype, device_of(X))
    rank = atoms.shape[1]
    model = CPModel(2, learns_weights=False)
    constraints = (fit.constraints[0], None)
    rho = (fit.rho[0], fit.rho[0])
    apart = constraints[0] in (None, "rows") and not any(
        isinstance(loss, Wasserstein) and math.isinf(loss.lam) for loss in losses
    )
    groups = _of_like_mass(to_host(per_sample(X))) if apart else [np.arange(X.shape[0])]
    found, problems = [], []
    for group in groups:
        some = X if len(groups) == 1 else take_samples(X, group)
        shapes = ((some.shape[0], rank), tuple(atoms.shape))
        setup = Setup("nmf", some, losses, model, shapes, constraints, rho, (0,), None)
        first = xp.ones(shapes[0], dtype=X.dtype, device=device_of(X))
        start = kl_steps(model, some, [feasible(first, constraints[0]), atoms], constraints, (0,))
        plan = Plan(fit.loss, start, "envelope", tol, max_iter, None, None, progress, None)
        result = solve(setup, plan, np.random.default_rng(0))
        found.append(result.factors[0])
        if not result.converged:
            problems.append(result.message)
    if problems:
        warnings.warn(f"project: {problems[0]}", stacklevel=3)
    if len(groups) == 1:
        return found[0]
    back = np.argsort(np.concatenate(groups))
    return take_samples(xp.concat(found), back)


def _of_like_mass(mass: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """
    The samples in groups in each of which the masses differ a hundredfold at most.

    One tolerance serves a group: next to a much heavier one, a sample would count for nothing.
    Empty samples go with the lightest.
    """
    filled = mass > 0
    logs = np.log10(np.where(filled, mass, mass.max()))
    decade = np.ceil(0.5 * (logs - logs.max()))
    decade = np.where(filled, decade, decade.min())
    return [np.flatnonzero(decade == value) for value in np.unique(decade)]


def fitted_atoms(fit: Factorisation) -> Array:
    """What each column of the sample factor stands for, (prod of the other modes, r)."""
    xp = array_namespace(*fit.factors)
    others = fit.factors[1:]
    if fit.core is None:
        atoms = khatri_rao(others) if others else xp.ones_like(fit.factors[0][:1, :])
        return atoms if fit.weights is None else atoms * fit.weights
    core = fit.core
    if others:
        core = mode_products(core, others, range(1, core.ndim))
    return xp.reshape(core, (core.shape[0], -1)).mT
