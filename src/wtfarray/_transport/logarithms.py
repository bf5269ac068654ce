"""Sums of exponentials: logarithms, and numbers held as a mantissa with a separate scale."""

import math

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array, Namespace


def smallest_sum(dtype: object, terms: int, xp: Namespace) -> float:
    """A sum of ``terms`` products below this may have lost digits to underflow."""
    info = xp.finfo(dtype)
    return float(info.smallest_normal) / float(info.eps) * terms


def from_logs(logs: Array, axis: int) -> tuple[Array, Array]:
    """Mantissa and scale of ``exp(logs)``: one scale per fibre, with mantissas of maximum 1."""
    xp = array_namespace(logs)
    top = xp.max(logs, axis=axis, keepdims=True)
    return xp.exp(logs - xp.where(top > -math.inf, top, 0.0)), top


def to_logs(mantissa: Array, scale: Array) -> Array:
    """``log(mantissa exp(scale))``."""
    xp = array_namespace(mantissa)
    positive = mantissa > 0
    return xp.where(positive, xp.log(xp.where(positive, mantissa, 1.0)) + scale, -math.inf)


def logsumexp(logs: Array, axis: int | tuple[int, ...], xp: Namespace) -> Array:
    """``log(sum(exp(logs)))`` along ``axis``; -inf where every entry is."""
    top = xp.max(logs, axis=axis, keepdims=True)
    shift = xp.where(top > -math.inf, top, 0.0)
    total = xp.sum(xp.exp(logs - shift), axis=axis, keepdims=True)
    result = xp.where(total > 0, xp.log(xp.where(total > 0, total, 1.0)) + shift, -math.inf)
    return xp.squeeze(result, axis=axis)
