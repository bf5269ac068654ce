"""The curvature pairs of L-BFGS in vector-free form (Chen, Wang and Zhou 2014, NeurIPS)."""

import math

import numpy as np
from array_api_compat import device, is_writeable_array
from numpy.typing import NDArray

from wtfarray._arrays import host
from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array, Namespace
from wtfarray._optimize.objective import Point

__all__ = ["CurvaturePairs", "curvature_pair"]


ROUNDINGS = 8.0
"""A step of at most so many rounding errors of a variable counts as none."""


@compiled()
def curvature_pair(x: Array, gradient: Array, old_x: Array, old_gradient: Array) -> Array:
    """
    The step from an old point and the difference of the gradients, (2, n).

    Where a variable has moved by rounding only, its step is 0: a diagonal that is fitted to the
    pairs would else be fitted to noise.
    """
    xp = array_namespace(x)
    step = x - old_x
    noise = xp.abs(x) * (ROUNDINGS * float(xp.finfo(x.dtype).eps))
    step = xp.where(xp.abs(step) > noise, step, 0.0)
    return xp.stack([step, gradient - old_gradient])


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
    sums, shared
        If several processes minimise one function together: the sums over them, and the number of
        leading entries of a vector that are different variables on each. All other entries are the
        same variables everywhere: each process adds a share of them.

    Notes
    -----
    Pair ``k`` is stored in rows ``2k`` (step) and ``2k + 1`` (gradient difference) of one private
    buffer of shape ``(2 * memory, n)`` on the device. The host stores the inner products of all
    rows, so that the two-loop recursion needs only a few floats. A new pair takes one product and
    one transfer, a direction one product and no transfer. With several processes there are two
    buffers, of the entries that are different variables and of those that are the same: the latter
    have to be combined to the same bits everywhere, and rounding may depend on where in memory a
    row begins.
    """

    def __init__(
        self,
        point: Point,
        memory: int,
        eps: float,
        xp: Namespace,
        *,
        sums: Sums = ALONE,
        shared: int = 0,
    ) -> None:
        self._xp = xp
        self._eps = eps
        self._sums = sums
        self._shared = shared
        n, like = point.x.shape[0], {"dtype": point.x.dtype, "device": device(point.x)}
        widths = [n] if not sums.shared else [shared, n - shared]
        self._rows = [xp.zeros((2 * memory, width), **like) for width in widths]
        self._share = sums.share(n - shared)
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
        """Remove all pairs, but keep the first inverse Hessian of the newest."""
        self._free += self._used
        self._used = []

    def measure_ahead(self, old: Point, x: Array, gradient: Array) -> Array | None:  # noqa: ARG002
        """
        The inner products that `update` will need if a trial point is accepted, on the device.

        None if they are not computed ahead.
        """
        return None

    def update(self, old: Point, new: Point, measured: NDArray[np.float64] | None = None) -> None:
        """
        Add the pair of two successive iterates if its curvature is positive.

        ``measured`` is what `measure_ahead` returned last, on the host.
        """
        if not self._take_trial(old, new, measured):
            slot = self._free.pop() if self._free else self._used.pop(0)
            pair = curvature_pair(new.x, new.gradient, old.x, old.gradient)
            self._write(slot, pair)
            self._used.append(slot)
            self._measure_pair(slot, pair, new)
        self._check_newest(new)

    def _take_trial(
        self,
        old: Point,  # noqa: ARG002
        new: Point,  # noqa: ARG002
        measured: NDArray[np.float64] | None,  # noqa: ARG002
    ) -> bool:
        """Whether the pair was measured ahead; it is then the newest."""
        return False

    def _check_newest(self, new: Point) -> None:
        """Remove the newest pair if its curvature is not positive."""
        slot = self._used[-1]
        step, change = 2 * slot, 2 * slot + 1
        step_square, change_square = self._gram[step, step], self._gram[change, change]
        curvature = float(self._gram[step, change])
        # False for NaN as well. Below this, the sign of the curvature is due to rounding.
        if change_square > 0 and curvature > self._eps * math.sqrt(step_square * change_square):
            self._scale = curvature / float(change_square)
        else:
            self._remove_newest(new)

    def export(self) -> dict[str, NDArray[np.float64]]:
        """The state for `restore`, as arrays on the host."""
        return {
            "rows": _joined([host.to_host(part) for part in self._rows]),
            "gram": self._gram,
            "gradient_products": self._gradient_products,
            "used": np.asarray(self._used, dtype=np.float64),
            "free": np.asarray(self._free, dtype=np.float64),
            "scale": np.asarray(self._scale),
        }

    def restore(self, stored: dict[str, NDArray[np.float64]]) -> None:
        """Restore the state returned by `export`."""
        like = {"dtype": self._rows[0].dtype, "device": device(self._rows[0])}
        parts = [np.ascontiguousarray(part) for part in self._cut(stored["rows"])]
        self._rows = [self._xp.asarray(part, **like) for part in parts]
        self._gram = stored["gram"]
        self._gradient_products = stored["gradient_products"]
        self._used = [int(slot) for slot in stored["used"]]
        self._free = [int(slot) for slot in stored["free"]]
        self._scale = float(stored["scale"])

    def renew(self, point: Point) -> None:
        """Replace the gradient at the newest iterate, for example by a more accurate one."""
        column = self._products(self._xp.reshape(point.gradient, (1, -1)))
        self._gradient_products = column[:, 0]

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
        found = self._usable_weights()
        if found is None:
            return -self._scale * point.gradient, -self._scale * point.square
        xp = self._xp
        weights, weight = found
        slope = float(weights @ self._gradient_products) + weight * point.square
        on_device = xp.asarray(weights.tolist(), dtype=point.x.dtype, device=device(point.x))
        parts = [xp.matmul(on_device, part) for part in self._rows]
        combined = parts[0] if len(parts) == 1 else xp.concat(parts)
        return combined + weight * point.gradient, slope

    def _cut(self, vectors: Array) -> list[Array]:
        """Vectors, or rows of them, cut as the buffers are."""
        if not self._sums.shared:
            return [vectors]
        return [vectors[..., : self._shared], vectors[..., self._shared :]]

    def _own(self, parts: list[Array]) -> Array:
        """The entries over which this process sums: its own, and its share of all others."""
        if len(parts) == 1 or not parts[1].shape[-1]:
            return parts[0]
        return self._xp.concat([parts[0], parts[1][..., self._share]], axis=-1)

    def _products(self, vectors: Array) -> NDArray[np.float64]:
        """The inner products of all rows with some vectors, on the host."""
        left, right = self._own(self._rows), self._own(self._cut(vectors))
        return self._sums.host(host.to_host(self._xp.matmul(left, right.mT)))

    def _measure_pair(self, slot: int, pair: Array, new: Point) -> None:
        """Compute the inner products with a new pair and with the gradient."""
        xp = self._xp
        vectors = xp.concat([pair, xp.reshape(new.gradient, (1, -1))])
        with np.errstate(over="ignore", invalid="ignore"):  # then the slope is not finite either
            products = self._products(vectors)
        step, change = 2 * slot, 2 * slot + 1
        self._gram[step, :] = self._gram[:, step] = products[:, 0]
        self._gram[change, :] = self._gram[:, change] = products[:, 1]
        self._gradient_products = products[:, 2]

    def _remove_newest(self, _: Point) -> None:
        """Remove the newest pair, whose curvature is not positive."""
        self._free.append(self._used.pop())

    def _usable_weights(self) -> tuple[NDArray[np.float64], float] | None:
        """
        The weights of `_two_loops`; None without pairs.

        All pairs are removed if products with the weights might overflow in the dtype of the
        vectors: their curvatures are rounding.
        """
        if self.empty:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            weights, weight = self._two_loops()
        largest = math.sqrt(float(self._xp.finfo(self._rows[0].dtype).max))
        if not max(float(np.max(np.abs(weights))), abs(weight)) < largest:  # nor if it is NaN
            self.clear()
            return None
        return weights, weight

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
        """Write a pair into its slot of the private buffers, in place if the arrays allow it."""
        xp = self._xp
        for k, (rows, part) in enumerate(zip(self._rows, self._cut(pair), strict=True)):
            if is_writeable_array(rows):
                rows[2 * slot : 2 * slot + 2, :] = part
                continue
            # The shapes do not depend on the slot, because JAX compiles each new shape.
            memory = rows.shape[0] // 2
            here = [[row // 2 == slot] for row in range(2 * memory)]
            mask = xp.asarray(here, device=device(rows))
            self._rows[k] = xp.where(mask, xp.tile(part, (memory, 1)), rows)


def _joined(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The buffers as one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
