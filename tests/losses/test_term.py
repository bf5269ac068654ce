"""Solving more and more tightly until the duality gap is small enough."""

import pytest

from wtfarray._losses.term import tightened


class Attempts:
    """Scripted attempts: the gap is a multiple of the error that was allowed."""

    def __init__(self, ratio, used=10, error=1.0):
        self.ratio, self.used, self.error = ratio, used, error
        self.calls = []

    def __call__(self, allowed, iterations):
        self.calls.append((allowed, iterations))
        error = self.error * allowed
        return f"attempt {len(self.calls)}", self.ratio * error, error, self.used


class TestTightened:
    def test_first_attempt_aims_a_hundred_times_below_the_gap(self):
        attempts = Attempts(ratio=100.0)
        assert tightened(attempts, 1e-3, 500) == "attempt 1"
        assert attempts.calls == [(pytest.approx(1e-5), 100)]

    def test_attempts_are_tightened_until_the_gap_is_small(self):
        attempts = Attempts(ratio=5e3)
        assert tightened(attempts, 1e-3, 500) == "attempt 3"
        allowed = [call[0] for call in attempts.calls]
        assert allowed == pytest.approx([1e-5, 1e-6, 1e-7])

    def test_next_attempt_starts_from_the_error_that_was_reached(self):
        attempts = Attempts(ratio=1e6, error=0.01)
        tightened(attempts, 1e-3, 500)
        assert attempts.calls[1][0] == pytest.approx(1e-5 * 0.01 * 0.1)

    def test_error_above_what_was_allowed_does_not_loosen_the_next_attempt(self):
        attempts = Attempts(ratio=1e6, error=50.0)
        tightened(attempts, 1e-3, 15)
        assert attempts.calls[1][0] == pytest.approx(1e-6)

    def test_iterations_run_out(self):
        """The result of the last attempt is returned, however large its gap."""
        attempts = Attempts(ratio=1e30, used=100)
        assert tightened(attempts, 1e-3, 250) == "attempt 3"
        assert [call[1] for call in attempts.calls] == [100, 100, 50]

    def test_gap_that_is_exactly_the_tolerance_is_enough(self):
        assert tightened(lambda *_: ("done", 0.5, 0.0, 1), 0.5, 100) == "done"
