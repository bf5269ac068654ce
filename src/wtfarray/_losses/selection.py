"""Choice of the term that evaluates a loss on given data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import spread
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.typing import Array
from wtfarray._losses.debiased_term import DebiasedTerm
from wtfarray._losses.exact_term import ExactTerm, checked_loss
from wtfarray._losses.frobenius import Frobenius
from wtfarray._losses.kullback_leibler import KullbackLeibler
from wtfarray._losses.protocol import BoundLoss, ConjugateLoss, Loss
from wtfarray._losses.sparse_samples import SparseSamplesTerm, has_sparse_samples
from wtfarray._losses.sparse_tensor import SparseTensorTerm, is_sparse_tensor
from wtfarray._losses.term import Term
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._transport.feasibility import refuse_unreachable
from wtfarray._transport.inner_solver import has_distant_bins
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.relaxed_source import debiased_problem


def terms_of(
    losses: Sequence[Loss],
    X: Array,
    sample_weight: Array | None,
    batch: int | None,
    mask: Array | None = None,
    shards: Shards = WHOLE,
) -> list[Term]:
    """
    One term per loss, bound to the data; ``sample_weight`` is (n_0,) or None.

    Where the mask is False, X is 0, and so are the models that a term will be given. ``shards``
    says which samples other processes hold; the same kind of term serves all of them.
    """
    return [_term(loss, X, sample_weight, batch, mask, shards) for loss in losses]


def bound_loss(loss: ConjugateLoss, X: Array, mask: Array | None) -> BoundLoss:
    """The loss bound to checked data with missing entries, for the block duals."""
    if isinstance(loss, Wasserstein):
        return loss.bind_checked(X, mask)
    return loss.bind_checked(X) if isinstance(loss, Frobenius | KullbackLeibler) else loss.bind(X)


def _term(
    loss: Loss,
    X: Array,
    sample_weight: Array | None,
    batch: int | None,
    mask: Array | None,
    shards: Shards,
) -> Term:
    if isinstance(loss, Wasserstein):
        plain = _transport_term(loss, X, sample_weight, batch, mask, shards)
        weights = plain.weights if isinstance(plain, TransportTerm) else None
        if loss.debias and plain.problem.relaxes_data:
            problem, own = debiased_problem(plain.problem, shards.sums)
            relaxed = TransportTerm(problem, tuple(X.shape), weights, batch, shards)
            return DebiasedTerm(relaxed, weights, shards.sums, own, plain.scale)
        return DebiasedTerm(plain, weights, shards.sums) if loss.debias else plain
    if isinstance(loss, Frobenius | KullbackLeibler):
        bound = loss.bind_checked(X)
        return ExactTerm(bound.data, bound.value_and_gradient, sample_weight)
    weighted = sample_weight is not None or shards.shared
    value_and_gradient = shards.sums.agree(
        lambda: checked_loss(loss, X, weighted=weighted, mask=mask)
    )
    return ExactTerm(X, value_and_gradient, sample_weight)


def _transport_term(
    loss: Wasserstein,
    X: Array,
    sample_weight: Array | None,
    batch: int | None,
    mask: Array | None,
    shards: Shards,
) -> TransportTerm | SparseTensorTerm | SparseSamplesTerm:
    """
    Sparse data are solved on their support, others with a potential on all bins.

    If bins are missing, always the latter: a solve on the support takes a model of 0 for a very
    small one, to which mass may still be transported.
    """

    def bound() -> TransportProblem:
        problem = loss.bind_checked(_counted(loss, X, sample_weight), mask)
        refuse_unreachable(problem)
        return problem

    sums = shards.sums
    problem, shape = sums.agree(bound), tuple(X.shape)
    plain = sample_weight is None and sums.all(problem.missing is None)
    alone = plain and not sums.shared
    plain, alone = (flag and not problem.relaxes_data for flag in (plain, alone))
    if alone and not has_distant_bins(problem) and is_sparse_tensor(problem):
        return SparseTensorTerm(problem, shape)
    if plain and batch is None and has_sparse_samples(problem, sums):
        return SparseSamplesTerm(problem, shape, sums)
    weights = None
    if sample_weight is not None:
        weights = _weights_of_samples(problem, sample_weight, X.shape[0])
    return TransportTerm(problem, shape, weights, batch, shards)


@dataclass(frozen=True, eq=False)
class Binding:
    """
    Losses that are bound to one batch of samples after the other, at a multiple of their eps.

    Their terms are those of the losses as sums over the first mode, with potentials on all bins.
    """

    losses: Sequence[Loss]
    level: float = 1.0
    _kernels: dict[int, GibbsKernel] = field(default_factory=dict)
    """The kernel of each loss, computed once."""

    def terms(self, X: Array, sample_weight: Array | None, mask: Array | None = None) -> list[Term]:
        """One term per loss, for a batch of samples; X is 0 where the mask is False."""
        return [self._term(k, X, sample_weight, mask) for k in range(len(self.losses))]

    def _term(self, k: int, X: Array, sample_weight: Array | None, mask: Array | None) -> Term:
        loss = self.losses[k]
        if not isinstance(loss, Wasserstein):
            if isinstance(loss, Frobenius | KullbackLeibler):
                return _term(loss, X, sample_weight, None, None, WHOLE)
            return ExactTerm(X, checked_loss(loss, X, weighted=True, mask=mask), sample_weight)
        if k not in self._kernels:
            self._kernels[k] = loss.kernel(X, loss.eps * self.level)
        stacked, order = loss.stacked(_counted(loss, X, sample_weight))
        missing = None if mask is None else loss.missing_bins(mask)
        problem = TransportProblem.of(
            stacked, self._kernels[k], loss.lam, order, missing, loss.source_lam
        )
        refuse_unreachable(problem)
        weights = None
        if sample_weight is not None:
            weights = _weights_of_samples(problem, sample_weight, X.shape[0])
        return TransportTerm(problem, tuple(X.shape), weights, stacked.shape[0])


def _counted(loss: Wasserstein, X: Array, sample_weight: Array | None) -> Array:
    """
    The data, 0 in samples of weight 0: their loss is then finite, whatever the model.

    A balanced loss needs the mass of all samples, and its models have it.
    """
    if sample_weight is None or math.isinf(loss.lam):
        return X
    counts = spread(sample_weight, X) > 0
    xp = array_namespace(X)
    return X if bool(xp.all(counts)) else xp.where(counts, X, 0.0)


def _weights_of_samples(bound: BoundLoss, sample_weight: Array, n: int) -> Array:
    """The weights of the samples of a stack, (N,), from those of the first mode, (n,)."""
    xp = array_namespace(sample_weight)
    samples = bound.data.shape[0]
    if n == 0:
        return sample_weight
    if bound.order[0] != 0 or samples % n != 0:
        msg = "sample_weight was given, but the first mode of X is transported: expected None"
        raise ValueError(msg)
    weights = xp.broadcast_to(xp.reshape(sample_weight, (n, 1)), (n, samples // n))
    return xp.reshape(weights, (samples,))
