"""The loss of each sample with its slopes in both arguments, for automatic differentiation."""

from __future__ import annotations

import math

from array_api_compat import array_namespace

from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import positive_number
from wtfarray._losses.protocol import unstack
from wtfarray._losses.value import solve_transport
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._transport.potential import dual_of_free
from wtfarray._transport.problem import FAR, TransportProblem

REDUCTIONS = ("sum", "mean", "none")
SECOND_DERIVATIVE = (
    "wasserstein_loss has first derivatives only: the gradients come from the dual solution, and "
    "how that moves with X and Y is not computed. Take second derivatives by differences"
)


def training_tolerance(tol: float | None, Y: Array) -> float:
    """``tol``, or one that float32 reaches at every smoothing: a step of training needs no more."""
    if tol is None:
        return 1e-6 if Y.dtype == array_namespace(Y).float64 else 1e-3
    return positive_number("tol", tol)


def losses_and_slopes(
    X: Array, Y: Array, loss: Wasserstein, tol: float, max_iter: int
) -> tuple[Array, Array, Array]:
    """The loss of each sample, in the shape of the sample modes, and its slopes in X and in Y."""
    solution = solve_transport(X, Y, loss, tol=tol, max_iter=max_iter)
    problem, shape = solution.problem, tuple(X.shape)
    slope_X, slope_Y = slopes(problem, solution.Y, solution.g)
    values = array_namespace(X).reshape(solution.values, sample_shape(loss, shape))
    return values, unstack(problem, slope_X, shape), unstack(problem, slope_Y, shape)


def sample_shape(loss: Wasserstein, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The modes that are not transported."""
    moved = loss.transported(shape)
    return tuple(n for k, n in enumerate(shape) if k not in moved)


def slopes(problem: TransportProblem, Y: Array, g: Array) -> tuple[Array, Array]:
    """
    Slopes in X and in Y of every sample, (N, ...), at the dual solution g.

    The loss is ``max_u <u, Y> - Phi*(X, u)``, so that by the envelope theorem the slope in Y is
    u, and that in X is ``-dPhi*/dX = eps log(X / K f)``. Balanced, a constant may go from one to
    the other; with ``<g, Y> = 0`` they are the slopes of ``Phi(X, Y <X, 1> / <Y, 1>)``.

    Towards an entry of 0 both fall to -inf. What stands there is the slope at the smallest normal
    number: a zero times it is 0, which is the limit of what passes through, say, a softmax. Where
    the loss is infinite for all but 0 the slope is taken to be as large, and positive.
    """
    xp = array_namespace(Y)
    eps, lam = problem.kernel.eps, problem.lam
    if not problem.conserves_mass:
        g = xp.where(problem.reached, g, FAR * lam)
    allowed = (Y > 0) | ~problem.reached
    log_Kf = problem.kernel.log_apply(xp.where(allowed, g, -math.inf) * (1.0 / eps))
    least = float(xp.finfo(Y.dtype).smallest_normal)
    slope_X = (xp.log(xp.maximum(problem.data, least)) - log_Kf) * eps
    # Where Y is 0: the solution of g/lam + log q = log(least), q = exp(g/eps) K^T a.
    log_back = problem.kernel.log_apply_adjoint(problem.log_scaling(log_Kf))
    at_zero = (math.log(least) - log_back) * (1.0 / (1.0 / eps + 1.0 / lam))
    u = dual_of_free(xp.where(allowed, g, at_zero), lam, xp)
    if problem.closed is not None:
        # Mass that has no way to Y, or balanced from X, would cost inf.
        slope_X = xp.where(log_Kf > -math.inf, slope_X, -math.log(least) * eps)
        if problem.conserves_mass:
            u = xp.where(problem.closed, -math.log(least) * eps, u)
    return slope_X, u
