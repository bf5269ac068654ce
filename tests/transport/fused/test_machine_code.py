"""Machine code that is kept on disk, and what happens where it cannot be kept."""

import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

import numba

from wtfarray._transport.fused import machine_code
from wtfarray._transport.fused.machine_code import Kept


def twice(x):
    return 2 * x


def test_function_is_called():
    assert Kept(twice)(21) == 42


def twice_for(number):
    def enclosing(x):
        _ = number
        return 2 * x

    return enclosing


def test_machine_code_of_other_sources_is_not_taken(monkeypatch, tmp_path):
    """Numba looks at the function and at what it encloses, not at global names."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    for number, hits in ((1, 0), (1, 1), (2, 0), (2, 1)):
        kept = Kept(twice_for(number))
        assert kept(21) == 42
        assert sum(kept._function.stats.cache_hits.values()) == hits


def test_no_folder_can_be_written(monkeypatch):
    asked = []

    def njit(*, cache=False, **options):
        asked.append(cache)
        if cache:
            msg = "cannot cache function: no locator available"
            raise RuntimeError(msg)
        return numba.njit(**options)

    monkeypatch.setattr(machine_code, "njit", njit)
    assert Kept(twice)(21) == 42
    assert asked == [True, False]


def test_disk_is_full(monkeypatch):
    kept = Kept(twice)
    calls = []

    def full(x):
        calls.append(x)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        return 2 * x

    monkeypatch.setattr(kept, "_function", full)
    assert kept(21) == 42
    assert calls == [21, 21]


@pytest.mark.parametrize(
    "compiler",
    [
        machine_code.machine_code,
        machine_code.machine_code_without_nan,
        machine_code.ordered_machine_code,
    ],
)
def test_compilers(compiler):
    assert compiler(twice)(21) == 42
