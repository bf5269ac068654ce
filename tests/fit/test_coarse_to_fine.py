"""From a coarse grid to a finer one: factors, dual variables and curvature."""

import math

import numpy as np
import pytest
from helpers import numpy_only, to_numpy
from infinite_costs import band, loss_with

import wtfarray as wtf
from wtfarray._fit.coarse_to_fine import coarser, refine, refine_pairs, refine_potential
from wtfarray._fit.specification import specify
from wtfarray._solvers.sphere import to_sphere

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


@pytest.mark.parametrize("middle", [None, "rows", "columns"])
def test_curvature_pairs_are_refined_like_the_factors(array, middle):
    setup, coarse = problems(array, ("rows", middle, "columns"))
    rng = np.random.default_rng(1)
    blocks = [rng.random(shape) for shape in coarse.shapes]
    step = np.concatenate([np.sqrt(block).ravel() for block in blocks])
    rows = np.stack([step, rng.normal(size=step.shape)])
    diagonal = np.abs(rows[0] / rows[1])
    known = refine_pairs(setup, coarse, {"rows": rows, "diagonal": diagonal})
    fine = refine(setup, [array(block) for block in blocks])
    expected = np.concatenate([to_numpy(to_sphere(block)).ravel() for block in fine])
    np.testing.assert_allclose(known["rows"][0], expected)
    # The objective along a step has the same slope on both grids.
    assert known["rows"][0] @ known["rows"][1] == pytest.approx(rows[0] @ rows[1])
    # The diagonal is that of the refined pair.
    np.testing.assert_allclose(known["diagonal"], np.abs(known["rows"][0] / known["rows"][1]))


def test_refined_factors_pool_to_the_coarse_tensor(array):
    setup, coarse = problems(array, ("rows", "columns", "columns"))
    rng = np.random.default_rng(2)
    blocks = [array(rng.random(shape)) for shape in coarse.shapes]
    fine = to_numpy(wtf.cp_to_tensor(refine(setup, blocks)))
    pooled = fine.reshape(4, 32, 2, 32, 2).sum((2, 4))
    np.testing.assert_allclose(pooled, to_numpy(wtf.cp_to_tensor(blocks)))


def test_refined_potential_repeats_the_coarse_values(array):
    g = np.random.default_rng(3).normal(size=(4, 32, 32))
    fine = to_numpy(refine_potential(array(g), (4, 64, 64)))
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


class TestFits:
    @numpy_only
    def test_banded_grid_costs_are_not_coarsened(self):
        """A grid cost with infinite entries has no coarser grid."""
        X = np.random.default_rng(0).gamma(1.0, size=(3, 32, 32))
        C = band(8, 32)
        fit = wtf.cp(X, 2, loss_with((C, C), 1.0, 0.2), rng=0, max_iter=5, tol=1.0)
        assert math.isfinite(fit.objective)
