"""The smoothed Wasserstein loss of given X and Y: value, gradient and duality gap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wtfarray._arrays.axes import check_all_labels, check_last_labels
from wtfarray._arrays.containers import without_labels
from wtfarray._arrays.masks import as_mask, observed
from wtfarray._arrays.samples import unstack
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    check_shape,
    common_namespace,
    instance_of,
    positive_integer,
    positive_number,
)
from wtfarray._losses.labels import check_cost_labels
from wtfarray._losses.wasserstein import Wasserstein


@dataclass(frozen=True, eq=False)
class TransportResult:
    """
    A value of the loss with its certificate; unpacks as ``value, gradient``.

    The loss lies between ``value`` and ``value + gap``.
    """

    value: Array
    """(), a lower bound of the loss."""
    gradient: Array
    """In Y, of the shape of Y: the dual variable u; if balanced, up to a constant in each sample.

    It is -inf where Y is 0 (unless the sample of X is empty). At bins that no mass of X can reach
    at a finite cost it is lam (inf if balanced). A slope too large for the dtype saturates.
    """
    gap: float
    converged: bool
    message: str
    n_iter: int
    potential: Array
    """The Kantorovich potential g, of the shape of Y: a warm start for the next call."""

    def __iter__(self) -> Iterator[Array]:
        """Unpack as ``value, gradient``."""
        return iter((self.value, self.gradient))


def wasserstein(
    X: Array,
    Y: Array,
    /,
    loss: Wasserstein,
    *,
    tol: float | None = None,
    max_iter: int = 2000,
    potential: Array | None = None,
    mask: Array | None = None,
) -> TransportResult:
    """
    The smoothed Wasserstein loss between X and Y, and its gradient in Y.

    Parameters
    ----------
    X, Y : array (n_0, ..., n_{d-1})
        Non-negative. Balanced transport needs samples of equal mass; if infinite costs separate the
        bins into connected components, of equal mass on each of these.
    loss : Wasserstein
        Costs, eps, lam and transported modes.
    tol : float, optional
        Stop when the duality gap is below ``tol`` times the larger of the loss's absolute value
        and ``eps`` times the mass of X. 1e-6 for float64 and 1e-4 for float32 when absent.
    max_iter : int
        Largest number of iterations; if it is reached, a warning and ``message`` say so.
    potential : array, optional
        A warm start: the ``potential`` of an earlier result for a similar Y.
    mask : array of bool, optional
        True where X was observed; broadcasts against X. A bin that was not observed does not exist
        for its sample: nothing leaves it, nothing arrives, and the mass of Y there is not compared.
        X and Y may have any values there, and the gradient is 0. If a sample lacks some of its
        bins, ``lam`` must be finite.

    Returns
    -------
    TransportResult
        Unpacks as ``value, gradient``; also ``gap``, ``converged``, ``message``, ``n_iter``,
        ``potential``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> X = np.array([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    >>> Y = np.array([[0.1, 0.8, 0.1, 0.0], [0.1, 0.8, 0.1, 0.0]])
    >>> loss = wtf.Wasserstein(wtf.grid_cost(4), eps=0.1)
    >>> value, gradient = wtf.wasserstein(X, Y, loss)
    >>> gradient.shape
    (2, 4)
    """
    named = (("X", X), ("Y", Y), ("mask", mask))
    (X, labels), (Y, others), (mask, mask_labels) = (without_labels(*pair) for pair in named)
    xp = common_namespace(X=X, Y=Y)
    max_iter = positive_integer("max_iter", max_iter)
    tol = None if tol is None else positive_number("tol", tol)
    instance_of("loss", loss, Wasserstein, "Wasserstein")
    shape = tuple(X.shape)
    check_all_labels("X", labels, others if len(others) == len(labels) else (), "Y")
    check_cost_labels(loss, labels)
    check_last_labels("mask", mask_labels, labels)
    mask = as_mask("mask", mask, X)
    if mask is not None:
        check_shape("Y", Y, shape)
        X, Y = observed(X, mask), observed(Y, mask)
    problem, stacked = loss.bind_pair(X, Y, mask)
    if potential is not None:
        potential = loss.bind_potential(problem, X, potential)
    solution = loss.solve(problem, stacked, tol=tol, max_iter=max_iter, potential=potential)
    gradient, potential = (unstack(problem, a, shape) for a in (solution.u, solution.g))
    if mask is not None:
        gradient, potential = observed(gradient, mask), observed(potential, mask)
    return TransportResult(
        xp.sum(solution.values),
        gradient,
        solution.gap,
        solution.converged,
        solution.message,
        solution.n_iter,
        potential,
    )
