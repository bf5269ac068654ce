"""Losses of the caller's own: what they return is checked, and weighted."""

import numpy as np
import pytest
from helpers import to_numpy

from wtfarray._losses.exact_term import ExactTerm, checked_loss

SHAPE = (3, 6)


class Returns:
    """A loss that returns what it was made with."""

    def __init__(self, values, gradient):
        self.returned = values, gradient
        self.seen = []

    def value_and_gradient(self, X, Y):
        self.seen.append((X, Y))
        return self.returned


class TestCheckedLoss:
    def check(self, array, values, gradient, *, weighted=False):
        X = array(np.ones(SHAPE))
        return checked_loss(Returns(values, gradient), X, weighted=weighted)(X)

    @pytest.mark.parametrize("shape", [(3,), ()])
    def test_values_and_gradient_pass_through(self, array, shape):
        values, gradient = array(np.ones(shape)), array(np.zeros(SHAPE))
        found = self.check(array, values, gradient)
        assert found[0] is values
        assert found[1] is gradient

    def test_loss_is_called_with_the_data_and_the_model(self, array):
        X, Y = array(np.ones(SHAPE)), array(np.zeros(SHAPE))
        loss = Returns(array([1.0, 2.0, 3.0]), Y)
        checked_loss(loss, X, weighted=False)(Y)
        assert loss.seen[0][0] is X
        assert loss.seen[0][1] is Y

    @pytest.mark.parametrize("shape", [(1,), (6,), (3, 1), SHAPE])
    def test_values_of_another_shape_are_refused(self, array, shape):
        expected = r"^Returns\.value_and_gradient returned values of shape .*: expected an array "
        with pytest.raises(ValueError, match=expected + r"of shape \(3,\) or \(\)$"):
            self.check(array, array(np.ones(shape)), array(np.zeros(SHAPE)))

    def test_weights_need_one_value_for_each_sample(self, array):
        with pytest.raises(ValueError, match=r"values of shape \(\): .* of shape \(3,\)$"):
            self.check(array, array(1.0), array(np.zeros(SHAPE)), weighted=True)

    @pytest.mark.parametrize("shape", [(3,), (6, 3), (1, 3, 6)])
    def test_gradient_of_another_shape_is_refused(self, array, shape):
        with pytest.raises(ValueError, match=r"returned gradient of .* of shape \(3, 6\)$"):
            self.check(array, array(np.ones(3)), array(np.zeros(shape)))

    @pytest.mark.parametrize(("values", "kind"), [(1.0, "float"), (None, "NoneType")])
    def test_what_is_no_array_is_refused(self, array, values, kind):
        with pytest.raises(ValueError, match=f"returned values of {kind}: expected an array"):
            self.check(array, values, array(np.zeros(SHAPE)))

    @pytest.mark.parametrize("which", ["values", "gradient"])
    def test_another_dtype_is_refused(self, array, which):
        values = array(np.ones(3), "float32" if which == "values" else "float64")
        gradient = array(np.zeros(SHAPE), "float32" if which == "gradient" else "float64")
        expected = f"returned {which} of dtype .*float32: expected .*float64, that of X"
        with pytest.raises(ValueError, match=expected):
            self.check(array, values, gradient)


class TestExactTerm:
    def term(self, array, weights=None):
        """Values 1, 2, 3 and a gradient of ones."""
        values, gradient = array([1.0, 2.0, 3.0]), array(np.ones(SHAPE))
        weights = None if weights is None else array(weights)
        return ExactTerm(array(np.zeros(SHAPE)), lambda _: (values, gradient), weights)

    def test_value_has_no_error(self, array):
        term = self.term(array)
        for method in (term.evaluate, term.certify):
            found = method(array(np.ones(SHAPE)), 1e-3, 10)
            assert (found.value, found.error, found.gap) == (6.0, 0.0, 0.0)
            assert found.converged
        assert term.evaluations == 2

    def test_samples_are_weighted(self, array):
        found = self.term(array, [0.0, 1.0, 2.0]).evaluate(array(np.ones(SHAPE)), 1e-3, 10)
        assert found.value == 8.0
        expected = np.asarray([0.0, 1.0, 2.0])[:, None] * np.ones(SHAPE)
        np.testing.assert_array_equal(to_numpy(found.gradient), expected)

    def test_potential_is_the_last_gradient(self, array):
        term = self.term(array)
        np.testing.assert_array_equal(to_numpy(term.potential), 0.0)
        found = term.evaluate(array(np.ones(SHAPE)), 1e-3, 10)
        assert term.potential is found.gradient

    def test_nothing_else_changes_the_value(self, array):
        term = self.term(array)
        term.set_level(9.0)
        term.start_from(array(np.ones(SHAPE)))
        term.drop_history()
        assert term.evaluate(array(np.ones(SHAPE)), 1e-3, 10).value == 6.0
        assert term.scale == 0.0
