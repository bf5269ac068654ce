"""n-mode algebra with the conventions of TensorLy: unfold in C order, factors (n_k, r_k)."""

import math
from collections.abc import Sequence

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    axis_index,
    check_shape,
    common_namespace,
    sequence_of_arrays,
)


def unfold(tensor: Array, mode: int, /) -> Array:
    """
    Unfold a tensor: arrange the fibres of one mode as the columns of a matrix.

    Parameters
    ----------
    tensor : array (n_0, ..., n_{d-1})
        Any array with at least one mode.
    mode : int
        The mode that indexes the rows.

    Returns
    -------
    array (n_mode, prod of the others)
        ``reshape(moveaxis(tensor, mode, 0), (n_mode, -1))``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> wtf.unfold(np.arange(8).reshape(2, 2, 2), 1)
    array([[0, 1, 4, 5],
           [2, 3, 6, 7]])
    """
    xp = common_namespace(tensor=tensor)
    mode = axis_index("mode", mode, tensor.ndim)
    others = math.prod(n for k, n in enumerate(tensor.shape) if k != mode)
    return xp.reshape(xp.moveaxis(tensor, mode, 0), (tensor.shape[mode], others))


def fold(matrix: Array, mode: int, shape: Sequence[int], /) -> Array:
    """
    Fold a matrix into a tensor: the inverse of `unfold`.

    Parameters
    ----------
    matrix : array (n_mode, prod of the others)
        The result of `unfold`.
    mode : int
        The mode that indexes the rows.
    shape : sequence of int
        The shape of the tensor.

    Returns
    -------
    array (n_0, ..., n_{d-1})
        The tensor whose unfolding is ``matrix``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> tensor = np.arange(8).reshape(2, 2, 2)
    >>> bool(np.all(wtf.fold(wtf.unfold(tensor, 1), 1, tensor.shape) == tensor))
    True
    """
    xp = common_namespace(matrix=matrix)
    mode = axis_index("mode", mode, len(shape))
    others = [n for k, n in enumerate(shape) if k != mode]
    check_shape("matrix", matrix, (shape[mode], math.prod(others)))
    return xp.moveaxis(xp.reshape(matrix, (shape[mode], *others)), 0, mode)


def mode_product(tensor: Array, matrix: Array, mode: int, /) -> Array:
    """
    Multiply one mode of a tensor by a matrix.

    Parameters
    ----------
    tensor : array (n_0, ..., n_{d-1})
        The tensor.
    matrix : array (m, n_mode)
        The matrix; the mode is contracted with its second axis.
    mode : int
        The mode.

    Returns
    -------
    array (n_0, ..., m, ..., n_{d-1})
        ``tensor x_mode matrix``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> wtf.mode_product(np.ones((2, 3, 4)), np.ones((5, 3)), 1).shape
    (2, 5, 4)
    """
    common_namespace(tensor=tensor, matrix=matrix)
    mode = axis_index("mode", mode, tensor.ndim)
    if matrix.ndim != 2 or matrix.shape[1] != tensor.shape[mode]:
        msg = (
            f"matrix has shape {tuple(matrix.shape)}: expected (m, {tensor.shape[mode]}) for mode "
            f"{mode} of a tensor of shape {tuple(tensor.shape)}"
        )
        raise ValueError(msg)
    return apply_to_mode(tensor, matrix, mode)


def apply_to_mode(tensor: Array, matrix: Array, mode: int) -> Array:
    """`mode_product` without checks, by batched products without a copy of the tensor."""
    xp = array_namespace(tensor)
    shape = tuple(tensor.shape)
    before, n, after = math.prod(shape[:mode]), shape[mode], math.prod(shape[mode + 1 :])
    if mode == tensor.ndim - 1 and mode > 0:
        # A batch of small products, which BLAS computes faster than one tall product.
        product = xp.matmul(tensor, matrix.mT)
    elif after == 1:
        product = xp.matmul(xp.reshape(tensor, (before, n)), matrix.mT)
    elif before == 1:
        product = xp.matmul(matrix, xp.reshape(tensor, (n, after)))
    else:
        product = xp.matmul(matrix[None, ...], xp.reshape(tensor, (before, n, after)))
    return xp.reshape(product, (*shape[:mode], matrix.shape[0], *shape[mode + 1 :]))


def mode_products(tensor: Array, matrices: Sequence[Array], modes: Sequence[int], /) -> Array:
    """
    Multiply several modes of a tensor by one matrix each.

    Parameters
    ----------
    tensor : array (n_0, ..., n_{d-1})
        The tensor.
    matrices : sequence of arrays (m_k, n_k)
        One matrix per mode.
    modes : sequence of int
        The modes, all different.

    Returns
    -------
    array
        The tensor with ``n_k`` replaced by ``m_k``. The modes that shrink most are multiplied
        first, so that intermediate tensors are small.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> wtf.mode_products(np.ones((2, 3, 4)), [np.ones((5, 2)), np.ones((6, 4))], (0, 2)).shape
    (5, 3, 6)
    """
    matrices = sequence_of_arrays("matrices", matrices)
    places = [axis_index("modes", mode, tensor.ndim) for mode in modes]
    if len(matrices) != len(places) or len(set(places)) != len(places):
        msg = (
            f"modes is {tuple(modes)} for {len(matrices)} matrices: expected one mode per matrix, "
            f"all different"
        )
        raise ValueError(msg)
    for k in _by_growth(matrices):
        tensor = mode_product(tensor, matrices[k], places[k])
    return tensor


def apply_to_modes(tensor: Array, matrices: Sequence[Array], modes: Sequence[int]) -> Array:
    """`mode_products` without checks."""
    for k in _by_growth(matrices):
        tensor = apply_to_mode(tensor, matrices[k], modes[k])
    return tensor


def _by_growth(matrices: Sequence[Array]) -> list[int]:
    """The order of the matrices in which modes that shrink most come first."""
    growth = [matrix.shape[0] / max(1, matrix.shape[1]) for matrix in matrices]
    return sorted(range(len(matrices)), key=lambda k: growth[k])


def khatri_rao(factors: Sequence[Array]) -> Array:
    """Columnwise Kronecker product of factors (n_k, r): (prod n_k, r), in C order."""
    xp = array_namespace(*factors)
    product = factors[0]
    for factor in factors[1:]:
        pairs = product[:, None, :] * factor[None, :, :]
        product = xp.reshape(pairs, (-1, factor.shape[1]))
    return product


def balanced_split(shape: Sequence[int]) -> int:
    """The index at which to split the modes so that both Khatri-Rao products are small."""
    cuts = range(1, len(shape))
    return min(cuts, key=lambda s: math.prod(shape[:s]) + math.prod(shape[s:]), default=1)


def cp_to_tensor(factors: Sequence[Array], weights: Array | None = None, /) -> Array:
    """
    Sum of rank-one tensors.

    Parameters
    ----------
    factors : sequence of arrays (n_k, r)
        One factor per mode.
    weights : array (r,), optional
        Weight of each component; ones when absent.

    Returns
    -------
    array (n_0, ..., n_{d-1})
        ``sum_r weights[r] factors[0][:, r] x ... x factors[d-1][:, r]``. The superdiagonal core is
        never formed.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> wtf.cp_to_tensor([np.ones((2, 3)), np.ones((4, 3))], np.array([1.0, 2.0, 3.0]))[0, 0]
    np.float64(6.0)
    """
    factors = check_cp(factors, weights)
    return cp_product(factors, weights)


def check_cp(factors: Sequence[Array], weights: Array | None) -> tuple[Array, ...]:
    """Refuse factors that do not belong to one CP model."""
    factors = sequence_of_arrays("factors", factors)
    named = {f"factors[{k}]": factor for k, factor in enumerate(factors)}
    if weights is not None:
        named["weights"] = weights
    common_namespace(**named)
    for k, factor in enumerate(factors):
        rank = factors[0].shape[-1]
        if factor.ndim != 2 or factor.shape[1] != rank:
            msg = f"factors[{k}] has shape {tuple(factor.shape)}: expected (n_{k}, {rank})"
            raise ValueError(msg)
    if weights is not None:
        check_shape("weights", weights, (factors[0].shape[1],))
    return factors


def cp_product(factors: Sequence[Array], weights: Array | None = None) -> Array:
    """`cp_to_tensor` without checks: one matrix product of two Khatri-Rao products."""
    xp = array_namespace(*factors)
    shape = tuple(factor.shape[0] for factor in factors)
    cut = balanced_split(shape)
    left = khatri_rao(factors[:cut])
    if weights is not None:
        left = left * weights
    if len(factors) == 1:
        return xp.sum(left, axis=1)
    return xp.reshape(xp.matmul(left, khatri_rao(factors[cut:]).mT), shape)


def mttkrp(tensor: Array, factors: Sequence[Array], mode: int) -> Array:
    """
    Matricised tensor times Khatri-Rao product: Xi_k of a CP model with unit weights, (n_k, r).

    The paper's Xi (Prop. 2) with a superdiagonal core. The modes are split into two halves. The sum
    over the half without ``mode`` is one matrix product; the remaining products are small.
    """
    xp = array_namespace(tensor)
    shape = tuple(tensor.shape)
    cut = balanced_split(shape)
    if len(shape) == 1:
        return xp.matmul(xp.reshape(tensor, (-1, 1)), xp.ones_like(factors[0][:1, :]))
    flat = xp.reshape(tensor, (math.prod(shape[:cut]), math.prod(shape[cut:])))
    if mode < cut:
        half = xp.matmul(flat, khatri_rao(factors[cut:])).mT
        return _contract_half(half, factors[:cut], mode)
    half = xp.matmul(khatri_rao(factors[:cut]).mT, flat)
    return _contract_half(half, factors[cut:], mode - cut)


def mttkrps(tensor: Array, factors: Sequence[Array]) -> list[Array]:
    """`mttkrp` for every mode, with two large products in total."""
    xp = array_namespace(tensor)
    shape = tuple(tensor.shape)
    if len(shape) == 1:
        return [xp.matmul(xp.reshape(tensor, (-1, 1)), xp.ones_like(factors[0][:1, :]))]
    cut = balanced_split(shape)
    flat = xp.reshape(tensor, (math.prod(shape[:cut]), math.prod(shape[cut:])))
    left = xp.matmul(flat, khatri_rao(factors[cut:])).mT
    right = xp.matmul(khatri_rao(factors[:cut]).mT, flat)
    return [
        *(_contract_half(left, factors[:cut], k) for k in range(cut)),
        *(_contract_half(right, factors[cut:], k) for k in range(len(shape) - cut)),
    ]


def _contract_half(half: Array, inside: Sequence[Array], k: int) -> Array:
    """Contract (r, prod of ``inside``) with all factors ``inside`` but factor k: (n_k, r)."""
    xp = array_namespace(half)
    n, rank = inside[k].shape
    before, after = inside[:k], inside[k + 1 :]
    if after:
        others = khatri_rao(after).mT[:, :, None]
        kept = math.prod(factor.shape[0] for factor in inside[: k + 1])
        half = xp.matmul(xp.reshape(half, (rank, kept, others.shape[1])), others)
    if before:
        others = khatri_rao(before).mT[:, :, None]
        half = xp.matmul(xp.reshape(half, (rank, others.shape[1], n)).mT, others)
    return xp.reshape(half, (rank, n)).mT


def tucker_to_tensor(core: Array, factors: Sequence[Array], /) -> Array:
    """
    Multiply a core by one factor per mode.

    Parameters
    ----------
    core : array (r_0, ..., r_{d-1})
        The core tensor S.
    factors : sequence of arrays (n_k, r_k)
        One factor per mode.

    Returns
    -------
    array (n_0, ..., n_{d-1})
        ``S[A_0, ..., A_{d-1}]``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> wtf.tucker_to_tensor(np.ones((2, 3)), [np.ones((4, 2)), np.ones((5, 3))]).shape
    (4, 5)
    """
    factors = check_tucker(core, factors)
    return mode_products(core, factors, range(core.ndim))


def check_tucker(core: Array, factors: Sequence[Array]) -> tuple[Array, ...]:
    """Refuse a core and factors that do not belong to one Tucker model."""
    factors = sequence_of_arrays("factors", factors)
    common_namespace(core=core, **{f"factors[{k}]": factor for k, factor in enumerate(factors)})
    if core.ndim != len(factors):
        msg = f"core has {core.ndim} modes for {len(factors)} factors: expected one mode per factor"
        raise ValueError(msg)
    for k, factor in enumerate(factors):
        if factor.ndim != 2 or factor.shape[1] != core.shape[k]:
            msg = f"factors[{k}] has shape {tuple(factor.shape)}: expected (n_{k}, {core.shape[k]})"
            raise ValueError(msg)
    return factors


def contract_but(tensor: Array, other: Array, mode: int) -> Array:
    """
    Contract all modes but ``mode`` of two tensors of otherwise equal shape: (n_mode, r_mode).

    With ``other = S x_{j != k} A_j`` this is the paper's Xi_k for a Tucker model (Prop. 2).
    """
    xp = array_namespace(tensor)
    shape = tuple(tensor.shape)
    before, after = math.prod(shape[:mode]), math.prod(shape[mode + 1 :])
    a = xp.reshape(tensor, (before, shape[mode], after))
    b = xp.reshape(other, (before, other.shape[mode], after))
    if after == 1:
        return xp.matmul(a[:, :, 0].mT, b[:, :, 0])
    return xp.sum(xp.matmul(a, b.mT), axis=0)
