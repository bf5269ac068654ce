"""What an optimiser shows while it runs and what it returns."""

from dataclasses import dataclass

from wtfarray._arrays.typing import Array

__all__ = ["OptimizeRecord", "OptimizeResult", "OptimizeState"]


@dataclass(frozen=True)
class OptimizeState:
    """
    An accepted iterate, as given to `stop` and `callback`.

    Attributes
    ----------
    x : array
        The iterate, in the shape of `x0`. Not to be written to.
    value : float
        The objective at `x`.
    gradient : array
        The gradient at `x`, in the shape of `x0`. Not to be written to.
    gradient_norm : float
        The largest absolute entry of the gradient.
    n_iter : int
        Accepted iterations so far; 0 at the start.
    n_evaluations : int
        Calls of `fun` and `safe_fun` so far.
    """

    x: Array
    value: float
    gradient: Array
    gradient_norm: float
    n_iter: int
    n_evaluations: int


@dataclass(frozen=True)
class OptimizeRecord:
    """
    One line of the history: the numbers of an accepted iterate.

    Attributes
    ----------
    time : float
        Seconds since the start.
    value : float
        The objective.
    gradient_norm : float
        The largest absolute entry of the gradient.
    evaluations : int
        Calls of `fun` and `safe_fun` so far.
    """

    time: float
    value: float
    gradient_norm: float
    evaluations: int


@dataclass(frozen=True)
class OptimizeResult:
    """
    The outcome of a minimisation.

    Attributes
    ----------
    x : array
        The last accepted iterate, with the shape, dtype and device of `x0`.
    value : float
        The objective at `x`.
    gradient : array
        The gradient at `x`, in the shape of `x0`.
    converged : bool
        Whether a stopping rule was met, rather than a budget used up or a failure.
    message : str
        Why it ended and, if it did not converge, what to do about it.
    n_iter : int
        Accepted iterations.
    n_evaluations : int
        Calls of `fun` and `safe_fun`.
    history : list of OptimizeRecord
        The start and every accepted iterate: ``n_iter + 1`` records.
    """

    x: Array
    value: float
    gradient: Array
    converged: bool
    message: str
    n_iter: int
    n_evaluations: int
    history: list[OptimizeRecord]
