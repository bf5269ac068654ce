"""What the machine code reads and writes: arrays in float64 and C order unless stated otherwise."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.typing import Array
from wtfarray._transport.anderson import RIDGE
from wtfarray._transport.iterate import search_radius
from wtfarray._transport.problem import TransportProblem

Vector = NDArray[np.float64]


class Kernel(NamedTuple):
    """A kernel that is a product over axes, and that of the transposed costs."""

    sizes: NDArray[np.intp]
    """Number of bins of each axis, (t,)."""
    matrices: NDArray[np.float64]
    """The matrices of all axes, one after the other."""
    transposes: NDArray[np.float64]
    exponents: NDArray[np.float64]
    """Their logarithms, ``-C/eps``."""
    transposed_exponents: NDArray[np.float64]


class Samples(NamedTuple):
    """The data of N samples of m bins, and the constants of their problem."""

    X: NDArray[np.float64]
    mass: NDArray[np.float64]
    kernel: Kernel
    eps: float
    lam: float
    damping: float
    floor: float
    """See `PlainRange`."""
    threshold: float
    max_step: float
    """The largest entry of what acceleration adds to a step."""


class State(NamedTuple):
    """What is kept of every sample between two models; see `SinkhornState` and `Secants`."""

    ahead: NDArray[np.float64]
    g: NDArray[np.float64]
    rest: NDArray[np.float64]
    size: NDArray[np.float64]
    """L1 norms of the last gradient; inf before the first step for a model, -1 before any step."""
    moves: NDArray[np.float32]
    changes: NDArray[np.float32]
    scales: NDArray[np.float64]
    inverse: NDArray[np.float64]
    weights: NDArray[np.float32]
    slot: NDArray[np.intp]
    """Where the next pair goes, in every sample."""
    safe: NDArray[np.bool_]
    """Samples in which plain products have lost digits: in the log domain from there on."""


class Result(NamedTuple):
    """The last iterate of every sample; see `Iterate`."""

    g: NDArray[np.float64]
    q: NDArray[np.float64]
    log_Kf: NDArray[np.float64]  # noqa: N815
    """Without the shift; any number where X is 0."""
    residual: NDArray[np.float64]
    gradient: NDArray[np.float64]
    shift: NDArray[np.float64]
    decrement: NDArray[np.float64]
    size: NDArray[np.float64]
    iterations: NDArray[np.intp]


class Limits(NamedTuple):
    """When a run of iterations ends."""

    error: float
    """The error of a sample, times its weight."""
    distance: float
    """The L1 norm of the gradient of a sample, divided by its mass."""
    least: int
    most: int


class Course(NamedTuple):
    """What kind of iterations a run makes."""

    begins: bool = False
    """Whether they are the first for a model."""
    predicts: bool = False
    """Whether they go on from where the secants lead from the last model."""


def as_rows(stack: Array) -> Vector:
    """A stack, (N, ...), as rows, (N, m), in memory of its own."""
    return np.ascontiguousarray(to_host(stack).reshape(stack.shape[0], -1))


def samples_of(problem: TransportProblem) -> Samples:
    """The problem in the form that the machine code takes."""
    kernel, info = problem.kernel, np.finfo(np.float64)
    exponents = [to_host(cost) * (-1.0 / kernel.eps) for cost in kernel.costs]
    X = as_rows(problem.data)
    mass = X.sum(axis=1)
    # As in `PlainRange`.
    floor = 16.0 * max(float(info.smallest_normal), float(mass.max() / info.max))
    threshold = max(2.0 * floor / info.eps, X.shape[1] * info.smallest_normal / info.eps)
    return Samples(
        X,
        mass,
        _kernel(exponents),
        float(kernel.eps),
        float(problem.lam),
        float(problem.damping),
        float(floor),
        float(threshold),
        float(search_radius(problem)),
    )


def _kernel(exponents: list[NDArray[np.float64]]) -> Kernel:
    """The kernel of ``-C/eps`` of each axis; if that is symmetric, nothing is stored twice."""
    forward = np.concatenate([matrix.ravel() for matrix in exponents])
    adjoint = np.concatenate([matrix.T.ravel() for matrix in exponents])
    matrices = transposes = np.exp(forward)
    if np.array_equal(forward, adjoint):
        adjoint = forward
    else:
        transposes = np.exp(adjoint)
    sizes = np.asarray([matrix.shape[0] for matrix in exponents])
    return Kernel(sizes, matrices, transposes, forward, adjoint)


def first_state(samples: int, bins: int, memory: int) -> State:
    """The state before the first iteration."""

    def zeros(*shape: int, dtype: Any = np.float64) -> NDArray[Any]:
        return np.zeros((samples, *shape), dtype)

    inverse = zeros(memory, memory)
    inverse[:, range(memory), range(memory)] = 1.0 / (1.0 + RIDGE)
    return State(
        zeros(bins),
        zeros(bins),
        zeros(bins),
        np.full(samples, -1.0),
        zeros(memory, bins, dtype=np.float32),
        zeros(memory, bins, dtype=np.float32),
        zeros(memory),
        inverse,
        zeros(bins, dtype=np.float32),
        zeros(dtype=np.intp),
        zeros(dtype=np.bool_),
    )


def new_result(samples: int, bins: int) -> Result:
    """Room for the last iterates."""
    g, q, log_Kf, residual, gradient = (np.empty((samples, bins)) for _ in range(5))
    shift, decrement, size = (np.empty(samples) for _ in range(3))
    iterations = np.zeros(samples, np.intp)
    return Result(g, q, log_Kf, residual, gradient, shift, decrement, size, iterations)


def copy_of(result: Result) -> Result:
    """The same iterates in other arrays, and no iterations since."""
    copied: dict[str, NDArray[Any]] = {
        name: values.copy() for name, values in result._asdict().items()
    }
    copied["iterations"][...] = 0
    return Result(**copied)
