"""Sums of losses."""

from __future__ import annotations

from dataclasses import dataclass

from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import common_namespace, instance_of
from wtfarray._losses.protocol import Loss


@dataclass(frozen=True, eq=False, init=False)
class LossSum:
    """
    A sum of losses of the same data, each of which may transport other modes.

    Fits minimise it with the "envelope" solver. SWIFT's loss is a sum over the modes: transport
    along the fibres of each mode.

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
            instance_of(
                f"losses[{k}]",
                loss,
                Loss,
                "a loss of wtfarray, or an object with value_and_gradient",
            )
        object.__setattr__(self, "losses", tuple(losses))

    def value_and_gradient(self, X: Array, Y: Array, /) -> tuple[Array, Array]:
        """The sums of the losses and of their gradients."""
        xp = common_namespace(X=X, Y=Y)
        parts = [loss.value_and_gradient(X, Y) for loss in self.losses]
        values = [value for value, _ in parts]
        if any(value.ndim == 0 for value in values):
            values = [xp.sum(value) for value in values]
        value, gradient = values[0], parts[0][1]
        for other, (_, other_gradient) in zip(values[1:], parts[1:], strict=True):
            value, gradient = value + other, gradient + other_gradient
        return value, gradient


def losses_of(loss: Loss) -> tuple[Loss, ...]:
    """The losses of a sum, or the loss itself as a tuple."""
    return loss.losses if isinstance(loss, LossSum) else (loss,)
