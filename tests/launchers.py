"""Scripts that several processes run, started as a user starts them."""

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

LIMIT = 60.0
"""Seconds after which a launch counts as a hang."""
PREAMBLE = """
import os, signal, sys, warnings
import numpy as np
import wtfarray as wtf
from wtfarray.distributed import mpi, torch_distributed
warnings.simplefilter("ignore")
if {kind!r} == "mpi":
    comm = mpi(timeout={timeout})
else:
    import torch
    torch.distributed.init_process_group("gloo")
    comm = torch_distributed(timeout={timeout})
X = np.random.default_rng(0).dirichlet(np.ones(64), 30).reshape(30, 8, 8)
X = np.split(X, [11])[comm.rank]
loss = wtf.Wasserstein(wtf.grid_cost(8, 8), eps=0.05, lam=10.0)
"""


@dataclass(frozen=True)
class Launch:
    """How a launch ended."""

    code: int
    lines: list[str]
    errors: str
    seconds: float


def launcher(kind):
    """The command that starts two processes of Python; skips the test if it is not there."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("runs in the session `distributed`, which has mpi4py")
    folder = Path(sys.executable).parent
    if kind == "mpi":
        found = shutil.which("mpiexec", path=f"{folder}{os.pathsep}{os.environ['PATH']}")
        if found is None:
            pytest.skip("mpiexec was not found")
        return [found, "-n", "2", sys.executable, "-m", "mpi4py"]
    pytest.importorskip("torch", reason="needs torch")
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def launch(kind, code, tmp_path, timeout=LIMIT):
    """Run code on two processes that wait for each other so long; a hang fails the test."""
    script = tmp_path / "script.py"
    script.write_text(
        PREAMBLE.format(kind=kind, timeout=timeout) + textwrap.dedent(code), encoding="utf-8"
    )
    return launch_command([*launcher(kind), str(script)])


def launch_command(command):
    """Run a command; a hang fails the test."""
    begin = time.monotonic()
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = [line for line in run.stdout.splitlines() if line]
    return Launch(run.returncode, lines, run.stderr, time.monotonic() - begin)


def check_command_line(kind, tmp_path):
    """The fit of two processes to a file is that of one, in one file."""
    import numpy as np

    import wtfarray as wtf

    data, one, two = (tmp_path / name for name in ("big.npy", "one.npz", "two.npz"))
    np.save(data, np.random.default_rng(0).dirichlet(np.ones(64), 21).reshape(21, 8, 8))
    options = ["fit", str(data), "--rank", "2", "--eps", "0.05", "--tol", "1e-4", "--quiet"]
    module = ["-m", "wtfarray"]
    alone = launch_command([sys.executable, *module, *options, "--out", str(one)])
    command = [*launcher(kind), *module, *options, "--comm", kind, "--out", str(two)]
    team = launch_command(command)
    assert alone.code == 0, alone.errors
    assert team.code == 0, team.errors
    first, second = wtf.load(one), wtf.load(two)
    assert second.shape == first.shape
    assert second.objective == pytest.approx(first.objective, rel=1e-4)
    for a, b in zip(first.factors, second.factors, strict=True):
        np.testing.assert_allclose(a, b, atol=0.02)


FIT = """
import hashlib
steps = []
fit = wtf.cp(X, 3, loss, rng=0, max_iter=10, comm=comm,
             callback=lambda state: steps.append(state.objective))
atoms = hashlib.sha256(b"".join(f.tobytes() for f in fit.factors[1:])).hexdigest()
sys.stdout.write(f"{atoms} {steps[0]!r} {fit.objective!r}\\n")
sys.stdout.flush()
"""


def check_fit(kind, tmp_path):
    """Both processes have the same bits, and start as one process does."""
    import numpy as np

    import wtfarray as wtf

    found = launch(kind, FIT, tmp_path)
    assert found.code == 0, found.errors
    assert len(found.lines) == 2
    assert len(set(found.lines)) == 1
    _, first, last = found.lines[0].split()
    X = np.random.default_rng(0).dirichlet(np.ones(64), 30).reshape(30, 8, 8)
    loss = wtf.Wasserstein(wtf.grid_cost(8, 8), eps=0.05, lam=10.0)
    steps = []
    with pytest.warns(UserWarning, match="stopped"):
        fit = wtf.cp(
            X,
            3,
            loss,
            rng=0,
            max_iter=10,
            callback=lambda state: steps.append(state.objective),
        )
    assert float(first) == pytest.approx(steps[0], rel=1e-11)
    assert float(last) == pytest.approx(fit.objective, rel=1e-5)


AT_STEP_3 = """
def callback(state):
    if comm.rank == 1 and state.n_iter == 3:
        {action}
"""
FAULTS = {
    "bad data": ("X[1, 2, 3] = np.nan if comm.rank == 1 else 0", "X is nan at index (1, 2, 3)"),
    "error": (
        AT_STEP_3.format(action="raise ValueError('the disk is full')"),
        "ValueError: the disk is full",
    ),
    "kill": (AT_STEP_3.format(action="os.kill(os.getpid(), signal.SIGKILL)"), ""),
}


def check_fault(kind, fault, tmp_path):
    """A fault of one process ends both soon, and its cause is named."""
    code, cause = FAULTS[fault]
    code = f"callback = None\n{code}\nwtf.cp(X, 3, loss, rng=0, comm=comm, callback=callback)\n"
    found = launch(kind, code, tmp_path)
    assert found.code != 0
    assert found.seconds < LIMIT
    assert cause in found.errors
    if cause and kind != "mpi":  # mpiexec may end rank 0 before it can say what it was told
        assert "rank 1 has failed" in found.errors


def check_absent(kind, tmp_path):
    """A process that never calls the fit does not keep the other waiting."""
    code = """
    import time
    if comm.rank == 1:
        time.sleep(60)
    wtf.cp(X, 3, loss, rng=0, comm=comm)
    """
    found = launch(kind, code, tmp_path, timeout=0.5)
    assert found.code != 0
    assert found.seconds < LIMIT / 2
    assert "a rank has not answered for 0.5 s: expected every rank to call" in found.errors


def check_interrupt(kind, tmp_path):
    """Ctrl-C of one process returns the best so far on both."""
    code = """
    def callback(state):
        if comm.rank == 1 and state.n_iter == 3:
            os.kill(os.getpid(), signal.SIGINT)
    fit = wtf.cp(X, 3, loss, rng=0, comm=comm, callback=callback)
    sys.stdout.write(f"{fit.n_iter} {fit.message[:11]}\\n")
    sys.stdout.flush()
    """
    found = launch(kind, code, tmp_path)
    assert found.code == 0, found.errors
    assert found.lines == ["4 interrupted"] * 2
