"""A working folder for every test of the command line."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def fits_without_escape(no_escape):
    """How a fit leaves saddle points is not tested here."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a folder of its own that holds two files of data."""
    from command_line import SAMPLES, data

    monkeypatch.chdir(tmp_path)
    np.save("X.npy", data())
    np.save("table.npy", data().reshape(SAMPLES, -1))
