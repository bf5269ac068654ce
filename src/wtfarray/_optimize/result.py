"""State, history and result of an optimiser."""

from dataclasses import dataclass

from wtfarray._arrays.typing import Array

__all__ = ["OptimizeRecord", "OptimizeResult", "OptimizeState"]


@dataclass(frozen=True)
class OptimizeState:
    """
    An accepted iterate, as passed to `stop` and `callback`.

    Attributes
    ----------
    x : array
        The iterate, in the shape of `x0`. Do not modify it.
    value : float
        The objective at `x`.
    gradient : array
        The gradient at `x`, in the shape of `x0`. Do not modify it.
    gradient_norm : float
        The largest absolute entry of the gradient.
    n_iter : int
        Number of accepted iterations; 0 at the initial point.
    n_evaluations : int
        Number of calls of `fun` and `safe_fun` so far.
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
    One entry of the history, for an accepted iterate.

    Attributes
    ----------
    time : float
        Seconds since the start.
    value : float
        The objective.
    gradient_norm : float
        The largest absolute entry of the gradient.
    evaluations : int
        Number of calls of `fun` and `safe_fun` so far.
    """

    time: float
    value: float
    gradient_norm: float
    evaluations: int


@dataclass(frozen=True)
class OptimizeResult:
    """
    The result of a minimisation.

    Attributes
    ----------
    x : array
        The last accepted iterate, with the shape, dtype and device of `x0`.
    value : float
        The objective at `x`.
    gradient : array
        The gradient at `x`, in the shape of `x0`.
    converged : bool
        Whether a stopping criterion was met; False if a limit was reached or a step failed.
    message : str
        Why the run ended, with advice if it did not converge.
    n_iter : int
        Number of accepted iterations.
    n_evaluations : int
        Number of calls of `fun` and `safe_fun`.
    history : list of OptimizeRecord
        The initial point and every accepted iterate: ``n_iter + 1`` records.
    """

    x: Array
    value: float
    gradient: Array
    converged: bool
    message: str
    n_iter: int
    n_evaluations: int
    history: list[OptimizeRecord]
