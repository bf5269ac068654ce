"""The progress bar of a fit."""

import sys

import pytest
from fitting import LOSSES, data
from helpers import numpy_only

import wtfarray as wtf


class TestProgress:
    @numpy_only
    def test_bar_shows_objective_and_gap(self, capsys):
        pytest.importorskip("tqdm")
        wtf.cp(data(), 2, LOSSES["KL"], rng=0, progress=True)
        shown = capsys.readouterr()
        assert "cp" in shown.err
        assert "objective" in shown.err
        assert "gap" in shown.err
        assert shown.out == ""

    @numpy_only
    def test_nothing_is_printed_by_default(self, capsys):
        wtf.cp(data(), 2, LOSSES["KL"], rng=0)
        assert capsys.readouterr() == ("", "")


class TestRefused:
    @numpy_only
    def test_missing_tqdm_is_an_import_error(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        with pytest.raises(ImportError, match="tqdm"):
            wtf.cp(data(), 2, LOSSES["KL"], progress=True)
