"""Sums of exponentials whose terms overflow or underflow."""

import math

import pytest
from helpers import assert_close

from wtfarray._transport.logarithms import from_logs, logsumexp, smallest_sum, to_logs


def test_logsumexp_has_no_range(array, xp):
    logs = array([[1e4, 1e4], [-1e4, -math.inf], [-math.inf, -math.inf]])
    expected = array([1e4 + math.log(2.0), -1e4, -math.inf])
    assert_close(logsumexp(logs, 1, xp), expected, rtol=1e-15)


def test_mantissa_and_scale_are_the_logarithms(array):
    logs = array([[3.0, -2.0, -math.inf], [-math.inf] * 3])
    mantissa, scale = from_logs(logs, 1)
    assert_close(scale, array([[3.0], [-math.inf]]))
    assert_close(to_logs(mantissa, scale), logs, rtol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_smallest_sum_keeps_its_digits(xp, array, dtype):
    """A term that underflows to a subnormal number is off by less than a rounding of the sum."""
    kind = array(0.0, dtype).dtype
    info = xp.finfo(kind)
    least = smallest_sum(kind, 100, xp)
    assert 100 * float(info.smallest_normal) <= least * float(info.eps)
