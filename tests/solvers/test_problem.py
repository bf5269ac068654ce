"""A factorisation problem: its entropies, its model tensor and its certificate."""

from dataclasses import replace

import array_api_compat
import numpy as np
import pytest
from helpers import assert_close, numpy_only
from joint_problems import KINDS, LOSSES, definition, tensor_problem

import wtfarray as wtf
from wtfarray._models.models import CPModel, TuckerModel
from wtfarray._solvers.problem import FactorisationProblem


def problem(rho, references=None):
    return FactorisationProblem(
        CPModel(1, learns_weights=False), [], (rho,), (None,), (0,), (3,), references
    )


def test_entropy_is_scaled_by_the_rho_of_its_block(array):
    A = array([[0.5, 0.0], [1.0, 2.0], [0.1, 0.3]])
    expected, gradient = wtf.entropy(A)
    value, found = problem(2.0).entropy([A], 0)
    assert float(value) == pytest.approx(2.0 * float(expected), rel=1e-12)
    assert_close(found[1:, :], 2.0 * gradient[1:, :])


def test_gradient_of_the_relative_entropy_agrees_with_differences(array):
    A = np.asarray([[0.5, 0.2], [1.0, 2.0], [0.1, 0.3]])
    B = np.asarray([[0.1, 0.7], [3.0, 1.0], [0.2, 0.2]])
    rho = np.asarray([[1.0], [2.0], [0.5]])
    relative = problem(array(rho), (array(B),))
    value, gradient = relative.entropy([array(A)], 0)
    assert float(value) == pytest.approx(np.sum(rho * A * (np.log(A / B) - 1.0)), rel=1e-12)
    for i, j in np.ndindex(A.shape):
        step = np.zeros_like(A)
        step[i, j] = 1e-6
        ends = [relative.block_entropy([array(A + s * step)], 0) for s in (1.0, -1.0)]
        assert float(gradient[i, j]) == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-7)


@pytest.mark.parametrize("model", [CPModel(2, learns_weights=False), TuckerModel(2)])
def test_scale_of_the_model_is_not_compiled_in(xp, array, model, monkeypatch):
    """JAX would else compile the model again for data of another mass."""
    kind, traced = type(model), []
    tensor = kind.tensor

    def counted(self, blocks):
        traced.append(self)
        return tensor(self, blocks)

    monkeypatch.setattr(kind, "tensor", counted)
    rng = np.random.default_rng(0)
    shapes = [(7, 2), (3, 2), (2, 2)][: 2 if kind is CPModel else 3]
    blocks = [array(rng.uniform(size=shape)) for shape in shapes]
    found = {}
    for scale in (1.0, 2.0, 3.0):
        scaled = replace(problem(0.1), model=replace(model, scale=scale), shape=(7, 3))
        found[scale] = scaled.tensor(blocks)
        assert_close(found[scale], scale * found[1.0])
    # The product with a scale of one is left out.
    assert len(traced) == (2 if array_api_compat.is_jax_namespace(xp) else 3)


class TestCertify:
    @numpy_only
    @pytest.mark.parametrize("share", [1e-2, 1e-6])
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", LOSSES)
    def test_bounds_contain_the_objective(self, name, kind, share):
        problem, blocks, X = tensor_problem(np.asarray, LOSSES[name], kind)
        found = problem.certify(blocks, share, 5000)
        expected = definition(problem, blocks, X, LOSSES[name])
        noise = 1e-9 * abs(expected)
        assert found.converged
        assert found.value - noise <= expected <= found.value + found.gap + noise
        assert found.gap <= share * max(abs(found.value), problem.scale)
        assert tuple(found.gradient.shape) == X.shape

    @numpy_only
    def test_too_few_iterations_give_a_bound_that_says_so(self):
        loss = wtf.Wasserstein(wtf.grid_cost(4, 2), 0.01, 2.0)
        problem, blocks, X = tensor_problem(np.asarray, loss, "cp")
        found = problem.certify(blocks, 1e-9, 1)
        expected = definition(problem, blocks, X, loss)
        assert not found.converged
        assert found.gap > 1e-6
        assert found.value <= expected <= found.value + found.gap

    def test_exact_losses_have_no_gap(self, array):
        problem, blocks, X = tensor_problem(array, wtf.Frobenius(), "tucker")
        found = problem.certify(blocks, 1e-9)
        assert found.gap == 0.0
        assert found.converged
        expected = definition(problem, blocks, X, wtf.Frobenius())
        assert found.value == pytest.approx(expected, rel=1e-12)
