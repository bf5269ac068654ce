"""Random tensors and factors for the tests of n-mode algebra."""

import numpy as np
import pytest

SHAPES = [(4,), (3, 5), (4, 1, 3), (2, 3, 4, 2), (2, 3, 1, 2, 3)]


TIGHT = 1e-14


every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def normal(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def uniform_factors(shape, ranks, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.1, 1.0, size=pair) for pair in zip(shape, ranks, strict=True)]
