"""Matrix models of several data sets side by side, which share the factor of the samples."""

from collections.abc import Sequence
from dataclasses import dataclass

from wtfarray._arrays.compilation import argument
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.typing import Array
from wtfarray._models.models import Block


@argument()
@dataclass(frozen=True)
class CoupledModel:
    """
    ``[c_1 A B_1^T, ..., c_S A B_S^T]``, the models of S data sets as one matrix.

    The blocks are the coefficients A, (n, r), then the atoms B_s, (f_s, r), of every data set.
    """

    scales: tuple[float, ...]
    """c_s, which lets data sets of different mass share their coefficients."""

    @property
    def modes(self) -> int:
        """Number of blocks."""
        return 1 + len(self.scales)

    def shape(self, blocks: Sequence[Array]) -> tuple[int, ...]:
        """The shape of the model tensor, (n, sum of f_s)."""
        return (blocks[0].shape[0], sum(atoms.shape[0] for atoms in blocks[1:]))

    def columns(self, blocks: Sequence[Array]) -> list[slice]:
        """The columns of every data set."""
        slices, start = [], 0
        for atoms in blocks[1:]:
            slices.append(slice(start, start + atoms.shape[0]))
            start += atoms.shape[0]
        return slices

    def tensor(self, blocks: Sequence[Array]) -> Array:
        """The model tensor."""
        xp = array_namespace(*blocks)
        return xp.matmul(blocks[0], self._atoms(blocks).mT)

    def adjoints(self, dual: Array, blocks: Sequence[Array]) -> list[Array]:
        """The adjoints of all blocks."""
        xp = array_namespace(dual)
        found = [xp.matmul(dual, self._atoms(blocks))]
        for scale, columns in zip(self.scales, self.columns(blocks), strict=True):
            found.append(xp.matmul(dual[:, columns].mT, blocks[0]) * scale)
        return found

    def block(self, blocks: Sequence[Array], k: int) -> Block:
        """The model as a linear map of one block."""

        def forward(block: Array) -> Array:
            xp = array_namespace(block)
            others = [b if j in (0, k) else xp.zeros_like(b) for j, b in enumerate(blocks)]
            others[k] = block
            return self.tensor([block, *blocks[1:]] if k == 0 else others)

        return Block(
            tuple(blocks[k].shape),
            self.shape(blocks),
            forward,
            lambda dual: self.adjoints(dual, blocks)[k],
        )

    def _atoms(self, blocks: Sequence[Array]) -> Array:
        """``c_s B_s`` below each other, (sum of f_s, r)."""
        xp = array_namespace(*blocks)
        return xp.concat([b * c for b, c in zip(blocks[1:], self.scales, strict=True)])
