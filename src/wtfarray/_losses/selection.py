"""Which term evaluates which loss on which data."""

from __future__ import annotations

from collections.abc import Sequence

from array_api_compat import array_namespace

from wtfarray._arrays.typing import Array
from wtfarray._losses.exact_term import ExactTerm
from wtfarray._losses.frobenius import BoundFrobenius
from wtfarray._losses.kullback_leibler import BoundKullbackLeibler
from wtfarray._losses.protocol import BoundLoss, Loss, refuse_islands
from wtfarray._losses.sparse_samples import SparseSamplesTerm, has_sparse_samples
from wtfarray._losses.sparse_tensor import SourceTerm, is_sparse
from wtfarray._losses.term import Term
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._transport.newton import has_few_bins
from wtfarray._transport.problem import TransportProblem


def terms_of(
    losses: Sequence[Loss], X: Array, sample_weight: Array | None, batch: int | None
) -> list[Term]:
    """Tie the losses to the data, for an outer solver."""
    terms: list[Term] = []
    for loss in losses:
        bound = loss.bind(X)
        refuse_islands(bound)
        weights = None if sample_weight is None else _weights_of(bound, sample_weight, X.shape[0])
        if (
            isinstance(bound, TransportProblem)
            and weights is None
            and not has_few_bins(bound)
            and is_sparse(bound)
        ):
            terms.append(SourceTerm(bound, tuple(X.shape)))
        elif (
            isinstance(bound, TransportProblem)
            and weights is None
            and batch is None
            and has_sparse_samples(bound)
        ):
            terms.append(SparseSamplesTerm(bound, tuple(X.shape)))
        elif isinstance(bound, TransportProblem):
            terms.append(TransportTerm(bound, tuple(X.shape), weights, batch))
        elif isinstance(bound, (BoundFrobenius, BoundKullbackLeibler)):
            terms.append(ExactTerm(bound, weights))
        else:
            msg = (
                f"loss is a {type(loss).__name__}: expected Wasserstein, Frobenius, KullbackLeibler"
            )
            raise TypeError(msg)
    return terms


def _weights_of(bound: BoundLoss, sample_weight: Array, n: int) -> Array:
    """One weight for each sample of a stack, from one for each index of the first mode."""
    xp = array_namespace(sample_weight)
    samples = bound.data.shape[0]
    if bound.order[0] != 0 or samples % n != 0:
        msg = "sample_weight was given, but the first mode of X is transported: expected None"
        raise ValueError(msg)
    weights = xp.broadcast_to(xp.reshape(sample_weight, (n, 1)), (n, samples // n))
    return xp.reshape(weights, (samples,))
