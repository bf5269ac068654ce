"""Scans over the rank by several processes."""

import dataclasses

import numpy as np
import pytest
from helpers import numpy_only, without_escape
from mixtures import bumps, images
from teams import TIMEOUT

import wtfarray as wtf
from wtfarray._transport import anderson
from wtfarray.distributed import run_threads

pytestmark = [
    numpy_only,
    pytest.mark.filterwarnings("ignore:rank_scan:UserWarning"),
    without_escape,
]
LOSS = wtf.Wasserstein(wtf.grid_cost(12), eps=0.1, lam=2.0)


@pytest.fixture(autouse=True)
def accurate_secants(monkeypatch):
    """As in test_team.py: rounding of float32 secants grows from step to step."""
    monkeypatch.setattr(anderson, "STORED", "float64")


def scans(X, cuts, *args, **options):
    """The scans of all ranks, of which rank k has the k-th part of the samples."""

    def scan(comm):
        return wtf.rank_scan(np.split(X, cuts)[comm.rank], *args, comm=comm, **options)

    return run_threads(scan, len(cuts) + 1, timeout=TIMEOUT)


def assert_alike(team):
    """All ranks have the same records, but for the times."""
    records = [[dataclasses.replace(r, seconds=0.0) for r in scan] for scan in team]
    assert all(found == records[0] for found in records)


@pytest.mark.parametrize("cuts", [[7], [0, 12]])
def test_records_are_those_of_one_process(cuts):
    X = bumps(16)
    options = {"n_seeds": 2, "held_out": 2, "held_out_entries": 0.2, "max_iter": 6}
    one = wtf.rank_scan(X, [2, 1], LOSS, **options)
    team = scans(X, cuts, [1, 2], LOSS, **options)
    assert_alike(team)
    assert team[0].unstructured == pytest.approx(one.unstructured, rel=1e-6)
    names = ("objective", "loss", "held_out", "held_out_error", "stability")
    for name in names:
        found, expected = ([getattr(r, name) for r in scan] for scan in (team[0], one))
        assert found[0] == pytest.approx(expected[0], rel=1e-4)  # the tolerance of losses
        if name != "held_out_error":
            # Rounding grows with the number of steps: of the second rank, the same optimum counts.
            assert found[1] == pytest.approx(expected[1], rel=5e-2)
    entries = [scan.records[0].held_out_entries for scan in (team[0], one)]
    assert entries[0] == pytest.approx(entries[1], rel=1e-2)
    rows = np.concatenate([scan.fits[0].factors[0] for scan in team])
    np.testing.assert_allclose(rows, one.fits[0].factors[0], rtol=1e-4)


@pytest.mark.parametrize(("model", "ranks"), [("cp", [1, 3]), ("tucker", [(1, 1, 1), (2, 1, 3)])])
def test_cp_and_tucker_with_a_rank_without_samples(model, ranks):
    loss = wtf.Wasserstein(wtf.grid_cost(4, 3), eps=0.2, lam=2.0)
    # Few steps: rounding grows with their number.
    options = {"model": model, "n_seeds": 2, "rho": 0.05, "max_iter": 2}
    X = images()
    X[: len(X) // 3] = 0.0  # all samples of the first rank are empty
    one = wtf.rank_scan(X, ranks, loss, **options)
    team = scans(X, [len(X) // 3, len(X) // 3], ranks, loss, **options)
    assert_alike(team)
    names = ["objective", "loss", "held_out", *(["core_consistency"] if model == "cp" else [])]
    for name in names:
        found, expected = ([getattr(r, name) for r in scan] for scan in (team[0], one))
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_callback_of_one_rank_ends_all():
    def scan(comm):
        stop = (lambda record: record.rank == 2) if comm.rank == 1 else None
        mine = np.split(bumps(12), [5])[comm.rank]
        options = {"n_seeds": 1, "held_out": None, "max_iter": 3, "callback": stop}
        return wtf.rank_scan(mine, [1, 2, 3], LOSS, comm=comm, **options)

    assert [len(found.records) for found in run_threads(scan, 2, timeout=TIMEOUT)] == [2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda rank: {"n_seeds": 1 + rank}, "n_seeds differs from that of rank 0"),
        (lambda rank: {"rng": rank}, "rng differs from that of rank 0"),
        (lambda _: {"held_out": 99}, "held_out is 99"),
        (lambda _: {"constraints": ("columns", "columns")}, "expected held_out=None"),
    ],
)
def test_bad_arguments_are_named_and_the_team_survives(options, message):
    def scan(comm):
        given = {"n_seeds": 1, "max_iter": 2, "comm": comm}
        mine = np.split(bumps(12), [5])[comm.rank]
        with pytest.raises((ValueError, RuntimeError), match=message):
            wtf.rank_scan(mine, [1], LOSS, **given | options(comm.rank))
        return wtf.rank_scan(mine, [1], LOSS, held_out=None, **given)

    assert len(run_threads(scan, 2, timeout=20.0)) == 2
