"""The paper's code, https://github.com/zsteve/wtf, run from a checkout."""

import importlib
import io
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
from _data import Array

import wtfarray as wtf


def reference(
    checkout: Path,
    X: Array,
    start: Sequence[Array],
    loss: wtf.Wasserstein,
    rho: float,
    *,
    sweeps: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[str, float, list[Array]]]:
    """
    Run the paper's code as its notebook for stacked images does, semi-unbalanced.

    Yields the name, the seconds so far and the factors after every block; what the caller does
    between two blocks is not timed. Ends early where a factor is no longer finite.
    """
    import torch

    paper = import_reference(checkout)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        rows, columns = loss.costs
        cost = rows[:, None, :, None] + columns[None, :, None, :]
        cost = torch.asarray(cost.reshape(X[0].size, X[0].size))
        data, factors = torch.asarray(X), [torch.asarray(a) for a in start]
        rank = factors[0].shape[1]
        core = torch.zeros((rank,) * 3)
        core[range(rank), range(rank), range(rank)] = 1.0
        settings = [np.full(3, value) for value in (rho, loss.eps, loss.lam)]
        options, seconds = {"ot_mode": "slice", "unbal": True}, 0.0
        for sweep in range(1, sweeps + 1):
            for k, norm in enumerate(("row", "col", "col")):
                begin = clock()
                block = paper.FactorsModel(
                    data, k, [cost], core, factors, *settings, norm=norm, **options
                )
                with redirect_stdout(io.StringIO()):
                    paper.solve(block, lr=1.0, tol=1e-2, max_iter=100, mode="lbfgs")
                factors[k] = block.compute_primal_variable().detach()
                seconds += clock() - begin
                name = f"sweep {sweep}, mode {k}"
                if not bool(torch.isfinite(factors[k]).all()):
                    note = f"{name:18s} {seconds:9.2f}  not finite: the reference ends here"
                    print(note, file=sys.stderr)
                    return
                yield name, seconds, [a.numpy() for a in factors]
    finally:
        torch.set_default_dtype(before)


def import_reference(checkout: Path) -> types.ModuleType:
    """The paper's module; it imports a part of TensorLy that it does not use."""
    try:
        importlib.import_module("tensorly.contrib.sparse")
    except ImportError:
        stub = types.ModuleType("tensorly.contrib.sparse")
        stub.tensor = None
        sys.modules[stub.__name__] = stub
    sys.path.insert(0, str(checkout / "src"))
    return importlib.import_module("wtf")
