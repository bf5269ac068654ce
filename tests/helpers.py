"""What several test files share.

``assert_close`` compares namespace, dtype, shape, device and values; both sides are arrays.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import array_api_compat
import numpy as np
import pytest
from array_api_extra.testing import assert_close

import wtfarray as wtf
from wtfarray import _dispatch

__all__ = [
    "assert_close",
    "numpy_only",
    "random_fit",
    "set_thresholds",
    "to_numpy",
    "without_escape",
]

numpy_only = pytest.mark.usefixtures("on_numpy")
without_escape = pytest.mark.usefixtures("no_escape")


def set_thresholds(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Change which method serves which data, for one test."""
    monkeypatch.setattr(_dispatch, "THRESHOLDS", replace(_dispatch.THRESHOLDS, **fields))


def sizes_made_dense(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of all matrices of SciPy that are made dense, from now on in this test."""
    compressed = pytest.importorskip("scipy.sparse._compressed")
    sizes: list[tuple[int, ...]] = []
    plain = compressed._cs_matrix.toarray

    def toarray(self: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(tuple(self.shape))
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(compressed._cs_matrix, "toarray", toarray)
    return sizes


def to_numpy(x: Any) -> np.ndarray:
    """Copy an array of any backend, on any of its devices, to NumPy."""
    if array_api_compat.is_array_api_strict_namespace(array_api_compat.array_namespace(x)):
        x = x.to_device(type(x.device)("CPU_DEVICE"))
    elif array_api_compat.is_torch_array(x):
        x = x.detach().cpu().numpy()
    elif array_api_compat.is_cupy_array(x):
        x = x.get()
    return np.array(x)


def random_fit(
    array: Callable[..., Any],
    kind: str,
    shape: tuple[int, ...],
    rank: Any,
    *,
    learned: bool = False,
) -> wtf.Factorisation:
    """Make a fit of random factors, for tests that do not depend on its quality."""
    rng = np.random.default_rng(0)
    sizes = (shape[0], math.prod(shape[1:])) if kind == "nmf" else shape
    ranks = rank if isinstance(rank, tuple) else (rank,) * len(sizes)
    blocks = [rng.dirichlet(np.ones(n), r).T for n, r in zip(sizes, ranks, strict=True)]
    first = "columns"
    if not learned:
        blocks[0] /= blocks[0].sum(axis=1, keepdims=True)
        first = "rows"
    history = [
        wtf.Record(0.1, 2.0, 0.5, 3),
        wtf.Record(0.2, 1.5, 0.1, 6),
        wtf.Record(0.3, 1.0, 0.2, 9),
    ]
    weights = rng.dirichlet(np.ones(ranks[0])) if learned else np.ones(ranks[0])
    core = kind == "tucker"
    return wtf.Factorisation(
        kind=kind,
        factors=[array(block) for block in blocks],
        core=array(rng.uniform(0.1, 1.0, ranks)) if core else None,
        weights=None if core else array(weights),
        objective=1.0,
        gap=0.2,
        converged=True,
        message="",
        n_iter=3,
        history=history,
        dual=array(np.zeros(shape)),
        loss=wtf.KullbackLeibler(),
        rho=(0.01,) * (len(sizes) + (core or learned)),
        constraints=(
            first,
            *("columns",) * (len(sizes) - 1),
            *((None,) if core else ("all",) * learned),
        ),
        shape=shape,
    )
