"""Teams of processes of torch.distributed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.validation import positive_number
from wtfarray.distributed._waiting import TIMEOUT, Shareable, no_answer, wait_for

FAILED = "wtfarray/failed"
"""The key under which a failure is stored."""


class TorchCommunicator(Shareable):
    """The processes of a group of torch.distributed; see `torch_distributed`."""

    def __init__(self, group: Any, timeout: float = TIMEOUT) -> None:
        import torch.distributed as dist

        self._group = group
        self._timeout = timeout
        self._store = dist.distributed_c10d._get_default_store()  # noqa: SLF001
        self._groups: dict[tuple[tuple[int, ...], ...], TorchCommunicator | None] = {}
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self._device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"

    def sum(self, array: NDArray[np.float64], /) -> NDArray[np.float64]:
        """The sum over all ranks, on the CPU or, with NCCL, on the GPU."""
        import torch
        import torch.distributed as dist

        total = torch.from_numpy(np.array(array, dtype=np.float64, order="C")).to(self._device)
        options = dist.AllreduceOptions()
        if self._timeout < math.inf:
            # Not by `wait_for`: a process does not end before its messages do.
            options.timeout = timedelta(seconds=self._timeout)
        begin = time.monotonic()
        try:
            work = self._group.allreduce([total], options)
            wait_for(work.is_completed, self.check_failure)
            work.wait()
        except RuntimeError as error:
            self.check_failure()
            if time.monotonic() - begin >= self._timeout:
                raise no_answer(self._timeout) from error
            msg = f"another rank has ended, or cannot be reached: {error}"
            raise RuntimeError(msg) from error
        found: NDArray[np.float64] = total.cpu().numpy()
        return found

    def split(self, groups: Sequence[Sequence[int]], /) -> TorchCommunicator | None:
        """The group of this rank, or None; made once for the same groups."""
        import torch.distributed as dist

        key = tuple(tuple(group) for group in groups)
        if key not in self._groups:
            mine = next((group for group in key if self.rank in group), None)
            self._groups[key] = None
            if mine is not None:
                ranks = [dist.get_global_rank(self._group, rank) for rank in mine]
                part = dist.new_group(
                    ranks, backend=dist.get_backend(self._group), use_local_synchronization=True
                )
                self._groups[key] = TorchCommunicator(part, self._timeout)
        return self._groups[key]

    def fail(self, message: str, /) -> None:
        """Store the message, which all ranks look for while they wait."""
        import torch.distributed as dist

        self._store.set(FAILED, f"rank {dist.get_rank()} has failed: {message}")

    def check_failure(self) -> None:
        """Raise the failure of another rank."""
        if self._store.check([FAILED]):
            raise RuntimeError(self._store.get(FAILED).decode())


def torch_distributed(group: Any = None, /, *, timeout: float = TIMEOUT) -> TorchCommunicator:
    """
    A team of processes of torch.distributed, which has to be initialised. Requires torch.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        The processes; all of them by default. The backend may be gloo or NCCL.
    timeout : float
        Seconds after which a rank that waits for another one gives up with an error, in case that
        one has never called the function. ``inf`` for that of the process group.

    Returns
    -------
    Communicator
        To be passed as ``comm``.

    Examples
    --------
    Start it with ``torchrun --nproc-per-node 4 script.py``::

        import torch
        import wtfarray as wtf
        from wtfarray.distributed import torch_distributed

        torch.distributed.init_process_group("gloo")
        comm = torch_distributed()
        fit = wtf.nmf(X_of_this_process, 50, loss, rng=0, comm=comm)
    """
    try:
        import torch.distributed as dist
    except ImportError as error:
        msg = "distributed.torch_distributed needs torch: pip install 'wtfarray[torch]'"
        raise ImportError(msg) from error
    if not (dist.is_available() and dist.is_initialized()):
        msg = (
            "torch.distributed is not initialised: expected a call of "
            "torch.distributed.init_process_group before"
        )
        raise RuntimeError(msg)
    seconds = positive_number("timeout", timeout, infinite=True)
    return TorchCommunicator(dist.group.WORLD if group is None else group, seconds)
