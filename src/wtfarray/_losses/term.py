"""What a solver asks of a loss: its value and gradient at one model tensor after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from wtfarray._arrays.typing import Array

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class TermValue:
    """What a term knows of ``Phi(X, Y)``."""

    value: float
    """A lower bound."""
    error: float
    """What the lower bound lacks, by estimate; the value plus this has no bias."""
    gap: float
    """What the lower bound can lack at most; for balanced transport an estimate, as ``error``."""
    gradient: Array
    """In Y, of its shape: the dual variable u."""
    converged: bool


class Term(Protocol):
    """One loss of the sum that is minimised."""

    state: Array
    """Where the inner problem stands: set it back to return to an earlier model."""

    @property
    def potential(self) -> Array:
        """The potential g of the last model, stacked."""

    def start_from(self, g: Array) -> None:
        """Start from a guess of the potential, stacked."""

    @property
    def evaluations(self) -> int:
        """How often the inner problem was evaluated."""

    @property
    def scale(self) -> float:
        """An error of the loss that does not matter: eps times the mass."""

    def set_level(self, level: float) -> None:
        """Go on with ``level`` times the smoothing."""

    def drop_history(self) -> None:
        """Forget everything but the state."""

    def evaluate(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """The loss of a model tensor, its error estimated below ``tolerance`` if possible."""

    def certify(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """The loss of a model tensor with a rigorous gap, below ``tolerance`` if possible."""


def tightened(
    attempt: Callable[[float, int], tuple[Result, float, float, int]],
    tolerance: float,
    max_iter: int,
) -> Result:
    """
    Solve more and more tightly until the duality gap is below the tolerance.

    ``attempt(error, iterations)`` solves to an estimated error, which is some hundred times smaller
    than the gap. It returns the result, its gap, its error and the iterations that were used.
    """
    allowed, left = 1e-2 * tolerance, max_iter
    while True:
        result, gap, error, used = attempt(allowed, min(100, left))
        left -= used
        if gap <= tolerance or left <= 0:
            return result
        allowed = min(allowed, error) * 0.1
