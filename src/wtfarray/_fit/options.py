"""What may be asked of a fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Literal, TypedDict

import numpy as np

from wtfarray._arrays.typing import Array
from wtfarray._fit.checkpoint import Checkpoint
from wtfarray._fit.journal import FitState
from wtfarray._losses.protocol import Loss
from wtfarray._models.entropy import Constraint


class FitOptions(TypedDict, total=False):
    """Keywords that `cp`, `tucker` and `nmf` share; see `cp`."""

    rho: float | Sequence[float]
    constraints: Sequence[Constraint] | None
    fixed: Sequence[int]
    init: object
    n_init: int
    rng: int | np.random.Generator | None
    solver: Literal["envelope", "dual"]
    tol: float
    max_iter: int
    sample_weight: Array | None
    batch: int | None
    callback: Callable[[FitState], object] | None
    progress: bool
    checkpoint: str | PathLike[str] | None


@dataclass(frozen=True, eq=False)
class Plan:
    """How a fit is to be solved."""

    loss: Loss
    init: object
    solver: str
    tol: float
    max_iter: int
    batch: int | None
    callback: Callable[[FitState], object] | None
    progress: bool
    checkpoint: Checkpoint | None
