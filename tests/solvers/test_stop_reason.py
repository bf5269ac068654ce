"""Why a solver stopped: messages and what follows from each reason."""

import pytest

from wtfarray._solvers.stop_reason import StopReason

OPTIMAL = {
    StopReason.TOLERANCE,
    StopReason.STATIONARY,
    StopReason.STUCK,
    StopReason.BATCHES,
}
BY_CALLER = {StopReason.CALLBACK, StopReason.INTERRUPTED}


@pytest.mark.parametrize("solver", ["envelope", "dual", "online"])
@pytest.mark.parametrize("reason", StopReason)
def test_messages_are_filled_in(reason, solver):
    message = reason.message(solver, 1e-7, 42)
    assert message
    assert not set("{}") & set(message)


@pytest.mark.parametrize("solver", ["envelope", "dual"])
def test_messages_name_the_numbers_that_decided(solver):
    assert "1e-07" in StopReason.TOLERANCE.message(solver, 1e-7, 42)
    assert "42" in StopReason.ITERATIONS.message(solver, 1e-7, 42)
    assert "42" not in StopReason.TOLERANCE.message(solver, 1e-7, 42)


def test_each_solver_is_advised_to_try_the_other():
    joint, blockwise = (
        StopReason.UNSOLVED.message(solver, 1e-7, 42) for solver in ("envelope", "dual")
    )
    assert "solver='dual'" in joint
    assert "'envelope'" not in joint
    assert "solver='envelope'" in blockwise
    assert "'dual'" not in blockwise


def test_messages_differ():
    assert len({reason.message("envelope", 1e-7, 42) for reason in StopReason}) == len(StopReason)


def test_reasons_are_optimal_or_of_the_caller_or_unfinished():
    assert {reason for reason in StopReason if reason.is_optimal} == OPTIMAL
    assert {reason for reason in StopReason if reason.by_caller} == BY_CALLER
    unfinished = set(StopReason) - OPTIMAL - BY_CALLER
    others = {StopReason.UNSOLVED, StopReason.NOT_FINITE, StopReason.ROUNDING}
    limits = {StopReason.ITERATIONS, StopReason.WORK, StopReason.PASSES}
    assert unfinished == limits | others


def test_blocked_is_where_no_decrease_was_found():
    blocked = {reason for reason in StopReason if reason.is_blocked}
    assert blocked == {StopReason.STUCK, StopReason.UNSOLVED}
