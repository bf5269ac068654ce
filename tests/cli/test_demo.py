"""The demonstration."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import data, run
from helpers import numpy_only

import wtfarray as wtf
from wtfarray.cli._group import INTERRUPTED, NOT_WRITTEN


@numpy_only
def test_demo_writes_a_picture(monkeypatch):
    pytest.importorskip("matplotlib")
    from wtfarray.cli import _demo

    monkeypatch.setattr(_demo, "IMAGES", 4)
    monkeypatch.setattr(_demo, "SIDE", 8)
    result = run("demo", "--out", "picture.png")
    assert result.exit_code == 0, result.output
    assert "CP of 4 images of 8 x 8 pixels" in result.stdout
    assert Path("picture.png").read_bytes()[:4] == b"\x89PNG"


@numpy_only
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_picture_is_written_elsewhere_on_a_full_disk(monkeypatch, tmp_path_factory):
    pytest.importorskip("matplotlib")
    from wtfarray.cli import _demo

    monkeypatch.setattr(_demo, "IMAGES", 4)
    monkeypatch.setattr(_demo, "SIDE", 8)
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    Path("full.png").symlink_to("/dev/full")
    result = run("demo", "--out", "full.png")
    assert result.exit_code == NOT_WRITTEN
    (path,) = folder.glob("*/full.png")
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert f"Figure: {path}" in result.stdout


@numpy_only
@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for another process on Windows")
class TestInterrupt:
    def test_interrupted_demo_writes_nothing(self, monkeypatch):
        pytest.importorskip("matplotlib")
        fit = wtf.nmf(data(), 2, wtf.KullbackLeibler(), rng=0)
        monkeypatch.setattr(wtf, "cp", lambda *_, **__: replace(fit, stopped=True))
        assert run("demo", "--out", "picture.png").exit_code == INTERRUPTED
        assert not Path("picture.png").exists()
