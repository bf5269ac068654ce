"""One problem under watch: what the library returns, raises and warns of, and how long it takes."""

from __future__ import annotations

import copy
import re
import signal
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import wtfarray as wtf
from campaign.backends import Backend
from campaign.problems import pick

ROUNDING = 64
"""How many roundings of the dtype a value may be off, relative to the terms that it adds up."""
SLOW = 2.0
"""Seconds of CPU within which a problem of this size has to be solved."""
HANGING = 10.0
"""Seconds of CPU after which a problem is given up; it counts as slow."""
UNFINISHED = re.compile(
    r"(max_iter|larger eps|could not be solved|gap|interrupted|stopped|float64|normalise)",
    re.IGNORECASE,
)
MASS_ADVICE = "coefficients that sum to one"
CACHE_ADVICE = "persistent compilation cache"
"""In a warning of JAX about an entry that another process is writing."""


@dataclass
class Outcome:
    """What became of a problem."""

    kind: str
    seed: int
    failures: list[tuple[str, str]] = field(default_factory=list)
    refused: str = ""
    undecided: str = ""
    unconverged: bool = False
    slow: str = ""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def fail(self, label: str, message: str) -> None:
        """Something that must hold does not."""
        self.failures.append((label, message))

    @property
    def status(self) -> str:
        """The row of the summary in which the problem counts."""
        rows = ("failed", "refused", "slow", "undecided", "unconverged")
        return next((row for row in rows if getattr(self, row)), "passed")

    @property
    def failed(self) -> bool:
        """Whether something is wrong."""
        return bool(self.failures)


class Refused(Exception):  # noqa: N818
    """The library refused the problem with a clear message."""


class Broken(Exception):  # noqa: N818
    """The library did something that it must not; already recorded."""


class TooLongError(BaseException):
    """Not an Exception: nobody is to catch it on the way."""


@contextmanager
def time_limit(seconds: float) -> Any:
    """Give up after so many seconds of CPU, where signals allow it."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGPROF"):
        yield
        return

    def stop(*_: object) -> None:
        raise TooLongError

    old = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, old)


class Trial:
    """Calls the library under watch: warnings, exceptions, time, arguments."""

    def __init__(self, kind: str, seed: int, library: Backend, dtype: str | None = None) -> None:
        self.outcome = Outcome(kind, seed)
        self.library = library
        self.wanted = dtype
        self.dtype = "float64"

    def draw(self) -> np.random.Generator:
        """The generator of this problem, and its dtype."""
        rng = np.random.default_rng([self.outcome.seed, *self.outcome.kind.encode()])
        self.dtype = pick(rng, ("float64", "float32"), (0.6, 0.4))
        self.dtype = self.wanted or self.dtype
        return rng

    @property
    def rounding(self) -> float:
        """The relative rounding error that is allowed."""
        return ROUNDING * float(np.finfo(self.dtype).eps)

    def fail(self, label: str, message: str) -> None:
        """Something that must hold does not, for this dtype."""
        self.outcome.fail(f"{label} {self.dtype}", message)

    def note(self, name: str, value: object) -> None:
        """Keep what the problem was, to print it."""
        with np.printoptions(threshold=10_000, precision=17, linewidth=100):
            self.outcome.notes.append(f"{name} = {value!r}")

    def convert(self, value: Any) -> Any:
        """Arrays of NumPy, also within sequences, as arrays of the library."""
        if isinstance(value, np.ndarray):
            return self.library.array(value)
        if isinstance(value, tuple | list) and any(
            isinstance(v, np.ndarray | tuple | list) for v in value
        ):
            return type(value)(self.convert(v) for v in value)
        return value

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the library; whatever it must not do is recorded."""
        before = copy.deepcopy((args, kwargs)) if self.library.name in {"numpy", "numba"} else None
        limit = HANGING * self.library.patience
        begin = time.process_time()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with time_limit(limit):
                    result = function(*args, **kwargs)
            except (ValueError, TypeError) as error:
                if ": expected " in str(error) or (
                    "expected" in str(error) and self.outcome.kind == "faults"
                ):
                    raise Refused(str(error)) from None
                self.fail("exception", f"{name}: {traceback.format_exc(limit=-4)}")
                raise Broken from None
            except TooLongError:
                self.outcome.seconds += limit
                self.outcome.slow = f"{name} was given up after {limit:g} s of CPU"
                raise Broken from None
            except Exception:  # noqa: BLE001
                self.fail("exception", f"{name}: {traceback.format_exc(limit=-4)}")
                raise Broken from None
        seconds = time.process_time() - begin
        self.outcome.seconds += seconds
        self._judge(name, result, caught, seconds)
        if before is not None and not same(before, (args, kwargs)):
            self.fail("inputs", f"{name} changed its arguments")
        return result

    def _judge(self, name: str, result: Any, caught: list[Any], seconds: float) -> None:
        """Warnings and time."""
        converged = getattr(result, "converged", True)
        if not converged:
            self.outcome.unconverged = True
        elif seconds > SLOW and self.library.name in {"numpy", "numba"}:
            self.outcome.slow = f"{name} took {seconds:.1f} s of CPU"
        told, unexpected = 0, Counter[str]()
        for warning in caught:
            text = str(warning.message)
            if MASS_ADVICE in text or CACHE_ADVICE in text:
                continue
            if not converged and UNFINISHED.search(text) and warning.category is UserWarning:
                told += 1
                continue
            unexpected[f"{name}: {warning.category.__name__}: {text}"] += 1
        for text, count in unexpected.items():
            self.fail("warning", f"{text} ({count} times)")
        if told != 1 and not converged and hasattr(result, "message") and name != "lbfgs":
            self.fail("warning", f"{name} did not converge and warned {told} times")


def same(first: Any, second: Any) -> bool:
    """Whether two nested arguments are equal, bit by bit."""
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second, equal_nan=True)
    if isinstance(first, dict):
        return all(same(first[key], second[key]) for key in first)
    if isinstance(first, tuple | list):
        return all(same(a, b) for a, b in zip(first, second, strict=True))
    if isinstance(first, wtf.Wasserstein):
        return same(first.costs, second.costs)
    return True


def wtf_quietly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the library once more; its warnings have been judged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def run(
    kind: str,
    seed: int,
    library: Backend,
    check: Callable[[Trial], None],
    dtype: str | None = None,
) -> Outcome:
    """Try one problem; nothing that happens ends the campaign."""
    trial = Trial(kind, seed, library, dtype)
    try:
        check(trial)
    except Refused as error:
        trial.outcome.refused = str(error)
    except Broken:
        pass
    except Exception:  # noqa: BLE001
        trial.fail("campaign", f"the check itself failed: {traceback.format_exc(limit=-6)}")
    return trial.outcome
