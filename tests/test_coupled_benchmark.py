"""The benchmark of coupled fits: its script on small data."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "coupled.py"


def test_script_runs_without_a_reference(on_numpy):
    command = [sys.executable, str(SCRIPT), "--quick", "--w", "0.1", "--atoms", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| coupled | " in done.stdout
    assert "needs --reference" in done.stdout
