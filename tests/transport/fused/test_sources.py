"""The number that stands for everything that machine code is made of."""

import pytest

pytest.importorskip("numba", reason="machine code needs Numba")

from wtfarray._transport.fused import iteration, sources
from wtfarray._transport.fused.machine_code import Kept
from wtfarray._transport.fused.sources import DIGEST, digest_of


def folder_with(tmp_path, **files):
    folder = tmp_path / "package"
    folder.mkdir(exist_ok=True)
    for name in sources.SOURCES:
        (folder / name).write_text("GROWTH = 3.0\n", encoding="utf-8")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_same_sources_have_the_same_number(tmp_path):
    folder = folder_with(tmp_path, a="x = 1\n", b="y = 2\n")
    assert digest_of(folder) == digest_of(folder)
    assert 0 <= digest_of(folder) < 2**62


@pytest.mark.parametrize("name", ["a.py", "c.py", *sources.SOURCES])
def test_every_source_counts(tmp_path, name):
    folder = folder_with(tmp_path, a="x = 1\n", b="y = 2\n")
    before = digest_of(folder)
    (folder / name).write_text("x = 9\n", encoding="utf-8")
    assert digest_of(folder) != before


def test_version_counts_where_there_are_no_sources(tmp_path, monkeypatch):
    before = digest_of(tmp_path / "archive.zip" / "package")
    monkeypatch.setattr(sources, "__version__", "another")
    assert digest_of(tmp_path / "archive.zip" / "package") != before


def test_machine_code_is_that_of_the_sources():
    assert digest_of(sources.Path(sources.__file__).parent) == DIGEST
    name = iteration.iterate._function.py_func.__qualname__
    assert name == Kept(iteration._iterate, DIGEST)._function.py_func.__qualname__
