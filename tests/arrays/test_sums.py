"""Sums over the samples of several processes, and what they decide together."""

import numpy as np
import pytest
from helpers import assert_close, to_numpy

from wtfarray._arrays.sums import ALONE, AgreedError, Sums, failing_together
from wtfarray.distributed import run_threads


def on_team(function, size=3):
    return run_threads(lambda comm: function(Sums(comm), comm.rank), size, timeout=20.0)


class TestAlone:
    def test_nothing_changes_and_nothing_is_copied(self, array):
        x = array([[1.0, 2.0], [3.0, 5.0]])
        assert ALONE.array(x) is x
        assert ALONE.numbers(1.5, 2.0) == [1.5, 2.0]
        assert ALONE.any(True)
        assert not ALONE.all(False)
        assert ALONE.place(4) == (0, 4)
        assert ALONE.largest(2.0) == 2.0
        assert_close(ALONE.over(x, (0,)), array([[4.0, 7.0]]))
        assert_close(ALONE.mean(x, None), array([[2.75]]))

    def test_errors_pass_as_they_are(self):
        def check():
            msg = "bad"
            raise ValueError(msg)

        with pytest.raises(ValueError, match="bad"):
            ALONE.agree(check)


class TestTeam:
    def test_numbers_and_decisions(self):
        found = on_team(lambda sums, rank: (sums.numbers(rank, 1.0), sums.any(rank == 2)))
        assert found == [([3.0, 3.0], True)] * 3
        assert on_team(lambda sums, rank: sums.all(rank != 1)) == [False] * 3
        assert on_team(lambda sums, rank: sums.largest(float(rank))) == [2.0] * 3

    def test_place_is_where_the_counts_of_a_rank_begin(self):
        assert on_team(lambda sums, rank: sums.place(rank + 2)) == [(0, 9), (2, 9), (5, 9)]

    def test_arrays_and_numbers_in_one_message(self, array):
        def add(sums, rank):
            before = sums.comm.messages
            arrays, numbers = sums.arrays([array([[1.0, rank]]), array([2.0])], [0.5])
            assert sums.comm.messages == before + 1
            assert sums.comm.bytes == 8 * 4
            return arrays, numbers

        for (first, second), numbers in on_team(add):
            assert_close(first, array([[3.0, 3.0]]))
            assert_close(second, array([6.0]))
            assert numbers == [1.5]

    def test_only_the_first_axis_is_shared(self, array):
        rows = array([[1.0, 3.0], [5.0, 7.0]])
        for total, own, mean in on_team(
            lambda sums, _: (sums.over(rows, (0,)), sums.over(rows, (1,)), sums.mean(rows, None))
        ):
            assert_close(total, array([[18.0, 30.0]]))
            assert_close(own, array([[4.0], [12.0]]))
            assert_close(mean, array([[4.0]]))

    def test_mean_counts_rows_of_all_ranks(self):
        def mean(sums, rank):
            return sums.mean(np.full((rank, 2), float(rank)), (0,))

        for found in on_team(mean):
            np.testing.assert_allclose(found, [[5 / 3, 5 / 3]])

    def test_silent_rank_adds_nothing(self):
        def add(sums, rank):
            sums = sums.without_samples() if rank == 1 else sums
            return sums.numbers(1.0), sums.place(5)[1]

        assert on_team(add) == [([2.0], 10)] * 3

    def test_error_of_one_rank_is_raised_on_all_and_the_team_goes_on(self):
        def agree(sums, rank):
            def check():
                if rank == 1:
                    msg = "X is nan"
                    raise ValueError(msg)
                return rank

            with pytest.raises(AgreedError) as caught:
                sums.agree(check)
            return caught.value.error, sums.numbers(1.0)

        errors = on_team(agree)
        assert [numbers for _, numbers in errors] == [[3.0]] * 3
        assert isinstance(errors[1][0], ValueError)
        for rank in (0, 2):
            assert str(errors[rank][0]) == "rank 1 has failed: ValueError: X is nan"

    def test_error_elsewhere_wakes_ranks_that_wait(self):
        def work(comm):
            with failing_together(comm):
                if comm.rank == 1:
                    msg = "out of memory"
                    raise MemoryError(msg)
                comm.sum(np.zeros(3))

        with pytest.raises(MemoryError, match="out of memory"):
            run_threads(work, 3, timeout=20.0)

    def test_array_keeps_dtype_and_device(self, array):
        (found, *_) = on_team(lambda sums, _: sums.array(array([1.0, 2.0], "float32")), 2)
        assert_close(found, array([2.0, 4.0], "float32"))
        assert to_numpy(found).dtype == np.float32
