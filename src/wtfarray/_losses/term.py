"""What an outer solver asks of a loss: its value and gradient at one model tensor after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wtfarray._arrays.typing import Array


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

    dual: Array
    """Where the inner problem stands: set it back to return to an earlier model."""

    @property
    def free(self) -> Array:
        """The free dual variable g of the last model, stacked."""

    def warm(self, g: Array) -> None:
        """Start from a guess of g, stacked."""

    @property
    def evaluations(self) -> int:
        """How often the inner problem was evaluated."""

    @property
    def scale(self) -> float:
        """What a loss may lack without being noticed: eps times the mass."""

    def set_level(self, level: float) -> None:
        """Go on with ``level`` times the smoothing."""

    def forget(self) -> None:
        """Drop all memory but the dual variable."""

    def evaluate(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """The loss of a model tensor, its error estimated below ``tolerance`` if possible."""

    def certify(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """The loss of a model tensor with a rigorous gap, below ``tolerance`` if possible."""
