"""Losses of the fits of a rank scan, on the samples that they fit and on those left out."""

from __future__ import annotations

import math

from wtfarray._arrays.masks import observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import AgreedError, Sums
from wtfarray._arrays.typing import Array
from wtfarray._fit.rank_chain import Chain
from wtfarray._fit.rank_choice import core_consistency_of_parts
from wtfarray._fit.result import Factorisation
from wtfarray._fit.sample_parts import part_of_fit, parts_of_data
from wtfarray._losses.least import least_value
from wtfarray._losses.loss_sum import losses_of
from wtfarray._losses.protocol import ConjugateLoss, Loss, MaskedLoss
from wtfarray._losses.value import wasserstein
from wtfarray._losses.wasserstein import Wasserstein


def mean_excess(
    loss: Loss, X: Array, fit: Factorisation | None, mask: Array | None, sums: Sums
) -> float:
    """
    The mean over the samples of all processes of what `_total_excess` adds.

    Without a fit, this process has no samples.
    """
    total = 0.0
    for rows, part in parts_of_data(X) if fit is not None else ():
        assert fit is not None
        total += _total_excess(loss, part, part_of_fit(fit, rows).to_tensor(), mask)
    total, samples = sums.numbers(total, int(X.shape[0]))
    return total / samples


def _total_excess(loss: Loss, X: Array, Y: Array, mask: Array | None) -> float:
    """
    The sum over samples of ``Phi(X, Y) - min Phi(X, .)``.

    If the conjugate of the loss is not known, the sum of ``Phi(X, Y)``.
    """
    xp, total, Y = array_namespace(X), 0.0, observed(Y, mask)
    if X.shape[0] == 0:
        return 0.0
    if not bool(xp.any(X > 0)):  # the samples of this process: beside one that is not empty
        one = xp.ones_like(X[:1, ...])
        seen = None if mask is None else xp.concat([mask, xp.ones_like(mask[:1, ...])])
        both = _total_excess(loss, xp.concat([X, one]), xp.concat([Y, one]), seen)
        return both - _total_excess(loss, one, one, None)
    for part in losses_of(loss):
        if isinstance(part, ConjugateLoss):
            total -= least_value(part, X, mask)
        if isinstance(part, Wasserstein):
            total += float(wasserstein(X, Y, part, tol=1e-6, mask=mask).value)
        elif mask is not None and isinstance(part, MaskedLoss):
            total += float(xp.sum(part.masked_value_and_gradient(X, Y, mask)[0]))
        else:
            total += float(xp.sum(part.value_and_gradient(X, Y)[0]))
    return total


def loss_of_left_out_samples(chain: Chain, loss: Loss) -> float:
    """The loss of the left-out samples of a chain, projected onto the atoms of its last fit."""
    fit, X = chain.last, chain.left_out
    assert fit is not None
    assert X is not None
    if chain.sums.shared and fit.constraints[0] not in (None, "rows"):
        msg = (
            f"held_out was given with comm and the constraint {fit.constraints[0]!r} of the first "
            "factor, which ties samples together: expected held_out=None"
        )
        raise AgreedError(ValueError(msg))
    projected = None
    if X.shape[0]:  # each process projects its own samples
        projected = fit.projection(X, mask=chain.left_out_mask)
    stopped = projected is not None and projected.stopped
    if chain.sums.any(stopped):  # an interrupted projection returns instead of raising
        raise KeyboardInterrupt
    return mean_excess(loss, X, projected, chain.left_out_mask, chain.sums)


def loss_of_left_out_entries(chain: Chain, loss: Loss) -> float:
    """The loss of the left-out entries of a chain, in the model of its last fit."""
    assert chain.last is not None
    X = observed(chain.X, chain.entries)
    return mean_excess(loss, X, chain.last, chain.entries, chain.sums)


def unstructured_loss(
    loss: Loss, X: Array, mask: Array | None, sums: Sums, *, sampled: bool
) -> float | None:
    """The loss per sample of a model in which every sample is constant, or all of X."""
    total = 0.0
    for _, part in parts_of_data(X):
        xp = array_namespace(part)
        seen = observed(xp.ones_like(part), mask)
        axes = tuple(range(int(sampled), part.ndim))
        counts = xp.sum(seen, axis=axes, keepdims=True)
        mean = xp.sum(part, axis=axes, keepdims=True) / xp.where(counts > 0, counts, 1.0)
        try:
            total += _total_excess(loss, part, seen * mean, mask)
        except ValueError:  # no transport to constant samples, where some costs are infinite
            total = math.nan
    total, samples = sums.numbers(total, int(X.shape[0]))
    return None if math.isnan(total) else total / samples


def core_consistency_of_fit(fit: Factorisation, chain: Chain, loss: Loss) -> float | None:
    """The core consistency of a CP model, for the data as the loss blurs them."""
    if len(fit.factors) < 3:
        return None

    def blurred(X: Array) -> Array:
        xp = array_namespace(X)
        if chain.mask is not None:  # missing entries are those of the model
            X = xp.where(chain.mask, X, fit.to_tensor())
        if isinstance(loss, ConjugateLoss) and bool(xp.any(X > 0)):
            # The model of smallest loss: X itself, blurred by the kernel of a Wasserstein loss.
            X = loss.conjugate(X, xp.zeros_like(X))[1]
        return X

    parts = ((rows, blurred(part)) for rows, part in parts_of_data(chain.X))
    return core_consistency_of_parts(parts, fit.factors, fit.weights, chain.sums)
