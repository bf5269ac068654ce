"""
One fit of several processes: images of three blobs, of which every process makes some.

    mpiexec -n 4 python -m mpi4py examples/distributed.py
    torchrun --nproc-per-node 4 examples/distributed.py
    torchrun --nproc-per-node 4 examples/distributed.py --device cuda
"""

import argparse
import os
from typing import Any

import numpy as np

import wtfarray as wtf
from wtfarray.distributed import Communicator, mpi, torch_distributed


def team(device: str) -> Communicator:
    """The team of this process, by the launcher that started it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # not started by torchrun
        return mpi()
    import torch

    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    return torch_distributed()


def images(first: int, last: int, n: int) -> np.ndarray:
    """Images ``first`` to ``last``, whichever process makes them: sums of three jittered blobs."""
    x = np.linspace(-1.0, 1.0, n)
    found = []
    for number in range(first, last):
        rng = np.random.default_rng(number)
        weights = rng.dirichlet(np.ones(3))
        image = np.zeros((n, n))
        for weight, centre, width in zip(weights, (0.0, 0.5, -0.5), (0.3, 0.2, 0.15), strict=True):
            row, column = centre + rng.normal(0.0, (0.15, 0.05))
            blob = np.exp(-(((x - row) / width) ** 2))
            image += weight * blob[:, None] * np.exp(-(((x - column) / width) ** 2))[None, :]
        found.append(image / image.sum())
    return np.stack(found)


def main() -> None:
    """Fit, and print what rank 0 has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=400, help="number of all images")
    parser.add_argument("--pixels", type=int, default=32, help="along one side")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda with torchrun")
    parser.add_argument("--quick", action="store_true", help="a few small images")
    options = parser.parse_args()
    if options.quick:
        options.images, options.pixels = 40, 16
    comm = team(options.device)
    begin, end = (options.images * k // comm.size for k in (comm.rank, comm.rank + 1))
    X: Any = images(begin, end, options.pixels)
    if options.device == "cuda":
        import torch

        X = torch.asarray(X, device="cuda")
    loss = wtf.Wasserstein(wtf.grid_cost(options.pixels, options.pixels), eps=1e-2, lam=25.0)
    fit = wtf.cp(X, 3, loss, rng=0, tol=1e-4, comm=comm)
    if comm.rank == 0:
        rows = tuple(fit.factors[0].shape)
        print(f"{comm.size} processes, {options.images} images; rank 0 has {rows} of factor 0")
        print(fit)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        import torch

        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
