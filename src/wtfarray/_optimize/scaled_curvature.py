"""Curvature pairs of L-BFGS with a diagonal as first inverse Hessian."""

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import device, is_writeable_array
from numpy.typing import NDArray

from wtfarray._arrays import host
from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array, Namespace
from wtfarray._optimize.curvature import CurvaturePairs, curvature_pair
from wtfarray._optimize.objective import Point
from wtfarray._optimize.shared_median import median_of_shared

__all__ = ["ScaledCurvaturePairs"]


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
    pair changes d, so that all inner products are computed again; it takes one transfer as before.
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
        self._last_median: float | None = None
        """The median of the last diagonal, with several processes."""
        self._gradient_square = point.square
        self._trial: _Trial | None = None

    def clear(self) -> None:
        """Remove all pairs, but keep the first inverse Hessian of the newest."""
        self._withdraw()
        super().clear()

    def measure_ahead(self, old: Point, x: Array, gradient: Array) -> Array | None:
        """
        The inner products that `update` will need if a trial point is accepted, on the device.

        Its pair is written to where the oldest was, which returns as soon as anything else is done
        than that `update`. None if other processes have to be asked.
        """
        self._withdraw()
        if self._sums.shared:
            return None
        (rows,) = self._rows
        slot = self._free[-1] if self._free else self._used[0]
        kept = self._used if self._free else self._used[1:]
        here = slice(2 * slot, 2 * slot + 2)
        # Arrays that cannot be written to stay as they are.
        replaced = self._xp.asarray(rows[here, :], copy=True) if is_writeable_array(rows) else rows
        self._write(slot, curvature_pair(x, gradient, old.x, old.gradient))
        diagonal = self._new_diagonal([*kept, slot])
        self._trial = _Trial(old, gradient, slot, replaced, diagonal)
        return _scaled_products(self._rows[0], diagonal, gradient)

    def _take_trial(self, old: Point, new: Point, measured: NDArray[np.float64] | None) -> bool:
        """Whether the pair was measured ahead; it is then the newest."""
        trial = self._trial
        known = trial is not None and trial.old is old and trial.gradient is new.gradient
        if trial is None or measured is None or not known:
            self._withdraw()
            return False
        self._trial = None
        self._used.append(self._free.pop() if self._free else self._used.pop(0))
        self._diagonal = trial.diagonal
        self._read(measured)
        return True

    def _withdraw(self) -> None:
        """Restore what the pair of a trial has replaced, if there is one."""
        trial, self._trial = self._trial, None
        if trial is None:
            return
        if is_writeable_array(self._rows[0]):
            self._write(trial.slot, trial.replaced)
        else:
            self._rows = [trial.replaced]

    def export(self) -> dict[str, NDArray[np.float64]]:
        """The state for `restore`, as arrays on the host."""
        self._withdraw()
        return {
            **super().export(),
            "diagonal": host.to_host(self._diagonal),
            "gradient_square": np.asarray(self._gradient_square),
        }

    def restore(self, stored: dict[str, NDArray[np.float64]]) -> None:
        """Restore the state returned by `export`."""
        self._trial = None
        super().restore(stored)
        like = self._diagonal
        self._diagonal = self._xp.asarray(stored["diagonal"], dtype=like.dtype, device=device(like))
        self._gradient_square = float(stored["gradient_square"])

    def renew(self, point: Point) -> None:
        """Replace the gradient at the newest iterate, for example by a more accurate one."""
        self._withdraw()
        self._measure(point)

    def direction(self, point: Point) -> tuple[Array, float]:
        """Multiply the gradient by minus the inverse Hessian, as `CurvaturePairs.direction`."""
        self._withdraw()
        xp = self._xp
        found = self._usable_weights()
        if found is None:
            scaled = self._diagonal * point.gradient
            return -self._scale * scaled, -self._scale * self._gradient_square
        weights, weight = found
        slope = float(weights @ self._gradient_products) + weight * self._gradient_square
        # Only steps and gradient differences are stored: the latter, and the gradient, times d.
        split = np.zeros((2, weights.shape[0]))
        split[0, ::2], split[1, 1::2] = weights[::2], weights[1::2]
        on_device = xp.asarray(split.tolist(), dtype=point.x.dtype, device=device(point.x))
        vectors = zip(self._cut(self._diagonal), self._cut(point.gradient), strict=True)
        parts = [
            _direction(rows, on_device, diagonal, gradient, weight)
            for rows, (diagonal, gradient) in zip(self._rows, vectors, strict=True)
        ]
        return parts[0] if len(parts) == 1 else xp.concat(parts), slope

    def _measure_pair(self, slot: int, pair: Array, new: Point) -> None:  # noqa: ARG002
        """Compute the diagonal and all inner products."""
        self._diagonal = self._new_diagonal(self._used)
        self._measure(new)

    def _remove_newest(self, new: Point) -> None:
        """Remove the newest pair, from the diagonal too."""
        super()._remove_newest(new)
        if not self.empty:
            self._diagonal = self._new_diagonal(self._used)
        self._measure(new)

    def _new_diagonal(self, used: list[int]) -> Array:
        """The diagonal of the recent pairs; entries that they do not move take a common value."""
        xp = self._xp
        recent, memory = used[-self._recent :], self._rows[0].shape[0] // 2
        chosen = np.zeros((2, 2 * memory))
        for slot in recent:
            chosen[0, 2 * slot] = chosen[1, 2 * slot + 1] = 1.0
        like = {"dtype": self._rows[0].dtype, "device": device(self._rows[0])}
        on_device = xp.asarray(chosen.tolist(), **like)
        if not self._sums.shared:
            return _local_diagonal(self._rows[0], on_device, self._spread)
        squares = [_squares(rows, on_device) for rows in self._rows]
        own = self._own(squares)
        moved = host.to_host(xp.astype(_moved(own), own.dtype)) > 0
        here = host.to_host(_roots(own, xp.asarray([1.0, 1.0], **like)))[moved]
        numbers = [*host.to_host(xp.sum(own, axis=1)).tolist(), float(np.sum(~moved))]
        median, (steps, changes, _) = median_of_shared(
            here, self._sums, numbers=numbers, rest=_unmoved, guess=self._last_median
        )
        self._last_median = median
        common = xp.asarray([_common(steps, changes), 1.0], **like)
        d = xp.concat([_roots(part, common) for part in squares])
        return xp.clip(d, median / self._spread, median * self._spread)

    def _measure(self, point: Point) -> None:
        """Compute the inner products of all rows and the gradient in the scaled variables."""
        vectors = (self._own(self._cut(vector)) for vector in (self._diagonal, point.gradient))
        with np.errstate(over="ignore", invalid="ignore"):  # then the slope is not finite either
            products = _scaled_products(self._own(self._rows), *vectors)
        self._read(self._sums.host(host.to_host(products)))

    def _read(self, products: NDArray[np.float64]) -> None:
        """Take over the inner products of `_scaled_products`."""
        memory = self._rows[0].shape[0] // 2
        self._gram, self._gradient_products, self._gradient_square = _gram_of(products, memory)


@dataclass(frozen=True, eq=False)
class _Trial:
    """The pair of a trial point, while it is not known whether that is accepted."""

    old: Point
    gradient: Array
    """At the trial point."""
    slot: int
    """Where the pair was written."""
    replaced: Array
    """What was there; all rows, if these cannot be written to."""
    diagonal: Array
    """With the pair."""


@compiled()
def _direction(
    rows: Array, weights: Array, diagonal: Array, gradient: Array, weight: float
) -> Array:
    """The direction; the weights of steps and of gradient differences are (2, 2 memory)."""
    parts = array_namespace(rows).matmul(weights, rows)
    return parts[0, :] + diagonal * (parts[1, :] + weight * gradient)


def _squares(rows: Array, chosen: Array) -> Array:
    """The sums, (2, n), of squares of steps and differences that ``chosen``, (2, 2 memory), has."""
    return array_namespace(rows).matmul(chosen, rows * rows)


def _moved(squares: Array) -> Array:
    """Entries, (n,) bool, that the pairs move."""
    return array_namespace(squares).min(squares, axis=0) > 0


def _roots(squares: Array, common: Array) -> Array:
    """The root of the ratio of steps and differences; of ``common``, (2,), where none moved."""
    xp = array_namespace(squares)
    known = xp.where(_moved(squares)[None, :], squares, common[:, None])
    steps, changes = known[0, :], known[1, :]
    # In float32 a larger ratio might overflow, and with it the products that follow.
    return xp.sqrt(steps / xp.maximum(changes, steps * 1e-30))


def _common(steps: float, changes: float) -> float:
    """The ratio of entries that the pairs do not move, from the sums of the squares of all."""
    # Squares of tiny numbers may be 0: then nothing is known of the scales.
    return steps / changes if steps > 0 and changes > 0 else 1.0


def _unmoved(totals: list[float]) -> tuple[float, int]:
    """The diagonal at entries that are not moved, and their number."""
    steps, changes, count = totals
    return math.sqrt(_common(steps, changes)), int(count)


@compiled()
def _local_diagonal(rows: Array, chosen: Array, spread: float) -> Array:
    """The diagonal if this process has all entries."""
    xp, squares = array_namespace(rows), _squares(rows, chosen)
    # As `_common`.
    totals = xp.sum(squares, axis=1)
    d = _roots(squares, xp.where(_moved(totals), totals, 1.0))
    median = xp.sort(d)[d.shape[0] // 2]
    return xp.clip(d, median / spread, median * spread)


@compiled()
def _scaled_products(rows: Array, diagonal: Array, gradient: Array) -> Array:
    """
    Inner products of rows and gradient in the variables ``x / sqrt(d)``, as one vector.

    Those that the recursion needs: of steps with differences, in which d cancels, and of
    differences with each other, each also with the gradient: (memory, memory + 1) and (memory + 1,
    memory + 1); and of steps with themselves, (memory,).
    """
    xp = array_namespace(rows)
    steps = rows[::2, :]
    changes = xp.concat([rows[1::2, :], gradient[None, :]])
    products = (
        xp.matmul(steps, changes.mT),
        xp.matmul(changes, (changes * diagonal).mT),
        xp.sum(steps * steps / diagonal, axis=1),
    )
    return xp.concat([xp.reshape(product, (-1,)) for product in products])


def _gram_of(
    products: NDArray[np.float64], memory: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """
    The inner products of all rows, of the rows with the gradient, and of that with itself.

    From those of `_scaled_products`; those of different steps are not needed, and left 0.
    """
    sizes = (memory * (memory + 1), (memory + 1) ** 2)
    mixed, changes, squares = np.split(products, np.cumsum(sizes))
    mixed, changes = (product.reshape(-1, memory + 1) for product in (mixed, changes))
    gram, column = np.zeros((2 * memory, 2 * memory)), np.zeros(2 * memory)
    gram[::2, 1::2] = mixed[:, :-1]
    gram[1::2, ::2] = gram[::2, 1::2].T
    gram[1::2, 1::2] = changes[:-1, :-1]
    gram[::2, ::2] = np.diag(squares)
    column[::2], column[1::2] = mixed[:, -1], changes[:-1, -1]
    return gram, column, float(changes[-1, -1])
