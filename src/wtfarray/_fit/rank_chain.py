"""Fits of increasing rank to the same samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict, cast

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.masks import observed
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import take_samples
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.sparse import SparseSamples
from wtfarray._arrays.sums import Sums, refusal
from wtfarray._arrays.typing import Array
from wtfarray._fit.factorise import fit_model
from wtfarray._fit.options import FitOptions
from wtfarray._fit.rank_growth import grow
from wtfarray._fit.rank_records import Rank
from wtfarray._fit.result import Factorisation
from wtfarray._fit.sample_parts import some_samples
from wtfarray._fit.specification import Kind
from wtfarray._fit.team import counts_of
from wtfarray._losses.protocol import Loss
from wtfarray._models.entropy import Constraint


class ScanOptions(TypedDict, total=False):
    """Keywords of `rank_scan` that are passed to every fit; documented in `cp`."""

    rho: float | Sequence[float] | None
    constraints: Sequence[Constraint] | None
    solver: Literal["envelope", "dual"]
    tol: float
    max_iter: int
    batch: int | None


class Chain:
    """Fits of increasing rank to the same samples, each initialising the next."""

    def __init__(
        self,
        X: Array,
        mask: Array | None,
        rng: np.random.Generator,
        sums: Sums,
        left_out: NDArray[np.intp] | None = None,
    ) -> None:
        self.X, self.mask, self.sums = X, mask, sums
        self.left_out: Array | None = None
        self.left_out_mask: Array | None = None
        if left_out is not None:
            kept = np.setdiff1d(np.arange(X.shape[0]), left_out)
            self.X, self.left_out = some_samples(X, kept), some_samples(X, left_out)
            if mask is not None:
                self.mask = take_samples(mask, kept)
                self.left_out_mask = take_samples(mask, left_out)
            for part in (self.X, self.left_out):
                if not sums.any(_is_positive(part)):
                    msg = (
                        "held_out leaves a part of X that is zero everywhere: expected fewer folds"
                    )
                    raise refusal(sums, ValueError(msg))
        self._shards = WHOLE
        if sums.comm is not None:
            self._shards = Shards(sums, counts_of(int(self.X.shape[0]), sums.comm))
        self.last: Factorisation | None = None
        self.entries: Array | None = None
        self._rng = rng

    @classmethod
    def without_entries(
        cls,
        X: Array,
        mask: Array | None,
        rng: np.random.Generator,
        sums: Sums,
        blocks: NDArray[np.bool_],
    ) -> Chain:
        """Fits to all samples, without the entries of the blocks."""
        xp = array_namespace(X)
        entries = xp.asarray(blocks, device=device_of(X))
        chain = cls(X, ~entries if mask is None else mask & ~entries, rng, sums)
        chain.entries = entries if mask is None else mask & entries
        for part in (chain.mask, chain.entries):
            if not sums.any(bool(xp.any(observed(X, part) > 0))):
                msg = "held_out_entries leaves a part of X that is zero everywhere: expected less"
                raise refusal(sums, ValueError(msg))
        return chain

    def fit_next(
        self,
        model: Kind,
        rank: Rank,
        loss: Loss,
        options: ScanOptions,
        interrupted: Callable[[], bool],
    ) -> Factorisation:
        """Fit the next rank."""
        init: object = None
        if self.last is not None:
            now = [factor.shape[1] for factor in self.last.factors]
            ranks = [rank] * len(now) if isinstance(rank, int) else rank
            if all(old <= new for old, new in zip(now, ranks, strict=True)):
                init = grow(self.last, self.X, ranks, self._rng, self.mask, self._shards)
        given = cast("FitOptions", {**options, "init": init, "rng": self._rng, "mask": self.mask})
        self.last = fit_model(model, self.X, rank, loss, None, given, self.sums.comm, interrupted)
        if not self.last.converged and self.sums.leads:
            warnings.warn(f"{model}: {self.last.message}", stacklevel=2)
        return self.last


def _is_positive(X: Array) -> bool:
    """Whether some entry is positive."""
    if isinstance(X, SparseSamples):
        return bool((X.array.data > 0).any())
    return bool(array_namespace(X).any(X > 0))
