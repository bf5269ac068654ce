"""The gradient in the packed vector, against that of one block after the other."""

import numpy as np
import pytest
from helpers import to_numpy

from wtfarray._solvers.packed import VectorLayout, blocks_and_totals, packed_gradient
from wtfarray._solvers.problem import entropy_and_gradient
from wtfarray._solvers.sphere import from_sphere, pull_back

SHAPES = ((4, 3), (5, 3), (6, 3), (2, 2))
CONSTRAINTS = ("rows", None, "columns", "all")
FREE = (0, 1, 2, 3)


def drawn(array, shape, seed):
    return array(np.random.default_rng(seed).uniform(0.1, 1.0, shape))


@pytest.mark.parametrize("free", [FREE, (1, 3)])
@pytest.mark.parametrize("different", [False, True])
@pytest.mark.parametrize("with_references", [False, True])
def test_agrees_with_blocks_one_by_one(xp, array, free, different, with_references):
    layout = VectorLayout(free, tuple(CONSTRAINTS[k] for k in free), tuple(SHAPES[k] for k in free))
    p = [drawn(array, shape, k) for k, shape in enumerate(SHAPES)]
    adjoints = [drawn(array, shape, 10 + k) for k, shape in enumerate(SHAPES)]
    rho = [0.3] * 4
    references = None
    if different:
        rho = [0.1, 0.2, drawn(array, (6, 1), 20), 0.4]
    if with_references:
        references = [None, drawn(array, (5, 3), 30), None, drawn(array, (2, 2), 31)]
    blocks = [from_sphere(p[k], CONSTRAINTS[k]) for k in FREE]
    x = layout.pack(p)
    found, totals = blocks_and_totals(x, layout=layout)
    for k, block in zip(free, found, strict=True):
        np.testing.assert_allclose(to_numpy(block), to_numpy(blocks[k]), rtol=1e-14)
    gradient, (norm, square, slope, entropy) = packed_gradient(
        x,
        blocks,
        totals,
        adjoints,
        2.0 * x,
        layout.pack_weights(rho, x),
        layout.pack_references(references, blocks),
        layout=layout,
    )
    parts, expected_entropy = [], 0.0
    for k in free:
        reference = None if references is None else references[k]
        value, slope_of_entropy = entropy_and_gradient(blocks[k], rho[k], reference)
        expected_entropy += float(value)
        in_block = adjoints[k] + slope_of_entropy
        parts.append(to_numpy(pull_back(p[k], blocks[k], in_block, CONSTRAINTS[k])).ravel())
    expected = np.concatenate(parts)
    np.testing.assert_allclose(to_numpy(gradient), expected, rtol=1e-12, atol=1e-14)
    assert float(norm) == pytest.approx(np.abs(expected).max())
    assert float(square) == pytest.approx(expected @ expected)
    assert float(slope) == pytest.approx(2.0 * expected @ to_numpy(x))
    assert float(entropy) == pytest.approx(expected_entropy)
