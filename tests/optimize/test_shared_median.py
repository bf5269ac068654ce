"""The median of numbers on several processes."""

import numpy as np
import pytest

from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._optimize.shared_median import median_of_shared
from wtfarray.distributed import run_threads

pytestmark = pytest.mark.usefixtures("on_numpy")


def of_team(every, *, size=3, **options):
    """The median and the number of messages that it took, the same on every rank."""
    parts = np.array_split(every, size)

    def find(comm):
        found, totals = median_of_shared(parts[comm.rank], Sums(comm), **options)
        return found, totals, comm.messages

    results = run_threads(find, size, timeout=20.0)
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.parametrize("guess", [None, 1e-3, 0.7, 1e300])
@pytest.mark.parametrize("n", [1, 2, 9, 300])
@pytest.mark.parametrize("kind", ["any", "equal", "few"])
def test_is_that_of_all_numbers(n, kind, guess):
    rng = np.random.default_rng(n)
    numbers = {
        "any": rng.lognormal(0.0, 6.0, n),
        "equal": np.full(n, 0.7),
        "few": rng.choice([1e-300, 2.0, 3.0], n),
    }[kind]
    expected = np.sort(numbers)[n // 2]
    assert median_of_shared(numbers, ALONE, guess=guess) == (expected, [])
    assert of_team(numbers, guess=guess)[:2] == (expected, [])


@pytest.mark.parametrize("times", [0, 1, 2, 50, 1000])
@pytest.mark.parametrize("value", [1e-9, 1.0, 1.5, 1e9])
def test_a_number_that_counts_several_times(value, times):
    """The others are found from what is summed in the first message."""
    numbers = np.random.default_rng(0).lognormal(0.0, 1.0, 101)
    expected = np.sort(np.concatenate([numbers, np.full(times, value)]))[(101 + times) // 2]
    found, totals, _ = of_team(
        numbers, numbers=[value, times], rest=lambda t: (t[0] / 3.0, int(t[1]) // 3)
    )
    assert found == pytest.approx(expected, rel=1e-15)
    assert totals == [pytest.approx(3.0 * value), 3.0 * times]


def test_a_good_guess_saves_a_message():
    numbers = np.random.default_rng(0).lognormal(0.0, 1.0, 10_000)
    assert of_team(numbers)[2] == 3
    assert of_team(numbers, guess=1.3)[2] == 2


def test_numbers_at_the_ends_of_the_range():
    numbers = np.asarray([0.0, 5e-324, 1e308, np.inf, np.inf])
    for guess in (None, 5e-324, 1e308):
        assert of_team(numbers, guess=guess)[0] == 1e308
        assert of_team(numbers[:3], guess=guess)[0] == 5e-324
        assert of_team(numbers[2:], guess=guess)[0] == np.inf


def test_what_is_not_a_number_ends_the_search():
    assert np.isnan(median_of_shared(np.asarray([-np.nan]), ALONE)[0])
