"""The smallest value of a loss over all models."""

import numpy as np
import pytest
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._losses.least import least_loss
from wtfarray._losses.selection import terms_of
from wtfarray._losses.source_term import SourceTerm

LOSS = wtf.Wasserstein(wtf.grid_cost(6), eps=0.1, lam=2.0)


def data(seed=0):
    return np.random.default_rng(seed).gamma(1.0, size=(4, 6))


class TestLeastLoss:
    def test_is_attained_by_the_blurred_data(self, array):
        X = array(data())
        (term,) = terms_of([LOSS], X, None, None)
        blurred = LOSS.conjugate(X, 0.0 * X)[1]
        value = float(wtf.wasserstein(X, blurred, LOSS, tol=1e-12).value)
        assert least_loss(term) == pytest.approx(value, rel=1e-9)
        other = float(wtf.wasserstein(X, X, LOSS).value)
        assert least_loss(term) < other

    def test_sample_weights_count(self, array):
        X, weights = data(), np.asarray([1.0, 0.0, 2.0, 0.5])
        (term,) = terms_of([LOSS], array(X), array(weights), None)
        alone = [least_loss(terms_of([LOSS], array(X[i : i + 1]), None, None)[0]) for i in range(4)]
        assert least_loss(term) == pytest.approx(float(weights @ alone), rel=1e-9)

    @pytest.mark.parametrize("name", ["sparse samples", "sparse tensor"])
    def test_terms_of_sparse_data(self, array, name):
        X = np.zeros((30, 6))
        X[np.arange(30), np.arange(30) % 6] = 1.0 + np.arange(30)
        loss = LOSS
        if name == "sparse tensor":
            loss = wtf.Wasserstein(wtf.grid_cost(30, 6), eps=0.1, lam=2.0, modes=(0, 1))
        (term,) = terms_of([loss], array(X), None, None)
        values = to_numpy(loss.conjugate(array(X), array(np.zeros_like(X)))[0])
        assert least_loss(term) == pytest.approx(-float(values.sum()), rel=1e-6)

    def test_others_are_zero_at_the_data(self, array):
        debiased = wtf.Wasserstein(wtf.grid_cost(6), eps=0.1, lam=2.0, debias=True)
        losses = [wtf.Frobenius(), wtf.KullbackLeibler(), debiased]
        assert [least_loss(t) for t in terms_of(losses, array(data()), None, None)] == [0.0] * 3

    def test_of_one_of_several_data_sets(self, array):
        (term,) = terms_of([LOSS], array(data()), None, None)
        source = SourceTerm(term, slice(0, 6), None, (4, 6), 3.0)
        assert least_loss(source) == pytest.approx(3.0 * least_loss(term))
