"""Each kind of loss and data gets the term that is made for it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fitting import spare_jax
from helpers import to_numpy

import wtfarray as wtf
from wtfarray import _dispatch
from wtfarray._losses.exact_term import ExactTerm
from wtfarray._losses.selection import terms_of
from wtfarray._losses.sparse_samples import SparseSamplesTerm
from wtfarray._losses.sparse_tensor import SparseTensorTerm
from wtfarray._losses.transport_term import TransportTerm

TABLE = (12, 10)
STACK = (30, 40)


@pytest.fixture(autouse=True)
def not_on_jax(xp):
    spare_jax(xp)


class OwnLoss:
    """The first bin of X; values of a wrong shape for models of more than 1."""

    def value_and_gradient(self, X, Y):
        return (X if float(Y[0, 0]) > 1.0 else X[:, 0]), 0.0 * X


def table():
    """One sample of 120 bins, five of them positive."""
    X = np.zeros(TABLE)
    X[[1, 3, 5, 7, 9], [2, 4, 6, 8, 1]] = 1.0
    return X


def stack():
    """Thirty samples, every third of two bins and the others empty."""
    X = np.zeros(STACK)
    X[::3, 5] = X[::3, 20] = 1.0
    return X


def over_the_table(eps=0.5, lam=1.0):
    return wtf.Wasserstein(wtf.grid_cost(*TABLE), eps=eps, lam=lam, modes=(0, 1))


def along_the_stack(eps=0.5, lam=1.0):
    return wtf.Wasserstein(wtf.grid_cost(STACK[1]), eps=eps, lam=lam)


def term_of(array, loss, X, weights=None, batch=None):
    weights = None if weights is None else array(weights)
    (term,) = terms_of([loss], array(X), weights, batch)
    return term


class TestData:
    @pytest.mark.parametrize("lam", [1.0, math.inf])
    def test_dense_data(self, array, lam):
        term = term_of(array, along_the_stack(lam=lam), np.ones(STACK))
        assert isinstance(term, TransportTerm)

    @pytest.mark.parametrize("lam", [1.0, math.inf])
    def test_one_sparse_sample(self, array, lam):
        assert isinstance(term_of(array, over_the_table(lam=lam), table()), SparseTensorTerm)

    def test_one_sample_that_is_not_sparse(self, array):
        X = table()
        X[0, :] = 1.0  # 15 of 120 bins
        assert isinstance(term_of(array, over_the_table(), X), TransportTerm)

    def test_sparse_samples(self, array):
        assert isinstance(term_of(array, along_the_stack(), stack()), SparseSamplesTerm)

    def test_balanced_sparse_samples(self, array):
        term = term_of(array, along_the_stack(lam=math.inf), stack())
        assert isinstance(term, TransportTerm)

    def test_one_sparse_sample_of_few_distant_bins(self, array, monkeypatch):
        """Newton's method serves bins many eps apart, sparse or not."""
        rules = (_dispatch.NewtonRule(120, 4.0),)
        monkeypatch.setattr(_dispatch, "THRESHOLDS", replace(_dispatch.THRESHOLDS, newton=rules))
        assert isinstance(term_of(array, over_the_table(), table()), SparseTensorTerm)
        assert isinstance(term_of(array, over_the_table(eps=1e-3), table()), TransportTerm)

    def test_threshold_decides(self, array, monkeypatch):
        none = replace(_dispatch.THRESHOLDS, sparse_share=0.0)
        monkeypatch.setattr(_dispatch, "THRESHOLDS", none)
        assert isinstance(term_of(array, over_the_table(), table()), TransportTerm)
        assert isinstance(term_of(array, along_the_stack(), stack()), TransportTerm)


class TestWeightsAndBatches:
    def test_weights_are_served_by_the_transport_term(self, array):
        weights = np.linspace(0.5, 1.5, 30)
        term = term_of(array, along_the_stack(), stack(), weights)
        assert isinstance(term, TransportTerm)
        np.testing.assert_array_equal(to_numpy(term.weights), weights)

    def test_weights_are_repeated_for_the_other_modes(self, array):
        X = np.ones((3, 4, 5))
        loss = wtf.Wasserstein(wtf.grid_cost(5), 0.5, 1.0)
        term = term_of(array, loss, X, [1.0, 2.0, 3.0])
        np.testing.assert_array_equal(to_numpy(term.weights), np.repeat([1.0, 2.0, 3.0], 4))

    def test_weights_of_a_transported_mode_are_refused(self, array):
        expected = "sample_weight was given, but the first mode of X is transported: expected None"
        for loss in (over_the_table(), wtf.Wasserstein(wtf.grid_cost(12), 0.5, 1.0, modes=(0,))):
            with pytest.raises(ValueError, match=expected):
                term_of(array, loss, np.ones(TABLE), np.ones(12))

    def test_batches_of_samples_are_served_by_the_transport_term(self, array):
        assert isinstance(term_of(array, along_the_stack(), stack(), batch=4), TransportTerm)

    def test_one_sparse_sample_has_no_batches(self, array):
        assert isinstance(term_of(array, over_the_table(), table(), batch=4), SparseTensorTerm)


class TestLosses:
    @pytest.mark.parametrize("loss", [wtf.Frobenius(), wtf.KullbackLeibler(), OwnLoss()])
    @pytest.mark.parametrize("weights", [None, np.ones(30)])
    def test_losses_in_closed_form(self, array, loss, weights):
        term = term_of(array, loss, np.ones(STACK), weights)
        assert isinstance(term, ExactTerm)
        assert (term.weights is None) == (weights is None)

    def test_what_an_own_loss_returns_is_checked(self, array):
        term = term_of(array, OwnLoss(), np.ones(STACK))
        assert term.evaluate(array(np.ones(STACK)), 1e-3, 10).value == 30.0
        with pytest.raises(ValueError, match=r"OwnLoss\.value_and_gradient returned values of"):
            term.evaluate(array(2.0 * np.ones(STACK)), 1e-3, 10)

    def test_terms_have_the_order_of_the_losses(self, array):
        losses = [wtf.Frobenius(), along_the_stack(), OwnLoss()]
        terms = terms_of(losses, array(np.ones(STACK)), None, None)
        assert [type(term) for term in terms] == [ExactTerm, TransportTerm, ExactTerm]

    def test_balanced_loss_between_components_is_refused(self, array):
        cost = np.where(np.eye(40) > 0, 0.0, math.inf)
        with pytest.raises(ValueError, match="infinite costs separate the bins into connected"):
            term_of(array, wtf.Wasserstein(cost, 0.5), np.ones(STACK))
