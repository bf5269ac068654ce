"""Rows of `speed.py` that say what fits cost: libraries, operations, products, small problems."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from _data import Array, strokes
from _problems import (
    COMPARED,
    Evaluations,
    Figures,
    Line,
    Problem,
    Row,
    Setting,
    SkippedError,
    faces_problem,
    histograms_problem,
    readme_problem,
    strokes_problem,
)
from _trace import InnerTime, best, convert, quiet

import wtfarray as wtf


def timed(setting: Setting, call: Callable[[], wtf.Factorisation]) -> tuple[Any, float]:
    """The result of a fit and its seconds."""
    begin = setting.now()
    with quiet():
        result = call()
    return result, setting.now() - begin


def capped(setting: Setting) -> dict[str, Any]:
    """The option that ends fits early, if it was asked for."""
    return {} if setting.steps is None else {"max_iter": setting.steps}


def jax_row(name: str, setting: Setting, _: Mapping[str, Any]) -> Figures:
    """One fit on JAX, twice, in units of NumPy."""
    problem = COMPARED[name](quick=setting.quick)
    _, ours = timed(setting, problem.fit("numpy", **capped(setting)))
    fit = problem.fit("jax", setting.dtype, **capped(setting))
    _, first = timed(setting, fit)
    _, second = timed(setting, fit)
    return {"numpy": ours, "ratio": second / ours, "compilation": first - second}


def torch_row(name: str, setting: Setting, _: Mapping[str, Any]) -> Figures:
    """One fit on torch, in float64 and float32, an evaluation in units of NumPy."""
    problem = COMPARED[name](quick=setting.quick)
    each, J = {}, {}
    for library, dtype in (("numpy", "float64"), ("torch", "float64"), ("torch", "float32")):
        counted = Evaluations()
        call = problem.fit(library, dtype, callback=counted, **capped(setting))
        fit, seconds = timed(setting, call)
        each[library, dtype] = seconds / counted.of(fit)
        factors = [np.asarray(a).astype(np.float64) for a in fit.factors]
        J[library, dtype] = problem.certified(factors)
    double, single = ("torch", "float64"), ("torch", "float32")
    return {
        "numpy": 1e3 * each["numpy", "float64"],
        "double": each[double] / each["numpy", "float64"],
        "single": each[single] / each[double],
        "J": abs(J[single] - J[double]) / abs(J[double]),
    }


def operations_row(setting: Setting, _: Mapping[str, Any]) -> Figures:
    """What torch is asked to do in a fit, divided by its inner evaluations."""
    from _torch_counts import TorchCounts

    problem, figures = strokes_problem(quick=setting.quick), {}
    for dtype in ("float64", "float32"):
        counted = Evaluations()
        fit = problem.fit("torch", dtype, callback=counted, **capped(setting))
        with quiet(), TorchCounts() as counts:
            evaluations = counted.of(fit())
        figures[f"operations {dtype}"] = counts.operations / evaluations
        figures[f"synchronisations {dtype}"] = counts.synchronisations / evaluations
        figures[f"waits {dtype}"] = counts.waits / evaluations
    return figures


def bare_products(problem: Problem, backend: str, dtype: str) -> Callable[[], object]:
    """The product of a stack with the kernel, then with its transpose, axis by axis."""
    kernels = [
        convert(np.exp(-np.asarray(cost) / problem.loss.eps), backend, dtype)
        for cost in problem.loss.costs
    ]
    stack = convert(problem.X, backend, dtype)

    def product(array: Array, *, transposed: bool) -> Array:
        *rows, columns = [kernel.T if transposed else kernel for kernel in kernels]
        last = (array.reshape(-1, array.shape[-1]) @ columns.T).reshape(array.shape)
        return rows[0] @ last if rows else last

    return lambda: product(product(stack, transposed=False), transposed=True)


def bare_row(setting: Setting, _: Mapping[str, Any]) -> Figures:
    """An inner evaluation in units of two bare kernel products."""
    if setting.backend == "jax":
        msg = "the bare products are not compiled: choose numpy or torch"
        raise SkippedError(msg)
    problems = {
        "strokes": strokes_problem(quick=setting.quick),
        "histograms": histograms_problem(quick=setting.quick),
    }
    if setting.data is not None:
        problems["faces"] = faces_problem(setting.folder(), quick=setting.quick)
    figures: Figures = {}
    for name, problem in problems.items():
        # Whole fits; the faces take minutes, and their evaluations cost the same after 60 steps.
        options = {"max_iter": 60} if name == "faces" and not setting.quick else {}
        inner = InnerTime(problem.X.shape, setting.now)
        with inner.watched():
            fit, seconds = timed(setting, problem.fit(setting.backend, setting.dtype, **options))
        products = bare_products(problem, setting.backend, setting.dtype)
        bare = best(products, 0.1 if setting.quick else 2.0, setting.now)
        each = inner.seconds / inner.evaluations
        whole = seconds / fit.history[-1].evaluations
        figures |= {f"{name} ms": 1e3 * each, name: each / bare, f"{name} fit": whole / bare}
    return figures


def small_row(setting: Setting, _: Mapping[str, Any]) -> Figures:
    """README's fit and single pairs, where the time is that of Python."""
    from ot import sinkhorn

    patience = 0.1 if setting.quick else 2.0
    fit = readme_problem().fit(setting.backend, setting.dtype)
    found = fit()
    figures: Figures = {
        "readme": best(fit, patience, setting.now),
        "evaluations": found.history[-1].evaluations,
    }
    rng = np.random.default_rng(0)
    x, y = rng.dirichlet(np.ones(64), 2)
    pair = [convert(a[None, :], setting.backend, setting.dtype) for a in (x, y)]
    (cost,) = wtf.grid_cost(64)
    for eps in (0.1, 0.01):
        loss = wtf.Wasserstein(cost, eps=eps)
        figures[f"pair {eps}"] = 1e3 * best(
            partial(wtf.wasserstein, *pair, loss), patience, setting.now
        )
        for name, method in (("plain", "sinkhorn"), ("log", "sinkhorn_log")):
            call = partial(sinkhorn, x, y, cost, eps, method=method)
            with quiet():
                figures[f"{name} {eps}"] = 1e3 * best(call, patience, setting.now)
    return figures


def training_row(setting: Setting, _: Mapping[str, Any]) -> Figures:
    """A training loop in torch, with the loss of 64 images; also with warm starts."""
    from wtfarray.torch import wasserstein_loss

    cold, value = _training(setting, warm=False)
    warm = cold
    if "potential" in inspect.signature(wasserstein_loss).parameters:  # not in the baseline
        warm, value = _training(setting, warm=True)
    return {"cold": cold, "warm": warm, "loss": value}


def _training(setting: Setting, *, warm: bool) -> tuple[float, float]:
    """Milliseconds of a step, and the loss at the end."""
    import torch

    from wtfarray.torch import wasserstein_loss

    X = strokes(4, 12) if setting.quick else strokes(64)
    target = convert(X, "torch", setting.dtype)
    loss = wtf.Wasserstein(wtf.grid_cost(*X.shape[1:]), eps=0.01, lam=10.0)
    # Start from blurred images: a network that has learned something already.
    logits = torch.log(target.mean(0) + 1e-3).repeat(len(X), 1, 1).requires_grad_()
    optimiser = torch.optim.Adam([logits], lr=0.05)
    potential = None
    steps, begin = 3 if setting.quick else 30, setting.now()
    with quiet():
        for _step in range(steps):
            optimiser.zero_grad()
            shares = torch.softmax(logits.flatten(1), 1).reshape(logits.shape)
            if warm:
                known = {"potential": potential, "return_potential": True}
                value, potential = wasserstein_loss(target, shares, loss, reduction="mean", **known)
            else:
                value = wasserstein_loss(target, shares, loss, reduction="mean")
            value.backward()
            optimiser.step()
    return 1e3 * (setting.now() - begin) / steps, float(value.detach())


def jax_lines(name: str) -> tuple[Line, ...]:
    """The lines of one fit on JAX."""
    return (
        Line("numpy", f"{name} on NumPy: s of the whole fit"),
        Line("ratio", f"{name} on JAX: s / s of NumPy, after the first call", "1.5"),
        Line("compilation", f"{name} on JAX: more s in the first call", "15 s", ".1f"),
    )


def torch_lines(name: str) -> tuple[Line, ...]:
    """The lines of one fit on torch."""
    return (
        Line("numpy", f"{name} on NumPy: ms of an evaluation"),
        Line("double", f"{name} on torch: the same / NumPy", "1"),
        Line("single", f"{name} on torch: float32 / float64", "0.7"),
        Line("J", f"{name} on torch: J of float32 differs by", "1e-4", ".1e", compared=False),
    )


ROWS = (
    *(Row(f"jax:{name}", jax_lines(name), partial(jax_row, name)) for name in COMPARED),
    *(Row(f"torch:{name}", torch_lines(name), partial(torch_row, name)) for name in COMPARED),
    Row(
        "operations",
        tuple(
            line
            for dtype in ("float64", "float32")
            for line in (
                Line(f"operations {dtype}", f"{dtype}: operations an evaluation", "100", ".1f"),
                Line(
                    f"synchronisations {dtype}",
                    f"{dtype}: synchronisations an evaluation",
                    "1.2",
                    ".1f",
                ),
                Line(f"waits {dtype}", f"{dtype}: of these within operations", "", ".1f"),
            )
        ),
        operations_row,
    ),
    Row(
        "bare",
        tuple(
            line
            for name, shape, target in (
                ("strokes", "300x28x28", "5"),
                ("faces", "200x32x32", "5"),
                ("histograms", "1000x60", "8"),
            )
            for line in (
                Line(f"{name} ms", f"{name} {shape}: ms of an evaluation"),
                Line(name, f"{name}: the same / two bare products", target, ".1f"),
                Line(f"{name} fit", f"{name}: whole fit / evaluations / the products", "", ".1f"),
            )
        ),
        bare_row,
    ),
    Row(
        "small",
        (
            Line("readme", "README's fit 30x64: s", "0.25 s"),
            Line("evaluations", "README's fit: inner evaluations", "", ".0f"),
            *(
                line
                for eps, target in ((0.1, "2 ms"), (0.01, "8 ms"))
                for line in (
                    Line(f"pair {eps}", f"wasserstein of a pair, eps {eps}: ms", target),
                    Line(f"plain {eps}", f"POT sinkhorn, eps {eps}: ms", compared=False),
                    Line(f"log {eps}", f"POT sinkhorn_log, eps {eps}: ms", compared=False),
                )
            ),
        ),
        small_row,
    ),
    Row(
        "training",
        (
            Line("cold", "wasserstein_loss 64x28x28: ms of a step", "3 times sooner", ".1f"),
            Line("warm", "the same with warm starts, if there are any", "3 times sooner", ".1f"),
            Line("loss", "wasserstein_loss: mean loss at the end", "", ".5f", compared=False),
        ),
        training_row,
    ),
)
