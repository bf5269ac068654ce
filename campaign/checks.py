"""One random problem of each kind, solved by the library and held against the oracle."""

from __future__ import annotations

import copy
import math
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
from campaign import oracle
from campaign.problems import (
    CONSTRAINTS,
    TransportLoss,
    draw_block,
    draw_data,
    draw_fit_options,
    draw_loss,
    draw_shape,
    draw_target,
    pick,
    power,
)

ROUNDING = 64
"""How many roundings of the dtype a value may be off, relative to the terms that it adds up."""
SLOW = 2.0
"""Seconds of CPU within which a problem of this size has to be solved."""
HANGING = 10.0
"""Seconds of CPU after which a problem is given up; it counts as slow."""
SADDLE = 1e-3
"""Relative gain of a second fit that shows that the first had not arrived."""
UNFINISHED = re.compile(
    r"(max_iter|larger eps|could not be solved|gap|interrupted|stopped|float64|normalise)",
    re.IGNORECASE,
)
MASS_ADVICE = "coefficients that sum to one"


@dataclass
class Backend:
    """An array library."""

    name: str
    asarray: Callable[..., Any]
    few_shapes: bool = False
    patience: float = 1.0
    """Multiplies the time after which a problem is given up."""

    def array(self, values: np.ndarray) -> Any:
        """A copy of the values as an array of the library, of the same dtype."""
        return self.asarray(np.array(values, copy=True))


def backend(name: str) -> Backend:
    """The array library of this name."""
    if name == "torch":
        import torch

        torch.set_num_threads(1)
        return Backend(name, torch.asarray, patience=2.0)
    if name == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)  # noqa: FBT003
        return Backend(name, jax.numpy.asarray, few_shapes=True, patience=20.0)
    if name == "strict":
        import array_api_strict

        return Backend(name, array_api_strict.asarray, patience=3.0)
    return Backend("numpy", np.asarray)


def to_numpy(array: Any) -> np.ndarray:
    """Any array as one of NumPy, in double."""
    return np.array(np.from_dlpack(array) if not isinstance(array, np.ndarray) else array, float)


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
        before = copy.deepcopy((args, kwargs)) if self.library.name == "numpy" else None
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
        elif seconds > SLOW and self.library.name == "numpy":
            self.outcome.slow = f"{name} took {seconds:.1f} s of CPU"
        told, unexpected = 0, Counter[str]()
        for warning in caught:
            text = str(warning.message)
            if MASS_ADVICE in text:
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


def gap_rounding(trial: Trial, gap: float) -> float:
    """The rounding of a gap: a divergence of exponentials, whose exponents may be large."""
    return 100 * trial.rounding * abs(gap) if math.isfinite(gap) else 0.0


def check_interval(
    trial: Trial, name: str, value: float, gap: float, truth: oracle.Interval, *, converged: bool
) -> None:
    """The true value has to be between `value` and `value + gap`."""
    tiny = trial.rounding * truth.scale
    state = "converged" if converged else "not converged"
    if math.isnan(value) or math.isnan(gap) or math.isinf(value):
        trial.fail("not finite", f"{name}: value {value}, gap {gap} ({state})")
        return
    if math.isinf(gap) and converged:
        trial.fail("not finite", f"{name}: gap {gap}, and converged")
    if gap < -tiny:
        trial.fail("negative gap", f"{name}: gap {gap} ({state})")
    words = (
        f"{name}: value {value!r} gap {gap:.3g} ({state}), truth in [{truth.lower!r}, "
        f"{truth.upper!r}], rounding {tiny:.1e}"
    )
    if value > truth.upper + tiny:
        off = (value - truth.upper) / max(truth.scale, 1e-300)
        trial.fail(f"value above the truth ({state})", f"{words}; {off:.1e} of the terms")
    elif value + max(gap, 0.0) < truth.lower - tiny - gap_rounding(trial, gap):
        off = (truth.lower - value - gap) / max(truth.scale, 1e-300)
        trial.fail(f"value and gap below the truth ({state})", f"{words}; {off:.1e} of the terms")
    elif not truth.decided:
        trial.outcome.undecided = f"{name}: the oracle did not converge"


def has_solution(X: np.ndarray, Y: np.ndarray, loss: TransportLoss) -> bool | None:
    """Whether the loss is finite; None if nobody can tell."""
    cost = oracle.total_cost(loss.costs)
    xs = oracle.stacked(X.astype(float), loss.groups)
    ys = oracle.stacked(Y.astype(float), loss.groups)
    answers: list[bool | None] = []
    for x, y in zip(xs, ys, strict=True):
        finite = math.isfinite(oracle.one_sample(x, y, cost, loss.eps, loss.lam).lower)
        if not loss.balanced:
            answers.append(finite)
            continue
        if abs(x.sum() - y.sum()) > 1e-6 * x.sum():
            answers.append(False if abs(x.sum() - y.sum()) > 1e-2 * x.sum() else None)
        else:
            answers.append(finite and oracle.feasible(x, y, np.asarray(cost, float)))
    if False in answers:
        return False
    return None if None in answers else True


def ratio_underflows(X: np.ndarray, Y: np.ndarray, loss: TransportLoss) -> bool:
    """Whether the mass of a sample of Y, relative to that of X, cannot be represented."""
    x, y = (oracle.stacked(a.astype(float), loss.groups).sum(axis=1) for a in (X, Y))
    return bool(np.any((x > 0) & (y < np.finfo(X.dtype).tiny * x)))


def check_wasserstein(trial: Trial) -> None:
    """`wasserstein`: value, gap, gradient, refusals."""
    rng = trial.draw()
    shape, groups = draw_shape(rng, few=trial.library.few_shapes)
    loss = draw_loss(rng, shape, groups, trial.dtype)
    X = draw_data(rng, shape, groups, trial.dtype)
    Y = draw_target(rng, X, loss)
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        options["tol"] = power(rng, -10, -1)
    options["max_iter"] = int(pick(rng, (1, 10, 100, 2000), (0.05, 0.1, 0.15, 0.7)))
    if rng.random() < 0.1:
        options["potential"] = rng.normal(size=shape).astype(trial.dtype)
    for name, value in {"X": X, "Y": Y, "loss": loss, **options}.items():
        trial.note(name, value)
    options = {key: trial.convert(value) for key, value in options.items()}
    x, y = trial.library.array(X), trial.library.array(Y)
    try:
        found = trial.call("wasserstein", wtf.wasserstein, x, y, loss.build(), **options)
    except Refused as error:
        answer = has_solution(X, Y, loss)
        if answer and not ratio_underflows(X, Y, loss):
            trial.fail("refused what has a solution", f"wasserstein: {error}")
        elif answer is None:
            trial.outcome.undecided = "whether there is a solution"
        raise
    value, gradient = float(found.value), to_numpy(found.gradient)
    trial.note("result", (value, found.gap, found.converged, found.message))
    trial.note("gradient", gradient)
    truth = oracle.transport(X, Y, loss.costs, groups, loss.eps, loss.lam)
    trial.note("truth", truth)
    if loss.balanced and not loss.all_finite:
        answer = has_solution(X, Y, loss)
        if found.converged and answer is False:
            trial.fail("converged without a solution", f"wasserstein: {found.message}")
        if not answer:
            return
    check_interval(trial, "wasserstein", value, found.gap, truth, converged=found.converged)
    _check_linear_programme(trial, X, Y, loss, value, found.gap)
    _check_gradient(trial, rng, X, Y, loss, value, gradient)
    if rng.random() < 0.1:
        again = wtf_quietly(wtf.wasserstein, x, y, loss.build(), **options)
        if float(again.value) != value or not same(to_numpy(again.gradient), gradient):
            trial.fail("not repeatable", f"wasserstein: {float(again.value)!r} after {value!r}")


def wtf_quietly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the library once more; its warnings have been judged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def _check_linear_programme(
    trial: Trial, X: np.ndarray, Y: np.ndarray, loss: TransportLoss, value: float, gap: float
) -> None:
    """Bounds by POT, which know nothing of Sinkhorn."""
    if not (loss.balanced and loss.all_finite):
        return
    cost = oracle.total_cost(loss.costs)
    total = oracle.NOTHING
    xs, ys = (oracle.stacked(a.astype(float), loss.groups) for a in (X, Y))
    for x, y in zip(xs, ys, strict=True):
        if x.any():
            total += oracle.balanced_bounds(x, y, cost, loss.eps)
    tiny = max(trial.rounding, 1e-9) * total.scale  # the linear programme has its own rounding
    if value > total.upper + tiny or value + gap < total.lower - tiny:
        trial.fail("outside POT's bounds", f"wasserstein: {value!r} gap {gap:.3g}, {total}")


def _check_gradient(
    trial: Trial,
    rng: np.random.Generator,
    X: np.ndarray,
    Y: np.ndarray,
    loss: TransportLoss,
    value: float,
    gradient: np.ndarray,
) -> None:
    """``Phi(X, Y + d) >= value + <u, d>``: differences of the oracle on both sides bracket u."""
    if np.isnan(gradient).any():
        trial.fail("not finite", "wasserstein: NaN in the gradient")
        return
    if np.isposinf(gradient).any() and not loss.balanced:
        trial.fail("not finite", "wasserstein: +inf in the gradient")
    if (np.isneginf(gradient) & (Y > 0)).any():
        trial.fail("not finite", "wasserstein: -inf in the gradient where Y is positive")
    if rng.random() < 0.75 or not math.isfinite(value):
        return
    over = tuple(k for group in loss.groups for k in group)
    flat = np.where((Y > 0) & np.isfinite(gradient), gradient, 0.0)
    for step in (0.3, 1e-2):
        direction = rng.uniform(-1, 1, Y.shape) * Y.astype(float)
        if loss.balanced:
            mass = Y.astype(float).sum(axis=over, keepdims=True)
            share = direction.sum(axis=over, keepdims=True) / np.where(mass > 0, mass, 1.0)
            direction = direction - share * Y
            if not loss.all_finite:
                return
        for sign in (1, -1):
            d = 0.5 * sign * step * direction
            there = oracle.transport(X, Y + d, loss.costs, loss.groups, loss.eps, loss.lam)
            slope = float(np.sum(flat * d))
            tiny = trial.rounding * (there.scale + float(np.sum(np.abs(flat * d))))
            if value + slope > there.upper + tiny:
                trial.fail(
                    "gradient",
                    f"wasserstein: value {value!r} + slope {slope!r} exceeds the loss {there} "
                    f"at a distance of {step}, rounding {tiny:.1e}",
                )
                return


def check_conjugate(trial: Trial) -> None:
    """`Wasserstein.conjugate`: value and gradient."""
    rng = trial.draw()
    shape, groups = draw_shape(rng, few=trial.library.few_shapes)
    loss = draw_loss(rng, shape, groups, trial.dtype)
    X = draw_data(rng, shape, groups, trial.dtype)
    U = rng.normal(size=shape) * power(rng, -3, 2)
    if not loss.balanced:
        U = np.minimum(U, loss.lam * (1 - power(rng, -5, -0.1)))
    U = U.astype(trial.dtype)
    for name, value in {"X": X, "U": U, "loss": loss}.items():
        trial.note(name, value)
    x, u = trial.library.array(X), trial.library.array(U)
    value, gradient = trial.call("conjugate", loss.build().conjugate, x, u)
    value, gradient = float(value), oracle.stacked(to_numpy(gradient), groups)
    true, slope, scale = oracle.conjugate(X, U, loss.costs, groups, loss.eps, loss.lam)
    trial.note("result", (value, true, scale))
    if not math.isfinite(value) or not np.isfinite(gradient).all():
        trial.fail("not finite", f"conjugate: value {value}, gradient {gradient.tolist()}")
        return
    if abs(value - true) > trial.rounding * scale:
        trial.fail("conjugate", f"value {value!r}, truth {true!r}, scale {scale:.3g}")
    finite = np.concatenate([cost[np.isfinite(cost)] for cost in loss.costs])
    g = U.astype(float) if loss.balanced else -loss.lam * np.log1p(-U.astype(float) / loss.lam)
    exponent = 1 + (np.abs(g).max() + len(loss.costs) * np.abs(finite).max()) / loss.eps
    if not loss.balanced:
        close = float(np.max(np.abs(U.astype(float)) / (loss.lam - U.astype(float))))
        exponent += close * (1 + loss.lam / loss.eps)
    allowed = trial.rounding * exponent * np.abs(slope)
    allowed += float(np.finfo(trial.dtype).tiny) * 1e3 * (1 + X.sum() + slope.max())
    if trial.rounding * exponent < 0.1 and (np.abs(gradient - slope) > allowed).any():
        at = np.unravel_index(np.argmax(np.abs(gradient - slope) - allowed), slope.shape)
        trial.fail("conjugate", f"gradient {gradient[at]!r} at {at}, truth {slope[at]!r}")


@dataclass
class Objective:
    """The objective of a fit, evaluated apart from the library."""

    X: np.ndarray
    parts: list[Any]
    """A `TransportLoss` each, or the name of another loss."""
    rho: tuple[float, ...]
    sample_weight: np.ndarray | None = None
    references: tuple[float, ...] = ()
    """What the entropy of each block is relative to; empty for ones."""

    def loss(self, Y: np.ndarray) -> oracle.Interval:
        """The loss of a model tensor."""
        total = oracle.NOTHING
        X, weights = self.X.astype(oracle.LONG), self.sample_weight
        for part in self.parts:
            if isinstance(part, TransportLoss):
                total += oracle.transport(
                    X, Y, part.costs, part.groups, part.eps, part.lam, weights
                )
                continue
            w = np.ones(len(X)) if weights is None else weights.astype(float)
            x, y = X.reshape(len(X), -1), Y.reshape(len(X), -1)
            if part == "Frobenius":
                value = float(np.sum(w[:, None] * (x - y) ** 2)) / 2
                size = float(np.sum(w[:, None] * (x**2 + y**2)))
            else:
                terms = [float(oracle.kullback_leibler(a, b)) for a, b in zip(x, y, strict=True)]
                value = float(np.sum(np.where(w > 0, w, 0) * np.where(w > 0, terms, 0)))
                logs = np.abs(np.log(np.where(x > 0, x, 1))) + np.abs(np.log(np.where(y > 0, y, 1)))
                size = float(np.sum(w[:, None] * (x * (logs + 1) + y)))
            total += oracle.Interval(value, value, size)
        return total

    def entropies(self, blocks: list[np.ndarray]) -> oracle.Interval:
        """``sum rho <A, log(A / s) - 1>``."""
        total = oracle.NOTHING
        references = self.references or (1.0,) * len(self.rho)
        for rho, s, block in zip(self.rho, references, blocks, strict=True):
            a = np.asarray(block, oracle.LONG) / s
            value = rho * s * oracle.entropy(a)
            size = s * float(np.sum(a * (np.abs(np.log(np.where(a > 0, a, 1))) + 1)))
            total += oracle.Interval(value, value, rho * size)
        return total

    def of(self, fit: Any) -> oracle.Interval:
        """The objective of a fit, from its factors."""
        factors = [to_numpy(factor) for factor in fit.factors]
        core = None if fit.core is None else to_numpy(fit.core)
        weights = None if fit.weights is None else to_numpy(fit.weights)
        Y = oracle.model(factors, core, weights).reshape(self.X.shape)
        blocks = [*factors]
        if core is not None:
            blocks.append(core)
        elif len(self.rho) > len(factors) and weights is not None:
            blocks.append(weights / weights.sum())
        return self.loss(Y) + self.entropies(blocks)

    @property
    def floor(self) -> float:
        """What stands in for an objective that happens to be close to zero."""
        eps = min((p.eps for p in self.parts if isinstance(p, TransportLoss)), default=0.0)
        return float(eps * self.X.astype(float).sum())


def draw_parts(
    rng: np.random.Generator, shape: tuple[int, ...], groups: Any, dtype: str
) -> tuple[list[Any], Any]:
    """A loss for a fit, as plain numbers and as an object of the library."""
    if rng.random() < 0.85:
        part = draw_loss(rng, shape, groups, dtype, balanced=0.25)
        return [part], part.build()
    others = {"Frobenius": wtf.Frobenius(), "KullbackLeibler": wtf.KullbackLeibler()}
    name = pick(rng, tuple(others))
    if rng.random() < 0.4:
        return [name], others[name]
    first = draw_loss(rng, shape, groups, dtype, balanced=0.1)
    if rng.random() < 0.5 or len(shape) < 2:
        return [first, name], wtf.LossSum(first.build(), others[name])
    second = draw_loss(rng, shape, ((int(rng.integers(len(shape))),),), dtype, balanced=0.1)
    return [first, second], wtf.LossSum(first.build(), second.build())


def finite_blocks(trial: Trial, name: str, fit: Any, fixed: Any = ()) -> bool:
    """Factors are finite, not negative and satisfy their constraints."""
    blocks = [to_numpy(factor) for factor in fit.factors]
    head = fit.core if fit.core is not None else fit.weights
    if head is not None:
        blocks.append(to_numpy(head))
    for k, block in enumerate(blocks):
        if not np.isfinite(block).all() or (block < 0).any():
            trial.fail("not finite", f"{name}: block {k} is {block.tolist()}")
            return False
    if np.isnan(to_numpy(fit.dual)).any():
        trial.fail("not finite", f"{name}: NaN in the dual")
    for k, (block, constraint) in enumerate(zip(fit.factors, fit.constraints, strict=False)):
        if constraint is None or k in fixed:
            continue
        axis = {"rows": 1, "columns": 0, "all": None}[constraint]
        sums = to_numpy(block).sum(axis=axis)
        if not np.allclose(sums, 1.0, rtol=10 * trial.rounding, atol=0):
            trial.fail("constraint", f"{name}: {constraint} of factor {k} sum to {sums.tolist()}")
    return True


def check_history(trial: Trial, name: str, fit: Any, scale: float) -> None:
    """The objective does not increase, and everything is finite."""
    values = [record.objective for record in fit.history]
    if not all(map(math.isfinite, values)):
        trial.fail("not finite", f"{name}: history {values}")
        return
    if any(math.isnan(record.gap) for record in fit.history):
        trial.fail("not finite", f"{name}: NaN among the gaps of the history")
    rises = np.diff(values) if len(values) > 1 else np.zeros(1)
    worst = int(np.argmax(rises))
    allowed = trial.rounding * scale
    if rises[worst] > allowed:
        where = "the last record" if worst == len(rises) - 1 else f"record {worst + 1}"
        label = "history rises at its end" if worst == len(rises) - 1 else "history rises"
        trial.fail(
            f"{label} ({'' if fit.converged else 'not '}converged)",
            f"{name}: by {rises[worst]:.3g} to {values[worst + 1]!r} at {where} of {len(values)}, "
            f"rounding {allowed:.1e}, gap there {fit.history[worst + 1].gap:.3g}, "
            f"before {fit.history[worst].gap:.3g}",
        )


def expected_references(
    fit: Any, X: np.ndarray, options: dict[str, Any], *, sampled: bool
) -> tuple[float, ...]:
    """The mean mass of a sample for the block that carries the mass of the data, 1 for others."""
    blocks = range(len(fit.rho))
    fixed = {k % len(fit.factors) for k in options.get("fixed", ())}
    free = [k for k in blocks if fit.constraints[k] is None and k not in fixed]
    weighted = options.get("weights") is not None or len(fit.rho) > len(fit.factors)
    if not free or (weighted and fit.core is None):
        return (1.0,) * len(fit.rho)
    mass = X.astype(float).reshape(len(X), -1).sum(axis=1)
    weight = np.ones(len(X))
    if sampled and options.get("sample_weight") is not None:
        weight = np.asarray(options["sample_weight"], float)
    count = weight[mass > 0].sum() if sampled else 1.0
    s = float((weight * mass).sum() / count) if count > 0 else float(mass.sum())
    if abs(s - 1.0) <= (1e-6 if X.dtype == np.float64 else 1e-3):
        s = 1.0
    return tuple(s if k == free[0] else 1.0 for k in blocks)


def check_fit(trial: Trial) -> None:
    """`cp`, `tucker` or `nmf`, whichever the kind names."""
    rng = trial.draw()
    model = trial.outcome.kind
    few = trial.library.few_shapes
    shape, groups = draw_shape(rng, few=few, least=2 if model == "nmf" else 1)
    parts, loss = draw_parts(rng, shape, groups, trial.dtype)
    moved = {k for p in parts if isinstance(p, TransportLoss) for g in p.groups for k in g}
    balanced = any(isinstance(p, TransportLoss) and p.balanced for p in parts)
    X = draw_data(rng, shape, groups, trial.dtype, normalised=0.9 if balanced else 0.5)
    rank: Any = int(rng.integers(1, 5))
    if model == "tucker":
        rank = tuple(int(rng.integers(1, 5 if len(shape) < 4 else 3)) for _ in shape)
    plain = balanced and rng.random() < 0.8
    options = draw_fit_options(
        rng, model, shape, rank, trial.dtype, sampled=0 not in moved, plain=plain
    )
    for name, value in {"X": X, "rank": rank, "loss": parts, **options}.items():
        trial.note(name, value)
    function = getattr(wtf, model)
    x = trial.library.array(X)
    keywords = {key: trial.convert(value) for key, value in options.items()}
    try:
        fit = trial.call(model, function, x, rank, loss, **keywords)
    except Refused as error:
        usual = ("balanced", "lam", "mass", "solver is 'dual'", "sample_weight", "fixed", "init")
        if not any(word in str(error) for word in usual):
            trial.fail("refused what has a solution", f"{model}: {error}")
        raise
    references = expected_references(fit, X, options, sampled=0 not in moved)
    if not np.allclose(references, fit.references, rtol=10 * trial.rounding, atol=0):
        trial.fail("references", f"{model}: {fit.references}, expected {references}")
    rho = tuple(map(float, fit.rho))
    objective = Objective(X, parts, rho, options.get("sample_weight"), fit.references)
    trial.note("fit", fit)
    if not finite_blocks(trial, model, fit, options.get("fixed", ())):
        return
    truth = objective.of(fit)
    trial.note("truth", truth)
    if math.isinf(truth.lower) and math.isfinite(fit.objective) and math.isinf(fit.gap):
        return  # a balanced problem that cannot be solved, and says so
    check_interval(trial, model, fit.objective, fit.gap, truth, converged=fit.converged)
    check_history(trial, model, fit, max(truth.scale, objective.floor))
    size = max(abs(truth.upper), objective.floor)
    if fit.converged and fit.gap > 1.01e-3 * size + trial.rounding * truth.scale:
        trial.fail("gap", f"{model}: converged with gap {fit.gap:.3g} of {truth.upper!r}")
    if trial.outcome.failed:
        return
    if rng.random() < 0.1:
        again = wtf_quietly(function, x, rank, loss, **keywords)
        pairs = zip(again.factors, fit.factors, strict=True)
        if again.objective != fit.objective or not all(
            same(to_numpy(a), to_numpy(b)) for a, b in pairs
        ):
            trial.fail("not repeatable", f"{model}: {again.objective!r} after {fit.objective!r}")
    if fit.converged and rng.random() < 0.5:
        restart = function, x, rank, loss, keywords
        _check_restart(trial, restart, fit, objective, truth, size)


def _check_restart(
    trial: Trial,
    restart: tuple[Any, ...],
    fit: Any,
    objective: Objective,
    truth: oracle.Interval,
    size: float,
) -> None:
    """A fit that converged has nothing left to gain for one that starts there."""
    function, x, rank, loss, keywords = restart
    drop = ("init", "n_init", "tol", "max_iter", "rng", "solver")
    rest = {key: value for key, value in keywords.items() if key not in drop}
    begin = time.process_time()
    try:
        with time_limit(HANGING * trial.library.patience):
            second = wtf_quietly(function, x, rank, loss, init=fit, tol=1e-9, max_iter=300, **rest)
    except TooLongError:
        trial.outcome.slow = "a restart was given up"
        return
    except (ValueError, TypeError) as error:
        trial.fail("refused its own fit", f"restart: {error}")
        return
    if time.process_time() - begin > SLOW and second.converged:
        trial.outcome.slow = f"restart took {time.process_time() - begin:.1f} s of CPU"
    if not second.objective < truth.lower - 0.5 * SADDLE * size:
        return  # its own lower bound is as good: the oracle is asked about gains only
    there = objective.of(second)
    gain = (truth.lower - there.upper) / size if size > 0 else 0.0
    if gain > max(SADDLE, 10 * keywords.get("tol", 1e-6), trial.rounding * there.scale / size):
        trial.fail(
            "saddle",
            f"restart with tol=1e-9 gains {gain:.2e} ({fit.objective!r} to {second.objective!r}); "
            f"the fit said: {fit.message}",
        )


def check_projection(trial: Trial) -> None:
    """`projection`: convex, sample by sample the same as together."""
    rng = trial.draw()
    model = pick(rng, ("nmf", "cp", "tucker"), (0.6, 0.2, 0.2))
    shape, groups = draw_shape(rng, few=trial.library.few_shapes, sampled=True)
    part = draw_loss(rng, shape, groups, trial.dtype, balanced=0.15)
    loss = part.build()
    X = draw_data(rng, shape, groups, trial.dtype, normalised=0.9 if part.balanced else 0.5)
    rank: Any = int(rng.integers(1, 5))
    if model == "tucker":
        rank = tuple(int(rng.integers(1, 4)) for _ in shape)
    options: dict[str, Any] = {"rho": power(rng, -5, 0), "rng": int(rng.integers(1000))}
    new = draw_data(rng, shape, groups, trial.dtype, normalised=0.9 if part.balanced else 0.5)
    keywords: dict[str, Any] = {}
    if rng.random() < 0.3:
        keywords = {"tol": power(rng, -9, -4), "max_iter": int(pick(rng, (2, 50, 1000)))}
    notes = {"X": X, "new": new, "rank": rank, "loss": part, **options, "projection": keywords}
    for name, value in notes.items():
        trial.note(name, value)
    function = getattr(wtf, model)
    x = trial.library.array(X)
    fit = trial.call(model, function, x, rank, loss, max_iter=20, **options)
    trial.outcome.unconverged = False  # of the projection alone
    array = trial.library.array(new)
    found = trial.call("projection", fit.projection, array, **keywords)
    trial.note("found", found)
    trial.note("coefficients", found.factors[0])
    if not finite_blocks(trial, "projection", found, range(1, 9)):
        return
    objective = Objective(new, [part], tuple(map(float, fit.rho)), references=fit.references)
    truth = objective.of(found)
    trial.note("truth", truth)
    check_interval(
        trial, "projection", found.objective, found.gap, truth, converged=found.converged
    )
    check_history(trial, "projection", found, max(truth.scale, objective.floor))
    if not found.converged or trial.outcome.failed:
        return
    _check_minimum(trial, found, new, part)
    if (
        keywords
        or part.balanced
        or found.constraints[0] not in (None, "rows")
        or rng.random() < 0.5
    ):
        return
    coefficients = to_numpy(wtf_quietly(fit.project, array))
    if not same(coefficients, to_numpy(found.factors[0])):
        trial.fail("project", "its coefficients are not those of projection")
    _check_alone(trial, fit, found, new, part)


def _atoms(fit: Any) -> np.ndarray:
    """The model of unit coefficients, (r, ...)."""
    factors = [to_numpy(factor) for factor in fit.factors]
    core = None if fit.core is None else to_numpy(fit.core)
    weights = None if fit.weights is None else to_numpy(fit.weights)
    return oracle.model([np.eye(factors[0].shape[1]), *factors[1:]], core, weights)


def _sample_objective(
    x: np.ndarray, a: np.ndarray, atoms: np.ndarray, part: TransportLoss, fit: Any
) -> oracle.Interval:
    """The objective of one index of the first mode, with coefficients a (r,)."""
    Y = np.tensordot(np.asarray(a, oracle.LONG), atoms, axes=(0, 0)).reshape(1, *x.shape)
    total = oracle.transport(x[None], Y, part.costs, part.groups, part.eps, part.lam)
    s = fit.references[0]
    value = float(fit.rho[0]) * s * oracle.entropy(np.asarray(a, oracle.LONG) / s)
    return total + oracle.Interval(value, value, abs(value))


def _check_minimum(trial: Trial, found: Any, new: np.ndarray, part: TransportLoss) -> None:
    """No step towards what the gradient asks for decreases the objective of a sample much."""
    constraint = found.constraints[0]
    if constraint not in (None, "rows") or part.balanced:
        return
    atoms, coefficients = _atoms(found), to_numpy(found.factors[0])
    atoms = atoms.reshape(len(atoms), *new.shape[1:])
    cost = oracle.total_cost(part.costs)
    inner = [tuple(k - 1 for k in group) for group in part.groups]
    whole = max(abs(found.objective), part.eps * float(new.sum()))
    for i in range(min(len(new), 3)):
        a = coefficients[i].astype(oracle.LONG)
        Y = np.tensordot(a, atoms, axes=(0, 0))
        rows = oracle.stacked(new[i].astype(oracle.LONG), inner)
        targets = oracle.stacked(Y, inner)
        basis = [oracle.stacked(atom, inner) for atom in atoms]
        slope = np.zeros(len(atoms), oracle.LONG)
        for j, (x, y) in enumerate(zip(rows, targets, strict=True)):
            _, u = oracle.value_and_gradient(x, y, cost, part.eps, part.lam)
            for r, atom in enumerate(basis):
                slope[r] += np.sum(np.where(atom[j] > 0, u, 0) * atom[j])
        if not np.isfinite(slope).all():
            return
        wanted = -slope / float(found.rho[0])
        if constraint == "rows":
            wanted = np.exp(wanted - wanted.max())
            wanted = wanted / wanted.sum()
        else:
            wanted = np.exp(np.minimum(wanted, 200)) * found.references[0]
        here = _sample_objective(new[i], a, atoms, part, found)
        for step in (1.0, 0.3, 0.1, 1e-2, 1e-3):
            there = _sample_objective(new[i], (1 - step) * a + step * wanted, atoms, part, found)
            gain = here.lower - there.upper
            if gain > max(SADDLE * whole, trial.rounding * here.scale):
                trial.fail(
                    "not the minimum",
                    f"projection: sample {i} can gain {gain:.3g} of {whole:.3g} "
                    f"(its own value is {here.upper:.6g}); {found.message}",
                )
                return


def _check_alone(trial: Trial, fit: Any, found: Any, new: np.ndarray, part: TransportLoss) -> None:
    """A sample's coefficients do not depend on the other samples."""
    atoms, together = _atoms(fit), to_numpy(found.factors[0])
    atoms = atoms.reshape(len(atoms), *new.shape[1:])
    for i in range(min(len(new), 3)):
        if not new[i].any():
            continue
        one = trial.call("projection", fit.projection, trial.library.array(new[i : i + 1]))
        if not one.converged:
            continue
        alone = _sample_objective(new[i], to_numpy(one.factors[0])[0], atoms, part, fit)
        joint = _sample_objective(new[i], together[i], atoms, part, fit)
        size = max(abs(alone.upper), part.eps * float(new[i].sum()))
        off = max(joint.lower - alone.upper, alone.lower - joint.upper)
        if off > max(SADDLE * size, trial.rounding * joint.scale):
            trial.fail(
                "depends on the batch",
                f"projection of sample {i}: objective {joint.upper!r} together, {alone.upper!r} "
                f"alone; coefficients {together[i].tolist()} and "
                f"{to_numpy(one.factors[0])[0].tolist()}",
            )
            return


def check_block(trial: Trial) -> None:
    """`cp_dual` and `tucker_dual`: what the certificate says of a block."""
    rng = trial.draw()
    cp = trial.outcome.kind == "cp_dual"
    shape, groups = draw_shape(rng, few=trial.library.few_shapes)
    loss = draw_loss(rng, shape, groups, trial.dtype)
    X = draw_data(rng, shape, groups, trial.dtype, normalised=0.9 if loss.balanced else 0.5)
    rank = int(rng.integers(1, 5))
    ranks = (rank,) * len(shape) if cp else tuple(int(rng.integers(1, 4)) for _ in shape)
    sampled = 0 not in {k for group in groups for k in group}
    usual = ("rows" if sampled else "columns", *("columns" for _ in shape[1:]))
    constraints = [c if rng.random() < 0.7 else pick(rng, CONSTRAINTS) for c in usual]
    factors = [
        draw_block(rng, (n, r), c, trial.dtype)
        for n, r, c in zip(shape, ranks, constraints, strict=True)
    ]
    core = weights = None
    named = "weights" if cp else "core"
    block: Any = named if rng.random() < 0.2 else int(rng.integers(len(shape)))
    if not cp:
        core = draw_block(rng, ranks, pick(rng, (None, "all")), trial.dtype)
    elif rng.random() < 0.3 or block == "weights":
        weights = draw_block(rng, (rank,), "all", trial.dtype)
    if isinstance(block, str):
        constraint = pick(rng, (None, "all"))
    else:
        constraint = None if block == 0 and rng.random() < 0.4 else constraints[block]
    rho = power(rng, -4, 0)
    notes = {"X": X, "factors": factors, "core": core, "weights": weights, "block": block}
    for name, value in {**notes, "loss": loss, "rho": rho, "constraint": constraint}.items():
        trial.note(name, value)
    x, blocks = trial.library.array(X), trial.convert(factors)
    if cp:
        given = None if weights is None or block == "weights" else trial.convert(weights)
        dual = trial.call(
            "cp_dual",
            wtf.cp_dual,
            x,
            blocks,
            block,
            loss.build(),
            rho=rho,
            constraint=constraint,
            weights=given,
        )
    else:
        dual = trial.call(
            "tucker_dual",
            wtf.tucker_dual,
            x,
            trial.convert(core),
            blocks,
            block,
            loss.build(),
            rho=rho,
            constraint=constraint,
        )
    iterations = int(pick(rng, (3, 200)))
    result = trial.call(
        "lbfgs",
        wtf.lbfgs,
        dual.value_and_gradient,
        dual.start(),
        max_iter=iterations,
        safe_fun=dual.safe_value_and_gradient,
    )
    trial.outcome.unconverged = not result.converged
    g = to_numpy(result.x)
    certificate = trial.call("certificate", dual.certificate, result.x)
    trial.note("certificate", certificate)
    if np.isnan(g).any():
        trial.fail("not finite", "lbfgs: NaN in x")
        return
    _check_certificate(
        trial, certificate, g, X, loss, factors, core, weights, block, rho, constraint
    )


def _check_certificate(
    trial: Trial,
    certificate: Any,
    g: np.ndarray,
    X: np.ndarray,
    loss: TransportLoss,
    factors: Any,
    core: Any,
    weights: Any,
    block: Any,
    rho: float,
    constraint: str | None,
) -> None:
    """Both bounds, by the dual and the primal objective evaluated apart from the library."""
    moved = [k for group in loss.groups for k in group]
    order = [*(k for k in range(X.ndim) if k not in moved), *moved]
    u = oracle.dual_of_potential(g.astype(oracle.LONG), loss.lam)
    U = np.transpose(u.reshape([X.shape[k] for k in order]), np.argsort(order))
    if block == "weights":
        weights = np.ones(factors[0].shape[1])
    factor = to_numpy(certificate.factor)
    if not np.isfinite(factor).all() or (factor < 0).any():
        trial.fail("not finite", f"certificate: factor {factor.tolist()}")
        return
    numbers = (certificate.lower, certificate.upper, certificate.gap)
    if any(map(math.isnan, numbers)):
        trial.fail("not finite", f"certificate: lower, upper, gap = {numbers}")
        return
    Y = oracle.with_block(factors, core, weights, block, factor)
    truth = oracle.transport(X, Y, loss.costs, loss.groups, loss.eps, loss.lam)
    value = rho * oracle.entropy(factor)
    size = rho * float(np.sum(factor * (np.abs(np.log(np.where(factor > 0, factor, 1))) + 1)))
    truth = truth + oracle.Interval(value, value, size)
    trial.note("objective of the factor", truth)
    with np.errstate(all="ignore"):
        xi = oracle.adjoint(U, factors, core, weights, block)
        conjugate, _, scale = oracle.conjugate(X, U, loss.costs, loss.groups, loss.eps, loss.lam)
        ends = oracle.entropy_conjugate(-xi / rho, constraint)
    lower = -conjugate - rho * ends
    trial.note("dual value", lower)
    scale += float(np.sum(np.abs(U) * Y)) + abs(rho * ends) + truth.scale
    tiny = trial.rounding * scale
    words = f"lower {certificate.lower!r}, upper {certificate.upper!r}, rounding {tiny:.1e}"
    if certificate.lower > truth.upper + tiny:
        trial.fail("certificate: lower above a value", f"{words}; the factor's value is {truth}")
    elif math.isfinite(lower) and certificate.lower > lower + tiny:
        trial.fail("certificate: lower above the dual value", f"{words}; it is {lower!r}")
    if certificate.upper < truth.lower - tiny - gap_rounding(trial, certificate.gap):
        trial.fail("certificate: upper below the value", f"{words}; the factor's value is {truth}")
    elif not truth.decided:
        trial.outcome.undecided = "certificate: the oracle did not converge"


CHECKS: dict[str, Callable[[Trial], None]] = {
    "wasserstein": check_wasserstein,
    "conjugate": check_conjugate,
    "cp_dual": check_block,
    "tucker_dual": check_block,
    "cp": check_fit,
    "tucker": check_fit,
    "nmf": check_fit,
    "projection": check_projection,
}


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
