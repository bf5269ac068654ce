"""Branches and loops that are taken on the host."""

import pytest

from wtfarray._transport.control_flow import HostControlFlow

FLOW = HostControlFlow()


def refuse():
    raise AssertionError


class TestHostControlFlow:
    @pytest.mark.parametrize("truth", [True, False])
    def test_decide_reads_a_condition(self, array, truth):
        found = FLOW.decide(array(1.0 if truth else -1.0) > 0)
        assert found is truth

    def test_cond_computes_only_what_is_chosen(self):
        assert FLOW.cond(True, lambda: "yes", refuse) == "yes"
        assert FLOW.cond(False, refuse, lambda: "no") == "no"

    def test_loop_steps_while_the_condition_holds(self, array):
        last = FLOW.while_loop(
            lambda state: state[0] < 4.5,
            lambda state: (state[0] * 2.0, state[1] + 1),
            (array(1.0), 0),
        )
        assert float(last[0]) == 8.0
        assert last[1] == 3

    def test_loop_may_take_no_step(self, array):
        start = array(1.0)
        assert FLOW.while_loop(lambda state: state < 0.0, lambda _: refuse(), start) is start
