"""Terms of the objective: a loss bound to data, as the solvers evaluate it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from wtfarray._arrays.typing import Array

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class TermValue:
    """Value, gradient and error of ``Phi(X, Y)``, of the samples of this process."""

    value: float | Array
    """A lower bound of the loss; an array () if it is still on the device."""
    error: float
    """Estimated error of the lower bound; the value plus this is not biased."""
    gap: float | Array
    """Bound on the error of the lower bound; `Term.evaluate` may only estimate it. As value."""
    gradient: Array
    """In Y, of the shape of Y: the dual variable u."""
    converged: bool
    """Whether the error of all samples is below the tolerance."""
    values: Array | None = None
    """Lower bounds of the loss of each sample, (N,), where they are known."""


class Term(Protocol):
    """One loss of the sum that a fit minimises."""

    state: Array
    """The iterate of the inner problem: restore it to return to an earlier model."""

    @property
    def potential(self) -> Array:
        """The potential g of the last model, stacked."""

    def start_from(self, g: Array) -> None:
        """Warm-start the inner problem from a potential, stacked."""

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the inner problem."""

    @property
    def work(self) -> float:
        """Time spent so far if samples are few and small, in units of 60 us on NumPy."""

    @property
    def scale(self) -> float:
        """Scale relative to which errors of the loss are judged: eps times the mass."""

    def set_level(self, level: float) -> None:
        """Continue with ``level`` times eps."""

    def drop_history(self) -> None:
        """Drop everything but the state."""

    def evaluate(
        self, model: Array, tolerance: float, max_iter: int, *, ordinary: bool = False
    ) -> TermValue:
        """
        The loss of a model tensor, its error estimated below ``tolerance`` if possible.

        If ``ordinary``, the caller assumes that all of the model is positive and that nothing
        overflows, and the term need not check it. Where this does not hold, some numbers of the
        result may not be finite, and the history is to be dropped.
        """

    def certify(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """As `evaluate`, with a rigorous gap, below ``tolerance`` if possible; on the host."""


def tightened(
    attempt: Callable[[float, int], tuple[Result, float, float, int]],
    tolerance: float,
    max_iter: int,
) -> Result:
    """
    Solve to smaller and smaller estimated errors until the duality gap is below the tolerance.

    ``attempt(error, iterations)`` solves to an estimated error, which is some hundred times smaller
    than the gap. It returns the result, its gap, its error and the number of iterations.
    """
    allowed, remaining = 1e-2 * tolerance, max_iter
    while True:
        result, gap, error, used = attempt(allowed, min(100, remaining))
        remaining -= used
        if gap <= tolerance or remaining <= 0:
            return result
        allowed = min(allowed, error) * 0.1
