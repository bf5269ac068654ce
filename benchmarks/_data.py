"""Data of the benchmarks and the paper's experiments: NumPy arrays, each sample of mass 1."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = Any
BUMPS = ((0.0, 0.3, 0.15, 0.05), (0.5, 0.2, 0.15, 0.1), (-0.5, 0.15, 0.15, 0.15))
"""Centre, width and jitter along both axes of what the stacked images show."""


def normalised(X: Array) -> Array:
    """Samples along the first axis, each divided by its mass."""
    return X / X.sum(axis=tuple(range(1, X.ndim)), keepdims=True)


def bumps(samples: int, seed: int = 0) -> Array:
    """What the stacked images are made of, along both axes: (samples, bump, axis, place)."""
    rng = np.random.default_rng(seed)
    x = np.linspace(-1, 1, 32)
    parts = [
        [
            [np.exp(-(((x - centre + r * rng.normal()) / width) ** 2)) for r in jitter]
            for centre, width, *jitter in BUMPS
        ]
        for _ in range(samples)
    ]
    return np.asarray(parts)


def stacked_images(samples: int, seed: int = 0) -> Array:
    """The paper's second experiment: three separable bumps, their centres jittered."""
    parts = bumps(samples, seed)
    return normalised(np.einsum("nki,nkj->nij", parts[:, :, 0], parts[:, :, 1]))


def random_factors(shape: Sequence[int], rank: int) -> list[Array]:
    """Uniform factors: rows of the first and columns of the others sum to one."""
    rng = np.random.default_rng(0)
    factors = [rng.random((n, rank)) for n in shape]
    return [a / a.sum(1 if k == 0 else 0, keepdims=True) for k, a in enumerate(factors)]


def small_faces(images: Array) -> Array:
    """Every second pixel of the Olivetti faces (n, 64, 64), each of mass one."""
    return normalised(images[:, ::2, ::2].astype(np.float64))


def training_faces(folder: Path) -> Array:
    """The 200 faces of 32 x 32 pixels that the paper's first split fits."""
    stored = np.load(folder / "olivetti.npz")["images"]
    split = np.load(folder / "paper_faces_splits.npz")["train_idx"][0]
    return small_faces(stored[split])


def sampled_tensor(stored: Mapping[str, Array]) -> Array:
    """A tensor that is stored as the places and the values of what is not zero."""
    X = np.zeros(stored["shape"])
    X[tuple(stored["indices"].T)] = stored["values"]
    return X


def counted_histograms(samples: int, bins: int = 60, rank: int = 8, counts: int = 500) -> Array:
    """Mixtures of bumps, each sample moved a little, drawn as counts."""
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, bins)
    atoms = np.exp(-(((x - rng.random((rank, 1))) / 0.06) ** 2))
    shares = rng.dirichlet(np.full(rank, 0.3), samples)
    moved = [np.interp(x - 0.03 * rng.normal(), x, share @ atoms) for share in shares]
    X = np.asarray(moved) + 1e-6
    X = rng.poisson(counts * X / X.sum(axis=1, keepdims=True)) + 1e-3
    return normalised(X)


def digits() -> Array:
    """The 1797 written digits of scikit-learn, 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    return normalised(load_digits().images)


def strokes(samples: int, size: int = 28, seed: int = 0) -> Array:
    """
    Images of thick lines on an empty background, as written characters are.

    Each image shows one of ten polylines of three to five corners, turned, scaled and moved, with
    its corners displaced at random. The line falls off smoothly within its thickness; all other
    pixels, 83 % of them on average, are exactly 0.
    """
    rng = np.random.default_rng(seed)
    patterns = [rng.uniform(0.15, 0.85, (rng.integers(3, 6), 2)) for _ in range(10)]
    grid = (np.arange(size) + 0.5) / size
    pixels = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)
    images = np.zeros((samples, size, size))
    for image in images:
        corners = patterns[rng.integers(10)] - 0.5
        angle, scale = 0.2 * rng.normal(), rng.uniform(0.85, 1.1)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        corners = scale * corners @ turn + 0.5 + 0.03 * rng.normal(size=2)
        corners = corners + 0.02 * rng.normal(size=corners.shape)
        distance = np.min(
            [distance_to(pixels, a, b) for a, b in itertools.pairwise(corners)],
            axis=0,
        )
        thickness = rng.uniform(0.08, 0.11)
        image[:] = np.maximum(1.0 - (distance / thickness) ** 2, 0.0)
    return normalised(images)


def distance_to(pixels: Array, start: Array, end: Array) -> Array:
    """Distance of points (..., 2) from the straight line between two others."""
    along = end - start
    place = ((pixels - start) @ along / (along @ along)).clip(0.0, 1.0)
    return np.linalg.norm(pixels - start - place[..., None] * along, axis=-1)


def scattered(samples: int, points: int, rank: int = 10, seed: int = 0) -> tuple[Array, Array]:
    """Random points in the plane (points, 2), and noisy mixtures of smooth bumps over them."""
    rng = np.random.default_rng(seed)
    places = rng.random((points, 2))
    centres = rng.random((rank, 2))
    atoms = np.exp(-(((places[:, None] - centres) / 0.12) ** 2).sum(-1))
    shares = rng.dirichlet(np.full(rank, 0.3), samples)
    X = shares @ normalised(atoms.T)
    return places, normalised(X * rng.gamma(5.0, 0.2, X.shape) + 1e-6)


def moving_peaks() -> Array:
    """The thirty histograms of 64 bins that README.md fits."""
    rng = np.random.default_rng(0)
    centres = rng.choice([16, 46], (30, 1)) + rng.normal(0, 3, (30, 1))
    return normalised(np.exp(-(((np.arange(64) - centres) / 4) ** 2)))


def atom_error(factors: Sequence[Array], truth: Sequence[Array]) -> float:
    """Mean total variation between atoms and true ones, in the best order of the components."""
    found, true = np.concat(factors), np.concat(truth)
    orders = itertools.permutations(range(true.shape[1]))
    errors = [0.5 * np.abs(found[:, list(order)] - true).sum() for order in orders]
    return float(min(errors)) / (len(truth) * true.shape[1])
