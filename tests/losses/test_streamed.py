"""Terms of data that are read in chunks: batches, potentials in files, levels."""

import numpy as np
import pytest
from fitting import transport
from helpers import to_numpy
from stored_data import Sliceable

import wtfarray as wtf
from wtfarray._arrays.stored import StoredData
from wtfarray._losses.selection import terms_of
from wtfarray._losses.streamed import StreamedLosses

X = np.random.default_rng(0).dirichlet(np.ones(20), 7).reshape(7, 5, 4)
Y = np.random.default_rng(1).dirichlet(np.ones(20), 7).reshape(7, 5, 4)


def evaluated(losses, model, tolerance=1e-9):
    """The values of all batches, summed, and the gradient; the potentials are stored."""
    files, values, gradients = losses.begin(), 0.0, []
    for rows, terms, _ in losses.terms():
        (found,) = [term.evaluate(model[rows, ...], tolerance, 200) for term in terms]
        values += float(found.value)
        gradients.append(to_numpy(found.gradient))
        losses.store(files, rows, terms)
    losses.state = files
    return values, np.concatenate(gradients)


class TestTerms:
    @pytest.mark.parametrize("weighted", [False, True])
    def test_batches_sum_to_the_whole(self, array, weighted):
        loss = transport()
        weights = array(np.linspace(0.5, 2.0, 7)) if weighted else None
        (whole,) = terms_of([loss], array(X), weights, 3)
        expected = whole.evaluate(array(Y), 1e-9, 200)
        data = StoredData(Sliceable(array(X)), chunk=4)
        losses = StreamedLosses([loss], data, weights, 3)
        assert losses.batches == 3  # 3 and 1 of the first chunk, 3 of the second
        value, gradient = evaluated(losses, array(Y))
        assert value == pytest.approx(float(expected.value), rel=1e-7)
        np.testing.assert_allclose(gradient, to_numpy(expected.gradient), atol=1e-4)

    def test_second_evaluation_starts_from_the_potentials(self, array):
        losses = StreamedLosses([transport()], StoredData(array(X), chunk=4), None, 2)
        evaluated(losses, array(Y))
        first = losses.evaluations
        evaluated(losses, array(Y))
        assert losses.evaluations - first < 0.5 * first

    @pytest.mark.usefixtures("on_numpy")
    def test_states_do_not_change_any_more(self):
        losses = StreamedLosses([transport()], StoredData(X, chunk=4), None, 2)
        evaluated(losses, Y)
        (before,) = losses.state
        kept = before[:]
        evaluated(losses, X)
        np.testing.assert_array_equal(before[:], kept)
        assert not np.array_equal(losses.state[0][:], kept)

    @pytest.mark.usefixtures("on_numpy")
    def test_level_multiplies_eps(self):
        coarse = StreamedLosses([transport()], StoredData(X, chunk=4), None, 2)
        coarse.set_level(3.0)
        direct = StreamedLosses([transport(eps=0.6)], StoredData(X, chunk=4), None, 2)
        assert evaluated(coarse, Y)[0] == pytest.approx(evaluated(direct, Y)[0], rel=1e-12)

    @pytest.mark.usefixtures("on_numpy")
    def test_losses_in_closed_form_have_no_file(self):
        loss = wtf.LossSum(transport(), wtf.Frobenius())
        losses = StreamedLosses(loss.losses, StoredData(X, chunk=4), None, 2)
        assert [state is None for state in losses.state] == [False, True]

    @pytest.mark.usefixtures("on_numpy")
    def test_own_loss_must_be_a_sum_over_samples(self):
        class Total:
            def value_and_gradient(self, X, Y):
                return np.sum((X - Y) ** 2), 2.0 * (Y - X)

        losses = StreamedLosses([Total()], StoredData(X, chunk=4), None, 2)
        with pytest.raises(ValueError, match=r"expected an array of shape \(2,\)"):
            evaluated(losses, Y)

    @pytest.mark.usefixtures("on_numpy")
    def test_default_batch_is_small_beside_a_chunk(self):
        data = StoredData(np.ones((6400, 2)), chunk=3200)
        assert StreamedLosses([transport(shape=(2,))], data, None, None).batch == 100
        assert StreamedLosses([transport(shape=(2,))], data, None, 5000).batch == 3200


@pytest.mark.usefixtures("on_numpy")
def test_potentials_of_a_coarser_grid():
    fine = StreamedLosses([transport(shape=(4,))], StoredData(np.ones((3, 4)), chunk=2), None, 2)
    coarse = StreamedLosses([transport(shape=(2,))], StoredData(np.ones((3, 2)), chunk=2), None, 2)
    coarse.state[0].write(0, np.arange(6.0).reshape(3, 2))
    fine.start_from(coarse, lambda g, shape: np.repeat(g, shape[1] // g.shape[1], axis=1))
    np.testing.assert_array_equal(fine.state[0][:], np.arange(6.0).reshape(3, 2).repeat(2, axis=1))
