"""The term of a loss with a closed form: its value and gradient are exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import weighted
from wtfarray._arrays.typing import Array
from wtfarray._losses.protocol import Loss, MaskedLoss
from wtfarray._losses.term import TermValue


class ExactTerm:
    """
    A loss whose value and gradient need no inner problem.

    Parameters
    ----------
    data : array
        X.
    value_and_gradient : callable
        Maps the model tensor to the loss of each sample, (n_0,), and its gradient.
    weights : array (n_0,), optional
        Weights of the samples.
    """

    def __init__(
        self,
        data: Array,
        value_and_gradient: Callable[[Array], tuple[Array, Array]],
        weights: Array | None,
    ) -> None:
        self.weights = weights
        self.state = array_namespace(data).zeros_like(data)
        self.evaluations = 0
        self.scale = 0.0
        self._value_and_gradient = value_and_gradient

    @property
    def potential(self) -> Array:
        """The gradient: without an inner problem g = u."""
        return self.state

    def start_from(self, g: Array) -> None:
        """No effect: there is no inner problem to start."""

    @property
    def work(self) -> float:
        """Time spent so far, in evaluations."""
        return self.evaluations

    def set_level(self, level: float) -> None:
        """No effect: there is no smoothing."""

    def drop_history(self) -> None:
        """No effect: there is no history."""

    def evaluate(
        self,
        model: Array,
        tolerance: float,  # noqa: ARG002
        max_iter: int,  # noqa: ARG002
        *,
        ordinary: bool = False,  # noqa: ARG002
    ) -> TermValue:
        """The loss and its gradient."""
        xp = array_namespace(model)
        self.evaluations += 1
        values, gradient = self._value_and_gradient(model)
        values, gradient = weighted(values, self.weights), weighted(gradient, self.weights)
        self.state = gradient
        return TermValue(xp.sum(values), 0.0, 0.0, gradient, converged=True)

    def certify(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """As `evaluate`: the gap is 0."""
        found = self.evaluate(model, tolerance, max_iter)
        return replace(found, value=float(found.value))


def checked_loss(
    loss: Loss, X: Array, *, weighted: bool, mask: Array | None = None
) -> Callable[[Array], tuple[Array, Array]]:
    """A user-defined loss as a function of the model, with checks of the arrays it returns."""
    name = f"{type(loss).__name__}.value_and_gradient"
    masked = None
    if mask is not None:
        if not isinstance(loss, MaskedLoss):
            msg = (
                f"mask was given, but {type(loss).__name__} has no method "
                "masked_value_and_gradient(X, Y, mask): expected a loss that has, or no mask"
            )
            raise TypeError(msg)
        name = f"{type(loss).__name__}.masked_value_and_gradient"
        masked = loss.masked_value_and_gradient

    def value_and_gradient(model: Array) -> tuple[Array, Array]:
        answer = loss.value_and_gradient(X, model) if masked is None else masked(X, model, mask)
        if not isinstance(answer, tuple) or len(answer) != 2:
            msg = f"{name} returned a {type(answer).__name__}: expected a pair, values and gradient"
            raise TypeError(msg)
        values, gradient = answer
        for what, array, shapes in (
            ("values", values, [(X.shape[0],)] if weighted else [(X.shape[0],), ()]),
            ("gradient", gradient, [tuple(X.shape)]),
        ):
            shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
            if shape is None or tuple(shape) not in shapes:
                found = type(array).__name__ if shape is None else f"shape {tuple(shape)}"
                expected = " or ".join(map(str, shapes))
                msg = f"{name} returned {what} of {found}: expected an array of shape {expected}"
                raise ValueError(msg)
            if dtype != X.dtype:
                msg = f"{name} returned {what} of dtype {dtype}: expected {X.dtype}, that of X"
                raise ValueError(msg)
        return values, gradient

    return value_and_gradient
