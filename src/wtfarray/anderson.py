"""Anderson acceleration of many small fixed-point problems at once, one a sample."""

from dataclasses import dataclass, field

from array_api_compat import array_namespace
from array_api_compat import device as device_of

from wtfarray._typing import Array
from wtfarray.tensor import inner, largest, spread


@dataclass(eq=False)
class Secants:
    """
    Multisecant (type II Anderson) steps for ``g <- g + r(g)``, ``r = target - phi(g)``.

    Keeps the last ``memory`` pairs (dg, dphi) of each of N samples. ``step`` returns
    ``r + sum_i c_i (dg_i - dphi_i)`` with ``c = argmin |r - sum_i c_i dphi_i|`` in a weighted norm.
    The pairs do not depend on the target, and stay exact secants when it moves.
    """

    memory: int
    weights: Array
    """Of the norm, (N, ...); as they stay, a new pair costs one row of the Gram matrix."""
    reach: float
    """Accelerated steps may be this long; or a hundred times the plain one, if that is longer."""
    moves: list[Array] = field(default_factory=list)
    """dg - dphi."""
    changes: list[Array] = field(default_factory=list)
    """dphi times the weights."""
    valid: Array | None = None
    """Which samples may use each pair, (pairs, N)."""
    gram: Array | None = None
    """Products of the changes, (pairs, pairs, N)."""

    def add(self, move: Array, dphi: Array, valid: Array) -> None:
        """Keep a pair, ``move = dg - dphi``, for the samples in ``valid``."""
        xp = array_namespace(dphi)
        if self.valid is not None and self.gram is not None and len(self.moves) == self.memory:
            del self.moves[0], self.changes[0]
            self.valid, self.gram = self.valid[1:, ...], self.gram[1:, 1:, ...]
        self.moves.append(move)
        self.changes.append(dphi * self.weights)
        row = xp.stack([inner(other, dphi) for other in self.changes])
        if self.valid is None or self.gram is None:
            self.valid, self.gram = valid[None, ...], row[None, ...]
            return
        self.valid = xp.concat([self.valid, valid[None, ...]])
        wider = xp.concat([self.gram, row[:-1, None, :]], axis=1)
        self.gram = xp.concat([wider, row[None, ...]])

    def forget(self, samples: Array) -> None:
        """Drop all pairs of the given samples, (N,) bool."""
        if self.valid is not None:
            self.valid = self.valid & ~samples[None, ...]

    def step(self, residual: Array) -> Array:
        """The accelerated step of every sample; the plain one where no pair is left."""
        if self.valid is None or self.gram is None:
            return residual + 0.0
        xp = array_namespace(residual)
        count, dtype = len(self.moves), residual.dtype
        identity = xp.eye(count, dtype=dtype, device=device_of(residual))[:, :, None]
        square = xp.sum(self.gram * identity, axis=0)
        usable = self.valid & (square > float(xp.finfo(dtype).smallest_normal))
        scale = xp.where(usable, 1.0 / xp.sqrt(xp.where(usable, square, 1.0)), 0.0)
        right = xp.stack([inner(change, residual) for change in self.changes]) * scale
        # Unit diagonal, and a ridge that rounding in the Gram matrix asks for.
        gram = self.gram * scale[:, None, :] * scale[None, :, :]
        ridge = 1e-10 if dtype == xp.float64 else 1e-5
        gram = gram * (1.0 - identity) + identity * (1.0 + ridge)
        solution = xp.linalg.solve(
            xp.permute_dims(gram, (2, 0, 1)), xp.permute_dims(right, (1, 0))[:, :, None]
        )
        shares = xp.permute_dims(solution[:, :, 0], (1, 0)) * scale
        step = residual + 0.0
        for i, move in enumerate(self.moves):
            step += move * spread(shares[i, ...], move)
        longest, plain = largest(step), largest(residual)
        sane = longest <= xp.maximum(100.0 * plain, self.reach)
        return xp.where(spread(sane, step), step, residual)
