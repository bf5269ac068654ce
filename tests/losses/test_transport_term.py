"""Terms of dense and of sparse data on the same problem."""

import numpy as np
import pytest
from fitting import spare_jax
from helpers import numpy_only, to_numpy
from infinite_costs import LAMS, band, loss_with

import wtfarray as wtf
from wtfarray._losses.selection import terms_of
from wtfarray._losses.sparse_tensor import SparseTensorTerm
from wtfarray._losses.transport_term import MOST_FAILURES, TransportTerm
from wtfarray._transport.inner_solver import inner_solver, solve_to_gap
from wtfarray._transport.newton import Newton
from wtfarray._transport.sinkhorn import Sinkhorn


class TestTerms:
    @pytest.mark.parametrize("lam", LAMS)
    def test_terms_for_dense_and_sparse_data_agree_with_wasserstein(self, array, xp, lam):
        spare_jax(xp)
        rng = np.random.default_rng(0)
        X, Y = np.zeros((1, 9, 8)), rng.uniform(0.1, 1.0, (1, 9, 8))
        X[0, 2, 3], X[0, 4, 4], X[0, 3, 1] = 0.3, 1.0, 0.2
        Y[0, 3, 2] = 0.0
        whole = loss_with((band(2, 9), band(3, 8)), lam)
        expected = wtf.wasserstein(X, Y, whole, tol=1e-12)
        assert np.sum(expected.gradient == lam) > 10
        for kind in (SparseTensorTerm, TransportTerm):
            term = kind(whole.bind(array(X)), X.shape)
            term.set_level(3.0)
            term.evaluate(array(Y), 1e-6, 100)
            term.set_level(1.0)
            for found in (term.evaluate(array(Y), 1e-9, 500), term.certify(array(Y), 1e-9, 500)):
                assert found.converged
                assert float(found.value) == pytest.approx(float(expected.value), rel=1e-8)
                gradient = np.where(Y > 0, to_numpy(found.gradient), 0.0)
                np.testing.assert_allclose(
                    gradient, np.where(Y > 0, expected.gradient, 0.0), atol=1e-4
                )


class TestFallback:
    """Where Sinkhorn iterations do not converge, Newton's method continues."""

    def term_and_model(self, array):
        rng = np.random.default_rng(0)
        X, Y = (array(rng.dirichlet(np.full(64, 0.3), 2).reshape(2, 8, 8)) for _ in range(2))
        loss = wtf.Wasserstein(wtf.grid_cost(8, 8), eps=0.01, lam=10.0)
        return TransportTerm(loss.bind(X), (2, 8, 8)), Y, loss.bind(X)

    def test_value_of_few_iterations(self, array, xp):
        spare_jax(xp)
        term, Y, problem = self.term_and_model(array)
        assert isinstance(inner_solver(problem, term.state), Sinkhorn)
        found = term.evaluate(Y, 1e-9, 40)
        assert found.converged
        exact = term.certify(Y, 1e-10, 2000)
        assert float(found.value) == pytest.approx(exact.value, abs=1e-8)

    def test_certificate(self, array, xp):
        """Of few iterations, where Sinkhorn's alone would leave a gap."""
        spare_jax(xp)
        term, Y, problem = self.term_and_model(array)
        g, _ = solve_to_gap(inner_solver(problem, term.state), Y, lambda _: 1e-9, 60)
        assert float(xp.sum(problem.bounds(g, Y)[1])) > 1e-6
        found = term.certify(Y, 1e-9, 60)
        assert found.converged
        assert float(found.gap) <= 1e-9

    def test_stays_after_several_failures(self, array, xp):
        spare_jax(xp)
        term, Y, _ = self.term_and_model(array)
        kinds = []
        for _ in range(MOST_FAILURES):
            term.start_from(0.0 * term.state)
            term.evaluate(Y, 1e-9, 40)
            kinds.append(type(term._solvers[0]))
        assert kinds == [type(None)] * (MOST_FAILURES - 1) + [Newton]
        term.set_level(1.0)
        assert term._solvers == [None]


@numpy_only
def test_batch_of_empty_samples_converges():
    X, Y = np.zeros((3, 6)), np.full((3, 6), 1 / 6)
    X[0] = X[2] = 1 / 6
    for model in (Y, np.where(X > 0, Y, 0.0)):
        (term,) = terms_of([wtf.Wasserstein(wtf.grid_cost(6), 0.1, 5.0)], X, None, 1)
        assert term.evaluate(model, 1e-6, 60).converged
