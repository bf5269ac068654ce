"""Initial factors from singular vectors."""

import numpy as np
import pytest
from fitting import SHAPE
from helpers import numpy_only, to_numpy
from stored_data import Sliceable

import wtfarray as wtf
from wtfarray._arrays.masks import filled_with_means
from wtfarray._arrays.shards import WHOLE
from wtfarray._arrays.stored import StoredData
from wtfarray._arrays.stored_mask import StoredMask
from wtfarray._fit.svd_start import svd_factor, svd_factors


def low_rank(rank=2, seed=0):
    """Non-negative data of exact rank, and their factors."""
    rng = np.random.default_rng(seed)
    factors = [rng.gamma(1.0, size=(n, rank)) for n in SHAPE]
    return wtf.cp_to_tensor(factors), factors


class TestFactor:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("mode", [0, 1, 2])
    @pytest.mark.parametrize("rank", [1, 2, 5, 9])
    def test_factor_is_non_negative_with_the_shape_and_type_of_the_data(
        self, array, mode, rank, dtype
    ):
        X = array(low_rank()[0], dtype)
        factor = svd_factor(X, mode, rank, np.random.default_rng(0))
        assert factor.shape == (SHAPE[mode], rank)
        assert factor.dtype == X.dtype
        values = to_numpy(factor)
        assert np.isfinite(values).all()
        assert (values >= 0).all()
        assert (values.sum(axis=0) > 0).all()

    @pytest.mark.parametrize("mode", [0, 1, 2])
    def test_first_column_is_the_leading_singular_vector(self, array, mode):
        """By Perron and Frobenius it has one sign: no entry is set to zero."""
        X, _ = low_rank()
        expected = np.abs(np.linalg.svd(wtf.unfold(X, mode))[0][:, 0])
        found = to_numpy(svd_factor(array(X), mode, 2, np.random.default_rng(0))[:, 0])
        np.testing.assert_allclose(found, expected, rtol=1e-8)

    @pytest.mark.parametrize("mode", [0, 1, 2])
    def test_components_of_disjoint_support_are_found(self, array, mode):
        """The singular vectors of such components are the factors themselves."""
        factors = [np.zeros((n, 2)) for n in SHAPE]
        rng = np.random.default_rng(0)
        for f, n in zip(factors, SHAPE, strict=True):
            f[: n // 2, 0] = rng.uniform(0.5, 1.0, n // 2)
            f[n // 2 :, 1] = rng.uniform(0.5, 1.0, n - n // 2)
        X = wtf.cp_to_tensor(factors, np.array([2.0, 9.0]))
        found = to_numpy(svd_factor(array(X), mode, 2, np.random.default_rng(0)))
        expected = factors[mode][:, ::-1] / np.linalg.norm(factors[mode][:, ::-1], axis=0)
        np.testing.assert_allclose(found / np.linalg.norm(found, axis=0), expected, atol=1e-7)

    @pytest.mark.parametrize("mode", [0, 1, 2])
    def test_span_contains_the_leading_singular_vector(self, array, mode):
        X, _ = low_rank()
        basis = np.linalg.svd(wtf.unfold(X, mode))[0][:, :1]
        found = to_numpy(svd_factor(array(X), mode, 2, np.random.default_rng(0)))
        rest = basis - found @ np.linalg.lstsq(found, basis)[0]
        assert np.linalg.norm(rest) < 1e-7

    def test_same_seed_gives_the_same_factor(self, array):
        X = array(low_rank()[0])
        first, second, other = (
            to_numpy(svd_factor(X, 0, 9, np.random.default_rng(seed))) for seed in (0, 0, 1)
        )
        assert (first == second).all()
        assert (first != other).any()

    @pytest.mark.parametrize("rank", [1, 3])
    def test_single_entry_gives_a_finite_factor(self, array, rank):
        X = np.zeros(SHAPE)
        X[3, 2, 1] = 1.0
        found = to_numpy(svd_factor(array(X), 0, rank, np.random.default_rng(0)))
        np.testing.assert_allclose(found[:, 0], np.eye(SHAPE[0])[3], atol=1e-12)
        assert (found.sum(axis=0) > 0).all()


@numpy_only
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("merged", [False, True])
def test_data_in_chunks_give_the_factors_of_the_array(masked, merged):
    """Of a tensor, and of its samples as a matrix; missing entries are replaced by means."""
    rng = np.random.default_rng(0)
    X = low_rank(3)[0] + 0.1 * rng.uniform(size=SHAPE)
    mask = rng.uniform(size=SHAPE) > 0.3 if masked else None
    sizes = (SHAPE[0], SHAPE[1] * SHAPE[2]) if merged else SHAPE
    shapes = [(n, 2) for n in sizes]
    complete = filled_with_means(X, mask) if masked else X
    expected = svd_factors(complete, None, shapes, np.random.default_rng(1), WHOLE)
    stored = StoredMask(mask, SHAPE) if masked else None
    data = StoredData(Sliceable(X), chunk=4, mask=stored)
    found = svd_factors(data, stored, shapes, np.random.default_rng(1), WHOLE)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)
