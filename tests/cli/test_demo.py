"""The demonstration."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import data, run
from helpers import numpy_only

import wtfarray as wtf
from wtfarray.cli._commands import INTERRUPTED


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
@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for another process on Windows")
class TestInterrupt:
    def test_interrupted_demo_writes_nothing(self, monkeypatch):
        pytest.importorskip("matplotlib")
        fit = wtf.nmf(data(), 2, wtf.KullbackLeibler(), rng=0)
        monkeypatch.setattr(wtf, "cp", lambda *_, **__: replace(fit, stopped=True))
        assert run("demo", "--out", "picture.png").exit_code == INTERRUPTED
        assert not Path("picture.png").exists()
