"""The entropies in the joint objective: weights per entry, references, gradients."""

import numpy as np
import pytest
from helpers import assert_close

import wtfarray as wtf
from wtfarray._models.models import CPModel
from wtfarray._solvers.objective import FactorisationProblem


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
