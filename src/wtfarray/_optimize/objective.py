"""Evaluation of the user's function, with checks, fallback and one host transfer per call."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import is_torch_array

from wtfarray._arrays import host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import check_function, common_namespace

__all__ = ["Fun", "Objective", "Point"]

# Rounding errors of a value, in units of eps: a long sum with some cancellation.
_ROUNDINGS = 1e4

Fun: TypeAlias = Callable[[Array], tuple[Any, Array]]


@dataclass(frozen=True)
class Point:
    """
    An evaluated point, with flat arrays on the device and numbers on the host.

    Attributes
    ----------
    x, gradient : array, shape (n,)
        The point and the gradient there.
    value : float
        The objective.
    norm : float
        The largest absolute entry of the gradient.
    square : float
        The squared Euclidean norm of the gradient.
    slope : float
        The inner product of the gradient and the direction of the evaluation, 0 without one.
    """

    x: Array
    gradient: Array
    value: float
    norm: float
    square: float
    slope: float

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite; False if the squared norm overflows."""
        return math.isfinite(self.value + self.norm + self.square + self.slope)


class Objective:
    """
    The function to minimise, on flat arrays.

    Parameters
    ----------
    fun, safe_fun : callable
        As in `lbfgs`.
    x0 : array
        The initial point, of any shape.
    max_evaluations : float
        The number of evaluations after which the budget is `exhausted`.
    sums : Sums
        If several processes minimise one function together, each over its own entries of x: the
        sums over them. ``fun`` returns the value of all, and the gradient in its own entries.
    """

    def __init__(
        self,
        fun: Fun,
        safe_fun: Fun | None,
        x0: Array,
        max_evaluations: float = math.inf,
        sums: Sums = ALONE,
    ) -> None:
        self._sums = sums
        check_function("fun", fun, optional=False)
        check_function("safe_fun", safe_fun)
        self._x0 = x0 = _start(x0)
        self.xp = array_namespace(x0)
        self.shape = tuple(x0.shape)
        self.dtype = x0.dtype
        self.eps = float(self.xp.finfo(x0.dtype).eps)
        self.n_evaluations = 0
        self._max_evaluations = max_evaluations
        self._functions = [("fun", fun)]
        if safe_fun is not None:
            self._functions.append(("safe_fun", safe_fun))

    @property
    def exhausted(self) -> bool:
        """Whether no evaluation is left."""
        return self.n_evaluations >= self._max_evaluations

    def noise(self, point: Point) -> float:
        """
        An upper estimate of the difference of two values that rounding can cause.

        Hager and Zhang (2005) use ``1e-6 * abs(value)`` for float64. An overestimate is harmless:
        for smaller differences the line search uses slopes instead of values.
        """
        return math.sqrt(self.eps) * abs(point.value)

    def start(self) -> Point:
        """Evaluate at `x0`, which must be inside the domain."""
        point = self.evaluate(self.xp.reshape(self._x0, (-1,)))
        if not point.finite:
            name = self._functions[-1][0]
            msg = (
                f"{name} has the value {point.value} and the gradient norm {point.norm} at x0: "
                "expected finite ones; start from a point inside the domain"
            )
            raise ValueError(msg)
        return point

    def evaluate(self, x: Array, direction: Array | None = None) -> Point:
        """
        Evaluate at a flat `x`, by `safe_fun` as well if `fun` is not finite there.

        Parameters
        ----------
        x : array, shape (n,)
            The point.
        direction : array, shape (n,), optional
            The direction in which the slope is computed.

        Returns
        -------
        Point
            Not necessarily `finite`.
        """
        for name, function in self._functions:
            point = self._call(name, function, x, direction)
            if point.finite:
                break
        return point

    def lost_in_rounding(self, point: Point, decrease: float) -> bool:
        """
        Whether a predicted decrease is below rounding; takes one host transfer.

        The rounding of ``x`` alone changes the value by up to ``eps * sum(abs(gradient * x))``.
        """
        change = host.to_host(self.xp.sum(self.xp.abs(point.gradient * point.x)))
        (moved,) = self._sums.numbers(float(change))
        return decrease <= _ROUNDINGS * self.eps * (abs(point.value) + moved)

    def unflatten(self, x: Array) -> Array:
        """Reshape a flat array to the shape of `x0`."""
        return self.xp.reshape(x, self.shape)

    def _call(self, name: str, function: Fun, x: Array, direction: Array | None) -> Point:
        xp = self.xp
        self.n_evaluations += 1
        value, gradient = function(self.unflatten(x))
        self._check(name, value, gradient)
        if is_torch_array(gradient):
            gradient = gradient.detach()
        # A copy, because `fun` may write the next gradient into the same memory.
        gradient = xp.reshape(xp.asarray(gradient, copy=True), (-1,))
        # These may overflow outside the domain; `finite` then is False.
        with np.errstate(over="ignore", invalid="ignore"):
            square = xp.vecdot(gradient, gradient)
            slope = 0.0 * square if direction is None else xp.vecdot(gradient, direction)
            numbers = xp.stack([xp.max(xp.abs(gradient)), square, slope])
        if isinstance(value, (int, float, np.generic)):
            norm, square, slope = host.to_host(numbers).tolist()
        else:
            # Cast the other numbers, not the value, which may be float64 for a float32 `x`.
            numbers = xp.astype(numbers, value.dtype)
            numbers = xp.concat([numbers, xp.reshape(value, (1,))])
            norm, square, slope, value = host.to_host(numbers).tolist()
        if self._sums.shared:
            square, slope = self._sums.numbers(square, slope)
            norm = self._sums.largest(norm)
        return Point(x, gradient, float(value), norm, square, slope)

    def _check(self, name: str, value: Any, gradient: Any) -> None:
        if not isinstance(value, (int, float)) and getattr(value, "shape", None) != ():
            found = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)
            msg = f"{name} returned a value of {found}: expected a float or an array of shape ()"
            raise ValueError(msg)
        shape, dtype = getattr(gradient, "shape", None), getattr(gradient, "dtype", None)
        if shape is None or tuple(shape) != self.shape:
            found = type(gradient).__name__ if shape is None else f"shape {tuple(shape)}"
            msg = f"{name} returned a gradient of {found}: expected shape {self.shape}, that of x0"
            raise ValueError(msg)
        if dtype != self.dtype:
            msg = f"{name} returned a gradient of dtype {dtype}: expected {self.dtype}, that of x0"
            raise ValueError(msg)


def _start(x0: Any) -> Array:
    """A private copy of the initial point, without autograd graph."""
    xp = common_namespace(x0=x0)
    if x0.dtype not in (xp.float32, xp.float64):
        msg = f"x0 has dtype {x0.dtype}: expected float32 or float64"
        raise ValueError(msg)
    if 0 in x0.shape:
        msg = f"x0 has shape {tuple(x0.shape)}: expected at least one entry"
        raise ValueError(msg)
    if is_torch_array(x0):
        x0 = x0.detach()
    return xp.asarray(x0, copy=True)
