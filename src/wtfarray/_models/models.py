"""CP, Tucker and matrix models as linear maps of one block, with their adjoints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from array_api_compat import device as device_of

from wtfarray._arrays.compilation import argument
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array
from wtfarray._models.tensor import (
    apply_to_mode,
    apply_to_modes,
    contract_but,
    cp_product,
    khatri_rao,
    mttkrp,
    mttkrps,
)


@dataclass(frozen=True, eq=False)
class Block:
    """The model as a linear map of one block, with all others fixed, and its adjoint."""

    shape: tuple[int, ...]
    """Shape of the block."""
    model_shape: tuple[int, ...]
    """Shape of the model tensor."""
    forward: Callable[[Array], Array]
    """``A -> S[.. A ..]``."""
    adjoint: Callable[[Array], Array]
    """Xi_k for a factor, Omega for the core: ``<adjoint(U), A> = <U, forward(A)>``."""


def _model_shape(factors: Sequence[Array]) -> tuple[int, ...]:
    return tuple(factor.shape[0] for factor in factors)


def _is_one(scale: float) -> bool:
    """Whether a multiplication can be left out; a number that JAX traces is another one."""
    return isinstance(scale, float) and scale == 1.0


def cp_block(factors: Sequence[Array], mode: int, weights: Array | None = None) -> Block:
    """Factor ``mode`` of a CP model (with two factors, a matrix model); Xi is an MTTKRP."""

    def forward(factor: Array) -> Array:
        return cp_product([*factors[:mode], factor, *factors[mode + 1 :]], weights)

    def adjoint(dual: Array) -> Array:
        xi = mttkrp(dual, factors, mode)
        return xi if weights is None else xi * weights

    return Block(tuple(factors[mode].shape), _model_shape(factors), forward, adjoint)


def cp_weights_block(factors: Sequence[Array], scale: float = 1.0) -> Block:
    """The weights of a CP model, times ``scale``: the diagonal of a Tucker core."""
    xp = array_namespace(*factors)
    smallest = min(range(len(factors)), key=lambda k: factors[k].shape[0])

    def forward(weights: Array) -> Array:
        return cp_product(factors, weights * scale)

    def adjoint(dual: Array) -> Array:
        return xp.sum(mttkrp(dual, factors, smallest) * factors[smallest], axis=0) * scale

    return Block((factors[0].shape[1],), _model_shape(factors), forward, adjoint)


def tucker_block(core: Array, factors: Sequence[Array], mode: int) -> Block:
    """Factor ``mode`` of a Tucker model; the other factors are multiplied into the core once."""
    others = [k for k in range(len(factors)) if k != mode]
    rest = apply_to_modes(core, [factors[k] for k in others], others) if others else core

    def forward(factor: Array) -> Array:
        return apply_to_mode(rest, factor, mode)

    def adjoint(dual: Array) -> Array:
        return contract_but(dual, rest, mode)

    return Block(tuple(factors[mode].shape), _model_shape(factors), forward, adjoint)


def core_block(factors: Sequence[Array], order: Sequence[int], scale: float = 1.0) -> Block:
    """
    The core of a Tucker model, times ``scale``: Omega(U) = U x_1 A_1^T ... x_d A_d^T (Prop. 3).

    ``order[j]`` is the mode of the core that belongs to ``factors[j]``.
    """
    xp = array_namespace(*factors)
    modes = range(len(factors))
    inverse = tuple(sorted(modes, key=lambda k: order[k]))

    def forward(core: Array) -> Array:
        tensor = apply_to_modes(xp.permute_dims(core, tuple(order)), factors, modes)
        return tensor if _is_one(scale) else tensor * scale

    def adjoint(dual: Array) -> Array:
        omega = apply_to_modes(dual, [factor.mT for factor in factors], modes)
        omega = xp.permute_dims(omega, inverse)
        return omega if _is_one(scale) else omega * scale

    shape = tuple(factors[k].shape[1] for k in inverse)
    return Block(shape, _model_shape(factors), forward, adjoint)


@argument(static=("modes", "learns_weights"), special={"scale": 1.0})
@dataclass(frozen=True)
class CPModel:
    """A CP model; its blocks are the factors, then the weights if they are learned."""

    modes: int
    learns_weights: bool
    scale: float = 1.0
    """The weight of each component, or a factor on the learned weights."""

    def weights(self, blocks: Sequence[Array]) -> Array:
        """The weight of each component, (r,)."""
        if self.learns_weights:
            return blocks[self.modes] * self.scale
        xp, factor = array_namespace(*blocks), blocks[0]
        ones = xp.ones((factor.shape[1],), dtype=factor.dtype, device=device_of(factor))
        return ones * self.scale

    def shape(self, blocks: Sequence[Array]) -> tuple[int, ...]:
        """The shape of the model tensor."""
        return _model_shape(blocks[: self.modes])

    def tensor(self, blocks: Sequence[Array]) -> Array:
        """The model tensor."""
        weights = None if self._is_plain else self.weights(blocks)
        return cp_product(blocks[: self.modes], weights)

    @property
    def _is_plain(self) -> bool:
        """Whether all weights are one."""
        return not self.learns_weights and _is_one(self.scale)

    def adjoints(self, dual: Array, blocks: Sequence[Array]) -> list[Array]:
        """Xi_k for every factor, and the adjoint for the weights if they are learned."""
        xp = array_namespace(dual)
        factors = blocks[: self.modes]
        xis = mttkrps(dual, factors)
        if self._is_plain:
            return xis
        weights = self.weights(blocks)
        adjoints = [xi * weights for xi in xis]
        if self.learns_weights:
            adjoints.append(xp.sum(xis[0] * factors[0], axis=0) * self.scale)
        return adjoints

    def block(self, blocks: Sequence[Array], k: int) -> Block:
        """The model as a linear map of one block."""
        factors = blocks[: self.modes]
        if k == self.modes:
            return cp_weights_block(factors, self.scale)
        return cp_block(factors, k, self.weights(blocks))


@argument(static=("modes",), special={"scale": 1.0})
@dataclass(frozen=True)
class TuckerModel:
    """A Tucker model; its blocks are the factors, then the core."""

    modes: int
    scale: float = 1.0
    """A factor on the core."""

    def core(self, blocks: Sequence[Array]) -> Array:
        """The core of the model tensor."""
        core = blocks[self.modes]
        return core if _is_one(self.scale) else core * self.scale

    def shape(self, blocks: Sequence[Array]) -> tuple[int, ...]:
        """The shape of the model tensor."""
        return _model_shape(blocks[: self.modes])

    def tensor(self, blocks: Sequence[Array]) -> Array:
        """The model tensor."""
        return apply_to_modes(self.core(blocks), blocks[: self.modes], range(self.modes))

    def adjoints(self, dual: Array, blocks: Sequence[Array]) -> list[Array]:
        """Xi_k for every factor, and Omega for the core."""
        factors, core = blocks[: self.modes], self.core(blocks)
        xis = [tucker_block(core, factors, k).adjoint(dual) for k in range(self.modes)]
        return [*xis, core_block(factors, range(self.modes), self.scale).adjoint(dual)]

    def block(self, blocks: Sequence[Array], k: int) -> Block:
        """The model as a linear map of one block."""
        factors = blocks[: self.modes]
        if k == self.modes:
            return core_block(factors, range(self.modes), self.scale)
        return tucker_block(self.core(blocks), factors, k)


@argument()
@dataclass(frozen=True, eq=False)
class PartlyKnownModel:
    """
    A matrix model with known atoms; its blocks are the coefficients and the other atoms.

    ``Y = C [A, B]^T`` with known A, (features, k), coefficients C, (n, k + e), and learned atoms B,
    (features, e).
    """

    known: Array

    @property
    def modes(self) -> int:
        """Number of factors."""
        return 2

    def shape(self, blocks: Sequence[Array]) -> tuple[int, ...]:
        """The shape of the model tensor."""
        return _model_shape(blocks[: self.modes])

    def tensor(self, blocks: Sequence[Array]) -> Array:
        """The model, (n, features)."""
        return array_namespace(*blocks).matmul(blocks[0], self._atoms(blocks[1]).mT)

    def adjoints(self, dual: Array, blocks: Sequence[Array]) -> list[Array]:
        """The adjoints of the coefficients and of the learned atoms."""
        return [self.block(blocks, k).adjoint(dual) for k in range(2)]

    def block(self, blocks: Sequence[Array], k: int) -> Block:
        """The model as a linear map of one block; for the learned atoms, their part of it."""
        xp = array_namespace(*blocks)
        coefficients, learned = blocks
        shape = (coefficients.shape[0], self.known.shape[0])
        if k == 0:
            atoms = self._atoms(learned)
            return Block(
                tuple(coefficients.shape),
                shape,
                lambda block: xp.matmul(block, atoms.mT),
                lambda dual: xp.matmul(dual, atoms),
            )
        rest = coefficients[:, self.known.shape[1] :]
        return Block(
            tuple(learned.shape),
            shape,
            lambda block: xp.matmul(rest, block.mT),
            lambda dual: xp.matmul(dual.mT, rest),
        )

    def _atoms(self, learned: Array) -> Array:
        """All atoms, (features, k + e)."""
        return array_namespace(learned).concat([self.known, learned], axis=1)


class Model(Protocol):
    """A model tensor that is linear in each of its blocks."""

    @property
    def modes(self) -> int:
        """Number of factors."""

    def shape(self, blocks: Sequence[Array]) -> tuple[int, ...]:
        """The shape of the model tensor."""

    def tensor(self, blocks: Sequence[Array]) -> Array:
        """The model tensor."""

    def adjoints(self, dual: Array, blocks: Sequence[Array]) -> list[Array]:
        """The adjoints of all blocks."""

    def block(self, blocks: Sequence[Array], k: int) -> Block:
        """The model as a linear map of one block."""


def atoms_of(factors: Sequence[Array], core: Array | None, weights: Array | None) -> Array:
    """The atom of each column of the first factor, (product of the other mode sizes, r)."""
    xp = array_namespace(*factors)
    others = factors[1:]
    if core is None:
        atoms = khatri_rao(others) if others else xp.ones_like(factors[0][:1, :])
        return atoms if weights is None else atoms * weights
    if others:
        core = apply_to_modes(core, others, range(1, core.ndim))
    return xp.reshape(core, (core.shape[0], -1)).mT
