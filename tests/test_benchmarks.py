"""The benchmark of speed: its script on small data, and how it times and counts."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from _trace import Step, passed
from array_api_compat import is_torch_namespace

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "speed.py"


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_one_table_of_two_versions(on_numpy):
    """Compared with itself, a version ends at the same J."""
    done = run("strokes", "dense", "--quick", "--baseline", str(ROOT))
    assert done.returncode == 0, done.stderr
    table = [cells(line) for line in done.stdout.splitlines() if line.startswith("|")]
    assert table[0] == ["what", "baseline", "now", "baseline / now", "to reach"]
    figures = {line[0]: line[1:] for line in table[2:]}
    for name in ("strokes 300x28x28, 3 seeds", "dense cost, 700x800"):
        before, after, ratio, _ = figures[f"{name}: J at the end, certified"]
        assert before == after
        assert float(after) < 0
        assert not ratio
        *seconds, ratio, target = figures[f"{name}: s to the baseline's J"]
        assert min(map(float, seconds)) >= 0
        assert float(ratio) > 0
        assert "times sooner" in target


def test_long_spectra_are_unmixed(on_numpy):
    script = ROOT / "benchmarks" / "long_spectra.py"
    done = subprocess.run(
        [sys.executable, str(script), "--bins", "700", "--reach", "100"],
        capture_output=True,
        text=True,
        check=True,
    )
    figures = dict(cells(line) for line in done.stdout.splitlines() if line.startswith("|"))
    assert figures["converged, relative gap"].startswith("True")
    assert float(figures["banded, 700 bins, plain"]) > 0


def test_a_checkout_of_something_else_is_refused(on_numpy, tmp_path):
    """Otherwise a version would be compared with itself."""
    done = run("dense", "--quick", "--baseline", str(tmp_path))
    assert done.returncode == 1
    assert "was imported" in done.stderr
    assert "dense, baseline: failed" in done.stdout
    assert "dense cost, 700x800: J at the end, certified" in done.stdout


def test_rows_that_cannot_run_say_why(on_numpy):
    done = run("faces", "--quick")
    assert done.returncode == 0
    assert "faces, now: needs --data FOLDER" in done.stdout


def test_unknown_rows_are_refused(on_numpy):
    done = run("digit")
    assert done.returncode == 1
    assert "no row is called digit: expected some of digits, " in done.stderr


@pytest.mark.usefixtures("on_numpy")
class TestPassed:
    """The factors of these steps are the certified objectives themselves."""

    @staticmethod
    def steps(*rows):
        return [Step("", seconds, estimate, [np.asarray(J)]) for seconds, estimate, J in rows]

    @staticmethod
    def certified(factors):
        return float(factors[0])

    def test_estimates_propose_and_certified_values_decide(self):
        steps = self.steps((1.0, 5.0, 0.0), (2.0, 1.0, 3.0), (3.0, 0.9, 1.5), (4.0, 0.0, 0.0))
        found = passed([steps], 2.0, self.certified)
        assert (found.seconds, found.objective) == (3.0, 1.5)

    def test_no_step_is_low_enough(self):
        assert passed([self.steps((1.0, 5.0, 5.0))], 2.0, self.certified) is None

    def test_mean_of_fits_that_end_at_different_times(self):
        short = self.steps((1.0, 4.0, 4.0), (2.0, 3.0, 3.0))
        long = self.steps((1.5, 4.0, 4.0), (2.5, 2.0, 2.0), (5.0, 1.0, 1.0))
        found = passed([short, long], 2.0, self.certified)
        assert (found.seconds, found.objective) == (5.0, 2.0)

    def test_fits_that_have_not_begun_are_waited_for(self):
        found = passed(
            [self.steps((1.0, 0.0, 0.0)), self.steps((9.0, 0.0, 0.0))], 2.0, self.certified
        )
        assert found.seconds == 9.0


class TestTorchCounts:
    @pytest.fixture
    def torch(self, xp):
        if not is_torch_namespace(xp):
            pytest.skip("counts what torch dispatches")
        return pytest.importorskip("torch")

    def test_kinds_of_synchronisations(self, torch, array):
        from _torch_counts import TorchCounts

        x, numpy = array([1.0, 2.0, 0.0]), torch.Tensor.numpy
        with TorchCounts() as counts:
            float(x[0])
            bool(torch.any(x > 0))
        assert (counts.scalars, counts.transfers, counts.waits) == (2, 0, 0)
        with TorchCounts() as counts:
            np.asarray(x.cpu())
            x.tolist()
        assert (counts.scalars, counts.transfers, counts.waits) == (0, 2, 0)
        with TorchCounts() as counts:
            x[x > 0]
            torch.linalg.solve(torch.eye(3, dtype=x.dtype, device=x.device), x)
        assert (counts.scalars, counts.transfers, counts.waits) == (0, 0, 2)
        assert counts.synchronisations == 2
        assert torch.Tensor.numpy is numpy

    def test_views_and_memory_are_no_operations(self, torch, array):
        from _torch_counts import TorchCounts

        x = array([[1.0, 2.0], [3.0, 4.0]])
        with TorchCounts() as counts:
            y = x.reshape(-1)[1:].detach()
            torch.empty_like(y)
        assert counts.operations == 0
        with TorchCounts() as counts:
            torch.exp(x.T @ x + 1.0)
        assert counts.by_name == {"mm": 1, "add": 1, "exp": 1}
        assert counts.synchronisations == 0
