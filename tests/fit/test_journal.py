"""Callbacks of a fit and the states that they see."""

import numpy as np
import pytest
from fitting import LOSSES, assert_same_factors, data, run, unfinished
from helpers import numpy_only, to_numpy

import wtfarray as wtf
from wtfarray._fit.journal import Journal, wants_to_stop
from wtfarray._fit.progress_bar import ProgressBar
from wtfarray._losses.term import TermValue


class TestCallback:
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_callback_sees_every_step_and_can_stop(self, array, solver):
        X, states = array(data()), []

        def stop(state):
            states.append(state)
            return state.n_iter == 3

        with unfinished("stopped by the callback"):
            fit = wtf.cp(X, 2, LOSSES["KL"], rng=0, solver=solver, callback=stop)
        assert [state.n_iter for state in states] == [1, 2, 3]
        assert fit.n_iter == 3
        assert not fit.converged
        times = [state.time for state in states]
        assert times == sorted(times)
        assert times[0] > 0
        assert all(isinstance(state, wtf.FitState) for state in states)
        assert [r.objective for r in fit.history[:3]] == [s.objective for s in states]
        assert [r.evaluations for r in fit.history[:3]] == [s.evaluations for s in states]
        for a, b in zip(states[-1].blocks(), fit.factors, strict=True):
            assert (to_numpy(a) == to_numpy(b)).all()

    @numpy_only
    def test_callback_may_return_a_numpy_bool(self):
        stop = np.asarray([True])
        with unfinished("stopped by the callback"):
            fit = wtf.cp(data(), 2, LOSSES["KL"], rng=0, callback=lambda _: stop[0])
        assert fit.stopped

    @numpy_only
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_states_keep_their_blocks_while_the_fit_goes_on(self, solver):
        states = []

        def keep(state):
            states.append((state, [np.array(block) for block in state.blocks()]))

        run("cp", data(), 2, LOSSES["unbalanced"], solver=solver, rng=0, callback=keep, tol=1e-3)
        assert len(states) >= 2
        for state, blocks in states:
            assert_same_factors(state.blocks(), blocks, rtol=0)

    @numpy_only
    def test_callback_that_returns_none_does_not_stop(self):
        assert wtf.cp(data(), 2, LOSSES["KL"], rng=0, callback=lambda _: None).converged

    @numpy_only
    def test_errors_of_a_callback_are_raised(self):
        def fail(state):
            raise RuntimeError(state.n_iter)

        with pytest.raises(RuntimeError, match="1"):
            wtf.cp(data(), 2, LOSSES["KL"], rng=0, callback=fail)


def journal(callback=None):
    return Journal(callback, ProgressBar("", visible=False))


def value(objective, gap=0.0):
    return TermValue(objective, gap, gap, np.zeros(1), converged=True)


@numpy_only
class TestJournal:
    def steps(self, book, objectives, level=1.0):
        for n, objective in enumerate(objectives):
            book.step(objective, 0.1, level, n, list)

    def test_recorded_objectives_never_rise(self):
        book = journal()
        self.steps(book, [3.0, 1.0, 1.5, 0.5])
        assert [record.objective for record in book.records] == [3.0, 1.0, 1.0, 0.5]
        assert [record.evaluations for record in book.records] == [0, 1, 2, 3]

    def test_steps_at_coarser_smoothings_are_counted_but_not_recorded(self):
        seen = []
        book = journal(lambda state: seen.append((state.n_iter, state.level)))
        self.steps(book, [9.0, 8.0], level=3.0)
        self.steps(book, [5.0])
        assert book.n_iter == 3
        assert [record.objective for record in book.records] == [5.0]
        assert seen == [(1, 3.0), (2, 3.0), (3, 1.0)]

    def test_certificate_raises_records_that_were_too_low(self):
        book = journal()
        self.steps(book, [4.0, 3.0, 2.0, 1.0])
        below = book.certify(value(1.5, 0.25), 99, 1e-9)
        assert below == pytest.approx(0.5)
        assert [record.objective for record in book.records] == [4.0, 3.0, 2.0, 1.5, 1.5]
        assert book.records[-1].gap == 0.25
        assert book.records[-1].evaluations == 99

    def test_certificate_below_the_records_is_added(self):
        book = journal()
        self.steps(book, [4.0, 3.0])
        assert book.certify(value(2.5), 1, 1e-9) == pytest.approx(-0.5)
        assert [record.objective for record in book.records] == [4.0, 3.0, 2.5]

    def test_difference_within_the_noise_raises_nothing(self):
        book = journal()
        self.steps(book, [4.0, 3.0])
        book.certify(value(3.0 + 1e-10), 1, 1e-9)
        assert [record.objective for record in book.records] == [4.0, 3.0, 3.0]

    def test_only_late_steps_tell_how_wrong_the_values_were(self):
        book = journal()
        self.steps(book, [-9.0, 3.0, 2.0, 1.0])
        assert book.certify(value(1.25), 1, 1e-9) == pytest.approx(0.25)

    def test_certificate_of_a_fit_without_steps_is_its_record(self):
        book = journal()
        assert book.certify(value(2.0), 7, 1e-9) == 0.0
        (record,) = book.records
        assert (record.objective, record.evaluations) == (2.0, 7)

    def test_evaluations_never_fall(self):
        book = journal()
        self.steps(book, [4.0, 3.0])
        book.certify(value(2.0), 0, 1e-9)
        assert [record.evaluations for record in book.records] == [0, 1, 1]

    def test_resumed_journal_goes_on_with_time_and_n_iter(self):
        records = [wtf.Record(50.0, 4.0, 0.1, 5), wtf.Record(100.0, 3.0, 0.1, 9)]
        seen = []
        book = journal(seen.append)
        book.resume(records, 12, 100.0)
        assert 100.0 <= book.seconds < 110.0
        book.step(2.0, 0.1, 1.0, 11, list)
        assert book.records[:2] == records
        assert book.records[2].time >= 100.0
        assert seen[0].n_iter == book.n_iter == 13
        assert seen[0].time >= 100.0
        assert len(records) == 2
        assert book.certify(value(3.5), 11, 1e-9) == pytest.approx(1.5)
        assert [record.objective for record in book.records] == [4.0, 3.5, 3.5, 3.5]

    def test_latest_blocks_are_those_of_the_last_step(self):
        book, blocks = journal(), [np.ones(2)]
        assert book.latest() == []
        book.step(1.0, 0.0, 1.0, 1, lambda: blocks)
        assert book.latest() is blocks

    @pytest.mark.parametrize(
        ("answer", "stops"),
        [
            (True, True),
            (np.bool_(True), True),
            (False, False),
            (None, False),
            (1, False),
            ("yes", False),
            (np.ones(2), False),
        ],
    )
    def test_only_true_stops(self, answer, stops):
        assert wants_to_stop(answer) is stops
        assert journal(lambda _: answer).step(1.0, 0.0, 1.0, 1, list) is stops
