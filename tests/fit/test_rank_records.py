"""The result of a scan: its table and the suggested rank."""

import numpy as np
from helpers import numpy_only, random_fit

import wtfarray as wtf

pytestmark = numpy_only
LOSSES = {1: 10.0, 2: 4.0, 3: 0.2, 4: 0.15}


def record(rank, **values):
    empty = dict.fromkeys(
        ("held_out", "held_out_error", "stability", "held_out_entries", "core_consistency")
    )
    known = {"objective": 1.0, "gap": 0.0, "loss": LOSSES[rank], "converged": True, "seconds": 0.1}
    return wtf.RankRecord(rank=rank, **(empty | known | values))


def scan(model="nmf", **values):
    return wtf.RankScan(model, [record(r, **values) for r in LOSSES], [], 20.0)


class TestRepr:
    def test_rows_and_reason(self):
        lines = repr(scan()).splitlines()
        assert lines[0].startswith("<rank scan of nmf")
        assert lines[1].split() == ["rank", "objective", "loss", "held", "out", "stability", "time"]
        assert [line.split()[0] for line in lines[2:6]] == ["1", "2", "3", "4"]
        assert [line.endswith("<- suggested") for line in lines[2:6]] == [False, False, True, False]
        assert lines[6] == (
            "suggested rank: 3, whose component lowers the loss 76 times as much as the next one"
        )

    def test_columns_of_what_was_computed(self):
        lines = repr(scan("cp", core_consistency=99.6, held_out_entries=2.0)).splitlines()
        assert lines[1].split()[-3:] == ["entries", "core", "time"]
        assert lines[2].split()[-3:-1] == ["2", "100"]

    def test_fits_that_did_not_converge_are_marked(self):
        assert "(not all fits converged)" in repr(scan(converged=False))


class TestSuggested:
    def test_loss_decides(self):
        assert scan().suggested == 3
        assert scan(held_out=1.0).suggested == 3

    def test_no_rank_stands_out(self):
        found = wtf.RankScan("nmf", scan().records[:1], [random_fit(np.array, "nmf", (3, 4), 1)])
        assert found.suggested is None
        assert repr(found).splitlines()[-1] == (
            "suggested rank: none, no rank below 1 stands out; larger ranks were not tried"
        )

    def test_larger_ranks_were_not_tried(self):
        """The loss falls at rank 2 by a half of what it fell at rank 1, and might fall on."""
        records = [record(1, loss=10.0), record(2, loss=5.0)]
        found = wtf.RankScan("nmf", records, [], 20.0)
        assert found.suggested is None
        assert repr(found).splitlines()[-1] == (
            "suggested rank: none, no rank below 2 stands out; larger ranks were not tried"
        )
        flat = wtf.RankScan("nmf", [records[0], record(2, loss=9.9)], [], 20.0)
        assert flat.suggested == 1
        assert repr(flat).endswith("100 times as much as the next one")

    def test_no_suggestion_for_tucker(self):
        found = scan("tucker")
        assert found.suggested is None
        assert "suggested" not in repr(found)
