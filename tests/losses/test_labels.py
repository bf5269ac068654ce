"""Costs and data with labels: they have to agree."""

import numpy as np
import pytest
from helpers import numpy_only

import wtfarray as wtf
from wtfarray._losses.labels import check_cost_labels

pytestmark = numpy_only
AXES = (wtf.Axis(), wtf.Axis(values=list("abcdef")))


def cost(rows, columns=None):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(wtf.grid_cost(6)[0], list(rows), list(columns or rows))


def test_same_labels_pass():
    loss = wtf.Wasserstein(cost("abcdef"), 0.1, 5.0)
    check_cost_labels(loss, AXES)
    check_cost_labels(loss, ())
    check_cost_labels(wtf.LossSum(loss, wtf.Frobenius()), AXES)
    check_cost_labels(wtf.Wasserstein(wtf.grid_cost(6), 0.1, 5.0), AXES)
    assert np.array_equal(loss.costs[0], wtf.grid_cost(6)[0])


def test_cost_in_another_order_is_refused():
    pandas = pytest.importorskip("pandas")
    loss = wtf.Wasserstein(cost("bacdef"), 0.1, 5.0)
    message = r"costs\[0\] has the label 'b' at index 0 of mode 0, where mode 1 of X has 'a'"
    with pytest.raises(ValueError, match=message):
        check_cost_labels(loss, AXES)
    frame = pandas.DataFrame(np.ones((3, 6)), columns=list("abcdef"))
    for fit in (lambda: wtf.nmf(frame, 2, loss), lambda: wtf.rank_scan(frame, [1], loss)):
        with pytest.raises(ValueError, match=message):
            fit()


def test_named_modes_are_compared():
    loss = wtf.Wasserstein(cost("bacdef"), 0.1, 5.0, modes=(0,))
    with pytest.raises(ValueError, match="where mode 0 of X"):
        check_cost_labels(loss, AXES[::-1])


def test_rows_and_columns_of_a_cost_agree():
    with pytest.raises(ValueError, match="where its first mode has 'b'"):
        wtf.Wasserstein(cost("bacdef", "abcdef"), 0.1, 5.0)


def test_functions_of_two_data_sets_compare_their_labels():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    names = list("abcdef")
    X, Y = (pandas.DataFrame(rng.dirichlet(np.ones(6), 4), list("pqrs"), names) for _ in range(2))
    loss = wtf.Wasserstein(wtf.grid_cost(6), 0.1, 5.0)
    swapped = Y[names[::-1]]
    with pytest.raises(ValueError, match=r"X has the label 'a' at index 0 of mode 1, where Y"):
        wtf.wasserstein(X, swapped, loss)
    with pytest.raises(ValueError, match=r"X has the label 'a' at index 0 of mode 1, where atoms"):
        wtf.unmix(X, swapped, loss)
    with pytest.raises(ValueError, match=r"costs\[0\] has the label 'f' at index 0"):
        wtf.unmix(X, Y, wtf.Wasserstein(cost("fedcba"), 0.1, 5.0))
    with pytest.raises(ValueError, match=r"X\[1\] has the label 's' at index 0 of mode 0, where"):
        wtf.coupled([X, Y.iloc[::-1]], 2, [loss, loss])
    fit = wtf.coupled([X, Y], 2, [loss, loss], rng=0, rho=1e-2, tol=1e-3)
    with pytest.raises(ValueError, match=r"X\[0\] has the label 'f' at index 0 of mode 1"):
        fit.project([swapped, None])
    assert fit.project([X, Y]).shape == (4, 2)
