"""The smallest value of a loss over all models, whatever their factors."""

from __future__ import annotations

import math

from array_api_compat import is_numpy_array

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import slices_of, weighted
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import batch_size
from wtfarray._losses.protocol import BoundLoss, ConjugateLoss
from wtfarray._losses.selection import bound_loss
from wtfarray._losses.source_term import SourceTerm
from wtfarray._losses.sparse_samples import SparseSamplesTerm
from wtfarray._losses.sparse_tensor import SparseTensorTerm
from wtfarray._losses.term import Term
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._losses.wasserstein import Wasserstein


def least_loss(term: Term) -> float:
    """
    ``min_Y Phi(X, Y)`` of a term, for the samples of this process.

    It is attained by the data blurred by the kernel. The other losses of the library, and debiased
    ones, are 0 at the data; of a loss of the user nothing is known, and 0 stands for that.
    """
    if isinstance(term, SourceTerm):
        return term.weight * least_loss(term.term)
    if not isinstance(term, TransportTerm | SparseSamplesTerm | SparseTensorTerm):
        return 0.0
    problem, total = term.problem, 0.0
    xp, samples = array_namespace(problem.data), problem.data.shape[0]
    weights = term.weights if isinstance(term, TransportTerm) else None
    largest = max(axis.entries for axis in problem.kernel.axes)
    in_cache = is_numpy_array(problem.data)
    size = batch_size(samples, math.prod(problem.data.shape), largest, in_cache=in_cache)
    for rows in slices_of(samples, max(1, size)):
        part = problem if size >= samples else problem.samples(rows)
        values = _least_values(part)
        total += float(xp.sum(weighted(values, None if weights is None else weights[rows])))
    return total


def least_value(loss: ConjugateLoss, X: Array, mask: Array | None = None) -> float:
    """``min_Y Phi(X, Y)``, summed over the samples; that of a debiased loss is 0."""
    if isinstance(loss, Wasserstein) and loss.debias:
        return 0.0
    return float(array_namespace(X).sum(_least_values(bound_loss(loss, X, mask))))


def _least_values(bound: BoundLoss) -> Array:
    """``min_Y Phi(X, Y) = -Phi*(X, 0)`` of each sample, (N,)."""
    values: Array = bound.safe_conjugate(array_namespace(bound.data).zeros_like(bound.data))[0]
    return -1.0 * values
