"""Fits on disk: `.npz` files without pickle, written atomically and checked when read."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.axes import Axis, checked_axes
from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import mass_tolerance
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import one_of, refuse_where
from wtfarray._fit.journal import Record
from wtfarray._losses.frobenius import Frobenius
from wtfarray._losses.kullback_leibler import KullbackLeibler
from wtfarray._losses.loss_sum import LossSum
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint, check_constraint, constrained_axes
from wtfarray._transport.banded import BandedCost, numbers_of

if TYPE_CHECKING:
    import zipfile

PROBE = 4096
"""Bytes that are written to find out whether there is room: one block of most file systems."""
HEADER = "header.npy"
"""The member of the archive that describes the others."""
CHUNK = 1 << 20
"""Bytes that are read at once."""
NPY_MAGIC = b"\x93NUMPY\x01\x00"
NPY_HEADER = re.compile(
    r"\{'descr': '([<>]f8|\|u1)', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), \} *\n"
)
"""What NumPy writes before float64 numbers and bytes."""
REASON_LENGTH = 300
"""Characters of a message about a file, which may hold anything."""


def to_dtype_name(array: Array) -> str:
    """The name of the dtype, the same for every library."""
    xp = array_namespace(array)
    return "float32" if array.dtype == xp.float32 else "float64"


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """
    Write a temporary file next to ``path``, then move it there.

    If writing fails, an existing file is left unchanged. Symbolic links are followed; devices and
    pipes are written to directly.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        write(path)
        return
    part = path.with_name(f"{path.name[:40]}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        write(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """
    Write an npz file with a header; if writing fails, an existing file is left unchanged.

    The header also holds the checksums of all arrays.
    """
    import zipfile  # not at the top: it would take a tenth of the import time of the library

    def write(part: Path) -> None:
        with part.open("w+b") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
            with zipfile.ZipFile(stream, "a") as archive:
                complete = header | {"checksums": _checksums(archive.infolist())}
                content = np.frombuffer(json.dumps(complete).encode(), dtype=np.uint8)
                with archive.open(HEADER, "w") as member:
                    np.lib.format.write_array(member, content, allow_pickle=False)

    replace_file(path, write)


def try_to_write(path: Path) -> None:
    """Raise OSError if the folder of ``path`` is full or cannot be written to."""
    import tempfile  # not at the top, as zipfile above

    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        return
    with tempfile.TemporaryFile(dir=path.parent) as stream:
        stream.write(bytes(PROBE))


def _checksums(members: Sequence[zipfile.ZipInfo]) -> dict[str, int]:
    """Those that the archive has of its arrays; they are compared with the content when read."""
    return {member.filename: member.CRC for member in members if member.filename != HEADER}


class Archive:
    """
    The arrays of a file of `write_atomically`.

    Sizes are checked before memory is allocated, and that all arrays are those that were written.
    """

    def __init__(self, stream: BinaryIO) -> None:
        import zipfile

        size = stream.seek(0, os.SEEK_END)
        self._file = zipfile.ZipFile(stream)
        found = self._file.infolist()
        self._members = {member.filename: member for member in found}
        if len(self._members) != len(found):
            msg = "it holds two arrays of one name"
            raise ValueError(msg)
        if any(
            member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size
            for member in found
        ):
            msg = "it is compressed"
            raise ValueError(msg)
        if sum(member.file_size for member in found) > size:
            msg = "its arrays are larger than the file"
            raise ValueError(msg)
        self._unread = set(self._members)
        self.header = self._read_header()
        written = get(self.header, "checksums", dict)
        del self.header["checksums"]
        if written != _checksums(found):
            msg = "its arrays are not those that were written"
            raise ValueError(msg)

    def has(self, name: str) -> bool:
        """Whether there is such an array."""
        return f"{name}.npy" in self._members

    def read(
        self, name: str, shape: tuple[int | None, ...], kind: str = "f8"
    ) -> NDArray[np.float64]:
        """An array of the given shape, in which None stands for any size."""
        if not self.has(name):
            msg = f"it has no {name}"
            raise ValueError(msg)
        member = self._members[f"{name}.npy"]
        self._unread.discard(member.filename)
        with self._file.open(member) as stream:
            dtype, found, order, start = _read_npy_header(name, stream)
            if dtype[1:] != kind:
                msg = f"{name} is of type {dtype[1:]}: expected {kind}"
                raise ValueError(msg)
            fits = (n is None or n == m for n, m in zip(shape, found, strict=False))
            if len(found) != len(shape) or not all(fits):
                wanted = ", ".join("any" if n is None else str(n) for n in shape)
                msg = f"{name} has shape {found}: expected ({wanted})"
                raise ValueError(msg)
            size = member.file_size - start
            if size != math.prod(found) * np.dtype(dtype).itemsize:
                msg = f"{name} has {size} bytes, not those of shape {found}"
                raise ValueError(msg)
            content, done = np.empty(size, dtype=np.uint8), 0
            while chunk := stream.read(CHUNK):
                content[done : done + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
                done += len(chunk)
        array = content.view(dtype)
        if kind == "f8":
            array = array.astype(np.float64, copy=False)  # in the byte order of this machine
        return array.reshape(found, order="F" if order else "C")

    def finish(self) -> None:
        """Refuse arrays that were not read."""
        if self._unread:
            msg = f"it also holds {min(self._unread)}"
            raise ValueError(msg)

    def _read_header(self) -> dict[str, Any]:
        header = json.loads(self.read("header", (None,), "u1").tobytes().decode())
        if not isinstance(header, dict):
            msg = "its header is no dictionary"
            raise TypeError(msg)
        return header


def _read_npy_header(name: str, stream: Any) -> tuple[str, tuple[int, ...], bool, int]:
    """Dtype, shape and whether the order is Fortran's, and how many bytes say so."""
    magic = stream.read(len(NPY_MAGIC))
    length = int.from_bytes(stream.read(2), "little")
    found = NPY_HEADER.fullmatch(stream.read(length).decode("latin1"))
    if magic != NPY_MAGIC or found is None:
        msg = f"{name} is no array of real numbers"
        raise ValueError(msg)
    shape = tuple(int(n) for n in found[3].split(",") if n.strip())
    return found[1], shape, found[2] == "True", len(NPY_MAGIC) + 2 + length


@contextmanager
def reading(name: str, path: str | os.PathLike[str], expected: str) -> Iterator[Archive]:
    """Open an npz file; errors in its content become a ValueError about argument ``name``."""
    import zipfile

    with Path(path).open("rb") as stream:
        try:
            yield Archive(stream)
        except (
            zipfile.BadZipFile,
            struct.error,
            ArithmeticError,
            AttributeError,
            EOFError,
            LookupError,
            OSError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of a wrong offset
                raise
            damaged = isinstance(error, OSError | EOFError)
            reason = "it is damaged" if damaged else str(error)[:REASON_LENGTH]
            msg = f"{name} is {os.fspath(path)!r}: expected {expected}; {reason}"
            raise ValueError(msg) from error


def get(header: dict[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """An entry of a header, of one of the given types; bool is no int."""
    if name not in header:
        msg = f"its header has no {name}"
        raise ValueError(msg)
    value, kinds = header[name], kind if isinstance(kind, tuple) else (kind,)
    if type(value) not in kinds:
        msg = f"{name} is {value!r}: expected {' or '.join(k.__name__ for k in kinds)}"
        raise TypeError(msg)
    return value


def get_count(header: dict[str, Any], name: str) -> int:
    """An entry that counts something."""
    value: int = get(header, name, int)
    if not 0 <= value < 2**63:
        msg = f"{name} is {value}: expected an integer of at least 0"
        raise ValueError(msg)
    return value


def as_number(name: str, value: Any, least: float = -math.inf, *, infinite: bool = False) -> float:
    """A number of at least ``least``; no NaN, and infinity only if it is allowed."""
    if type(value) not in (int, float):
        msg = f"{name} is {value!r}: expected a number"
        raise TypeError(msg)
    number = float(value)
    if not number >= least or math.isnan(number) or (math.isinf(number) and not infinite):
        bound = "" if least == -math.inf else f" of at least {least:g}"
        msg = f"{name} is {number}: expected a {'' if infinite else 'finite '}number{bound}"
        raise ValueError(msg)
    return number


def check_finite(name: str, array: NDArray[np.float64], dtype: str) -> None:
    """Refuse numbers that are not finite, or would not be in the dtype of the fit."""
    largest = float(np.finfo(dtype).max)
    refuse_where(~(np.abs(array) <= largest), name, array, f"finite values of {dtype}")


def check_nonnegative(name: str, array: NDArray[np.float64], dtype: str) -> None:
    """Refuse numbers that are negative or not finite."""
    check_finite(name, array, dtype)
    refuse_where(array < 0, name, array, "non-negative values")


def write_records(records: Sequence[Record]) -> NDArray[np.float64]:
    """The history of a fit, (n, 4)."""
    rows = [[r.time, r.objective, r.gap, r.evaluations] for r in records]
    return np.asarray(rows, dtype=np.float64).reshape(-1, 4)


def read_records(archive: Archive) -> list[Record]:
    """What `write_records` gave; objectives and gaps may be infinite."""
    rows = archive.read("history", (None, 4))
    check_nonnegative("history", rows[:, [0, 3]], "float64")
    refuse_where(np.isnan(rows), "history", rows, "numbers")
    counts = rows[:, 3]
    refuse_where(counts != np.floor(counts), "history", counts, "whole numbers of evaluations")
    return [Record(t, j, gap, int(n)) for t, j, gap, n in rows.tolist()]


def has_unit_sums(block: NDArray[np.float64], constraint: Constraint, dtype: str) -> bool:
    """Whether the groups of a constraint sum to one, as blocks that were fixed need not."""
    axes = constrained_axes(constraint, block.ndim)
    if axes is None:
        return True
    tolerance = mass_tolerance(np.empty(0, dtype=dtype))
    with np.errstate(over="ignore"):
        return bool((np.abs(block.sum(axis=axes) - 1.0) <= tolerance).all())


def read_blocks(
    archive: Archive, kind: str, shape: tuple[int, ...], dtype: str
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64] | None, NDArray[np.float64] | None]:
    """Factors, core and weights of a model of data of the given shape."""
    sizes = (shape[0], math.prod(shape[1:])) if kind == "nmf" else shape
    factors = [archive.read(f"factor_{k}", (n, None)) for k, n in enumerate(sizes)]
    ranks = tuple(factor.shape[1] for factor in factors)
    if min(ranks) < 1 or (kind != "tucker" and len(set(ranks)) > 1):
        msg = f"its factors have ranks {ranks}"
        raise ValueError(msg)
    for k, factor in enumerate(factors):
        check_nonnegative(f"factor_{k}", factor, dtype)
    name, size = ("core", ranks) if kind == "tucker" else ("weights", ranks[:1])
    last = archive.read(name, size)
    check_nonnegative(name, last, dtype)
    return (factors, last, None) if kind == "tucker" else (factors, None, last)


def read_constraints(
    header: dict[str, Any], blocks: Sequence[NDArray[np.float64]], kind: str, dtype: str
) -> tuple[tuple[Constraint, ...], tuple[float, ...], tuple[float, ...]]:
    """
    Constraints, weights and references of the entropies of all blocks and of learned weights.

    ``blocks`` are the factors, then the core.
    """
    constraints, rho = get(header, "constraints", list), get(header, "rho", list)
    allowed = {len(blocks)} if kind == "tucker" else {len(blocks), len(blocks) + 1}
    references = get(header, "references", list)
    if len(constraints) not in allowed or len(rho) != len(constraints):
        msg = f"it has {len(constraints)} constraints and {len(rho)} rho for {len(blocks)} blocks"
        raise ValueError(msg)
    if len(references) != len(constraints):
        msg = f"it has {len(references)} references for {len(constraints)} constraints"
        raise ValueError(msg)
    ndims = [block.ndim for block in blocks] + [1] * (len(constraints) - len(blocks))
    for k, (constraint, ndim) in enumerate(zip(constraints, ndims, strict=True)):
        check_constraint(f"constraints[{k}]", constraint, ndim)
    if len(constraints) > len(blocks):
        one_of("the constraint of learned weights", constraints[-1], ("all",))
    unit = get(header, "normalised", list)  # fixed blocks need not be
    if len(unit) != len(blocks) or {type(u) for u in unit} != {bool}:
        msg = f"normalised is {unit!r}: expected one bool for each block"
        raise TypeError(msg)
    for k, block in enumerate(blocks):
        if unit[k] and not has_unit_sums(block, constraints[k], dtype):
            msg = f"the {constraints[k]} of block {k} do not sum to one"
            raise ValueError(msg)
    least = math.ulp(0.0)
    numbers = [as_number(f"rho[{k}]", value, least) for k, value in enumerate(rho)]
    units = [as_number(f"references[{k}]", value, least) for k, value in enumerate(references)]
    return tuple(constraints), tuple(numbers), tuple(units)


def read_shape(header: dict[str, Any], kind: str) -> tuple[int, ...]:
    """The shape of the data."""
    shape = get(header, "shape", list)
    if len(shape) < (2 if kind == "nmf" else 1) or any(type(n) is not int or n < 1 for n in shape):
        msg = f"shape is {shape!r}: expected that of data"
        raise ValueError(msg)
    return tuple(shape)


def describe_axes(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """The labels of the modes as JSON."""
    return [{"name": axis.name, "values": axis.values, "unit": axis.unit} for axis in axes]


def read_axes(header: dict[str, Any], shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """What `describe_axes` gave."""
    axes = []
    for k, entry in enumerate(get(header, "axes", list)):
        if not isinstance(entry, dict):
            msg = f"axes[{k}] is {entry!r}: expected a dictionary"
            raise TypeError(msg)
        name, unit = (get(entry, what, (str, type(None))) for what in ("name", "unit"))
        axes.append(Axis(name, get(entry, "values", (list, type(None))), unit))
    return checked_axes(axes or None, (), shape)


def describe_loss(loss: Loss, prefix: str = "cost") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A loss as JSON and its costs as arrays; for a user-defined loss only the type's name."""
    if isinstance(loss, LossSum):
        parts = [describe_loss(part, f"{prefix}_{k}") for k, part in enumerate(loss.losses)]
        losses = {"name": "LossSum", "losses": [part[0] for part in parts]}
        return losses, {name: cost for part in parts for name, cost in part[1].items()}
    if isinstance(loss, Frobenius | KullbackLeibler):
        return {"name": type(loss).__name__}, {}
    if not isinstance(loss, Wasserstein):
        return {"name": "own", "type": type(loss).__name__}, {}
    costs = {f"{prefix}_{k}": to_host(numbers_of(cost)) for k, cost in enumerate(loss.costs)}
    lam = None if math.isinf(loss.lam) else loss.lam
    described: dict[str, Any] = {
        "name": "Wasserstein",
        "eps": loss.eps,
        "lam": lam,
        "modes": loss.modes,
        "costs": list(costs),
        "debias": loss.debias,
        "source_lam": None if math.isinf(loss.source_lam) else loss.source_lam,
    }
    bins = [cost.bins if isinstance(cost, BandedCost) else None for cost in loss.costs]
    if any(bins):
        described["banded"] = bins
    return described, costs


def read_loss(
    described: object, archive: Archive, shape: tuple[int, ...], prefix: str = "cost"
) -> Loss | str:
    """The loss described by `describe_loss`, or the type of a user-defined one."""
    if not isinstance(described, dict):
        msg = f"loss is {described!r}: expected a dictionary"
        raise TypeError(msg)
    name = get(described, "name", str)
    if name == "LossSum":
        parts = [
            read_loss(part, archive, shape, f"{prefix}_{k}")
            for k, part in enumerate(get(described, "losses", list))
        ]
        for part in parts:
            if isinstance(part, str):
                return part
        return LossSum(*(part for part in parts if not isinstance(part, str)))
    if name == "own":
        own_type: str = get(described, "type", str)
        return own_type
    one_of("the name of the loss", name, ("Wasserstein", "Frobenius", "KullbackLeibler"))
    if name == "Frobenius":
        return Frobenius()
    if name == "KullbackLeibler":
        return KullbackLeibler()
    names = get(described, "costs", list)
    if names != [f"{prefix}_{k}" for k in range(len(names))]:
        msg = f"costs is {names!r}: expected {prefix}_0 and so on"
        raise ValueError(msg)
    banded = get(described, "banded", list) if "banded" in described else [None] * len(names)
    if len(banded) != len(names):
        msg = f"banded is {banded!r}: expected one entry for each cost"
        raise ValueError(msg)
    costs: list[Array | BandedCost] = [
        archive.read(cost, (None, None))
        if bins is None
        else BandedCost(archive.read(cost, (None,)), bins)
        for cost, bins in zip(names, banded, strict=True)
    ]
    lam = get(described, "lam", (float, int, type(None)))
    modes = get(described, "modes", (list, type(None)))
    eps = get(described, "eps", (float, int))
    # Files of earlier versions have neither.
    debias = get({"debias": False, **described}, "debias", bool)
    source = get({"source_lam": None, **described}, "source_lam", (float, int, type(None)))
    loss = Wasserstein(
        costs,
        eps,
        math.inf if lam is None else lam,
        modes,
        debias=debias,
        source_lam=math.inf if source is None else source,
    )
    loss.transported(shape)  # refuses costs of another size
    return loss


def choose_loss(stored: Loss | str, given: Loss | None) -> Loss:
    """The loss of the file, or the user-defined one given to `load`."""
    own = isinstance(stored, str)
    if own == (given is None):
        expected = f"the {stored} of the fit" if own else "None, the loss is in the file"
        found = "None" if given is None else f"a {type(given).__name__}"
        msg = f"loss is {found}: expected {expected}"
        raise ValueError(msg)
    if given is not None:
        return given
    assert not isinstance(stored, str)
    return stored
