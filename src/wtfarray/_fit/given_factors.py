"""Initial factors given by the user."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

from array_api_compat import device as device_of

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_computed,
    as_nonnegative,
    as_shard,
    check_shape,
    common_namespace,
    follow,
)
from wtfarray._fit.specification import Specification
from wtfarray._models.entropy import constrained_axes
from wtfarray._models.models import CPModel, PartlyKnownModel


def is_named(init: object) -> TypeGuard[str | None]:
    """Whether an initialisation is a named method, or the default one, rather than factors."""
    return init is None or isinstance(init, str)


def given_blocks(spec: Specification, init: Any) -> list[Array]:
    """
    The blocks given as ``init``: factors, ``(weights, factors)`` or ``(core, factors)``.

    A fit and TensorLy's CPTensor and TuckerTensor unpack as such pairs. If several processes share
    the samples, each gives its own rows of the first factor.
    """
    blocks, last, learned = spec.shards.sums.agree(lambda: _checked(spec, init))
    if isinstance(spec.model, PartlyKnownModel):
        return blocks  # they are not normalised: no block takes up the scales of learned atoms
    blocks = _normalised(spec, blocks, last, learned=learned)
    if spec.carrier is not None:
        blocks[spec.carrier] = blocks[spec.carrier] / spec.unit
    return blocks


def _checked(spec: Specification, init: Any) -> tuple[list[Array], Array, bool]:
    """The factors, the core or weights, and whether these are a block of their own."""
    head, factors = None, init
    if isinstance(init, Sequence) and len(init) == 2 and isinstance(init[1], Sequence):
        head, factors = init
    elif hasattr(init, "factors"):  # a fit, or a decomposition of TensorLy
        head, factors = tuple(init)
    if not isinstance(factors, Sequence) or len(factors) != spec.modes:
        msg = f"init is a {type(init).__name__}: expected a name, or {spec.modes} factors"
        raise ValueError(msg)
    blocks = [
        _block(spec, f"factor {k} of init", factor, spec.shapes[k])
        for k, factor in enumerate(factors)
    ]
    learned = len(spec.shapes) > spec.modes
    shape = spec.shapes[-1] if learned else spec.shapes[0][1:]
    if head is not None:
        name = "core" if spec.kind == "tucker" else "weights"
        last = _block(spec, f"the {name} of init", head, shape)
        if isinstance(spec.model, CPModel) and not learned and spec.carrier is None:
            last = last / spec.model.scale  # the model multiplies by it
    else:
        xp = array_namespace(spec.like)
        last = xp.ones(shape, dtype=spec.like.dtype, device=device_of(spec.like))
        last = last / math.prod(shape) if learned else last
    return blocks, last, learned


def _normalised(
    spec: Specification, factors: list[Array], last: Array, *, learned: bool
) -> list[Array]:
    """
    Normalise the free factors with constraints and move their scales to the core or the weights.

    If the weights are not learned, they are multiplied into a free factor whose columns have no
    constraint, if there is one. The tensor remains the one that was given.
    """
    xp = array_namespace(last)
    carriers = [k for k in spec.free if k < spec.modes and spec.constraints[k] in (None, "rows")]
    for k, factor in enumerate(factors):
        axes = constrained_axes(spec.constraints[k], 2)
        if k not in spec.free or k in carriers or axes is None:
            continue
        scale = spec.shards.block_sums(k).over(factor, axes)
        factors[k] = factor / xp.where(scale > 0, scale, 1.0)
        along = k if spec.kind == "tucker" else 0
        last = last * xp.reshape(scale, (-1,) + (1,) * (last.ndim - along - 1))
    if learned:
        return [*factors, last]
    if carriers:
        factors[carriers[0]] = factors[carriers[0]] * last
    return factors


def _block(spec: Specification, name: str, array: Array, shape: tuple[int, ...]) -> Array:
    xp = array_namespace(spec.like)
    common_namespace(**{name: array})
    array = follow(name, array, xp, spec.like.dtype, device_of(spec.like))
    check_shape(name, array, shape)
    return as_computed((as_shard if spec.shards.shared else as_nonnegative)(name, array, xp))
