"""
Teams of processes that share the samples of one fit.

Every process calls the same function with its own samples, and passes the communicator of its team
as ``comm``.
"""

from wtfarray._arrays.communicator import Communicator
from wtfarray.distributed._gather import gather
from wtfarray.distributed._mpi import mpi
from wtfarray.distributed._threads import run_threads, threads
from wtfarray.distributed._torch import torch_distributed

__all__ = ["Communicator", "gather", "mpi", "run_threads", "threads", "torch_distributed"]
