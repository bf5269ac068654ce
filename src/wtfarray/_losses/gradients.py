"""The loss of each sample with its gradients in both arguments, for automatic differentiation."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import unstack
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import positive_number
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._transport.potential import SATURATION, dual_of_potential
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.solve import Solution

KernelProducts: TypeAlias = tuple[Array, Array]
"""``log K f`` and ``log K^T (X / K f)``, (N, ...) each."""

Reduction = Literal["sum", "mean", "none"]
REDUCTIONS = ("sum", "mean", "none")
SECOND_DERIVATIVE = (
    "wasserstein_loss has first derivatives only: the gradients come from the dual solution, whose "
    "derivatives in X and Y are not computed. Use finite differences of the gradient"
)


def training_tolerance(tol: float | None, Y: Array, lam: float) -> float:
    """
    ``tol``, or a default that float32 can reach at every eps.

    The certified gap of balanced transport is of the order of the error of the gradient; for finite
    lam it is of the order of its square. With these defaults balanced gradients are the more
    accurate ones in float64.
    """
    if tol is not None:
        return positive_number("tol", tol)
    if Y.dtype != array_namespace(Y).float64:
        return 1e-3
    return 1e-4 if math.isinf(lam) else 1e-6


class Gradients(NamedTuple):
    """The loss of each sample with its gradients, and the potential for a warm start."""

    values: Array
    """In the shape of the sample modes."""
    in_X: Array  # noqa: N815
    in_Y: Array  # noqa: N815
    potential: Array
    """The potential g, of the shape of Y."""


def losses_and_gradients(
    X: Array,
    Y: Array,
    loss: Wasserstein,
    tol: float,
    max_iter: int,
    potential: Array | None = None,
) -> Gradients:
    """The loss of each sample, its gradients in X and Y, and its potential."""
    problem, stacked = loss.bind_pair(X, Y)
    if potential is not None:
        potential = loss.bind_potential(problem, X, potential)
    solution = loss.solve(problem, stacked, tol=tol, max_iter=max_iter, potential=potential)
    shape = tuple(X.shape)
    if solution.gradient_X is None:
        gradients = gradients_at(problem, solution.Y, solution.g, _known_products(solution))
    else:
        gradients = solution.gradient_X, solution.u
    in_X, in_Y, g = (unstack(problem, stack, shape) for stack in (*gradients, solution.g))
    values = array_namespace(X).reshape(solution.values, sample_shape(loss, shape))
    return Gradients(values, in_X, in_Y, g)


def _known_products(solution: Solution) -> KernelProducts | None:
    """The kernel products of the certificate, if they are those that the gradients need."""
    problem = solution.problem
    empty = array_namespace(problem.mass).any(problem.mass <= 0)
    # The certificate fills empty samples and leaves out bins that no mass of X can reach.
    if not problem.kernel.all_finite or bool(empty):
        return None
    return solution.bounds.log_Kf, solution.bounds.log_adjoint


def sample_shape(loss: Wasserstein, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of the modes that are not transported."""
    moved = loss.transported(shape)
    return tuple(n for k, n in enumerate(shape) if k not in moved)


def gradients_at(
    problem: TransportProblem, Y: Array, g: Array, known: KernelProducts | None = None
) -> tuple[Array, Array]:
    """
    Gradients in X and in Y of every sample, (N, ...), at the dual solution g.

    ``known`` are the kernel products at g, 0 where Y is, if they have been computed before.

    The loss is ``max_u <u, Y> - Phi*(X, u)``, so that by the envelope theorem the gradient in Y is
    u, and that in X is ``-dPhi*/dX = eps log(X / K f)``. For balanced transport a constant may be
    added to one and subtracted from the other; with ``<g, Y> = 0`` they are the gradients of
    ``Phi(X, Y <X, 1> / <Y, 1>)``.

    At an entry of 0 the derivative is -inf. It is replaced by the derivative at the smallest normal
    number, which is finite: its product with 0 is 0, the correct limit in the chain rule of, for
    example, a softmax. Where any positive entry would make the loss infinite, the derivative is
    replaced by a positive number of the same size.
    """
    xp = array_namespace(Y)
    eps, lam = problem.kernel.eps, problem.lam
    if not problem.conserves_mass:
        g = xp.where(problem.reachable, g, SATURATION * lam)
    allowed = (Y > 0) | ~problem.reachable
    log_Kf, log_adjoint = _kernel_products(problem, Y, g) if known is None else known
    least = float(xp.finfo(Y.dtype).smallest_normal)
    gradient_X = (xp.log(xp.maximum(problem.data, least)) - log_Kf) * eps
    if problem.relaxes_data:
        # -dPhi*/dX = s (1 - (K f / X)^(1-k)), of which the other is the limit for large s.
        s = problem.source_lam
        gradient_X = dual_of_potential(gradient_X * (s / (s + eps)), s, xp)
    # Where Y is 0: the solution of g/lam + log q = log(least), q = exp(g/eps) K^T a.
    at_zero = (math.log(least) - log_adjoint) * (1.0 / (1.0 / eps + 1.0 / lam))
    u = dual_of_potential(xp.where(allowed, g, at_zero), lam, xp)
    if problem.unreachable is not None:
        # The loss is infinite for mass of X that cannot reach Y and, if balanced, vice versa.
        gradient_X = xp.where(log_Kf > -math.inf, gradient_X, -math.log(least) * eps)
        if problem.conserves_mass:
            u = xp.where(problem.unreachable, -math.log(least) * eps, u)
    return gradient_X, u


def _kernel_products(problem: TransportProblem, Y: Array, g: Array) -> KernelProducts:
    xp = array_namespace(Y)
    log_Kf = problem.kernel.log_apply(xp.where(Y > 0, g, -math.inf) * (1.0 / problem.kernel.eps))
    return log_Kf, problem.kernel.log_apply_adjoint(problem.log_scaling(log_Kf))
