"""Curvature pairs of a convex quadratic, and the inverse Hessian that they define."""

import itertools

import numpy as np
from minimisation import random_quadratic

from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._optimize.objective import Point

N, EPS = 6, 2.0**-52


def point(array, x, gradient, dtype="float64"):
    norm, square = float(np.max(np.abs(gradient))), float(gradient @ gradient)
    return Point(array(x, dtype), array(gradient, dtype), 0.0, norm, square, 0.0)


def iterates(array, count, seed=0, dtype="float64"):
    """Random points of a convex quadratic, with their gradients."""
    rng = np.random.default_rng(seed)
    matrix, target = random_quadratic(N, 10.0, rng)
    xs = rng.normal(size=(count, N))
    return [point(array, x, matrix @ (x - target), dtype) for x in xs], xs, (xs - target) @ matrix


def bfgs_inverse(steps, changes, memory, diagonal=1.0):
    """The inverse Hessian of the last pairs, by the BFGS update written out."""
    steps, changes = steps[-memory:], changes[-memory:]
    scale = (steps[-1] @ changes[-1]) / (changes[-1] @ (diagonal * changes[-1]))
    inverse = np.eye(N) * diagonal * scale
    for s, y in zip(steps, changes, strict=True):
        rho = 1.0 / (s @ y)
        left = np.eye(N) - rho * np.outer(s, y)
        inverse = left @ inverse @ left.T + rho * np.outer(s, s)
    return inverse


def diagonal_of(steps, changes, spread=np.inf):
    """The diagonal that pairs define, bounded around its median."""
    d = np.sqrt((steps**2).sum(axis=0) / (changes**2).sum(axis=0))
    median = np.sort(d)[d.size // 2]
    return np.clip(d, median / spread, median * spread)


def updated(xp, points, memory, kind=CurvaturePairs, **options):
    pairs = kind(points[0], memory, EPS, xp, **options)
    for old, new in itertools.pairwise(points):
        pairs.update(old, new)
    return pairs
