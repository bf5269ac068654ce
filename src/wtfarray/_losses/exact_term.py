"""A loss that is known in closed form, as a solver evaluates it."""

from __future__ import annotations

from array_api_compat import array_namespace

from wtfarray._arrays.samples import spread
from wtfarray._arrays.typing import Array
from wtfarray._losses.frobenius import BoundFrobenius
from wtfarray._losses.kullback_leibler import BoundKullbackLeibler
from wtfarray._losses.term import TermValue


class ExactTerm:
    """A loss that is known in closed form."""

    def __init__(self, bound: BoundFrobenius | BoundKullbackLeibler, weights: Array | None) -> None:
        self.bound = bound
        self.weights = weights
        self.dual = array_namespace(bound.data).zeros_like(bound.data)
        self.evaluations = 0
        self.scale = 0.0

    @property
    def free(self) -> Array:
        """The dual variable."""
        return self.dual

    def warm(self, g: Array) -> None:
        """Nothing is iterated here."""

    def set_level(self, level: float) -> None:
        """Nothing is smoothed here."""

    def forget(self) -> None:
        """Nothing is remembered here."""

    def evaluate(self, model: Array, tolerance: float, max_iter: int) -> TermValue:  # noqa: ARG002
        """The loss and its gradient."""
        xp = array_namespace(model)
        self.evaluations += 1
        values, gradient = self.bound.value_and_gradient(model)
        if self.weights is not None:
            values, gradient = values * self.weights, gradient * spread(self.weights, gradient)
        self.dual = gradient
        return TermValue(float(xp.sum(values)), 0.0, 0.0, gradient, converged=True)

    def certify(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """The same: there is no gap."""
        return self.evaluate(model, tolerance, max_iter)
