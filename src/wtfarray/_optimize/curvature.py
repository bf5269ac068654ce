"""The curvature pairs of L-BFGS in vector-free form (Chen, Wang and Zhou 2014, NeurIPS)."""

import math

import numpy as np
from array_api_compat import device, is_writeable_array
from numpy.typing import NDArray

from wtfarray._arrays import host
from wtfarray._arrays.typing import Array, Namespace
from wtfarray._optimize.objective import Point

__all__ = ["CurvaturePairs"]


class CurvaturePairs:
    """
    The most recent steps and gradient differences, and the inverse Hessian they define.

    Parameters
    ----------
    point : Point
        The initial point, which sets the dtype, the device and the initial scale.
    memory : int
        The largest number of pairs.
    eps : float
        The machine epsilon of the dtype.
    xp : namespace
        The namespace of the arrays.

    Notes
    -----
    Pair ``k`` is stored in rows ``2k`` (step) and ``2k + 1`` (gradient difference) of one private
    buffer of shape ``(2 * memory, n)`` on the device. The host stores the inner products of all
    rows, so that the two-loop recursion needs only a few floats. A new pair takes one product and
    one transfer, a direction one product and no transfer.
    """

    def __init__(self, point: Point, memory: int, eps: float, xp: Namespace) -> None:
        self._xp = xp
        self._eps = eps
        n = point.x.shape[0]
        self._rows = xp.zeros((2 * memory, n), dtype=point.x.dtype, device=device(point.x))
        self._gram = np.zeros((2 * memory, 2 * memory))
        self._gradient_products = np.zeros(2 * memory)
        # The slots in use, from oldest to newest, and the free ones.
        self._used: list[int] = []
        self._free = list(range(memory))
        # Without pairs, the first step has length one, as in L-BFGS-B.
        self._scale = 1.0 / math.sqrt(point.square) if point.square > 0 else 1.0

    @property
    def empty(self) -> bool:
        """Whether there are no pairs, so that the direction is that of steepest descent."""
        return not self._used

    def clear(self) -> None:
        """Remove all pairs, but keep the scale of the newest."""
        self._free += self._used
        self._used = []

    def update(self, old: Point, new: Point) -> None:
        """Add the pair of two successive iterates if its curvature is positive."""
        xp = self._xp
        slot = self._free.pop() if self._free else self._used.pop(0)
        pair = xp.stack([new.x - old.x, new.gradient - old.gradient])
        self._write(slot, pair)
        vectors = xp.concat([pair, xp.reshape(new.gradient, (1, -1))])
        products = host.to_host(xp.matmul(self._rows, vectors.mT))
        step, change = 2 * slot, 2 * slot + 1
        self._gram[step, :] = self._gram[:, step] = products[:, 0]
        self._gram[change, :] = self._gram[:, change] = products[:, 1]
        self._gradient_products = products[:, 2]

        step_square, change_square = self._gram[step, step], self._gram[change, change]
        curvature = float(self._gram[step, change])
        # False for NaN as well. Below this, the sign of the curvature is due to rounding.
        if change_square > 0 and curvature > self._eps * math.sqrt(step_square * change_square):
            self._used.append(slot)
            self._scale = curvature / float(change_square)
        else:
            self._free.append(slot)

    def export(self) -> dict[str, NDArray[np.float64]]:
        """The state for `restore`, as arrays on the host."""
        return {
            "rows": host.to_host(self._rows),
            "gram": self._gram,
            "gradient_products": self._gradient_products,
            "used": np.asarray(self._used, dtype=np.float64),
            "free": np.asarray(self._free, dtype=np.float64),
            "scale": np.asarray(self._scale),
        }

    def restore(self, stored: dict[str, NDArray[np.float64]]) -> None:
        """Restore the state returned by `export`."""
        like = self._rows
        self._rows = self._xp.asarray(stored["rows"], dtype=like.dtype, device=device(like))
        self._gram = stored["gram"]
        self._gradient_products = stored["gradient_products"]
        self._used = [int(slot) for slot in stored["used"]]
        self._free = [int(slot) for slot in stored["free"]]
        self._scale = float(stored["scale"])

    def renew(self, point: Point) -> None:
        """Replace the gradient at the newest iterate, for example by a more accurate one."""
        column = self._xp.matmul(self._rows, self._xp.reshape(point.gradient, (-1, 1)))
        self._gradient_products = host.to_host(column)[:, 0]

    def direction(self, point: Point) -> tuple[Array, float]:
        """
        Multiply the gradient by minus the inverse Hessian.

        Parameters
        ----------
        point : Point
            The newest iterate, as passed to the last `update`.

        Returns
        -------
        direction : array, shape (n,)
            The search direction.
        slope : float
            The inner product of gradient and direction.
        """
        if self.empty:
            return -self._scale * point.gradient, -self._scale * point.square
        xp = self._xp
        weights, weight = self._two_loops()
        slope = float(weights @ self._gradient_products) + weight * point.square
        on_device = xp.asarray(weights.tolist(), dtype=point.x.dtype, device=device(point.x))
        return xp.matmul(on_device, self._rows) + weight * point.gradient, slope

    def _two_loops(self) -> tuple[NDArray[np.float64], float]:
        """Nocedal's two-loop recursion for the weights of the rows and of the gradient."""
        weights = np.zeros(self._gram.shape[0])
        weight = -1.0
        alphas = {}
        for slot in reversed(self._used):
            step, change = 2 * slot, 2 * slot + 1
            product = self._gram[step] @ weights + weight * self._gradient_products[step]
            alphas[slot] = product / self._gram[step, change]
            weights[change] -= alphas[slot]
        weights *= self._scale
        weight *= self._scale
        for slot in self._used:
            step, change = 2 * slot, 2 * slot + 1
            product = self._gram[change] @ weights + weight * self._gradient_products[change]
            weights[step] += alphas[slot] - product / self._gram[step, change]
        return weights, weight

    def _write(self, slot: int, pair: Array) -> None:
        """Write a pair into its slot of the private buffer, in place if the arrays allow it."""
        if is_writeable_array(self._rows):
            self._rows[2 * slot : 2 * slot + 2, :] = pair
            return
        # The shapes do not depend on the slot, because JAX compiles each new shape.
        xp, memory = self._xp, self._rows.shape[0] // 2
        here = [[row // 2 == slot] for row in range(2 * memory)]
        mask = xp.asarray(here, device=device(self._rows))
        self._rows = xp.where(mask, xp.tile(pair, (memory, 1)), self._rows)
