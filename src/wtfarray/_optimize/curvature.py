"""The curvature pairs of L-BFGS in vector-free form (Chen, Wang and Zhou 2014, NeurIPS)."""

import math
from collections.abc import Callable

import numpy as np
from array_api_compat import device, is_writeable_array
from numpy.typing import NDArray

from wtfarray._arrays import host
from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array, Namespace
from wtfarray._optimize.objective import Point

__all__ = ["CurvaturePairs", "ScaledCurvaturePairs"]


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
        same variables everywhere. They are added once, and their products are computed from a copy
        of their own, because rounding may depend on where in memory a row begins.

    Notes
    -----
    Pair ``k`` is stored in rows ``2k`` (step) and ``2k + 1`` (gradient difference) of one private
    buffer of shape ``(2 * memory, n)`` on the device. The host stores the inner products of all
    rows, so that the two-loop recursion needs only a few floats. A new pair takes one product and
    one transfer, a direction one product and no transfer.
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
        """Remove all pairs, but keep the first inverse Hessian of the newest."""
        self._free += self._used
        self._used = []

    def update(self, old: Point, new: Point) -> None:
        """Add the pair of two successive iterates if its curvature is positive."""
        slot = self._free.pop() if self._free else self._used.pop(0)
        pair = self._xp.stack([new.x - old.x, new.gradient - old.gradient])
        self._write(slot, pair)
        self._used.append(slot)
        self._measure_pair(slot, pair, new)

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
        column = self._products(self._rows, self._xp.reshape(point.gradient, (1, -1)))
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
        if self.empty:
            return -self._scale * point.gradient, -self._scale * point.square
        xp = self._xp
        weights, weight = self._two_loops()
        slope = float(weights @ self._gradient_products) + weight * point.square
        on_device = xp.asarray(weights.tolist(), dtype=point.x.dtype, device=device(point.x))
        return self._combined(on_device, self._rows) + weight * point.gradient, slope

    def _products(self, left: Array, right: Array) -> NDArray[np.float64]:
        """The inner products of all rows of two matrices, on the host."""
        xp = self._xp
        if not self._sums.shared:
            return host.to_host(xp.matmul(left, right.mT))
        (mine, others), (mine_too, others_too) = self._parts(left), self._parts(right)
        total = self._sums.host(host.to_host(xp.matmul(mine, mine_too.mT)))
        return total + host.to_host(xp.matmul(others, others_too.mT))

    def _combined(self, weights: Array, rows: Array) -> Array:
        """Linear combinations of rows."""
        xp = self._xp
        if not self._sums.shared:
            return xp.matmul(weights, rows)
        return xp.concat([xp.matmul(weights, part) for part in self._parts(rows)], axis=-1)

    def _parts(self, rows: Array) -> tuple[Array, Array]:
        """Copies of the entries of this process alone, and of those that all have."""
        xp, n = self._xp, self._shared
        return xp.asarray(rows[:, :n], copy=True), xp.asarray(rows[:, n:], copy=True)

    def _measure_pair(self, slot: int, pair: Array, new: Point) -> None:
        """Compute the inner products with a new pair and with the gradient."""
        xp = self._xp
        vectors = xp.concat([pair, xp.reshape(new.gradient, (1, -1))])
        with np.errstate(over="ignore", invalid="ignore"):  # then the slope is not finite either
            products = self._products(self._rows, vectors)
        step, change = 2 * slot, 2 * slot + 1
        self._gram[step, :] = self._gram[:, step] = products[:, 0]
        self._gram[change, :] = self._gram[:, change] = products[:, 1]
        self._gradient_products = products[:, 2]

    def _remove_newest(self, _: Point) -> None:
        """Remove the newest pair, whose curvature is not positive."""
        self._free.append(self._used.pop())

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


class ScaledCurvaturePairs(CurvaturePairs):
    """
    Curvature pairs with a diagonal instead of a multiple of the identity as first inverse Hessian.

    Parameters
    ----------
    point, memory, eps, xp, sums, shared
        As for `CurvaturePairs`.
    recent : int
        The number of newest pairs that define the diagonal.
    spread : float
        Its entries differ from their median by at most this factor.

    Notes
    -----
    The diagonal is ``d = sqrt(sum s^2 / sum y^2)``, entry by entry, over the recent pairs. With it
    the recursion is that of `CurvaturePairs` in the variables ``x / sqrt(d)``, where steps are
    ``s / sqrt(d)``, gradient differences ``sqrt(d) y``, and inner products are taken. Every new
    pair changes d, so that all inner products are computed again, by one product of the scaled
    rows; it takes one transfer as before.
    """

    def __init__(
        self,
        point: Point,
        memory: int,
        eps: float,
        xp: Namespace,
        *,
        recent: int = 10,
        spread: float = 30.0,
        sums: Sums = ALONE,
        shared: int = 0,
    ) -> None:
        super().__init__(point, memory, eps, xp, sums=sums, shared=shared)
        self._recent = recent
        self._spread = spread
        self._diagonal = xp.ones_like(point.x)
        self._gradient_square = point.square

    def export(self) -> dict[str, NDArray[np.float64]]:
        """The state for `restore`, as arrays on the host."""
        return {
            **super().export(),
            "diagonal": host.to_host(self._diagonal),
            "gradient_square": np.asarray(self._gradient_square),
        }

    def restore(self, stored: dict[str, NDArray[np.float64]]) -> None:
        """Restore the state returned by `export`."""
        super().restore(stored)
        like = self._diagonal
        self._diagonal = self._xp.asarray(stored["diagonal"], dtype=like.dtype, device=device(like))
        self._gradient_square = float(stored["gradient_square"])

    def renew(self, point: Point) -> None:
        """Replace the gradient at the newest iterate, for example by a more accurate one."""
        self._measure(point)

    def direction(self, point: Point) -> tuple[Array, float]:
        """Multiply the gradient by minus the inverse Hessian, as `CurvaturePairs.direction`."""
        xp = self._xp
        if self.empty:
            scaled = self._diagonal * point.gradient
            return -self._scale * scaled, -self._scale * self._gradient_square
        weights, weight = self._two_loops()
        slope = float(weights @ self._gradient_products) + weight * self._gradient_square
        # Only steps and gradient differences are stored: the latter, and the gradient, times d.
        split = np.zeros((2, weights.shape[0]))
        split[0, ::2], split[1, 1::2] = weights[::2], weights[1::2]
        on_device = xp.asarray(split.tolist(), dtype=point.x.dtype, device=device(point.x))
        if not self._sums.shared:
            weighted = _local_direction(
                self._rows, on_device, self._diagonal, point.gradient, weight
            )
            return weighted, slope
        parts = self._combined(on_device, self._rows)
        return _direction(parts, self._diagonal, point.gradient, weight), slope

    def _measure_pair(self, slot: int, pair: Array, new: Point) -> None:  # noqa: ARG002
        """Compute the diagonal and all inner products."""
        self._diagonal = self._new_diagonal()
        self._measure(new)

    def _remove_newest(self, new: Point) -> None:
        """Remove the newest pair, from the diagonal too."""
        super()._remove_newest(new)
        if not self.empty:
            self._diagonal = self._new_diagonal()
        self._measure(new)

    def _new_diagonal(self) -> Array:
        """The diagonal of the recent pairs; entries that they do not move take a common value."""
        xp = self._xp
        recent = self._used[-self._recent :]
        chosen = np.zeros((2, self._rows.shape[0]))
        for slot in recent:
            chosen[0, 2 * slot] = chosen[1, 2 * slot + 1] = 1.0
        like = {"dtype": self._rows.dtype, "device": device(self._rows)}
        on_device = xp.asarray(chosen.tolist(), **like)
        if not self._sums.shared:
            return _local_diagonal(self._rows, on_device, self._spread)
        squares = self._combined(on_device, self._rows * self._rows)
        return _diagonal(squares, self._spread, self._totals, self._median)

    def _totals(self, *vectors: Array) -> tuple[list[Array], int]:
        """The sums of the entries of several vectors, and the number of entries of one."""
        xp, n = self._xp, vectors[0].shape[0]
        parts = [self._parts(vector[None, :]) for vector in vectors]
        totals, (count,) = self._sums.arrays([xp.sum(mine) for mine, _ in parts], [self._shared])
        pairs = zip(totals, parts, strict=True)
        return [total + xp.sum(others) for total, (_, others) in pairs], (
            int(count) + n - self._shared
        )

    def _median(self, d: Array, count: int) -> Array | float:
        """The median of the positive entries of a vector, of which there are ``count``."""
        mine = host.to_host(d)
        shared, others = mine[: self._shared], mine[self._shared :]
        return median_of_shared(shared, others, count, self._sums)

    def _measure(self, point: Point) -> None:
        """Compute the inner products of all rows and the gradient in the scaled variables."""
        if not self._sums.shared:
            products = host.to_host(_local_products(self._rows, self._diagonal, point.gradient))
        else:
            vectors = _scaled_vectors(self._rows, self._diagonal, point.gradient)
            products = self._products(vectors, vectors)
        # Contiguous copies, so that a restored state gives the same sums to the last bit.
        self._gram = products[:-1, :-1].copy()
        self._gradient_products = products[:-1, -1].copy()
        self._gradient_square = float(products[-1, -1])


def _direction(parts: Array, diagonal: Array, gradient: Array, weight: float) -> Array:
    """The direction, from the sums (2, n) of the weighted steps and differences."""
    return parts[0, :] + diagonal * (parts[1, :] + weight * gradient)


def _diagonal(
    squares: Array,
    spread: float,
    totals: Callable[[Array, Array], tuple[list[Array], int]],
    median_of: Callable[[Array, int], Array | float],
) -> Array:
    """The diagonal, from the sums (2, n) of the squares of steps and differences."""
    xp = array_namespace(squares)
    steps, changes = squares[0, :], squares[1, :]
    moved = (steps > 0) & (changes > 0)
    # Squares of tiny numbers may be 0: then nothing is known of the scales.
    (total_steps, total_changes), count = totals(steps, changes)
    known = (total_steps > 0) & (total_changes > 0)
    common = xp.where(known, total_steps / xp.where(known, total_changes, 1.0), 1.0)
    ratio = xp.where(moved, steps / xp.where(moved, changes, 1.0), common)
    d = xp.sqrt(ratio)
    median = median_of(d, count)
    return xp.clip(d, median / spread, median * spread)


def _scaled_vectors(rows: Array, diagonal: Array, gradient: Array) -> Array:
    """The rows and the gradient in the variables ``x / sqrt(d)``, (2 memory + 1, n)."""
    xp = array_namespace(rows)
    memory = rows.shape[0] // 2
    root = xp.sqrt(diagonal)
    factors = xp.stack([1.0 / root, root])
    scaled = xp.reshape(rows, (memory, 2, -1)) * factors[None, ...]
    last = xp.reshape(root * gradient, (1, -1))
    return xp.concat([xp.reshape(scaled, (2 * memory, -1)), last])


@compiled()
def _local_direction(
    rows: Array, weights: Array, diagonal: Array, gradient: Array, weight: float
) -> Array:
    """`_direction` if this process has all samples; the weights are (2, 2 memory)."""
    return _direction(array_namespace(rows).matmul(weights, rows), diagonal, gradient, weight)


@compiled()
def _local_diagonal(rows: Array, chosen: Array, spread: float) -> Array:
    """`_diagonal` if this process has all samples; ``chosen`` (2, 2 memory) selects pairs."""
    xp = array_namespace(rows)

    def totals(steps: Array, changes: Array) -> tuple[list[Array], int]:
        return [xp.sum(steps), xp.sum(changes)], steps.shape[0]

    def median(d: Array, count: int) -> Array:
        return xp.sort(d)[count // 2]

    return _diagonal(xp.matmul(chosen, rows * rows), spread, totals, median)


@compiled()
def _local_products(rows: Array, diagonal: Array, gradient: Array) -> Array:
    """All inner products of `_scaled_vectors` if this process has all samples."""
    vectors = _scaled_vectors(rows, diagonal, gradient)
    return array_namespace(rows).matmul(vectors, vectors.mT)


DIGIT = 11
"""Number of bits that one message decides on in the search for a median."""


def median_of_shared(
    mine: NDArray[np.float64], others: NDArray[np.float64], count: int, sums: Sums
) -> float:
    """
    The upper median of positive numbers, some on this process alone, ``others`` on all of them.

    There are ``count`` of them, of which each of the others counts once.

    Positive floating point numbers are ordered as the integers with the same bits. A histogram of
    the leading bits, summed over the processes, says which ones the median has; then one of the
    next bits, until a single number is left.
    """
    numbers = np.concatenate([mine, others]) if sums.leads else mine
    bits = numbers.view(np.int64)
    rank, known = count // 2, 0
    for low in range(63 - DIGIT, -DIGIT, -DIGIT):
        shift, width = max(low, 0), DIGIT + min(low, 0)
        here = bits[bits >> (shift + width) == known]
        digits = (here >> shift) & (2**width - 1)
        counts = sums.host(np.bincount(digits, minlength=2**width).astype(np.float64))
        below = np.concatenate([[0.0], np.cumsum(counts)])
        digit = int(np.searchsorted(below, rank, side="right")) - 1
        rank -= int(below[digit])
        known = (known << width) | digit
        if counts[digit] == 1:
            last = bits[bits >> shift == known].view(np.float64)
            return sums.numbers(float(last[0]) if last.size else 0.0)[0]
    return float(np.asarray(known, dtype=np.int64).view(np.float64))
