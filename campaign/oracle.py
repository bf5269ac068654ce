"""
Values of the losses, in long double and apart from the library: nothing of wtfarray is used here.

Every value of a transport problem comes as an interval. Its lower end is the dual value of a
potential, its upper end the primal value of a plan with the right marginals. Both hold for any
potential and any plan, so the interval is right even if the iterations that found them were not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce

import numpy as np

LONG = np.longdouble
NARROW = 1e-10
"""An interval is decided if it is narrower than this, relative to the terms that are added."""
SINKHORN, NEWTON, ROUNDS = 10, 40, 4


@dataclass(frozen=True)
class Interval:
    """The true value lies in ``[lower, upper]``; `scale` is the size of the terms it adds up."""

    lower: float
    upper: float
    scale: float

    def __post_init__(self) -> None:
        if self.upper < self.lower:  # by rounding: neither is known better than to the other
            lower, upper = self.upper, self.lower
            object.__setattr__(self, "lower", lower)
            object.__setattr__(self, "upper", upper)

    @property
    def decided(self) -> bool:
        """Whether the interval is narrow enough to say that a value is right."""
        return self.upper - self.lower <= NARROW * self.scale

    def __add__(self, other: Interval) -> Interval:
        return Interval(
            self.lower + other.lower, self.upper + other.upper, self.scale + other.scale
        )

    def times(self, factor: float) -> Interval:
        """Multiply by a number that is not negative."""
        return Interval(factor * self.lower, factor * self.upper, factor * self.scale)


NOTHING = Interval(0.0, 0.0, 0.0)
INFINITE = Interval(math.inf, math.inf, math.inf)


@dataclass(frozen=True)
class Potential:
    """What belongs to one potential g: the plan, its marginals and the dual value."""

    dual: np.longdouble
    plan: np.ndarray
    marginal: np.ndarray
    wanted: np.ndarray
    log_scaling: np.ndarray


def _xlogx(a: np.ndarray) -> np.ndarray:
    return a * np.log(np.where(a > 0, a, 1))


def entropy(a: np.ndarray) -> float:
    """``<a, log a - 1>``."""
    a = np.asarray(a, LONG)
    return float(np.sum(_xlogx(a) - a))


def kullback_leibler(a: np.ndarray, b: np.ndarray) -> np.longdouble:
    """``KL(a|b)``, infinite if a is positive where b is 0."""
    a, b = np.asarray(a, LONG), np.asarray(b, LONG)
    if np.any((a > 0) & (b == 0)):
        return LONG(np.inf)
    logs = np.log(np.where(a > 0, a, 1)) - np.log(np.where(b > 0, b, 1))
    return np.sum(a * np.where(a > 0, logs, 0) - a + b)


def dual_of_potential(g: np.ndarray, lam: float) -> np.ndarray:
    """``u = lam (1 - exp(-g / lam))``."""
    return g if math.isinf(lam) else -lam * np.expm1(-g / lam)


def _at(g: np.ndarray, x: np.ndarray, y: np.ndarray, cost: np.ndarray, eps: float, lam: float):
    high = g.max()
    logs = (g - high - cost) / eps
    top = logs.max(axis=1)
    shares = np.exp(logs - top[:, None])
    sums = shares.sum(axis=1)
    plan = x[:, None] * (shares / sums[:, None])  # the rows sum to x whatever the rounding of logs
    sums = top + np.log(sums)
    u = dual_of_potential(g, lam)
    dual = np.sum(u * y) - eps * np.sum(x * sums) - high * x.sum() + eps * np.sum(_xlogx(x) - x)
    wanted = y if math.isinf(lam) else y * np.exp(-g / lam)
    return Potential(dual, plan, plan.sum(axis=0), wanted, np.log(x) - sums)


def _sinkhorn(g, x, y, cost, eps, lam):
    logs = (g - cost) / eps
    top = logs.max(axis=1)
    log_a = np.log(x) - top - np.log(np.exp(logs - top[:, None]).sum(axis=1))
    logs = log_a[:, None] - cost / eps
    top = logs.max(axis=0)
    log_ka = top + np.log(np.exp(logs - top).sum(axis=0))
    damped = eps if math.isinf(lam) else eps * lam / (eps + lam)
    return damped * (np.log(y) - log_ka)


def _least_squares(matrix, vector):
    return np.linalg.lstsq(matrix, vector, rcond=1e-15)[0]


def _newton_step(at: Potential, x, eps, lam, shift):
    """A step of Newton's method; the linear algebra in double suffices for that."""
    plan, q = at.plan.astype(float), at.marginal.astype(float)
    links = plan.T @ (plan / x.astype(float)[:, None])
    hessian = -links / eps
    np.fill_diagonal(hessian, 0.0)
    np.fill_diagonal(hessian, -hessian.sum(axis=1))
    if not math.isinf(lam):
        hessian[np.diag_indices_from(hessian)] += at.wanted.astype(float) / lam
    gradient = (at.wanted - at.marginal).astype(float)
    size = np.sqrt(np.maximum(np.diag(hessian), 1e-300) + 1e-14 * q / eps)
    scaled = hessian / size[:, None] / size[None, :]
    scaled[np.diag_indices_from(scaled)] += shift + 1e-15
    step = np.full(len(q), np.nan)
    if np.isfinite(scaled).all() and np.isfinite(gradient / size).all():
        for solve in (np.linalg.solve, _least_squares):
            with suppress(np.linalg.LinAlgError):
                step = solve(scaled, gradient / size) / size
            if np.isfinite(step).all() and step @ gradient > 0:
                break
    return step, gradient


def _climb(g, x, y, cost, eps, lam, iterations, enough):
    """Newton's method with a line search; stops when the gradient is `enough` times the mass."""
    at, shift = _at(g, x, y, cost, eps, lam), 0.0
    for _ in range(iterations):
        if np.sum(np.abs(at.wanted - at.marginal)) <= enough * x.sum():
            break
        step, gradient = _newton_step(at, x, eps, lam, shift)
        if not np.all(np.isfinite(step)):
            break
        slope, length = float(step @ gradient), 1.0
        for _ in range(25):
            new = g + length * step
            trial = _at(new, x, y, cost, eps, lam)
            if np.isfinite(trial.dual) and trial.dual >= at.dual + 1e-4 * length * slope:
                break
            length *= 0.4
        else:
            # Nothing gained: rounding, or a matrix that is too nearly singular.
            rounding = 100 * np.finfo(at.dual.dtype).eps * abs(at.dual)
            if shift > 1e-2 or 0 <= slope <= rounding:
                break
            shift = max(100 * shift, 1e-12)
            continue
        shift = shift / 10 if length == 1.0 else shift
        g, at = new, trial
    return g, at


def _primal(plan, y, cost, eps, lam):
    spent = np.sum(np.where(plan > 0, plan * np.where(plan > 0, cost, 0), 0))
    value = spent + eps * np.sum(_xlogx(plan) - plan)
    return value if math.isinf(lam) else value + lam * kullback_leibler(plan.sum(axis=0), y)


def _rounded(at: Potential, x, y):
    """A plan with both marginals (Altschuler, Weed and Rigollet 2017)."""
    shrink = np.minimum(1, y / np.where(at.marginal > 0, at.marginal, 1))
    plan = at.plan * shrink
    rows = np.maximum(x - plan.sum(axis=1), 0)
    columns = np.maximum(y - plan.sum(axis=0), 0)
    mass = columns.sum()
    return plan if mass <= 0 else plan + rows[:, None] * columns / mass


def one_sample(x: np.ndarray, y: np.ndarray, cost: np.ndarray, eps: float, lam: float) -> Interval:
    """
    ``min { eps H(G|K) + lam KL(G^T 1|y) : G 1 = x }`` of vectors x (n,) and y (n,).

    Balanced (lam infinite), y is first scaled to the mass of x.
    """
    return value_and_gradient(x, y, cost, eps, lam)[0]


def value_and_gradient(
    x: np.ndarray, y: np.ndarray, cost: np.ndarray, eps: float, lam: float
) -> tuple[Interval, np.ndarray]:
    """The value of one sample, and u (n,): -inf where y is 0, lam where nothing can arrive."""
    x, y, cost = (np.asarray(a, LONG) for a in (x, y, cost))
    gradient = np.full(y.shape, -np.inf, LONG)
    rows, columns = x > 0, y > 0
    balanced = math.isinf(lam)
    if not rows.any():
        if balanced:
            return (INFINITE if columns.any() else NOTHING), gradient
        value = float(lam * y.sum())
        return Interval(value, value, value), np.full(y.shape, lam, LONG)
    reached = np.isfinite(cost[rows]).any(axis=0)
    beyond = columns & ~reached
    if balanced and beyond.any():
        return INFINITE, gradient
    extra = LONG(0) if balanced else lam * y[beyond].sum()
    columns &= reached
    if not columns.any() or not np.isfinite(cost[rows][:, columns]).any(axis=1).all():
        return INFINITE, gradient
    x, y, cost = x[rows], y[columns], cost[rows][:, columns]
    if balanced:
        y = y * (x.sum() / y.sum())
    with np.errstate(all="ignore"):
        found, g = _interval(x, y, cost, eps, lam)
        gradient[columns] = dual_of_potential(g, lam)
    gradient[~reached] = lam
    return found + Interval(float(extra), float(extra), float(extra)), gradient


def _interval(x, y, cost, eps, lam) -> tuple[Interval, np.ndarray]:
    largest = float(cost[np.isfinite(cost)].max())
    level = eps
    levels = [eps]
    while level < 0.3 * largest:
        level *= 3.0
        levels.append(level)
    g = np.zeros(y.shape, LONG)
    coarse = [a.astype(float) for a in (x, y, cost)]  # double is enough to come close
    start = g.astype(float)
    for level in levels[:0:-1]:
        for _ in range(5):
            start = _sinkhorn(start, *coarse, level, lam)
        start, _ = _climb(start, *coarse, level, lam, 12, 1e-4)
    if np.isfinite(start).all():
        g = start.astype(LONG)
    best = INFINITE
    lower, upper = -math.inf, math.inf
    for attempt in range(ROUNDS):
        for _ in range(SINKHORN * 8**attempt if attempt else 3):
            g = _sinkhorn(g, x, y, cost, eps, lam)
        g, at = _climb(g, x, y, cost, eps, lam, NEWTON, 1e-17)
        lower = max(lower, float(at.dual))
        upper = min(upper, _upper(at, g, x, y, cost, eps, lam))
        best = Interval(lower, upper, _scale(at, g, x, y, cost, eps, lam))
        if best.decided:
            break
    return best, g


def _upper(at, g, x, y, cost, eps, lam) -> float:
    if not math.isinf(lam):
        return float(_primal(at.plan, y, cost, eps, lam))
    plan = _rounded(at, x, y)
    value = _primal(plan, y, cost, eps, lam)
    if np.isfinite(value):
        return float(value)
    # Mass would have to go where it may not. A plan whose marginal is y to rounding is taken for
    # one of y, and the difference is added to first order.
    off = np.abs(at.marginal - y)
    if off.sum() > 1e-13 * x.sum():
        return math.inf
    return float(_primal(at.plan, y, cost, eps, lam) + 2 * np.sum(off) * (g.max() - g.min()))


def _scale(at, g, x, y, cost, eps, lam) -> float:
    """The sum of the sizes of all that a value is computed from, to measure rounding by."""
    if math.isinf(lam):
        g = g - np.sum(g * y) / y.sum()
    u = dual_of_potential(g, lam)
    spent = np.sum(np.where(at.plan > 0, at.plan * np.where(at.plan > 0, cost, 0), 0))
    logs = eps * np.sum(x * (np.abs(np.log(x)) + np.abs(at.log_scaling) + 1))
    return float(spent + logs + np.sum(np.abs(u) * y) + np.sum(np.abs(g) * (at.marginal + y)))


def total_cost(costs: Sequence[np.ndarray]) -> np.ndarray:
    """The cost between all pairs of bins of several modes: a sum over the modes."""

    def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        n, m = a.shape[0], b.shape[0]
        return (a[:, None, :, None] + b[None, :, None, :]).reshape(n * m, n * m)

    return reduce(add, [np.asarray(cost, LONG) for cost in costs])


def stacked(X: np.ndarray, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """The samples as rows, (N, bins): the transported modes last, in the order of the costs."""
    moved = [k for group in groups for k in group]
    rest = [k for k in range(X.ndim) if k not in moved]
    bins = math.prod(X.shape[k] for k in moved)
    return np.transpose(X, (*rest, *moved)).reshape(-1, bins)


def transport(
    X: np.ndarray,
    Y: np.ndarray,
    costs: Sequence[np.ndarray],
    groups: Sequence[Sequence[int]],
    eps: float,
    lam: float,
    weights: np.ndarray | None = None,
) -> Interval:
    """The loss of whole tensors, `weights` (n_0,) of the first mode."""
    cost = total_cost(costs)
    rows, targets = stacked(np.asarray(X, LONG), groups), stacked(np.asarray(Y, LONG), groups)
    of_rows = np.ones(len(rows))
    if weights is not None:
        of_rows = np.repeat(np.asarray(weights, float), len(rows) // len(weights))
    total = NOTHING
    for x, y, weight in zip(rows, targets, of_rows, strict=True):
        if weight > 0:
            total += one_sample(x, y, cost, eps, lam).times(float(weight))
    return total


def feasible(x: np.ndarray, y: np.ndarray, cost: np.ndarray) -> bool | None:
    """Whether some plan takes x to y at a finite cost; None if that is a matter of rounding."""
    import ot

    x, y = np.asarray(x, float), np.asarray(y, float)
    if not x.any():
        return not y.any()
    y = y * (x.sum() / y.sum())
    forbidden = ~np.isfinite(np.asarray(cost, float))
    plan = ot.emd(x / x.sum(), y / y.sum(), forbidden.astype(float))
    mass = float(plan[forbidden].sum())
    return False if mass > 1e-6 else True if mass < 1e-13 else None


def balanced_bounds(x: np.ndarray, y: np.ndarray, cost: np.ndarray, eps: float) -> Interval:
    """
    Bounds of balanced transport by a linear programme of POT, without any Sinkhorn iteration.

    The plan of least cost is feasible; the entropy of no plan is below that of ``x y^T / mass``.
    """
    import ot

    x, y = np.asarray(x, float), np.asarray(y, float)
    mass = x.sum()
    rows, columns = x > 0, y > 0
    x, y, cost = x[rows], y[columns] * (mass / y.sum()), np.asarray(cost, float)[rows][:, columns]
    plan = mass * ot.emd(x / mass, y / mass, cost)
    spent = float(np.sum(plan * cost))
    least = entropy(np.outer(x, y) / mass)
    scale = spent + eps * mass * (1 + abs(math.log(mass)) + np.abs(np.log(plan[plan > 0])).max())
    return Interval(spent + eps * least, spent + eps * entropy(plan), scale)


def conjugate(
    X: np.ndarray,
    U: np.ndarray,
    costs: Sequence[np.ndarray],
    groups: Sequence[Sequence[int]],
    eps: float,
    lam: float,
) -> tuple[float, np.ndarray, float]:
    """``Phi*(X, U)``, its gradient as rows (N, bins), and the size of the terms of the value."""
    cost = total_cost(costs)
    x, u = stacked(np.asarray(X, LONG), groups), stacked(np.asarray(U, LONG), groups)
    g = u if math.isinf(lam) else -lam * np.log1p(-u / lam)
    with np.errstate(all="ignore"):
        logs = (g[:, None, :] - cost) / eps
        top = logs.max(axis=2)
        sums = top + np.log(np.exp(logs - top[:, :, None]).sum(axis=2))
        value = eps * np.sum(np.where(x > 0, x * sums, 0)) - eps * np.sum(_xlogx(x) - x)
        plan = x[:, :, None] * np.exp(logs - sums[:, :, None])
    gradient = plan.sum(axis=1)
    if not math.isinf(lam):
        gradient = gradient * (lam / (lam - u))
    scale = eps * np.sum(x * (np.abs(sums) + np.abs(np.log(np.where(x > 0, x, 1))) + 1))
    # The last part is the rounding of u itself, where it is close to lam.
    close = np.abs(g) if math.isinf(lam) else np.abs(g) + lam * np.abs(u) / (lam - u)
    return float(value), gradient, float(scale + np.sum(plan.sum(axis=1) * close))


def entropy_conjugate(v: np.ndarray, constraint: str | None) -> float:
    """``E*`` over a constraint set."""
    v = np.asarray(v, LONG)
    if constraint is None:
        return float(np.exp(v).sum())
    v = v.reshape(1, -1) if constraint == "all" else v.T if constraint == "columns" else v
    top = v.max(axis=1, keepdims=True)
    return float(np.sum(top[:, 0] + np.log(np.exp(v - top).sum(axis=1)) + 1))


def model(factors: Sequence[np.ndarray], core: np.ndarray | None, weights: np.ndarray | None):
    """The tensor of a CP model (weights or none) or of a Tucker model (core)."""
    factors = [np.asarray(factor, LONG) for factor in factors]
    if core is None:
        rank = factors[0].shape[1]
        weights = np.ones(rank, LONG) if weights is None else np.asarray(weights, LONG)
        tensor = weights
        for factor in factors:  # (..., r) -> (..., n, r)
            tensor = tensor[..., None, :] * factor
        return tensor.sum(axis=-1)
    tensor = np.asarray(core, LONG)
    for factor in factors:  # the first mode becomes the last, for every factor once
        tensor = np.tensordot(tensor, factor, axes=(0, 1))
    return tensor


def adjoint(U: np.ndarray, factors, core, weights, block) -> np.ndarray:
    """The linear map of a block, transposed, by its values on a basis."""
    U = np.asarray(U, LONG)
    shape = core.shape if block == "core" else weights.shape if block == "weights" else None
    shape = factors[block].shape if shape is None else shape
    found = np.zeros(shape, LONG)
    for index in np.ndindex(shape):
        unit = np.zeros(shape)
        unit[index] = 1.0
        found[index] = np.sum(U * with_block(factors, core, weights, block, unit))
    return found


def with_block(factors, core, weights, block, value) -> np.ndarray:
    """The model tensor with one block replaced."""
    if block == "core":
        return model(factors, value, None)
    if block == "weights":
        return model(factors, None, value)
    changed = [value if k == block else factor for k, factor in enumerate(factors)]
    return model(changed, core, weights)
