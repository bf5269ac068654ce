"""The term of one of several data sets that are fitted together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import take_samples
from wtfarray._arrays.typing import Array
from wtfarray._losses.term import Term, TermValue


class SourceTerm:
    """
    A term that sees its columns of the model, (n, f), and the samples that its data set has.

    Parameters
    ----------
    term : Term
        The loss of the data set, whose samples are ``samples``.
    columns : slice
        Its columns of the model.
    samples : array of int, optional
        Its rows of the model; None for all.
    shape : tuple of int
        The shape of the data set.
    weight : float
        A factor on the loss.
    """

    def __init__(
        self,
        term: Term,
        columns: slice,
        samples: NDArray[np.intp] | None,
        shape: tuple[int, ...],
        weight: float,
    ) -> None:
        self.term = term
        self._columns = columns
        self._samples = samples
        self._shape = shape
        self.weight = weight

    @property
    def state(self) -> Array:
        """The iterate of the inner problem."""
        return self.term.state

    @state.setter
    def state(self, state: Array) -> None:
        self.term.state = state

    @property
    def potential(self) -> Array:
        """The potential g of the last model, stacked."""
        return self.term.potential

    def start_from(self, g: Array) -> None:
        """Warm-start the inner problem from a potential, stacked."""
        self.term.start_from(g)

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the inner problem."""
        return self.term.evaluations

    @property
    def work(self) -> float:
        """Time spent so far, as `Term.work`."""
        return self.term.work

    @property
    def scale(self) -> float:
        """Scale relative to which errors of the loss are judged."""
        return self.weight * self.term.scale

    def set_level(self, level: float) -> None:
        """Continue with ``level`` times eps."""
        self.term.set_level(level)

    def drop_history(self) -> None:
        """Drop everything but the state."""
        self.term.drop_history()

    def evaluate(
        self, model: Array, tolerance: float, max_iter: int, *, ordinary: bool = False
    ) -> TermValue:
        """The loss of a model tensor, its error estimated below ``tolerance`` if possible."""
        share = tolerance / self.weight
        value = self.term.evaluate(self.part(model), share, max_iter, ordinary=ordinary)
        return self._whole(value, model)

    def certify(self, model: Array, tolerance: float, max_iter: int) -> TermValue:
        """The loss of a model tensor with a rigorous gap, below ``tolerance`` if possible."""
        value = self.term.certify(self.part(model), tolerance / self.weight, max_iter)
        return self._whole(value, model)

    def part(self, model: Array) -> Array:
        """The columns and samples of the data set, in its shape."""
        part = model[:, self._columns]
        if self._samples is not None:
            part = take_samples(part, self._samples)
        return array_namespace(model).reshape(part, self._shape)

    def _whole(self, value: TermValue, model: Array) -> TermValue:
        """The weighted value, with a gradient of the shape of the model."""
        xp = array_namespace(model)
        n, features = model.shape
        columns = self._columns.stop - self._columns.start
        gradient = xp.reshape(value.gradient, (self._shape[0], columns)) * self.weight
        kind = {"dtype": model.dtype, "device": device_of(model)}
        if self._samples is not None:
            # A row of zeros for the samples that the data set lacks.
            place = np.full(n, self._shape[0])
            place[self._samples] = np.arange(self._shape[0])
            zeros = xp.zeros((1, gradient.shape[1]), **kind)
            gradient = take_samples(xp.concat([gradient, zeros]), place)
        before, after = self._columns.start, features - self._columns.stop
        parts = [xp.zeros((n, before), **kind), gradient, xp.zeros((n, after), **kind)]
        return replace(
            value,
            value=self.weight * value.value,
            error=self.weight * value.error,
            gap=self.weight * value.gap,
            gradient=xp.concat([part for part in parts if part.shape[1]], axis=1),
        )
