"""Stacks (N, m_1, ..., m_t) of N samples: sums, inner products and selection of samples."""

import math
from typing import Protocol

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array


class Stacked(Protocol):
    """Data in the layout of a stack, and the order of the modes that leads to it."""

    @property
    def order(self) -> tuple[int, ...]:
        """The modes of the data, in the order in which they are stacked."""

    @property
    def data(self) -> Array:
        """The data, stacked: (N, m_1, ..., m_t)."""


def stack(bound: Stacked, tensor: Array) -> Array:
    """Permute and reshape a tensor of the shape of the data to a stack (N, m_1, ..., m_t)."""
    xp = array_namespace(tensor)
    return xp.reshape(xp.permute_dims(tensor, bound.order), tuple(bound.data.shape))


def unstack(bound: Stacked, stacked: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `stack`, for data of the given shape."""
    xp = array_namespace(stacked)
    inverse = tuple(sorted(range(len(bound.order)), key=lambda k: bound.order[k]))
    return xp.permute_dims(xp.reshape(stacked, tuple(shape[k] for k in bound.order)), inverse)


def mass_tolerance(array: Array) -> float:
    """Relative difference up to which two masses count as equal."""
    return 1e-6 if array.dtype == array_namespace(array).float64 else 1e-3


def flat(stack: Array) -> Array:
    """A stack (N, ...) as (N, m)."""
    if stack.ndim == 2:
        return stack
    return array_namespace(stack).reshape(stack, (stack.shape[0], math.prod(stack.shape[1:])))


def per_sample(stack: Array) -> Array:
    """Sum over everything but the first axis: (N, ...) to (N,)."""
    return array_namespace(stack).sum(flat(stack), axis=1)


def inner(a: Array, b: Array) -> Array:
    """Inner product of each sample: two stacks (N, ...) to (N,)."""
    # Not xp.vecdot, which array-api-compat writes as a batch of small matrix products on torch.
    return array_namespace(a).linalg.vecdot(flat(a), flat(b), axis=-1)


def largest(stack: Array) -> Array:
    """The largest absolute value of each sample: (N, ...) to (N,)."""
    # Norms of the library take up to eight times as long on torch, here and in `one_norm`.
    xp = array_namespace(stack)
    return xp.max(xp.abs(flat(stack)), axis=1)


def one_norm(stack: Array) -> Array:
    """The sum of the absolute values of each sample: (N, ...) to (N,)."""
    return per_sample(array_namespace(stack).abs(stack))


def spread(values: Array, like: Array) -> Array:
    """Reshape one number per sample, (N,), to broadcast against a stack (N, ...)."""
    return values[(slice(None),) + (None,) * (like.ndim - 1)]


def weighted(stack: Array, weights: Array | None) -> Array:
    """
    Every sample times its weight, (N,); the stack itself without weights.

    A sample of weight 0 counts for nothing, even if it is infinite.
    """
    if weights is None:
        return stack
    weights = spread(weights, stack)
    return array_namespace(stack).where(weights > 0, stack, 0.0) * weights


def slices_of(samples: int, size: int) -> list[slice]:
    """Divide ``range(samples)`` into slices of length at most ``size``."""
    return [slice(i, min(i + size, samples)) for i in range(0, samples, size)]


def filled_up(count: int) -> int:
    """The next power of two: few distinct shapes for libraries that compile for each shape."""
    return 1 << (count - 1).bit_length()


def take_samples(stack: Array, samples: NDArray[np.intp]) -> Array:
    """The samples of a stack (N, ...) with the given indices."""
    xp = array_namespace(stack)
    return xp.take(stack, xp.asarray(samples, device=device_of(stack)), axis=0)


def merge_samples(stack: Array, others: Array, samples: NDArray[np.intp]) -> Array:
    """Replace the samples of a stack with the given indices by the first ones of ``others``."""
    order = np.arange(stack.shape[0])
    order[samples] = stack.shape[0] + np.arange(len(samples))
    return take_samples(array_namespace(stack).concat([stack, others]), order)
