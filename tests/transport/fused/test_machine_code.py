"""Machine code that is kept on disk, and what happens where it cannot be kept."""

import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

import os
import subprocess
import sys

import numba
from helpers import numpy_only

from wtfarray._transport.fused import machine_code
from wtfarray._transport.fused.machine_code import Kept


def twice(x):
    return 2 * x


def twice_function():
    """A function of its own each time, as in another process."""

    def twice(x):
        return 2 * x

    return twice


def hits(kept):
    return sum(kept._function.stats.cache_hits.values())


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def test_function_is_called(folder):
    assert Kept(twice_function(), 0)(21) == 42


def test_machine_code_of_other_sources_is_not_taken(folder):
    """Numba looks at the function alone, not at what it calls."""
    for number, expected in ((1, 0), (1, 1), (2, 0), (2, 1)):
        kept = Kept(twice_function(), number)
        assert kept(21) == 42
        assert hits(kept) == expected


@pytest.mark.parametrize("what", ["sources", "machine", "version"])
def test_files_have_names_of_their_own(folder, monkeypatch, what):
    """A file that was never written is then not taken from another processor or version."""
    Kept(twice_function(), 0)(21)
    before = set(folder.rglob("*.nb?"))
    if what == "machine":
        magic = ("x86_64", "another", "+sse")
        codegen = type(machine_code.cpu_target.target_context.codegen())
        monkeypatch.setattr(codegen, "magic_tuple", lambda _: magic)
    if what == "version":
        monkeypatch.setattr(machine_code.numba, "__version__", "0.0")
    Kept(twice_function(), int(what == "sources"))(21)
    names = [path.name for path in set(folder.rglob("*.nb?")) - before]
    assert len(names) == len(before) == 2
    assert not set(names) & {path.name for path in before}


def test_no_folder_can_be_written(monkeypatch):
    asked = []

    def njit(*, cache=False, **options):
        asked.append(cache)
        if cache:
            msg = "cannot cache function: no locator available"
            raise RuntimeError(msg)
        return numba.njit(**options)

    monkeypatch.setattr(machine_code, "njit", njit)
    assert Kept(twice_function(), 0)(21) == 42
    assert asked == [True, False]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"\x80\x04damaged", None])
def test_damaged_file(folder, suffix, content):
    Kept(twice_function(), 0)(21)
    (path,) = folder.rglob(f"*.{suffix}")
    if content is None:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(content)
    kept = Kept(twice_function(), 0)
    assert kept(21) == 42
    assert kept(4) == 8


def test_disk_is_full(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "_save_data", full)
    assert Kept(twice_function(), 0)(21) == 42
    assert Kept(twice_function(), 0)(4) == 8


FIT = """
import numpy as np
import wtfarray as wtf
from wtfarray._transport.fused.iteration import iterate

X = np.random.default_rng(0).dirichlet(np.ones(24), 400)
loss = wtf.Wasserstein(wtf.grid_cost(24), eps=0.05, lam=1.0)
fit = wtf.nmf(X, 3, loss, rng=0, max_iter=5)
print(sum(iterate._function.stats.cache_hits.values()), fit.factors[0].tobytes().hex())
"""


@numpy_only
def test_process_that_compiles_computes_the_same_bits(tmp_path):
    """As those that read the machine code from the disk."""
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", FIT],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        found.append(done.stdout.split())
    assert [hits for hits, _ in found] == ["0", "1"]
    assert found[0][1] == found[1][1]


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
