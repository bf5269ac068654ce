"""The term for sparse tensors: the same loss, gradient and bounds as `wasserstein`."""

import math

import numpy as np
import pytest
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._losses.sparse_tensor import SparseTensorTerm

SHAPE = (12, 10)
LAMS = [1.0, 25.0, math.inf]


def sparse(lam, seed=0):
    """A table with six positive entries and a positive model; balanced: of the same mass."""
    rng = np.random.default_rng(seed)
    X = np.zeros(SHAPE)
    X.ravel()[rng.choice(X.size, 6, replace=False)] = rng.uniform(0.1, 1.0, 6)
    Y = rng.uniform(0.01, 1.0, SHAPE) / 20
    return X, Y * (X.sum() / Y.sum()) if math.isinf(lam) else Y


def problem(lam, eps=0.05):
    return wtf.Wasserstein(wtf.grid_cost(*SHAPE), eps=eps, lam=lam, modes=(0, 1))


@pytest.mark.parametrize("lam", LAMS)
def test_value_and_gradient_agree_with_wasserstein(array, lam):
    X, Y = sparse(lam)
    term = SparseTensorTerm(problem(lam).bind(array(X)), SHAPE)
    found = term.evaluate(array(Y), 1e-9, 500)
    expected = wtf.wasserstein(X, Y, problem(lam), tol=1e-10, max_iter=5000)
    assert found.converged
    np.testing.assert_allclose(found.value, float(expected.value), rtol=1e-8)
    gradient = to_numpy(found.gradient) - expected.gradient
    if math.isinf(lam):  # known up to a constant
        gradient -= gradient.mean()
    np.testing.assert_allclose(gradient, 0.0, atol=1e-4)


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_certificate_encloses_the_loss(array, lam, iterations):
    X, Y = sparse(lam, seed=iterations)
    term = SparseTensorTerm(problem(lam).bind(array(X)), SHAPE)
    exact = float(wtf.wasserstein(X, Y, problem(lam), tol=1e-10, max_iter=5000).value)
    rough = term.certify(array(Y), 1e-300, iterations)
    assert rough.value - 1e-9 <= exact <= rough.value + rough.gap + 1e-9
    assert not rough.converged
    fine = term.certify(array(Y), 1e-7, 1000)
    assert fine.converged
    assert fine.gap <= 1e-7
    np.testing.assert_allclose(fine.value, exact, atol=1e-7)


def test_gap_is_at_least_that_of_the_whole_problem(array):
    """The bound over the support is at least that of the whole problem."""
    X, Y = sparse(1.0)
    bound = problem(1.0).bind(array(X))
    term = SparseTensorTerm(bound, SHAPE)
    rough = term.certify(array(Y), 1e-300, 2)
    g = term._cycle(term.state, array(np.log(Y)[None, ...]))[1] * bound.kernel.eps
    _, gaps, _ = bound.bounds(g, array(Y[None, ...]))
    assert 0 < float(gaps[0]) <= rough.gap * (1 + 1e-9)


def test_zeros_of_the_model_have_gradient_minus_infinity(array):
    X, Y = sparse(1.0)
    Y[:, 3] = 0.0
    term = SparseTensorTerm(problem(1.0).bind(array(X)), SHAPE)
    found = term.certify(array(Y), 1e-7, 1000)
    expected = wtf.wasserstein(X, Y, problem(1.0), tol=1e-10, max_iter=5000)
    np.testing.assert_allclose(found.value, float(expected.value), atol=1e-6)
    assert (to_numpy(found.gradient)[:, 3] == -math.inf).all()


def test_balanced_fits_that_cannot_conserve_mass_are_refused(array):
    X, _ = sparse(math.inf)
    loss = wtf.Wasserstein(wtf.grid_cost(*SHAPE), eps=0.05, lam=math.inf, modes=(0, 1))
    with pytest.raises(ValueError, match=r"constraints .*balanced"):
        wtf.cp(array(X), 2, loss, constraints=(None, "columns"), rng=0)
