"""Processes that are killed, and files that are damaged or forged."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import wtfarray as wtf
from campaign import checkpointed_fit
from campaign.backends import to_numpy
from campaign.problems import pick
from campaign.trial import Broken, Refused, Trial, same
from wtfarray import _dispatch

ROOT = Path(__file__).parent.parent
FITS: dict[str, Callable[[np.ndarray], Any]] = {
    "cp": lambda X: wtf.cp(X, 2, wtf.Wasserstein(wtf.grid_cost(4, 3), 0.2, 5.0), rng=0),
    "tucker": lambda X: wtf.tucker(
        X, (2, 2, 2), wtf.Wasserstein(wtf.grid_cost(4, 3), 0.2, 1.0), rng=0
    ),
    "nmf": lambda X: wtf.nmf(X, 2, wtf.KullbackLeibler(), rng=0),
    "sum": lambda X: wtf.cp(
        X, 2, wtf.LossSum(wtf.Wasserstein(wtf.grid_cost(4, 3), 0.3, 5.0), wtf.Frobenius()), rng=0
    ),
}


def check_faults(trial: Trial) -> None:
    """One fault, of a sort that the seed decides."""
    rng = trial.draw()
    trial.dtype = "float64"
    check = pick(
        rng, (killed, damaged_fit, forged_fit, damaged_checkpoint), (0.15, 0.35, 0.35, 0.15)
    )
    trial.note("fault", check.__name__)
    with tempfile.TemporaryDirectory() as folder:
        check(trial, rng, Path(folder))


def quietly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call without the warnings, which are judged elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def undisturbed(seed: int, folder: Path) -> wtf.Factorisation:
    """The fit with a checkpoint and no fault: every ten steps it forgets what no file keeps."""
    path = folder / "undisturbed.npz"
    found = quietly(checkpointed_fit.fit, seed, str(path))
    path.unlink(missing_ok=True)
    return found


def same_end(found: wtf.Factorisation, expected: wtf.Factorisation) -> bool:
    """Whether two fits ended at the same objective, but for the order of a few sums."""
    off = abs(found.objective - expected.objective)
    return bool(off <= 1e-12 * max(abs(expected.objective), 1e-3))


def start_fit(seed: int, path: str, pause: float) -> subprocess.Popen[str]:
    """The checkpointed fit in a process of its own, which takes the same path through the code."""
    source = os.pathsep.join([str(ROOT), str(Path(wtf.__file__).parent.parent)])
    arguments = str(seed), path, str(pause), str(_dispatch.THRESHOLDS.fused_entries)
    command = [sys.executable, "-m", "campaign.checkpointed_fit", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    )


def killed(trial: Trial, rng: np.random.Generator, folder: Path) -> None:
    """Kill a fit at random moments; the one that goes on ends where an undisturbed one does."""
    seed, path = int(rng.integers(10_000)), folder / "checkpoint.npz"
    expected = undisturbed(seed, folder)
    blows = [(pick(rng, ("SIGKILL", "SIGINT")), int(rng.integers(1, 60))) for _ in range(2)]
    trial.note("fit, blows", (seed, blows))
    for name, steps in blows:
        process = start_fit(seed, str(path), 0.005)
        assert process.stdout is not None
        line = "no step"
        for _ in range(steps):
            line = process.stdout.readline()
            if not line.startswith("step"):
                break  # the answer: it was done before
        time.sleep(float(rng.uniform(0, 0.02)))
        process.send_signal(getattr(signal, name))
        output, errors = process.communicate(timeout=120)
        answer = ((line + output).strip().splitlines() or [""])[-1]
        trial.note(f"after {name} at step {steps}", (process.returncode, errors[-500:]))
        if name == "SIGINT" and process.returncode == 0 and answer.startswith("{"):
            _check_interrupted(trial, json.loads(answer))
        # A signal while the interpreter shuts down, after the answer, ends it without a word.
        elif name == "SIGINT" and not ("KeyboardInterrupt" in errors or answer.startswith("{")):
            trial.fail("interrupt", f"exit code {process.returncode}: {errors[-800:]}")
        rest = [p.name for p in folder.iterdir() if p != path]
        if rest and name == "SIGINT":
            trial.fail("rubbish", f"{rest} were left after {name}")
        for p in folder.iterdir():
            if p != path:
                p.unlink()
    try:
        found = quietly(checkpointed_fit.fit, seed, str(path))
    except (ValueError, TypeError, OSError) as error:
        trial.fail("cannot go on", f"after {blows}: {type(error).__name__}: {error}")
        return
    if not same_end(found, expected):
        trial.fail(
            "another end", f"{found.objective!r} after {blows}, {expected.objective!r} without"
        )
    if found.converged and path.exists():
        trial.fail("rubbish", "the checkpoint of a fit that converged is still there")


def _check_interrupted(trial: Trial, answer: dict[str, Any]) -> None:
    """What an interrupted fit returns is honest and finite."""
    if answer["converged"] and not answer["stopped"]:
        return  # it was done before
    if answer["converged"] or not answer["stopped"]:
        trial.fail("interrupt", f"converged {answer['converged']}, stopped {answer['stopped']}")
    if not all(np.isfinite(factor).all() for factor in answer["factors"]):
        trial.fail("interrupt", "factors that are not finite")
    if len(answer["warnings"]) != 1:
        trial.fail("interrupt", f"warnings {answer['warnings']}")


def _saved(rng: np.random.Generator, path: Path) -> Any:
    """A fit of one of several sorts, saved."""
    X = rng.dirichlet(np.ones(12), 5).reshape(5, 4, 3)
    fit = quietly(FITS[pick(rng, tuple(FITS))], X)
    fit.save(path)
    return fit


def _damage(rng: np.random.Generator, content: bytes) -> tuple[str, bytes]:
    """The content of a file after an accident."""
    size = len(content)
    where = int(rng.integers(size))
    length = int(min(size - where, pick(rng, (1, 4, 64, 512))))
    noise = rng.integers(0, 256, length, dtype=np.uint8).tobytes()
    bit = bytes([content[where] ^ (1 << int(rng.integers(8)))])
    damaged = {
        "cut": content[:where],
        "empty": b"",
        "noise": content[:where] + noise + content[where + length :],
        "zeros": content[:where] + bytes(length) + content[where + length :],
        "one bit": content[:where] + bit + content[where + 1 :],
        "lost": content[:where] + content[where + length :],
        "begun later": content[where:],
        "text": b"this is not a fit\n" * 10,
        "twice": content + content,
    }
    name = pick(rng, tuple(damaged), (0.15, 0.03, 0.2, 0.12, 0.3, 0.1, 0.05, 0.02, 0.03))
    return f"{name} at {where} of {size}", damaged[name]


def _same_fit(first: Any, second: Any) -> bool:
    """Whether two fits are equal in all that was saved."""
    names = ("kind", "objective", "gap", "converged", "message", "n_iter", "shape", "constraints")
    if any(getattr(first, name) != getattr(second, name) for name in names):
        return False
    if len(first.factors) != len(second.factors) or first.history != second.history:
        return False
    if tuple(first.rho) != tuple(second.rho) or repr(first.loss) != repr(second.loss):
        return False
    arrays = [(a, b) for a, b in zip(first.factors, second.factors, strict=True)]
    arrays.append((first.dual, second.dual))
    for name in ("core", "weights"):
        a, b = getattr(first, name), getattr(second, name)
        if (a is None) != (b is None):
            return False
        if a is not None:
            arrays.append((a, b))
    costs = [getattr(fit.loss, "costs", ()) for fit in (first, second)]
    return all(same(to_numpy(a), to_numpy(b)) for a, b in [*arrays, *zip(*costs, strict=True)])


def _check_load(trial: Trial, what: str, path: Path, fit: Any | None) -> None:
    """`load` returns the fit that was saved, or refuses the file by its name."""
    try:
        found = trial.call("load", wtf.load, path)
    except Refused as error:
        if str(path) not in str(error) and path.name not in str(error):
            trial.fail("load", f"{what}: the message does not name the file: {error}")
        raise
    except Broken:
        label, message = trial.outcome.failures.pop()
        last = message.strip().splitlines()[-1]
        trial.fail(f"load: {label.split()[0]}", f"{what}: {last}")
        raise
    if fit is None:
        trial.fail("load", f"{what}: accepted, {found!r}")
    elif not _same_fit(found, fit):
        trial.fail("load", f"{what}: another fit was returned, {found!r} for {fit!r}")


def damaged_fit(trial: Trial, rng: np.random.Generator, folder: Path) -> None:
    """A saved fit after an accident."""
    path = folder / "fit.npz"
    fit = _saved(rng, path)
    what, content = _damage(rng, path.read_bytes())
    trial.note("damage", what)
    path.write_bytes(content)
    _check_load(trial, what, path, fit)


def _npz(members: dict[str, np.ndarray]) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **members)
    return stream.getvalue()


def _checksum(array: np.ndarray) -> int:
    stream = io.BytesIO()
    np.save(stream, array)
    return zlib.crc32(stream.getvalue())


def forged_fit(trial: Trial, rng: np.random.Generator, folder: Path) -> None:
    """A file that is a whole archive, with content that no fit has."""
    path = folder / "fit.npz"
    _saved(rng, path)
    with np.load(path) as stored:
        members = {name: stored[name] for name in stored.files}
    header = json.loads(bytes(members["header"]).decode())
    what = _forge(rng, members, header)
    # Content that could be that of another fit is recognised by its checksums only.
    needed = what == "history has another shape" or what.startswith("checksums")
    if rng.random() < 0.7 and not needed and "checksums" in header:
        header["checksums"] = {
            f"{k}.npy": _checksum(v) for k, v in members.items() if k != "header"
        }
        what += ", with checksums of its own"
    trial.note("forgery", what)
    if what.startswith("header is not JSON"):
        members["header"] = np.frombuffer(b"{]", np.uint8)
    elif what.startswith("header is a list"):
        members["header"] = np.frombuffer(b'["kind"]', np.uint8)
    elif not what.startswith("header is missing"):
        members["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    if what.startswith("a member that is no array"):
        path.write_bytes(_npz(members))
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("factor_9.npy", b"not an array")
    else:
        path.write_bytes(_npz(members))
    _check_load(trial, what, path, None)


def _forge(rng: np.random.Generator, members: dict[str, np.ndarray], header: dict[str, Any]) -> str:
    """Change one thing, and say what."""
    name = pick(rng, [key for key in members if key != "header"])
    key = pick(rng, [key for key in header if key != "message"])
    array = members[name]
    changes: dict[str, Callable[[], Any]] = {
        f"{name} is missing": lambda: members.pop(name),
        f"{name} is NaN": lambda: members.update({name: np.full_like(array, np.nan)}),
        f"{name} has another shape": lambda: members.update({name: array[:-1]}),
        f"{name} has another number of modes": lambda: members.update({name: array[None]}),
        f"{name} is text": lambda: members.update({name: np.array(["a", "b"])}),
        f"{name} is complex": lambda: members.update({name: array * 1j}),
        f"{key} is missing": lambda: header.pop(key),
        f"{key} is of another type": lambda: header.update({key: {"a": [None]}}),
        f"{key} is null": lambda: header.update({key: None}),
        "kind is unknown": lambda: header.update({"kind": "svd"}),
        "dtype is unknown": lambda: header.update({"dtype": "object"}),
        "loss is unknown": lambda: header.update({"loss": {"name": "Sinkhorn"}}),
        "a factor is negative": lambda: members.update({"factor_0": -members["factor_0"]}),
        "a factor too many": lambda: members.update({"factor_7": members["factor_0"]}),
        "shape is another": lambda: header.update({"shape": [9, 9]}),
        "constraint is unknown": lambda: header.update({"constraints": ["diagonal", None]}),
        "header is not JSON": lambda: None,
        "header is a list": lambda: None,
        "header is missing": lambda: members.pop("header"),
        "a member that is no array": lambda: None,
    }
    what = pick(rng, tuple(changes))
    changes[what]()
    return what


def damaged_checkpoint(trial: Trial, rng: np.random.Generator, folder: Path) -> None:
    """A checkpoint after an accident, or of another fit, is refused or leads to the same end."""
    seed, path = int(rng.integers(10_000)), folder / "checkpoint.npz"
    expected = undisturbed(seed, folder)
    steps = int(rng.integers(12, 40))

    class Enough(Exception):  # noqa: N818
        """Leaves the fit as a crash would."""

    count = 0

    def stop(_: wtf.FitState) -> None:
        nonlocal count
        count += 1
        if count > steps:
            raise Enough

    X, loss = checkpointed_fit.data(seed), checkpointed_fit.loss(seed)
    options = {"rng": seed, "tol": 1e-9, "max_iter": 200, "rho": 1e-2, "checkpoint": path}
    with suppress(Enough):
        quietly(wtf.nmf, X, checkpointed_fit.RANK, loss, callback=stop, **options)
    if not path.exists():
        return
    what, content = _damage(rng, path.read_bytes())
    trial.note("damage", what)
    path.write_bytes(content)
    try:
        found = trial.call("nmf", wtf.nmf, X, checkpointed_fit.RANK, loss, **options)
    except Refused as error:
        if path.name not in str(error):
            trial.fail("checkpoint", f"{what}: the message does not name the file: {error}")
        raise
    except Broken:
        label, message = trial.outcome.failures.pop()
        last = message.strip().splitlines()[-1]
        trial.fail(f"checkpoint: {label.split()[0]}", f"{what}: {last}")
        raise
    if not same_end(found, expected):
        trial.fail(
            "checkpoint", f"{what}: ended at {found.objective!r}, not {expected.objective!r}"
        )
