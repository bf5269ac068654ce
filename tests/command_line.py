"""The command line through click's runner; skips the tests that import it where click is missing.

Import it before ``wtfarray.cli._commands``, which cannot be imported without click.
"""

import numpy as np
import pytest

pytest.importorskip("rich", reason="the command line needs rich")
CliRunner = pytest.importorskip("click.testing", reason="the command line needs click").CliRunner

from wtfarray.cli._commands import command  # noqa: E402
from wtfarray.cli._group import BAD_INPUT  # noqa: E402

SAMPLES, GRID = 8, (5, 4)
QUICK = ("--rank", "2", "--eps", "0.1", "--tol", "1e-3")


def data():
    X = np.random.default_rng(0).gamma(1.0, size=(SAMPLES, *GRID)) + 0.01
    return X / X.sum(axis=(1, 2), keepdims=True)


def run(*words):
    return CliRunner().invoke(command, [str(word) for word in words])


def refuse(*words):
    """The single line of the error message."""
    result = run(*words)
    assert result.exit_code == BAD_INPUT
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("wtfarray: ")
    return lines[0]
