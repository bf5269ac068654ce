"""Random problems: data, costs, losses and the options of a fit, drawn from one generator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import wtfarray as wtf

CONSTRAINTS = (None, "rows", "columns", "all")
FEW_SHAPES = (((6, 8), ((1,),)), ((5, 3, 4), ((1,), (2,))))
"""Shapes, and transported modes, for a library that compiles every shape it meets."""
FEW_BATCH = 3
"""The batch size for such a library."""
STYLES = (
    "gamma",
    "dirichlet",
    "empty samples",
    "one pixel",
    "constant",
    "heavy tails",
    "sparse",
    "counts",
    "scaled",
    "scaled samples",
)


@dataclass(frozen=True)
class TransportLoss:
    """A Wasserstein loss as plain numbers."""

    costs: tuple[np.ndarray, ...]
    eps: float
    lam: float
    modes: tuple[Any, ...] | None
    groups: tuple[tuple[int, ...], ...]

    def build(self) -> wtf.Wasserstein:
        """The loss of the library."""
        return wtf.Wasserstein(list(self.costs), self.eps, self.lam, self.modes)

    @property
    def balanced(self) -> bool:
        """Whether lam is infinite."""
        return math.isinf(self.lam)

    @property
    def all_finite(self) -> bool:
        """Whether no transport is forbidden."""
        return all(np.isfinite(cost).all() for cost in self.costs)


def pick(rng: np.random.Generator, options: Any, chances: Any = None) -> Any:
    """One of the options, left as it is."""
    return options[rng.choice(len(options), p=chances)]


def power(rng: np.random.Generator, low: float, high: float) -> float:
    """A number with a uniform logarithm; the ends now and then."""
    if rng.random() < 0.1:
        return float(10.0 ** pick(rng, (low, high)))
    return float(10.0 ** rng.uniform(low, high))


def _sizes(rng: np.random.Generator, count: int, most: int) -> list[int]:
    """Sizes of modes whose product is at most `most`."""
    sizes = []
    for left in range(count, 0, -1):
        largest = max(int(most ** (1.0 / left)), 1)
        size = 1 if rng.random() < 0.05 else int(rng.integers(min(2, largest), largest + 1))
        sizes.append(size)
        most //= size
    return sizes


def draw_shape(
    rng: np.random.Generator, *, few: bool, sampled: bool = False, least: int = 1
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """A shape and the groups of modes that are transported; `sampled`: never the first."""
    if few:
        return pick(rng, FEW_SHAPES)
    ndim = max(int(pick(rng, (1, 2, 3, 4), (0.1, 0.5, 0.3, 0.1))), least, 2 if sampled else 1)
    moved = min(int(pick(rng, (1, 2, 3), (0.6, 0.3, 0.1))), ndim - (1 if sampled else 0))
    places = list(range(ndim - moved, ndim))
    if rng.random() < 0.25:
        low = 1 if sampled else 0
        places = sorted(rng.choice(np.arange(low, ndim), moved, replace=False).tolist())
    shape = [0] * ndim
    for k, size in zip(places, _sizes(rng, moved, 20), strict=True):
        shape[k] = size
    rest = [k for k in range(ndim) if k not in places]
    for k, size in zip(rest, _sizes(rng, len(rest), 20 if len(rest) < 2 else 12), strict=True):
        shape[k] = size
    groups = [(k,) for k in places]
    if moved > 1 and rng.random() < 0.3:
        groups = [tuple(places[:2]), *((k,) for k in places[2:])]
    if len(groups) > 1 and rng.random() < 0.2:
        groups = groups[::-1]
    return tuple(shape), tuple(groups)


def draw_rank(rng: np.random.Generator, *, few: bool) -> int:
    """The rank of a matrix or CP model."""
    rank = int(rng.integers(1, 5))
    return (1 if rank == 1 else 3) if few else rank


def draw_ranks(
    rng: np.random.Generator, modes: int, *, few: bool, most: int = 3
) -> tuple[int, ...]:
    """The ranks of a Tucker model."""
    ranks = tuple(int(rng.integers(1, most + 1)) for _ in range(modes))
    return (min(ranks[0], 2),) * modes if few else ranks


def draw_cost(rng: np.random.Generator, n: int) -> np.ndarray:
    """A cost between n bins: of a grid, of points, of no metric; sometimes infinite in places."""
    style = pick(rng, ("grid", "points", "any"), (0.5, 0.25, 0.25))
    points = np.linspace(0, 1, n) if style == "grid" else rng.uniform(size=n)
    cost = np.subtract.outer(points, points) ** 2
    if style == "any":
        cost = rng.exponential(size=(n, n))
    cost = cost / max(cost.mean(), 1e-300) if rng.random() < 0.5 else cost
    if rng.random() < 0.1:
        cost = cost * power(rng, -3, 3)
    forbidden = pick(rng, ("none", "some", "band", "blocks"), (0.82, 0.06, 0.06, 0.06))
    where = np.zeros((n, n), bool)
    if forbidden == "some":
        where = rng.uniform(size=(n, n)) < rng.uniform(0.1, 0.9)
    elif forbidden == "band":
        where = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) > rng.integers(0, max(n, 1))
    elif forbidden == "blocks":
        of = rng.integers(0, 3, n)
        where = of[:, None] != of[None, :]
    return np.where(where & ~np.eye(n, dtype=bool), np.inf, cost)


def draw_loss(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    groups: tuple[tuple[int, ...], ...],
    dtype: str,
    *,
    balanced: float = 0.3,
) -> TransportLoss:
    """A loss for data of this shape; its costs can be represented in the dtype."""
    sizes = [math.prod(shape[k] for k in group) for group in groups]
    costs = tuple(draw_cost(rng, n).astype(dtype).astype(float) for n in sizes)
    trailing = groups == tuple((k,) for k in range(len(shape) - len(groups), len(shape)))
    modes = None
    if not trailing or rng.random() < 0.2:
        modes = tuple(group[0] if len(group) == 1 else group for group in groups)
        modes = tuple(
            m - len(shape) if isinstance(m, int) and rng.random() < 0.1 else m for m in modes
        )
    lam = math.inf if rng.random() < balanced else power(rng, -3, 4)
    return TransportLoss(costs, power(rng, -4, 0), lam, modes, groups)


def draw_data(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    groups: tuple[tuple[int, ...], ...],
    dtype: str,
    *,
    normalised: float = 0.5,
) -> np.ndarray:
    """Data of one of the styles, in the dtype and never all zero."""
    style = pick(rng, STYLES)
    X = rng.gamma(1.0, size=shape)
    rest = [k for k in range(len(shape)) if k not in {m for group in groups for m in group}]
    of_samples = tuple(n if k in rest else 1 for k, n in enumerate(shape))
    over = tuple(k for k in range(len(shape)) if k not in rest)
    if style == "empty samples":
        X = X * (rng.uniform(size=of_samples) < 0.5)
    elif style == "one pixel":
        rows = np.zeros(shape).reshape(-1)
        spread = X.copy()
        X = np.where(spread == spread.max(axis=over, keepdims=True), 1.0, 0.0) + 0 * rows.sum()
    elif style == "constant":
        X = np.ones(shape)
    elif style == "heavy tails":
        X = 10.0 ** rng.uniform(-12, 0, shape)
    elif style == "sparse":
        X = X * (rng.uniform(size=shape) < 0.1)
    elif style == "counts":
        X = rng.poisson(power(rng, 0, 3) * X / X.mean()).astype(float)
    elif style == "scaled":
        X = X * power(rng, -8, 8)
    elif style == "scaled samples":
        X = X * 10.0 ** rng.uniform(-4, 4, of_samples)
    if not X.any():
        X.reshape(-1)[0] = 1.0
    if rng.random() < normalised:
        mass = X.sum(axis=over, keepdims=True)
        X = X / np.where(mass > 0, mass, 1.0)
    return X.astype(dtype)


def draw_target(rng: np.random.Generator, X: np.ndarray, loss: TransportLoss) -> np.ndarray:
    """A Y for X. Balanced, mostly of the masses of X, and such that it can be reached."""
    groups, dtype = loss.groups, X.dtype.name
    Y = draw_data(rng, X.shape, groups, dtype).astype(float)
    if rng.random() < 0.1:
        Y = Y * 10.0 ** rng.uniform(-30, 0, X.shape)
    if not loss.balanced:
        return Y.astype(dtype)
    over = tuple(k for group in groups for k in group)
    if loss.all_finite or rng.random() < 0.2:
        x, y = X.astype(float).sum(axis=over, keepdims=True), Y.sum(axis=over, keepdims=True)
        Y = np.where(y > 0, Y, 1.0)
        Y = Y * (x / Y.sum(axis=over, keepdims=True))
    else:
        # The marginal of some plan. With one mode at a time, that of several modes is one too.
        Y = X.astype(float)
        for cost, group in zip(loss.costs, groups, strict=True):
            plan = np.isfinite(cost) * rng.gamma(0.3, size=cost.shape) + 1e-3 * np.eye(len(cost))
            plan /= plan.sum(axis=1, keepdims=True)
            moved = np.moveaxis(Y, group, range(-len(group), 0))
            moved = (moved.reshape(-1, len(cost)) @ plan).reshape(moved.shape)
            Y = np.moveaxis(moved, range(-len(group), 0), group)
    return Y.astype(dtype)


def _probabilities(rng: np.random.Generator, shape: tuple[int, ...], axis: Any) -> np.ndarray:
    block = rng.gamma(1.0, size=shape) + 1e-9
    return block if axis is None else block / block.sum(axis=axis, keepdims=True)


def draw_block(
    rng: np.random.Generator, shape: tuple[int, ...], constraint: str | None, dtype: str
) -> np.ndarray:
    """A factor, core or vector of weights that satisfies a constraint; sometimes with zeros."""
    axis = {None: None, "rows": 1, "columns": 0, "all": tuple(range(len(shape)))}[constraint]
    block = _probabilities(rng, shape, axis)
    return block.astype(dtype)


def draw_fit_options(
    rng: np.random.Generator,
    model: str,
    shape: tuple[int, ...],
    rank: Any,
    dtype: str,
    *,
    sampled: bool,
    plain: bool,
    few: bool = False,
) -> dict[str, Any]:
    """The keywords of a fit; `plain`: the constraints that conserve mass, which are the default."""
    sizes = shape if model != "nmf" else (shape[0], math.prod(shape[1:]))
    ranks = rank if model == "tucker" else (rank,) * len(sizes)
    options: dict[str, Any] = {"rng": int(rng.integers(1000))}
    options["rho"] = power(rng, -6, 0)
    if rng.random() < 0.2:
        options["rho"] = [power(rng, -6, 0) for _ in sizes]
    constraints = None
    if not plain and rng.random() < 0.6:
        constraints = [pick(rng, CONSTRAINTS) for _ in sizes]
        if model == "tucker" and rng.random() < 0.3:
            constraints.append(pick(rng, (None, "all")))
        options["constraints"] = constraints
    if rng.random() < 0.25:
        options["solver"] = pick(rng, ("envelope", "dual"))
    if rng.random() < 0.3:
        options["tol"] = power(rng, -9, -3)
    options["max_iter"] = int(pick(rng, (1, 3, 30, 300), (0.1, 0.2, 0.4, 0.3)))
    if rng.random() < 0.15:
        options["n_init"] = 2
        options["max_iter"] = min(options["max_iter"], 30)
    if sampled and rng.random() < 0.15:
        weight = rng.gamma(1.0, size=shape[0]) * (rng.uniform(size=shape[0]) < 0.8)
        weight[0] += 0.1
        options["sample_weight"] = weight.astype(dtype)
    if rng.random() < 0.15:
        batch = int(rng.integers(1, 6))
        options["batch"] = FEW_BATCH if few else batch
    if model == "cp" and rng.random() < 0.3:
        options["weights"] = pick(rng, ("learned", "fixed"))
    return options | _draw_start(rng, model, sizes, ranks, dtype)


def _draw_start(
    rng: np.random.Generator,
    model: str,
    sizes: tuple[int, ...],
    ranks: tuple[int, ...],
    dtype: str,
) -> dict[str, Any]:
    """Where a fit starts, and which of the given factors it keeps."""
    options: dict[str, Any] = {}
    blocks = len(sizes)
    start = pick(rng, (None, "kl", "random", "nnsvd", "given"), (0.4, 0.15, 0.15, 0.15, 0.15))
    if start == "given":
        factors = [draw_block(rng, (n, r), None, dtype) for n, r in zip(sizes, ranks, strict=True)]
        if rng.random() < 0.3:
            k = int(rng.integers(blocks))
            factors[k] = factors[k] * (rng.uniform(size=factors[k].shape) < 0.7).astype(dtype)
        if model == "tucker":
            core = draw_block(rng, tuple(ranks), pick(rng, (None, "all")), dtype)
            options["init"] = (core, factors)
        elif rng.random() < 0.3:
            options["init"] = (draw_block(rng, (ranks[0],), "all", dtype), factors)
        else:
            options["init"] = factors
        if rng.random() < 0.5 and blocks > 1:
            options["fixed"] = [int(rng.integers(blocks))]
            k = options["fixed"][0]
            factors[k] = factors[k] / max(float(factors[k].sum(axis=0).mean()), 1e-3)
    elif start is not None:
        options["init"] = start
    return options
