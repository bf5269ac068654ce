"""
A fit of data larger than memory, under a limit on the address space of the process.

usage: python benchmarks/out_of_core.py [--size 4GB] [--limit 1GB | --headroom 64MB] [options]

The file is read with `numpy.fromfile`: a memory map of it would count as address space itself.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
from _data import Array, bumps, normalised

import wtfarray as wtf

UNITS = {"MB": 10**6, "GB": 10**9}


def size(text: str) -> int:
    """A number of bytes, as in 4GB."""
    return int(float(text[:-2]) * UNITS[text[-2:]])


class RawFile:
    """Images in a file without a header, as float64: all that a fit needs of them."""

    dtype = np.dtype("float64")

    def __init__(self, path: Path, side: int) -> None:
        self.path = path
        self.shape = (path.stat().st_size // (8 * side * side), side, side)

    def __getitem__(self, rows: slice) -> Array:
        """Some images."""
        entries = math.prod(self.shape[1:])
        flat = np.fromfile(
            self.path,
            count=(rows.stop - rows.start) * entries,
            offset=8 * rows.start * entries,
        )
        return flat.reshape(-1, *self.shape[1:])


def write_images(path: Path, total: int, side: int) -> None:
    """Images of three bumps each, drawn anew for every few of them."""
    images = math.ceil(total / (8 * side * side))
    with path.open("wb") as stream:
        for i in range(0, images, 500):
            parts = bumps(min(500, images - i), seed=i).repeat(side // 32, axis=-1)
            normalised(np.einsum("nki,nkj->nij", parts[:, :, 0], parts[:, :, 1])).tofile(stream)


def peak(field: str) -> int:
    """Bytes of this process: VmSize of address space, VmPeak or VmHWM at most so far."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def fit(arguments: argparse.Namespace) -> None:
    """Fit under the limit, in a process of its own, and print what it took."""
    import resource

    limit = peak("VmSize") + size(arguments.headroom) if arguments.headroom else None
    limit = limit or size(arguments.limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    side = arguments.side
    X = RawFile(Path(arguments.file), side)
    loss: wtf.Loss = wtf.KullbackLeibler()
    if arguments.loss == "wasserstein":
        loss = wtf.Wasserstein(wtf.grid_cost(side, side), eps=arguments.eps, lam=1.0)
    rng = np.random.default_rng(0)
    start = [rng.uniform(0.5, 1.0, (n, arguments.rank)) for n in (X.shape[0], side**2)]
    factors = sum(factor.nbytes for factor in start)
    seen: list[float] = []

    def step(state: wtf.FitState) -> bool:
        seen.append(state.objective)
        print(f"step {len(seen)}: J = {state.objective:.6f} at {state.level:g} eps", flush=True)
        return len(seen) >= arguments.steps

    if arguments.quick:
        tracemalloc.start()
    begin, used = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = wtf.nmf(
            X,
            arguments.rank,
            loss,
            rho=1e-2,
            init=start,
            chunk=arguments.chunk,
            scratch=arguments.folder,
            callback=step,
        )
    seconds, used = time.perf_counter() - begin, time.process_time() - used
    chunk = 8 * side**2 * arguments.chunk
    total = 8 * math.prod(X.shape)
    print(f"X: {total / 1e9:.3f} GB, {X.shape[0]} images of {side} x {side}")
    print(f"limit of the address space: {limit / 1e9:.3f} GB, peak {peak('VmPeak') / 1e9:.3f} GB")
    print(f"resident memory: peak {peak('VmHWM') / 1e9:.3f} GB")
    print(f"a chunk: {chunk / 1e6:.1f} MB; the factors: {factors / 1e6:.1f} MB")
    if arguments.quick:
        arrays = tracemalloc.get_traced_memory()[1]
        print(f"arrays: peak {arrays / 1e6:.1f} MB, {arrays / chunk:.2f} chunks")
        if arrays > 6 * chunk + 90 * factors:
            sys.exit("more than 6 chunks and the vectors of L-BFGS")
    print(f"{seconds:.0f} s, of which {used:.0f} s of CPU time; {found.message}")
    print(f"J = {found.objective:.6f}, gap {found.gap:.1e}; u[0] sums to {found.dual[0].sum():.3f}")


def main() -> None:
    """Write the data, then fit them in another process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--size", default="4GB")
    parser.add_argument("--limit", default="1GB", help="of the address space of the process")
    parser.add_argument("--headroom", help="instead: beyond what it takes after the imports")
    parser.add_argument("--folder", help="for the data and temporary files of four times the size")
    parser.add_argument("--chunk", type=int, default=1024, help="images that are read at once")
    parser.add_argument("--side", type=int, default=64, help="of the images: 32, 64, ...")
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--loss", choices=["wasserstein", "kl"], default="wasserstein")
    parser.add_argument("--eps", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="measure the arrays as well")
    parser.add_argument("--file", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.file:
        fit(arguments)
        return
    print("python", *sys.argv, flush=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "images.bin"
        write_images(path, size(arguments.size), arguments.side)
        command = [sys.executable, *sys.argv, "--file", str(path)]
        if arguments.folder is None:
            command += ["--folder", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
