"""Sums of losses."""

from __future__ import annotations

from dataclasses import dataclass

from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    instance_of,
)
from wtfarray._losses.protocol import BoundLoss, Loss


@dataclass(frozen=True, eq=False, init=False)
class LossSum:
    """
    A sum of losses of the same data, each over modes of its own.

    Fits minimise it with the "envelope" solver. SWIFT's loss is the sum over the modes of transport
    along the fibres of that mode.

    Parameters
    ----------
    *losses : Loss
        At least one.

    Examples
    --------
    >>> import wtfarray as wtf
    >>> costs = wtf.grid_cost(8, 8)
    >>> loss = wtf.LossSum(
    ...     wtf.Wasserstein(costs[0], eps=0.1, lam=1.0, modes=(0,)),
    ...     wtf.Wasserstein(costs[1], eps=0.1, lam=1.0, modes=(1,)),
    ... )
    >>> len(loss.losses)
    2
    """

    losses: tuple[Loss, ...]

    def __init__(self, *losses: Loss) -> None:
        if not losses:
            msg = "losses is empty: expected at least one loss"
            raise ValueError(msg)
        for k, loss in enumerate(losses):
            instance_of(f"losses[{k}]", loss, Loss, "Wasserstein, Frobenius or KullbackLeibler")
        object.__setattr__(self, "losses", tuple(losses))

    def bind(self, X: Array, /) -> BoundLoss:  # noqa: ARG002
        """A sum has no conjugate in closed form: refuse."""
        raise TypeError(_NO_CONJUGATE)

    def conjugate(self, X: Array, U: Array, /) -> tuple[Array, Array]:  # noqa: ARG002
        """A sum has no conjugate in closed form: refuse."""
        raise TypeError(_NO_CONJUGATE)


_NO_CONJUGATE = (
    "loss is a LossSum, whose conjugate has no closed form: expected a single loss, or a fit with "
    "solver='envelope'"
)
