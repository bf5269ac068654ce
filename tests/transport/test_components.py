"""Connected components of the finite costs."""

import math

import numpy as np
import pytest
from fitting import spare_jax
from helpers import numpy_only
from hypothesis import example, given
from hypothesis import strategies as st
from infinite_costs import N, apart, loss_with
from scipy.sparse import bmat, csr_array
from scipy.sparse.csgraph import connected_components

import wtfarray as wtf
from wtfarray._transport.components import components_of


class TestComponents:
    """Balanced transport."""

    @pytest.mark.parametrize("eps", [0.01, 0.1])
    def test_loss_is_the_sum_over_components(self, array, eps):
        rng = np.random.default_rng(0)
        costs = [np.abs(np.subtract.outer(np.arange(n), np.arange(n))) / n for n in (2, 4)]
        X, Y = rng.gamma(1.0, size=(2, 3, N)) + 0.1
        parts = (slice(0, 2), slice(2, 6))
        for s in parts:
            Y[:, s] *= X[:, s].sum(axis=1, keepdims=True) / Y[:, s].sum(axis=1, keepdims=True)
        together = wtf.wasserstein(array(X), array(Y), loss_with(apart(*costs), eps=eps), tol=1e-11)
        alone = [
            wtf.wasserstein(X[:, s], Y[:, s], loss_with(C, eps=eps), tol=1e-11)
            for s, C in zip(parts, costs, strict=True)
        ]
        assert together.converged
        assert float(together.value) == pytest.approx(sum(float(a.value) for a in alone), rel=1e-9)

    def test_components_of_a_separable_cost_are_products(self, array, xp):
        spare_jax(xp)
        rng = np.random.default_rng(0)
        step = np.asarray([[0.0, 1.0], [1.0, 0.0]])
        C1, C2 = apart(step, step[:1, :1]), apart(step, step)
        X, Y = rng.gamma(1.0, size=(2, 2, 3, 4)) + 0.1
        total = 0.0
        for rows, C in ((slice(0, 2), step), (slice(2, 3), step[:1, :1])):
            for columns in (slice(0, 2), slice(2, 4)):
                x, y = X[:, rows, columns], Y[:, rows, columns]
                y *= x.sum(axis=(1, 2), keepdims=True) / y.sum(axis=(1, 2), keepdims=True)
                total += float(wtf.wasserstein(x, y, loss_with((C, step)), tol=1e-11).value)
        found = wtf.wasserstein(array(X), array(Y), loss_with((C1, C2)), tol=1e-11)
        assert found.converged
        assert float(found.value) == pytest.approx(total, rel=1e-9)
        Y[1, 2, 2:] *= 1.1
        Y[1, :2, :2] *= X[1].sum() / Y[1].sum()
        with pytest.raises(ValueError, match=r"in sample 1"):
            wtf.wasserstein(array(X), array(Y), loss_with((C1, C2)))

    @numpy_only
    @example(n=6, share=0.0, seed=0)  # several components
    @example(n=6, share=0.5, seed=0)  # one
    @given(n=st.integers(1, 12), share=st.floats(0.0, 0.5), seed=st.integers(0, 1000))
    def test_agree_with_scipy_connected_components(self, n, share, seed):
        rng = np.random.default_rng(seed)
        open_ = rng.uniform(size=(n, n)) < share
        open_[np.arange(n), rng.integers(0, n, n)] = True
        count, expected = connected_components(bmat([[None, csr_array(open_)], [open_.T, None]]))
        islands = components_of([np.where(open_, 1.0, math.inf)])
        if islands is None:
            assert count == 1
            return
        labels = np.asarray([*islands.sources[0], *islands.targets[0]])
        lonely = np.append(np.zeros(n, dtype=bool), ~open_.any(axis=0))
        for i in np.flatnonzero(~lonely):
            np.testing.assert_array_equal(labels == labels[i], expected == expected[i])
        assert np.all(labels[lonely] == labels.max())
