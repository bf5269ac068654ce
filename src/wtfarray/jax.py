"""The smoothed Wasserstein loss for training loops in JAX."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ModuleNotFoundError as error:
    msg = "wtfarray.jax needs JAX: pip install 'wtfarray[jax]'"
    raise ModuleNotFoundError(msg, name=error.name) from error

from wtfarray._arrays.samples import spread, stack, unstack
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_floating,
    check_shape,
    instance_of,
    one_of,
    positive_integer,
    refuse_taken_for_zero,
    same_dtype,
)
from wtfarray._dispatch import checks_flow, smoothing_levels
from wtfarray._losses.gradients import (
    REDUCTIONS,
    SECOND_DERIVATIVE,
    Gradients,
    Reduction,
    gradients_at,
    training_tolerance,
)
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._transport.banded import map_cost, numbers_of
from wtfarray._transport.compiled import (
    compiled_problem,
    solve_compiled,
    solve_compiled_debiased,
)
from wtfarray._transport.components import Components, components_of
from wtfarray._transport.feasibility import (
    are_bottlenecked,
    is_infinite,
    negligible_share,
    of_equal_mass,
    stranded,
    wrong_component_mass,
    wrong_mass,
)
from wtfarray._transport.kernels import are_finite, dense, potential_range
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.solve import LEVEL_ITERATIONS, centred, within_reach

__all__ = ["wasserstein_loss"]


LEVEL_GAP = 1e-2
"""Relative gap at which a level of larger eps ends."""


@overload
def wasserstein_loss(
    X: Array,
    Y: Array,
    /,
    loss: Wasserstein,
    *,
    tol: float | None = ...,
    max_iter: int = ...,
    reduction: Reduction = ...,
    potential: Array | None = ...,
    return_potential: Literal[False] = ...,
) -> Array: ...


@overload
def wasserstein_loss(
    X: Array,
    Y: Array,
    /,
    loss: Wasserstein,
    *,
    tol: float | None = ...,
    max_iter: int = ...,
    reduction: Reduction = ...,
    potential: Array | None = ...,
    return_potential: Literal[True],
) -> tuple[Array, Array]: ...


def wasserstein_loss(
    X: Array,
    Y: Array,
    /,
    loss: Wasserstein,
    *,
    tol: float | None = None,
    max_iter: int = 2000,
    reduction: Reduction = "sum",
    potential: Array | None = None,
    return_potential: bool = False,
) -> Array | tuple[Array, Array]:
    """
    The smoothed Wasserstein loss between X and Y, differentiable in both.

    Gradients are exact at the solution of the transport problem, by the envelope theorem; the
    iterations are not differentiated. They are one compiled loop on the device of the data, which
    works under ``jax.jit``, ``jax.grad``, ``jax.jvp`` and ``jax.vmap``. Second derivatives raise an
    error.

    Parameters
    ----------
    X, Y : array (n_0, ..., n_{d-1})
        Non-negative data and prediction, of one dtype (float32 or float64). Balanced transport
        needs samples of equal mass.
    loss : Wasserstein
        Costs, eps, lam and transported modes; each index of the other modes is one sample.
    tol : float, optional
        Relative duality gap, as in `wtfarray.wasserstein`. If None, 1e-3 for float32, and for
        float64 1e-6 or, if balanced, 1e-4. The error of the gradient is of the order of its square
        root or, if balanced, of the gap itself.
    max_iter : int
        Largest number of iterations.
    reduction : {"sum", "mean", "none"}
        Sum or mean over the samples, or the loss of each sample.
    potential : array, optional
        A warm start, of the shape and dtype of Y: the potential that an earlier step returned for
        the same samples. It decides how many iterations are needed, not where they end: the
        tolerance is the same. It may be traced; no gradient flows through it.
    return_potential : bool
        Whether to return the potential as well, detached, for the next step. Nothing is kept
        between calls otherwise.

    Returns
    -------
    value : array
        A scalar, or for "none" one number per sample, in the shape of the modes that are not
        transported.
    potential : array
        The Kantorovich potential g, of the shape of Y; only if ``return_potential``.

    Notes
    -----
    Compiled code cannot raise errors: where values are traced, as under ``jax.jit``, the loss of an
    invalid sample is NaN, also of one whose ``potential`` is not finite, and the potential that is
    returned for it is 0: a valid start. Nor can it warn if ``max_iter`` is reached; the value is a
    lower bound even then.

    Where Y (or X) is 0 the derivative is -inf. The gradient holds the derivative at the smallest
    normal number instead, which is large and finite.

    For balanced transport Y is scaled to the mass of X, and the gradients are those of the loss as
    a function of X and the unscaled Y: the gradient in Y is orthogonal to Y in each sample.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import wtfarray as wtf
    >>> from wtfarray.jax import wasserstein_loss
    >>> loss = wtf.Wasserstein(wtf.grid_cost(8), eps=0.05)
    >>> target = jnp.eye(8)[jnp.asarray([2, 5])]
    >>> def objective(logits):
    ...     return wasserstein_loss(target, jax.nn.softmax(logits), loss, reduction="mean")
    >>> gradient = jax.jit(jax.grad(objective))(jnp.zeros((2, 8)))
    >>> jnp.argmax(-gradient, axis=1).tolist()  # towards the targets
    [2, 5]
    >>> value, g = wasserstein_loss(target, target, loss, return_potential=True)
    >>> bool(value == wasserstein_loss(target, target, loss, potential=g))
    True
    """
    one_of("reduction", reduction, REDUCTIONS)
    X, Y = _array("X", X), _array("Y", Y)
    instance_of("loss", loss, Wasserstein, "Wasserstein")
    if math.prod(X.shape) == 0:
        msg = f"X has shape {tuple(X.shape)}: expected at least one mode, none empty"
        raise ValueError(msg)
    check_shape("Y", Y, tuple(X.shape))
    same_dtype("Y", Y, "X", X)
    if potential is not None:
        potential = lax.stop_gradient(_array("potential", potential))
        check_shape("potential", potential, tuple(X.shape))
        same_dtype("potential", potential, "X", X)
    one_of("return_potential", return_potential, (False, True))
    tol = training_tolerance(tol, Y, loss.lam)
    max_iter = positive_integer("max_iter", max_iter)
    non_negative = loss.debias and loss.gap_is_bound
    # On the host, because the costs have to be read while the data are traced.
    loss = replace(loss, costs=tuple(map_cost(np.asarray, cost) for cost in loss.costs))
    settings = Settings.of(loss, tuple(X.shape), tol, max_iter, non_negative=non_negative)
    value, g = _values(X, Y, potential, loss.costs, settings)
    if reduction != "none":
        value = jnp.sum(value) if reduction == "sum" else jnp.mean(value)
    return (value, g) if return_potential else value


def _array(name: str, array: Array) -> Array:
    """A floating JAX array; NumPy arrays are converted, as in JAX itself."""
    if isinstance(array, np.ndarray):
        array = jnp.asarray(array)
    instance_of(name, array, jax.Array, "a JAX array")
    return as_floating(name, array, jnp)


@dataclass(frozen=True)
class Settings:
    """The static arguments of the compiled code: equal settings are compiled once."""

    eps: float
    lam: float
    modes: tuple[tuple[int, ...], ...] | None
    levels: tuple[float, ...]
    known_range: float
    """A bound on the range of a potential."""
    all_finite: bool
    """Whether every cost is finite."""
    components: Components | None
    """Connected components of the bins, of a balanced loss with infinite costs."""
    transported: tuple[int, ...]
    tol: float
    max_iter: int
    source_lam: float
    debias: bool
    non_negative: bool
    """Whether the loss is known to be non-negative."""

    @classmethod
    def of(
        cls,
        loss: Wasserstein,
        shape: tuple[int, ...],
        tol: float,
        max_iter: int,
        *,
        non_negative: bool,
    ) -> Settings:
        """The settings of a loss whose costs are on the host."""
        all_finite = are_finite(loss.costs)
        return cls(
            loss.eps,
            loss.lam,
            loss.modes,
            smoothing_levels(loss.mean_cost(), loss.eps),
            potential_range(loss.costs),
            all_finite,
            None if all_finite or not math.isinf(loss.lam) else components_of(loss.costs),
            loss.transported(shape),
            tol,
            max_iter,
            loss.source_lam,
            loss.debias,
            non_negative,
        )


@partial(jax.custom_jvp, nondiff_argnums=(4,))
def _values(
    X: Array, Y: Array, potential: Array | None, costs: tuple[Any, ...], settings: Settings
) -> tuple[Array, Array]:
    """The loss of each sample, in the shape of the sample modes, and its potential."""
    solution = _solution(X, Y, potential, costs, settings)
    return solution.values, solution.potential


@_values.defjvp
def _values_jvp(settings: Settings, primals: Any, tangents: Any) -> tuple[Any, Any]:
    solution = _solution(*primals, settings)
    change = solution.in_X * tangents[0] + solution.in_Y * tangents[1]
    changes = jnp.sum(change, axis=settings.transported), jnp.zeros_like(solution.potential)
    return (solution.values, solution.potential), changes


@partial(jax.custom_jvp, nondiff_argnums=(4,))
def _solution(
    X: Array, Y: Array, potential: Array | None, costs: tuple[Any, ...], settings: Settings
) -> Gradients:
    """The loss of each sample, its gradients in X and in Y, and its potential."""
    numbers = tuple(map(numbers_of, costs))
    arrays = (X, Y, *numbers) if potential is None else (X, Y, *numbers, potential)
    if not any(isinstance(array, jax.core.Tracer) for array in arrays):
        # On the host: the checks are many small operations, each of which JAX would compile.
        x, y = (np.asarray(array) for array in (X, Y))
        on_host = [map_cost(np.asarray, cost) for cost in costs]
        loss = Wasserstein(
            on_host, settings.eps, settings.lam, settings.modes, source_lam=settings.source_lam
        )
        problem, _ = loss.bind_pair(x, y)
        refuse_taken_for_zero("Y", Y)
        if potential is not None:
            loss.bind_potential(problem, x, np.asarray(potential))
    return _compiled(X, Y, potential, costs, settings)


@_solution.defjvp
def _solution_jvp(settings: Settings, primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(SECOND_DERIVATIVE)


@partial(jax.jit, static_argnums=(4,))
def _compiled(
    X: Array, Y: Array, potential: Array | None, costs: tuple[Any, ...], settings: Settings
) -> Gradients:
    """`_solution` without checks; the loss of invalid samples is NaN."""
    shape, moved = tuple(X.shape), settings.transported
    order = (*(k for k in range(X.ndim) if k not in moved), *moved)
    costs = tuple(map_cost(lambda c: jnp.asarray(c, dtype=X.dtype), cost) for cost in costs)

    def problem_at(eps: Any, data: Array) -> TransportProblem:
        arguments = (settings.lam, order, settings.known_range)
        return compiled_problem(
            data,
            costs,
            eps,
            *arguments,
            all_finite=settings.all_finite,
            source_lam=settings.source_lam,
        )

    data = jnp.reshape(jnp.permute_dims(X, order), (-1, *(cost.shape[0] for cost in costs)))
    problem = problem_at(settings.eps, data)
    Y = stack(problem, Y)
    start = jnp.zeros_like(Y) if potential is None else stack(problem, potential)
    # Samples that `feasible_target` would refuse are replaced by ones, and their loss by NaN.
    components = settings.components
    refused = _are_refused(problem, Y, components)
    refused = refused | jnp.any(~jnp.isfinite(start), axis=tuple(range(1, Y.ndim)))
    data, Y = (jnp.where(spread(refused, A), 1.0, A) for A in (data, Y))
    start = jnp.where(spread(refused, start), 0.0, start)
    problem = problem_at(settings.eps, data)
    Y = of_equal_mass(problem, Y, components)

    def level(
        found: tuple[Array, Array], setting: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], None]:
        eps, tol, max_iter = setting
        return solve_compiled(problem_at(eps, data), found[0], Y, tol, max_iter), None

    levels = settings.levels
    if potential is not None:
        levels, start = levels[-1:], within_reach(problem, start, Y)
    coarse = len(levels) - 1
    eps = jnp.asarray([settings.eps * level for level in levels], dtype=Y.dtype)
    tols = jnp.asarray([LEVEL_GAP] * coarse + [settings.tol], dtype=Y.dtype)
    most = jnp.asarray([min(LEVEL_ITERATIONS, settings.max_iter)] * coarse + [settings.max_iter])
    found = (start, jnp.zeros_like(problem.mass))
    if settings.debias:
        (g, _), _ = lax.scan(level, found, (eps[:-1], tols[:-1], most[:-1]))
        last = solve_compiled_debiased(problem, g, Y, tols[-1], most[-1])
        g, values, in_X, in_Y = last.g, last.bounds.values, last.gradient_X, last.bounds.u
        values = jnp.maximum(values, 0.0) if settings.non_negative else values
    else:
        (g, values), _ = lax.scan(level, found, (eps, tols, most))
        if problem.conserves_mass:
            g = centred(g, Y)
        in_X, in_Y = gradients_at(problem, Y, g)
    if problem.conserves_mass and not settings.all_finite:
        refused = refused | is_infinite(problem, values)
    values, in_X, in_Y = (jnp.where(spread(refused, A), math.nan, A) for A in (values, in_X, in_Y))
    g = jnp.where(spread(refused, g), 0.0, g)  # a valid start, should the sample become so
    in_X, in_Y, g = (unstack(problem, A, shape) for A in (in_X, in_Y, g))
    values = jnp.reshape(values, [shape[k] for k in order if k not in moved])
    return Gradients(values, in_X, in_Y, g)


def _are_refused(problem: TransportProblem, Y: Array, components: Components | None) -> Array:
    """Samples, (N,) bool, of which X or Y is invalid, or whose loss is infinite."""
    data = problem.data
    invalid = ~(jnp.isfinite(data) & jnp.isfinite(Y) & (data >= 0) & (Y >= 0))
    # Mass that can reach nothing may stay behind if the first marginal is relaxed.
    invalid = invalid | (stranded(problem, Y) & (not problem.relaxes_data))
    if problem.conserves_mass and problem.unreachable is not None:
        invalid = invalid | (problem.unreachable & (Y > 0))
    refused = jnp.any(invalid, axis=tuple(range(1, Y.ndim)))
    refused = refused | wrong_mass(problem, Y) | ~jnp.any(data > 0)
    if components is not None:
        refused = refused | jnp.any(wrong_component_mass(problem, Y, components), axis=1)
    if problem.conserves_mass and not problem.kernel.all_finite:
        Y = of_equal_mass(problem, Y, components)
        refused = refused | _have_no_plan(problem, Y, refused)
    return refused


def _have_no_plan(problem: TransportProblem, Y: Array, refused: Array) -> Array:
    """
    Samples, (N,) bool, to whose Y infinite costs leave no balanced transport.

    The host finds a maximum flow for each, if the problem is small. Samples that have been refused
    are not examined.
    """
    samples, bins = Y.shape[0], math.prod(Y.shape[1:])
    if not checks_flow(samples, bins):
        return jnp.zeros_like(refused)
    data, Y = (jnp.where(spread(refused, A), 0.0, A) for A in (problem.data, Y))
    leftover = negligible_share(Y)

    def on_host(*arrays: Array) -> NDArray[np.bool_]:
        x, y, cost = map(np.asarray, arrays)
        return are_bottlenecked(x, y, cost, leftover)

    found: Array = jax.pure_callback(
        on_host,
        jax.ShapeDtypeStruct((samples,), bool),
        *(data, Y, dense(problem.kernel.costs)),
        vmap_method="sequential",
    )
    return found
