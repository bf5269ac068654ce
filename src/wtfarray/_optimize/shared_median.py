"""The median of numbers that several processes hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.sums import Sums

DIGIT = 10
"""Number of bits that one message decides on."""
BINS = 2**DIGIT
"""Number of bins of a histogram, besides one for smaller and one for larger numbers."""
NEAR = 52 - DIGIT + 2
"""Bins of 2^NEAR bits make a histogram from a quarter to four times a number."""


def median_of_shared(
    mine: NDArray[np.float64],
    sums: Sums,
    *,
    numbers: Sequence[float] = (),
    rest: Callable[[list[float]], tuple[float, int]] = lambda _: (1.0, 0),
    guess: float | None = None,
) -> tuple[float, list[float]]:
    """
    The upper median of positive numbers, of which this process holds some.

    Positive floating point numbers are ordered as the integers with the same bits. A histogram of
    them, summed over the processes, says in which bin the median is; then one of that bin, until a
    single number is left, which is the sum of the numbers in its bin.

    Parameters
    ----------
    mine : array, shape (n,)
        The numbers of this process.
    sums : Sums
        Over the processes.
    numbers : sequence of float
        What is to be summed in the same message as the first histogram.
    rest : callable
        Called with these sums. Returns a number that all processes know, and how often it counts
        besides those of ``mine``.
    guess : float, optional
        A number near which the median is expected, the same on all processes. It saves a message.

    Returns
    -------
    median : float
        The same bits on every process.
    totals : list of float
        The sums of ``numbers``.
    """
    magnitudes = np.abs(mine)
    bits = magnitudes.view(np.int64)
    window = _Window(0, 63 - DIGIT) if guess is None else _Window.near(guess)
    extra = np.asarray(numbers, dtype=np.float64)
    totals: list[float] = []
    for message in itertools.count():
        places = window.places(bits)
        histograms = [np.bincount(places, weights, BINS + 2) for weights in (None, magnitudes)]
        packed = sums.host(np.concatenate([*histograms, () if message else extra]))
        counts, values, more = np.split(packed, [BINS + 2, 2 * (BINS + 2)])
        if not message:
            totals = more.tolist()
            common, times = rest(totals)
        (place,) = window.places(np.asarray([abs(common)]).view(np.int64))
        counts[place] += times
        below = np.cumsum(counts)
        chosen = int(np.searchsorted(below, below[-1] // 2, side="right"))
        if chosen == place and counts[place] == times:
            return common, totals
        if counts[chosen] == 1:
            return float(values[chosen]), totals
        if window.is_finest(chosen):
            return window.number(chosen), totals
        window = window.part(chosen)
    raise AssertionError  # not reached: windows become finer


@dataclass(frozen=True)
class _Window:
    """Bins of equal size in the integers below 2^63, and one bin on each side of them."""

    low: int
    """Where the first bin begins."""
    shift: int
    """The size of a bin is 2^shift."""

    @classmethod
    def near(cls, number: float) -> _Window:
        """The numbers from about a quarter of this one to four times."""
        middle = int(np.asarray(abs(number)).view(np.int64))
        return cls(max(0, middle - (BINS // 2 << NEAR)), NEAR)

    def places(self, bits: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bins of some integers, from 0 to BINS + 1."""
        found: NDArray[np.int64] = np.clip(((bits - self.low) >> self.shift) + 1, 0, BINS + 1)
        return found

    def is_finest(self, place: int) -> bool:
        """Whether a bin has one integer only."""
        return self.shift == 0 and 0 < place <= BINS

    def number(self, place: int) -> float:
        """The number of a bin that has only one."""
        return float(np.asarray(self.low + place - 1, dtype=np.int64).view(np.float64))

    def part(self, place: int) -> _Window:
        """The integers of one bin."""
        if place == 0:
            low, size = 0, self.low
        elif place > BINS:
            low = self.low + (BINS << self.shift)
            size = 2**63 - low
        else:
            low, size = self.low + (place - 1 << self.shift), 1 << self.shift
        return _Window(low, max(0, (size - 1).bit_length() - DIGIT))
