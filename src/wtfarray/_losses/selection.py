"""Choice of the term that evaluates a loss on given data."""

from __future__ import annotations

from collections.abc import Sequence

from array_api_compat import array_namespace

from wtfarray._arrays.typing import Array
from wtfarray._losses.exact_term import ExactTerm, checked_loss
from wtfarray._losses.frobenius import Frobenius
from wtfarray._losses.kullback_leibler import KullbackLeibler
from wtfarray._losses.protocol import BoundLoss, Loss
from wtfarray._losses.sparse_samples import SparseSamplesTerm, has_sparse_samples
from wtfarray._losses.sparse_tensor import SparseTensorTerm, is_sparse_tensor
from wtfarray._losses.term import Term
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._transport.feasibility import refuse_unreachable
from wtfarray._transport.inner_solver import has_distant_bins


def terms_of(
    losses: Sequence[Loss], X: Array, sample_weight: Array | None, batch: int | None
) -> list[Term]:
    """One term per loss, bound to the data; ``sample_weight`` is (n_0,) or None."""
    return [_term(loss, X, sample_weight, batch) for loss in losses]


def _term(loss: Loss, X: Array, sample_weight: Array | None, batch: int | None) -> Term:
    if isinstance(loss, Wasserstein):
        return _transport_term(loss, X, sample_weight, batch)
    if isinstance(loss, Frobenius | KullbackLeibler):
        bound = loss.bind(X)
        return ExactTerm(bound.data, bound.value_and_gradient, sample_weight)
    value_and_gradient = checked_loss(loss, X, weighted=sample_weight is not None)
    return ExactTerm(X, value_and_gradient, sample_weight)


def _transport_term(
    loss: Wasserstein, X: Array, sample_weight: Array | None, batch: int | None
) -> Term:
    """Sparse data are solved on their support, others with a potential on all bins."""
    problem, shape = loss.bind(X), tuple(X.shape)
    refuse_unreachable(problem)
    if sample_weight is None and not has_distant_bins(problem) and is_sparse_tensor(problem):
        return SparseTensorTerm(problem, shape)
    if sample_weight is None and batch is None and has_sparse_samples(problem):
        return SparseSamplesTerm(problem, shape)
    weights = None
    if sample_weight is not None:
        weights = _weights_of_samples(problem, sample_weight, X.shape[0])
    return TransportTerm(problem, shape, weights, batch)


def _weights_of_samples(bound: BoundLoss, sample_weight: Array, n: int) -> Array:
    """The weights of the samples of a stack, (N,), from those of the first mode, (n,)."""
    xp = array_namespace(sample_weight)
    samples = bound.data.shape[0]
    if bound.order[0] != 0 or samples % n != 0:
        msg = "sample_weight was given, but the first mode of X is transported: expected None"
        raise ValueError(msg)
    weights = xp.broadcast_to(xp.reshape(sample_weight, (n, 1)), (n, samples // n))
    return xp.reshape(weights, (samples,))
