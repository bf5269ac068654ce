"""New samples and the atoms of a fit: their checks and labels, and their projection."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from array_api_compat import device as device_of

from wtfarray._arrays.axes import Axis, check_labels, check_last_labels, check_order, checked_axes
from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.containers import without_labels
from wtfarray._arrays.host import to_host
from wtfarray._arrays.masks import as_mask, observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.stored import StoredData, like
from wtfarray._arrays.sums import Sums, asarray_like
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_nonnegative,
    as_shard,
    common_namespace,
    follow,
    positive_integer,
    positive_number,
)
from wtfarray._fit.absent_samples import mean_coefficients, present_samples, with_absent
from wtfarray._fit.chunked_projection import is_separable, project_chunks, stored_or_read
from wtfarray._fit.projection import project_samples, project_together
from wtfarray._fit.specification import is_sampled
from wtfarray._models.entropy import entropy_value
from wtfarray._models.models import atoms_of


def project_onto(
    fit: Any,
    X: Array,
    tol: float,
    max_iter: int,
    mask: Array | None,
    team: Communicator | None,
    *,
    progress: bool,
    keeps_dual: bool = True,
) -> tuple[Any, list[str]]:
    """The projection of new samples onto the atoms of a `Factorisation`, and its warnings."""
    sums = Sums(team)
    X, mask, axes = sums.agree(lambda: _checked(fit, X, mask, shared=sums.shared))
    present = present_samples(mask, X, fit.loss, shared=sums.shared)
    if present is not None:
        X, mask = present.take(X), present.take(mask)
    data = like(X)
    atoms = atoms_of(fit.factors, fit.core, fit.weights)
    atoms = follow("the fit", atoms, array_namespace(data), data.dtype, device_of(data))
    options: dict[str, Any] = {
        "constraint": fit.constraints[0],
        "rho": fit.rho[0],
        "reference": fit.references[0],
        "tol": positive_number("tol", tol),
        "max_iter": positive_integer("max_iter", max_iter),
        "progress": progress and sums.leads,
    }
    if isinstance(X, StoredData):
        found = project_chunks(X, atoms, fit.loss, **options, keeps_dual=keeps_dual)
    elif team is None:
        found = project_samples(X, atoms, fit.loss, **options, mask=mask)
    else:
        found = project_together(sums, X, atoms, fit.loss, **options, mask=mask)
    advice = [] if found.mass_advice is None else [f"project: {found.mass_advice}"]
    if not found.converged and sums.leads:
        advice.append(f"project: {found.message}")
    entropy = _entropy_of_atoms(fit)
    projected = replace(
        fit,
        factors=[found.coefficients, *fit.factors[1:]],
        objective=found.objective + entropy,
        gap=found.gap,
        converged=found.converged,
        message=found.message,
        n_iter=found.n_iter,
        history=[replace(r, objective=r.objective + entropy) for r in found.history],
        dual=found.dual,
        shape=tuple(X.shape),
        stopped=found.stopped,
        axes=axes,
    )
    if present is not None:
        mean = mean_coefficients(fit.factors[0], fit.constraints[0])
        projected = with_absent(projected, present, asarray_like(to_host(mean), data))
    return projected, advice


def _checked(
    fit: Any, X: Array, mask: Array | None, *, shared: bool
) -> tuple[Array, Array | None, tuple[Axis, ...]]:
    """New samples, what was observed of them, and their labels."""
    X, labels = without_labels("X", X, in_chunks=True)
    mask, mask_labels = without_labels("mask", mask)
    alone = mask is None and not shared
    X = stored_or_read(X, separable=alone and is_separable(fit.loss, fit.constraints[0]))
    if not isinstance(X, StoredData):
        xp = common_namespace(X=X)
        mask = as_mask("mask", mask, X, shared=shared)
        X = (as_shard if shared else as_nonnegative)("X", observed(X, mask), xp)
    sizes = ", ".join(map(str, fit.shape[1:]))
    if tuple(X.shape[1:]) != fit.shape[1:]:
        msg = f"X has shape {tuple(X.shape)}: expected (n, {sizes})"
        raise ValueError(msg)
    if not is_sampled(fit.loss, fit.shape):
        msg = "the loss transports the first mode: expected a fit whose first mode indexes samples"
        raise ValueError(msg)
    axes = _axes_of_new(fit, labels, tuple(X.shape))
    check_last_labels("mask", mask_labels, axes)
    return X, mask, axes


def _axes_of_new(fit: Any, labels: tuple[Axis, ...], shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """The labels of new samples; refuse features with other labels than the fitted ones."""
    if not labels:
        first = (Axis(fit.axes[0].name, None, fit.axes[0].unit),) if fit.axes else ()
        return checked_axes(None, (*first, *fit.axes[1:]), shape)
    for k in range(1, len(shape)):
        check_labels("X", labels[k], k, fit.axis(k), "the fit")
    check_order("X", labels, fit.axes, "the fit")
    return checked_axes((*labels[:1], *fit.axes[1:]) if fit.axes else None, labels, shape)


def _entropy_of_atoms(fit: Any) -> float:
    """``sum_k rho_k E(A_k)`` over all blocks but the first."""
    blocks = list(fit.factors)
    if fit.core is not None:
        blocks.append(fit.core)
    elif fit.weights is not None and len(fit.rho) > len(fit.factors):
        blocks.append(fit.weights / float(array_namespace(fit.weights).sum(fit.weights)))
    parts = zip(fit.rho[1:], fit.references[1:], blocks[1:], strict=True)
    return math.fsum(
        rho * s * float(entropy_value(b / s, array_namespace(b))) for rho, s, b in parts
    )
