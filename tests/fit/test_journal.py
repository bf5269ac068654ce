"""Callbacks of a fit and the states that they see."""

import numpy as np
import pytest
from fitting import LOSSES, assert_same_factors, data, run, unfinished
from helpers import numpy_only, to_numpy

import wtfarray as wtf


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
