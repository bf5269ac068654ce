"""The convex dual of one block: value, gradient, primal point and certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import inner, per_sample, spread, weighted
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_data,
    axis_index,
    check_shape,
    common_namespace,
    instance_of,
    positive_number,
    same_dtype,
)
from wtfarray._losses.protocol import BoundLoss, ConjugateLoss
from wtfarray._losses.wasserstein import refuse_debiased
from wtfarray._models.entropy import (
    Constraint,
    check_constraint,
    conjugate_of_entropy,
    kl_divergence,
)
from wtfarray._models.models import Block, core_block, cp_block, cp_weights_block, tucker_block
from wtfarray._models.tensor import check_cp, check_tucker
from wtfarray._transport.feasibility import certified_gaps, refuse_other_mass, refuse_unreachable
from wtfarray._transport.potential import shrinkage
from wtfarray._transport.problem import TransportProblem


@dataclass(frozen=True, eq=False)
class Certificate:
    """
    Bounds on the objective of a block that a dual point proves.

    The minimum of the objective over the block lies between ``lower`` and ``upper``. The objective
    of ``factor`` is at most ``upper``.
    """

    factor: Array
    lower: float
    upper: float
    gap: float


@dataclass(frozen=True, eq=False, repr=False)
class BlockDual:
    """
    ``min_g Phi*(X, u(g)) + rho E*_S(-Xi(u(g)) / rho)``, the dual of one block (Prop. 2 and 3).

    ``g`` is any real array of the shape of `start`. The minimum is minus the minimum of
    ``Phi(X, S[.. A ..]) + rho E(A)`` over the factors A in the constraint set.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> rng = np.random.default_rng(0)
    >>> X, atoms = rng.dirichlet(np.ones(8), 5), rng.dirichlet(np.ones(8), 3).T
    >>> loss = wtf.Wasserstein(wtf.grid_cost(8), eps=0.05, lam=10.0)
    >>> dual = wtf.cp_dual(X, [np.ones((5, 3)) / 3, atoms], 0, loss, rho=0.01, constraint="rows")
    >>> result = wtf.lbfgs(dual.value_and_gradient, dual.start())
    >>> certificate = dual.certificate(result.x)
    >>> certificate.factor.shape, certificate.gap < 1e-8
    ((5, 3), True)
    """

    bound: BoundLoss
    block: Block
    rho: float
    constraint: Constraint
    scales_samples: bool
    """Whether each row of the block carries the mass of one sample."""
    weights: Array | None = None
    """Weights of the samples in the loss, (N,); None for ones."""
    sums: Sums = ALONE
    """Over the samples, of which g holds those of this process."""
    is_common: bool = True
    """Whether the block is the same on all processes, rather than rows of the samples of each."""

    def start(self) -> Array:
        """Zeros, (N, m_1, ..., m_t): a default initial point."""
        return array_namespace(self.bound.data).zeros_like(self.bound.data)

    def value_and_gradient(self, g: Array) -> tuple[Array, Array]:
        """The dual objective, (), and its gradient; NaN where fast kernel products underflow."""
        return self._value_and_gradient(g, *self.bound.conjugate(g))

    def safe_value_and_gradient(self, g: Array) -> tuple[Array, Array]:
        """The same without underflow, slower."""
        return self._value_and_gradient(g, *self.bound.safe_conjugate(g))

    def _value_and_gradient(self, g: Array, values: Array, marginal: Array) -> tuple[Array, Array]:
        xp = array_namespace(g)
        value, factor, slope = self._entropy_part(g)
        gradient = self.model(-1.0 * factor)
        if slope is not None:
            gradient *= slope
        gradient += marginal
        if self.weights is not None:
            gradient = gradient * spread(self.weights, gradient)
        return self._total(xp.sum(weighted(values, self.weights)), value), gradient

    def _total(self, loss: Array, entropy: Array) -> Array:
        """The loss of the samples here and the entropy of the block, of all processes."""
        if self.sums.shared and self.is_common:
            return self.sums.array(loss) + entropy
        return self.sums.array(loss + entropy)

    def _entropy_part(self, g: Array, *, exact: bool = False) -> tuple[Array, Array, Array | None]:
        """``rho E*(-Xi(u)/rho)``, its maximiser A(g), and du/dg; ``exact`` up to rounding."""
        xp = array_namespace(g)
        lam = self.bound.lam
        u, slope, outside, scale = g, None, None, 1.0
        if not math.isinf(lam):
            u, slope, outside = shrinkage(g, lam, 0.0 if exact else self.rho, xp)
            scale = -lam  # applied after the adjoint, to a smaller array
        if self.weights is not None:
            u = u * spread(self.weights, u)  # the conjugate of w Phi is w Phi*(u / w)
        xi = self.block.adjoint(xp.reshape(u, self.block.model_shape))
        if self.is_common:
            xi = self.sums.array(xi)  # NaN if g is outside the domain on any process
        value, factor = conjugate_of_entropy(xi * (-scale / self.rho), self.constraint, xp)
        if outside is not None:
            if self.is_common and self.sums.shared:
                outside = ~xp.isfinite(value)
            value = xp.where(outside, math.inf, value)
        return value * self.rho, factor, slope

    def model(self, factor: Array) -> Array:
        """The model tensor, stacked, (N, m_1, ..., m_t)."""
        xp = array_namespace(factor)
        return xp.reshape(self.block.forward(factor), tuple(self.bound.data.shape))

    def factor(self, g: Array) -> Array:
        """``A(g)``, the primal factor or core for the dual point g."""
        return self._entropy_part(g)[1]

    def certificate(self, g: Array) -> Certificate:
        """
        Bounds on the minimum over the block, and a factor whose objective is at most the upper one.

        ``E(A) + E*(-Xi/rho) = <A, -Xi/rho>`` at ``A = A(g)``, so the duality gap is that of the
        loss alone.
        """
        xp = array_namespace(g)
        values, marginal = self.bound.safe_conjugate(g)
        entropy, factor, _ = self._entropy_part(g, exact=True)
        model = self.model(factor)
        extra, empty = 0.0, None
        if self.bound.conserves_mass and self.constraint is None:
            mass, found = per_sample(self.bound.data), per_sample(model)
            # A model too small to be scaled up counts as empty: then there is no feasible plan.
            usable = found > mass * (4.0 / float(xp.finfo(g.dtype).max))
            scale = xp.where(usable, mass / xp.where(usable, found, 1.0), 0.0)
            empty = (mass > 0) & ~usable
            feasible = factor * (scale[:, None] if self.scales_samples else scale)
            extra = self.rho * float(self.sums.array(xp.sum(kl_divergence(feasible, factor, xp))))
            factor, model = feasible, self.model(feasible)
        lower = -float(self._total(xp.sum(weighted(values, self.weights)), entropy))
        if lower == -math.inf:  # g is outside the domain of the dual
            return Certificate(factor, lower, math.inf, math.inf)
        if self.bound.conserves_mass:
            # The plan is the same without the mean of g. The exponents, and with them their
            # rounding, are then smallest where most of the mass is.
            data = self.bound.data
            mass = per_sample(data)
            share = data / spread(xp.where(mass > 0, mass, 1.0), data)
            g = g - spread(inner(share, xp.where(g > -math.inf, g, 0.0)), g)
            _, marginal = self.bound.safe_conjugate(g)
        gaps = self.bound.gap(g, marginal, model)
        if isinstance(self.bound, TransportProblem):
            gaps = certified_gaps(self.bound, model, gaps)
        if empty is not None:
            gaps = xp.where(empty, math.inf, gaps)
        gap = float(self.sums.array(xp.sum(weighted(gaps, self.weights)))) + extra
        return Certificate(factor, lower, lower + gap, gap)


def cp_dual(
    X: Array,
    factors: Sequence[Array],
    block: int | Literal["weights"],
    loss: ConjugateLoss,
    /,
    *,
    rho: float,
    constraint: Constraint = None,
    weights: Array | None = None,
) -> BlockDual:
    """
    Dual of one factor of a CP model, or of its weights; two factors are a matrix model.

    Parameters
    ----------
    X : array (n_0, ..., n_{d-1})
        Non-negative data.
    factors : sequence of arrays (n_k, r)
        All factors. Of the unknown one, only the shape is used.
    block : int or "weights"
        The unknown block: the index of a factor, or the weights of the components.
    loss : Loss
        `Wasserstein`, `Frobenius` or `KullbackLeibler`.
    rho : float
        Weight of the entropy.
    constraint : {None, "rows", "columns", "all"}
        What sums to one in the block.
    weights : array (r,), optional
        The weights of the components if the unknown block is a factor.

    Returns
    -------
    BlockDual
        A smooth function to minimise, for example by `lbfgs`.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> factors = [np.full((4, 2), 0.5), np.full((6, 2), 1 / 6)]
    >>> dual = wtf.cp_dual(np.ones((4, 6)), factors, 1, wtf.Frobenius(), rho=0.1)
    >>> value, gradient = dual.value_and_gradient(dual.start())
    """
    factors = check_cp(factors, weights)
    bound, order, factors = _bind(loss, X, factors)
    if weights is not None:
        weights = _block_data("weights", weights, bound)
    if block == "weights":
        return block_dual(bound, cp_weights_block(factors), rho, constraint, scales_samples=False)
    place = order.index(_factor_index(block, len(factors), "weights"))
    model = cp_block(factors, place, weights)
    return block_dual(bound, model, rho, constraint, scales_samples=place == 0)


def tucker_dual(
    X: Array,
    core: Array,
    factors: Sequence[Array],
    block: int | Literal["core"],
    loss: ConjugateLoss,
    /,
    *,
    rho: float,
    constraint: Constraint = None,
) -> BlockDual:
    """
    Dual of one factor of a Tucker model, or of its core.

    Parameters
    ----------
    X : array (n_0, ..., n_{d-1})
        Non-negative data.
    core : array (r_0, ..., r_{d-1})
        The core.
    factors : sequence of arrays (n_k, r_k)
        All factors. Of the unknown block, only the shape is used.
    block : int or "core"
        The unknown block: the index of a factor, or the core.
    loss : Loss
        `Wasserstein`, `Frobenius` or `KullbackLeibler`.
    rho : float
        Weight of the entropy.
    constraint : {None, "rows", "columns", "all"}
        What sums to one in the block; None or "all" for the core.

    Returns
    -------
    BlockDual
        A smooth function to minimise, for example by `lbfgs`.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> core, factors = np.full((2, 3), 1 / 6), [np.full((4, 2), 0.25), np.full((6, 3), 1 / 6)]
    >>> X = np.full((4, 6), 1 / 24)
    >>> dual = wtf.tucker_dual(X, core, factors, "core", wtf.KullbackLeibler(), rho=0.1)
    >>> dual.factor(dual.start()).shape
    (2, 3)
    """
    factors = check_tucker(core, factors)
    bound, order, factors = _bind(loss, X, factors)
    core = _block_data("core", core, bound)
    if block == "core":
        return block_dual(bound, core_block(factors, order), rho, constraint, scales_samples=False)
    place = order.index(_factor_index(block, len(factors), "core"))
    core = array_namespace(core).permute_dims(core, order)
    model = tucker_block(core, factors, place)
    return block_dual(bound, model, rho, constraint, scales_samples=place == 0)


def _bind(
    loss: ConjugateLoss, X: Array, factors: Sequence[Array]
) -> tuple[BoundLoss, tuple[int, ...], tuple[Array, ...]]:
    """Bind the loss to the data and permute the factors to the order of its stack."""
    instance_of("loss", loss, ConjugateLoss, "Wasserstein, Frobenius or KullbackLeibler")
    refuse_debiased(loss, "the dual of a block")
    common_namespace(X=X, **{f"factors[{k}]": factor for k, factor in enumerate(factors)})
    bound = loss.bind(X)
    if isinstance(bound, TransportProblem):
        refuse_unreachable(bound)
    if len(factors) != X.ndim:
        msg = f"factors has {len(factors)} entries: expected {X.ndim}, one for each mode of X"
        raise ValueError(msg)
    for k, factor in enumerate(factors):
        check_shape(f"factors[{k}]", factor, (X.shape[k], factor.shape[1]))
    checked = [_block_data(f"factors[{k}]", factor, bound) for k, factor in enumerate(factors)]
    return bound, bound.order, tuple(checked[k] for k in bound.order)


def _block_data(name: str, block: Array, bound: BoundLoss) -> Array:
    """Refuse a block that is not a non-negative array with the library and dtype of the data."""
    common_namespace(X=bound.data, **{name: block})
    same_dtype(name, block, "X", bound.data)
    return as_data(name, block, array_namespace(block))


def _factor_index(block: object, modes: int, other: str) -> int:
    if isinstance(block, str):
        msg = f"block is {block!r}: expected the index of a factor, or {other!r}"
        raise ValueError(msg)  # noqa: TRY004
    return axis_index("block", block, modes)


def block_dual(
    bound: BoundLoss,
    block: Block,
    rho: float,
    constraint: Constraint,
    *,
    scales_samples: bool,
    weights: Array | None = None,
    sums: Sums = ALONE,
    is_common: bool = True,
) -> BlockDual:
    """
    The dual of a block; refuses constraints under which a balanced loss is infinite.

    The last two arguments are those of `BlockDual`.
    """
    check_constraint("constraint", constraint, len(block.shape))
    samples = bound.data.shape[0]
    scales_samples = scales_samples and block.shape[0] == samples
    rho = positive_number("rho", rho)
    dual = BlockDual(bound, block, rho, constraint, scales_samples, weights, sums, is_common)
    if not bound.conserves_mass:
        return dual
    if constraint is None:
        if not (scales_samples or samples == 1):
            msg = (
                "constraint is None for a block that cannot set the mass of each sample: expected "
                "a constraint that fixes the mass, or a loss with finite lam"
            )
            raise ValueError(msg)
        return dual
    if not sums.shared:  # several processes have checked it before they began
        _check_mass(dual)
    return dual


def _check_mass(dual: BlockDual) -> None:
    """Refuse a constraint under which a balanced loss is infinite."""
    data = dual.bound.data
    xp = array_namespace(data)
    rng = np.random.default_rng(0)
    mass = per_sample(data)
    for _ in range(2):  # all feasible blocks must have the same mass
        noise = xp.asarray(
            rng.normal(size=dual.block.shape), dtype=data.dtype, device=device_of(data)
        )
        found = per_sample(dual.model(conjugate_of_entropy(noise, dual.constraint, xp)[1]))
        refuse_other_mass(mass, found, f"constraint is {dual.constraint!r}")
