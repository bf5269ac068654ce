"""One fit of several processes: what they have to agree on before it begins."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import numpy as np

from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.host import to_host
from wtfarray._arrays.sums import Sums
from wtfarray._arrays.validation import instance_of
from wtfarray._losses.loss_sum import losses_of
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._transport.banded import numbers_of


def team_of(comm: object) -> Communicator | None:
    """The communicator of a fit, None if there is no other process."""
    if comm is None:
        return None
    expected = "a communicator of wtfarray.distributed, such as distributed.mpi()"
    instance_of("comm", comm, Communicator, expected)
    assert isinstance(comm, Communicator)
    return comm if comm.size > 1 else None


def check_same(sums: Sums, arguments: Mapping[str, object]) -> None:
    """Refuse arguments that are not the same on all processes."""
    if not sums.shared:
        return
    mine = np.asarray([_digest(value) for value in arguments.values()])
    first = sums.from_rank(mine, 0)

    def check() -> None:
        for name, own, other in zip(arguments, mine, first, strict=True):
            if own != other:
                msg = f"{name} differs from that of rank 0: expected the same on every rank"
                raise ValueError(msg)

    sums.agree(check)


def _digest(value: object) -> float:
    """A number, exact in float64, that identifies a value."""
    content = value if isinstance(value, bytes) else repr(value).encode()
    return float(int.from_bytes(hashlib.sha256(content).digest()[:6], "big"))


def loss_content(loss: Loss) -> bytes:
    """What a loss consists of: its parameters and its costs."""
    parts = []
    for part in losses_of(loss):
        parts.append(loss_identity(part).encode())
        if isinstance(part, Wasserstein):
            parts += [np.ascontiguousarray(to_host(numbers_of(c))).tobytes() for c in part.costs]
    return b"".join(parts)


def loss_identity(loss: Loss) -> str:
    """A representation of a loss that is the same in another process."""
    kind = type(loss)
    if kind.__repr__ is not object.__repr__:
        return repr(loss)
    fields = sorted(getattr(loss, "__dict__", {}).items())
    return f"{kind.__module__}.{kind.__qualname__}({fields!r})"  # the default holds an address


def shared_generator(rng: object, sums: Sums) -> np.random.Generator:
    """The generator of a seed; without a seed, one seed for all processes."""
    if rng is None and sums.shared:
        seed = np.random.SeedSequence().generate_state(4).astype(np.float64)
        return np.random.default_rng([int(word) for word in sums.from_rank(seed, 0)])
    if isinstance(rng, np.random.Generator):
        return rng
    return np.random.default_rng(rng)  # type: ignore[arg-type]


def seed_identity(rng: object) -> object:
    """A representation of the seed that can be compared, None if there is no seed."""
    if isinstance(rng, np.random.Generator):
        return repr(rng.bit_generator.state)
    return None if rng is None else repr(np.asarray(rng).tolist())


def counts_of(samples: int, comm: Communicator) -> tuple[int, ...]:
    """The number of samples of every process."""
    counts = np.zeros(comm.size)
    counts[comm.rank] = samples
    return tuple(int(count) for count in comm.sum(counts))


class Interrupts:
    """Interrupts of this process, which all processes have to act on at the same step."""

    def __init__(self) -> None:
        self._pending = False

    def __call__(self) -> bool:
        """Whether there was an interrupt since the last call."""
        pending, self._pending = self._pending, False
        return pending

    @contextmanager
    def held(self) -> Iterator[None]:
        """
        Hold back Ctrl-C until the next step of the fit; a second one acts at once.

        An interrupt of one process in the middle of a message would leave the others waiting for
        ever. Python handles signals in the main thread only; elsewhere this has no effect.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def hold(number: int, frame: FrameType | None) -> None:
            if self._pending and callable(before):
                before(number, frame)
            self._pending = True

        signal.signal(signal.SIGINT, hold)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
