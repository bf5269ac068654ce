"""Products between all bins and a support, against those of whole arrays."""

import numpy as np
import pytest
from helpers import assert_close, numpy_only, set_thresholds, to_numpy
from hypothesis import given
from hypothesis import strategies as st

import wtfarray as wtf
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.support_products import SupportProducts, tree_of

SHAPES = [(12,), (9, 8), (6, 7, 5), (3, 4, 5, 2)]


def kernel_of(array, shape, eps=0.3):
    """Costs that are not symmetric: a transposed matrix would be noticed."""
    rng = np.random.default_rng(0)
    return GibbsKernel.of([array(rng.random((n, n))) for n in shape], eps)


def support_of(shape, count, seed=1):
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(int(np.prod(shape)), count, replace=False))


def always(monkeypatch):
    """Use the products however little they save."""
    set_thresholds(monkeypatch, support_share=1e9, support_rows=1e9)


@pytest.mark.parametrize("count", [1, 4, 10])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_agree_with_those_of_whole_arrays(xp, array, monkeypatch, shape, count):
    always(monkeypatch)
    kernel, support = kernel_of(array, shape), support_of(shape, count)
    products = SupportProducts.of(kernel, support, shape)
    rng = np.random.default_rng(2)
    full, values = rng.random((1, *shape)), rng.random((1, count))
    found = products.apply(array(full))
    expected = to_numpy(kernel.apply(array(full))).reshape(1, -1)[:, support]
    assert_close(found, array(expected))
    scattered = np.zeros((1, *shape))
    scattered.reshape(-1)[support] = values[0]
    assert_close(products.apply_adjoint(array(values)), kernel.apply_adjoint(array(scattered)))


@numpy_only
@given(st.integers(0, 2**30), st.sampled_from(SHAPES))
def test_tree_holds_every_bin_of_the_support_once(seed, shape):
    count = 1 + seed % 9
    support = support_of(shape, count, seed)
    nodes = np.zeros(1, dtype=np.intp)
    for layout, n in zip(tree_of(support, shape), shape, strict=True):
        children = nodes[:, None] * n + layout.bins
        nodes = children.ravel()[layout.children]
        assert layout.exists.sum() == nodes.size
        assert np.array_equal(layout.places[layout.exists], np.arange(nodes.size))
    assert np.array_equal(nodes, support)


@numpy_only
def test_full_support_and_banded_costs_use_whole_arrays():
    shape = (6, 7, 5)
    every = np.arange(210)
    assert SupportProducts.of(kernel_of(np.asarray, shape), every, shape) is None
    few = support_of(shape, 3)
    assert SupportProducts.of(kernel_of(np.asarray, shape), few, shape) is not None
    banded = wtf.Wasserstein(wtf.grid_cost(300, reach=0.1, scale=None), eps=0.1).costs
    kernel = GibbsKernel.of(banded, 0.1)
    assert SupportProducts.of(kernel, np.asarray([3, 7]), (300,)) is None
