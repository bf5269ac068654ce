"""From a coarse grid to a finer one: factors, dual variables and curvature."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import numpy_only, to_numpy
from infinite_costs import band, loss_with

import wtfarray as wtf
from wtfarray._dispatch import is_fine_enough
from wtfarray._fit.coarse_to_fine import (
    _divided,
    coarser,
    refine,
    refine_pairs,
    refine_potential,
)
from wtfarray._fit.specification import specify

RANK = 2


LOSS = wtf.Wasserstein(wtf.grid_cost(64, 64), eps=0.1, lam=1.0)


def problems(array, constraints):
    """The problem of 4 images of 64 x 64 pixels, and the coarser one."""
    X = array(np.random.default_rng(0).random((4, 64, 64)))
    setup = specify(
        *("cp", X, RANK, LOSS),
        rho=1e-2,
        constraints=constraints,
        weights="fixed",
        fixed=(),
        sample_weight=None,
    )
    coarse = coarser(setup)
    assert coarse is not None
    return setup, coarse


MIDDLE = [None, "rows", "columns", "all"]


@pytest.mark.parametrize("middle", MIDDLE[:3])
def test_curvature_pairs_are_refined_like_split_factors(array, middle):
    setup, coarse = problems(array, ("rows", middle, "columns"))
    rng = np.random.default_rng(1)
    blocks = [rng.random(shape) for shape in coarse.shapes]
    step = np.concatenate([np.sqrt(block).ravel() for block in blocks])
    rows = np.stack([step, rng.normal(size=step.shape)])
    diagonal = np.abs(rows[0] / rows[1])
    known = refine_pairs(setup, coarse, {"rows": rows, "diagonal": diagonal})
    shares = [1.0, 1.0 if middle == "rows" else 0.5, 0.5]
    fine = [b if k == 0 else np.repeat(b, 2, 0) * shares[k] for k, b in enumerate(blocks)]
    expected = np.concatenate([np.sqrt(block).ravel() for block in fine])
    np.testing.assert_allclose(known["rows"][0], expected)
    # The objective along a step has the same slope on both grids.
    assert known["rows"][0] @ known["rows"][1] == pytest.approx(rows[0] @ rows[1])
    # The diagonal is that of the refined pair.
    np.testing.assert_allclose(known["diagonal"], np.abs(known["rows"][0] / known["rows"][1]))


@pytest.mark.parametrize("middle", MIDDLE)
def test_refined_factors_keep_their_sums(array, middle):
    setup, coarse = problems(array, ("rows", middle, "columns"))
    rng = np.random.default_rng(2)
    blocks = [rng.random(shape) for shape in coarse.shapes]
    blocks[1] /= {"rows": blocks[1].sum(1, keepdims=True), "all": blocks[1].sum()}.get(middle, 1.0)
    blocks[2] /= blocks[2].sum(0)
    blocks[2][:, 0] = 0.0
    first, second, third = map(to_numpy, refine(setup, [array(block) for block in blocks]))
    np.testing.assert_array_equal(first, blocks[0])
    np.testing.assert_allclose(third.sum(0), blocks[2].sum(0), atol=1e-15)
    if middle == "rows":
        np.testing.assert_allclose(second.sum(1), 1.0)
    else:
        np.testing.assert_allclose(second.sum(0), blocks[1].sum(0))


def test_refined_factors_interpolate_smooth_ones(array):
    """The roots of a Gaussian are smooth: halves of bins are close to the Gaussian itself."""
    setup, coarse = problems(array, ("rows", "columns", "columns"))

    def gaussian(bins):
        x = (np.arange(bins) + 0.5) / bins
        values = np.exp(-(((x - 0.4) / 0.15) ** 2))[:, None] + np.zeros(coarse.shapes[1][1])
        return values / values.sum(0)

    blocks = [np.ones(coarse.shapes[0]), gaussian(32), gaussian(32)]
    _, fine, _ = map(to_numpy, refine(setup, [array(block) for block in blocks]))
    split = np.repeat(blocks[1], 2, axis=0) / 2
    error, of_split = (np.abs(a - gaussian(64)).sum() for a in (fine, split))
    assert error < 0.1 * of_split


def test_refined_potential_interpolates_linearly(array):
    x, y = np.arange(32.0)[:, None], np.arange(32.0)
    g = np.stack([x + 2.0 * y, 3.0 - y + 0.0 * x])
    fine = to_numpy(refine_potential(array(g), (2, 64, 64)))
    x, y = (np.arange(64.0)[:, None] - 0.5) / 2, (np.arange(64.0) - 0.5) / 2
    expected = np.stack([x + 2.0 * y, 3.0 - y + 0.0 * x])
    np.testing.assert_allclose(fine[:, 1:-1, 1:-1], expected[:, 1:-1, 1:-1], atol=1e-14)
    np.testing.assert_array_equal(fine[:, 0, 0], g[:, 0, 0])  # constant beyond the last centre


def test_refined_potential_of_masked_data_repeats_the_coarse_values(array):
    g = np.random.default_rng(3).normal(size=(4, 32, 32))
    fine = to_numpy(refine_potential(array(g), (4, 64, 64), smooth=False))
    np.testing.assert_array_equal(fine[:, ::2, ::2], g)
    np.testing.assert_array_equal(fine[:, 1::2, 1::2], g)


class TestCoarser:
    def test_no_coarse_grid_if_a_transported_mode_is_a_sample_mode_of_another_loss(self, array):
        X = array(np.random.default_rng(0).random((32, 32, 32)))
        costs = wtf.grid_cost(32, 32, 32)
        fibres = [wtf.Wasserstein(c, eps=0.1, lam=5.0, modes=(k,)) for k, c in enumerate(costs)]
        options = {"rho": 0.01, "constraints": None, "weights": None}
        rest = {"fixed": (), "sample_weight": None}
        for loss, possible in ((wtf.LossSum(*fibres), False), (wtf.LossSum(fibres[0]), True)):
            setup = specify("cp", X, 2, loss, **options, **rest)
            assert (coarser(setup) is not None) is possible

    def test_a_larger_level_of_smoothing_allows_a_coarser_grid(self, array):
        """Neighbouring bins of 16 are .047 apart: too far for an eps of .01, not for 3 times it."""
        X = array(np.random.default_rng(0).random((3, 32, 32)))
        loss = wtf.Wasserstein(wtf.grid_cost(32, 32), eps=0.01, lam=5.0)
        rest = {"fixed": (), "sample_weight": None, "constraints": None, "weights": None}
        setup = specify("cp", X, 2, loss, rho=0.01, **rest)
        coarse = coarser(setup)
        assert coarse is not None
        assert is_fine_enough(float(coarse.losses[0].costs[0][0, 1]), loss.eps)
        assert coarser(coarse) is None
        finer_loss = replace(loss, eps=0.004)
        finer = specify("cp", X, 2, finer_loss, rho=0.01, **rest)
        assert coarser(finer) is None
        coarse = coarser(finer, 9.0)
        assert coarse is not None
        there, here = _divided((9.0, 3.0, 1.0), coarse)
        assert there == (9.0, 3.0)
        assert here == (1.0,)


class TestFits:
    def test_smoothing_levels_are_divided_between_the_grids(self, array):
        """The last steps are those on the data, and the result is that of a fit on them alone."""
        rng = np.random.default_rng(4)
        centres, grid = rng.uniform(0.2, 0.8, (6, 2, 2)), (np.arange(28) + 0.5) / 28
        spots = np.exp(-((grid - centres[..., None]) ** 2) / 0.004)
        X = np.einsum("nsi,nsj->nij", spots[:, :, 0], spots[:, :, 1])
        X = np.where(X > 0.05, X, 0.0)
        X = array(X / X.sum((1, 2), keepdims=True))
        loss = wtf.Wasserstein(wtf.grid_cost(28, 28), eps=0.005, lam=5.0)
        fit = wtf.cp(X, 2, loss, rho=1e-2, rng=0, tol=1e-3)
        assert fit.converged
        assert [factor.shape[0] for factor in fit.factors] == [6, 28, 28]
        again = wtf.cp(X, 2, loss, rho=1e-2, init=fit, tol=1e-3)
        assert again.objective == pytest.approx(fit.objective, rel=1e-2)

    @numpy_only
    def test_banded_grid_costs_are_not_coarsened(self):
        """A grid cost with infinite entries has no coarser grid."""
        X = np.random.default_rng(0).gamma(1.0, size=(3, 32, 32))
        C = band(8, 32)
        fit = wtf.cp(X, 2, loss_with((C, C), 1.0, 0.2), rng=0, max_iter=5, tol=1.0)
        assert math.isfinite(fit.objective)
