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
    changes: list[Array] = field(default_factory=list)
    valid: list[Array] = field(default_factory=list)
    """Which samples, (N,), may use each pair."""
    gram: list[list[Array]] = field(default_factory=list)

    def add(self, dg: Array, dphi: Array, valid: Array) -> None:
        """Keep a pair for the samples in ``valid``."""
        if len(self.moves) == self.memory:
            for kept in (self.moves, self.changes, self.valid, self.gram):
                del kept[0]
            for row in self.gram:
                del row[0]
        self.moves.append(dg - dphi)
        self.changes.append(dphi)
        self.valid.append(valid)
        weighted = dphi * self.weights
        row = [inner(other, weighted) for other in self.changes]
        for old, new in zip(self.gram, row[:-1], strict=True):
            old.append(new)
        self.gram.append(row)

    def forget(self, samples: Array) -> None:
        """Drop all pairs of the given samples, (N,) bool."""
        self.valid = [v & ~samples for v in self.valid]

    def step(self, residual: Array) -> Array:
        """The accelerated step of every sample; the plain one where no pair is left."""
        if not self.moves:
            return residual
        xp = array_namespace(residual)
        count, dtype = len(self.moves), residual.dtype
        tiny = float(xp.finfo(dtype).smallest_normal)
        square = [self.gram[i][i] for i in range(count)]
        usable = [v & (s > tiny) for v, s in zip(self.valid, square, strict=True)]
        scale = [
            xp.where(ok, 1.0 / xp.sqrt(xp.where(ok, s, 1.0)), 0.0)
            for ok, s in zip(usable, square, strict=True)
        ]
        weighted = residual * self.weights
        right = xp.stack([inner(c, weighted) * s for c, s in zip(self.changes, scale, strict=True)])
        # Unit diagonal, and a ridge that rounding in the Gram matrix asks for.
        gram = xp.stack([xp.stack(row) for row in self.gram])
        scales = xp.stack(scale)
        gram = gram * scales[:, None, :] * scales[None, :, :]
        identity = xp.eye(count, dtype=dtype, device=device_of(residual))[:, :, None]
        ridge = 1e-10 if dtype == xp.float64 else 1e-5
        gram = gram * (1.0 - identity) + identity * (1.0 + ridge)
        solution = xp.linalg.solve(
            xp.permute_dims(gram, (2, 0, 1)), xp.permute_dims(right, (1, 0))[:, :, None]
        )
        step = residual
        for i, move in enumerate(self.moves):
            step = step + move * spread(solution[:, i, 0] * scale[i], move)
        longest, plain = largest(step), largest(residual)
        sane = longest <= xp.maximum(100.0 * plain, self.reach)
        return xp.where(spread(sane, step), step, residual)
