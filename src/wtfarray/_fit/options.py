"""The options of a fit: the keywords of the user, and the checked options of the solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.axes import Axis
from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.stored import StoredData, masked_chunks_of
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import check_function, one_of, positive_integer, positive_number
from wtfarray._fit.checkpoint import Checkpoint
from wtfarray._fit.given_factors import given_blocks, is_named
from wtfarray._fit.journal import FitState
from wtfarray._fit.resplit import WORD, digest_of_samples
from wtfarray._fit.shared_checkpoint import SharedCheckpoint
from wtfarray._fit.specification import Specification, is_sampled
from wtfarray._fit.team import check_same, loss_identity, seed_identity
from wtfarray._losses.protocol import ConjugateLoss
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.entropy import Constraint
from wtfarray._transport.banded import numbers_of

ONLINE_TOL = 1e-2
"""Default tolerance of the online solver, which compares batches that differ."""


class FitOptions(TypedDict, total=False):
    """Keywords of `cp`, `tucker` and `nmf`; documented in `cp`."""

    rho: float | Sequence[float] | None
    constraints: Sequence[Constraint] | None
    fixed: Sequence[int]
    init: object
    n_init: int
    rng: int | np.random.Generator | None
    solver: Literal["envelope", "dual", "online"]
    tol: float
    max_iter: int
    sample_weight: Array | None
    mask: Array | None
    batch: int | None
    chunk: int | None
    scratch: str | PathLike[str] | None
    callback: Callable[[FitState], object] | None
    progress: bool
    checkpoint: str | PathLike[str] | None
    axes: Sequence[Axis | str | None] | None
    comm: Communicator | None


@dataclass(frozen=True, eq=False, kw_only=True)
class SolverOptions:
    """The checked options of the solver."""

    init: object = None
    solver: str = "envelope"
    tol: float
    max_iter: int
    batch: int | None = None
    callback: Callable[[FitState], object] | None = None
    progress: bool = False
    checkpoint: Checkpoint | None = None

    @property
    def has_named_start(self) -> bool:
        """Whether the initialisation is a named method rather than given factors."""
        return is_named(self.init)


def solver_options(spec: Specification, given: FitOptions) -> SolverOptions:
    """Check the options that concern the solver; several processes have to give the same."""
    sums, init = spec.shards.sums, given.get("init")
    blocks: list[Array] = []
    if not is_named(init) and (sums.shared or given.get("checkpoint") is not None):
        blocks = given_blocks(spec, init)
    names = ("n_init", "solver", "tol", "max_iter", "batch")
    check_same(
        sums,
        {
            **{name: given.get(name) for name in names},
            "rng": seed_identity(given.get("rng")),
            "checkpoint": str(given.get("checkpoint")),
            "init": b"".join(to_host(b).tobytes() for b in blocks[1:]) if blocks else init,
        },
    )
    return sums.agree(lambda: _checked_options(spec, given, blocks))


def _checked_options(spec: Specification, given: FitOptions, blocks: list[Array]) -> SolverOptions:
    """The options, for initial blocks that were given, if the checkpoint needs them."""
    init, solver = given.get("init"), given.get("solver", "envelope")
    one_of("solver", solver, ("envelope", "dual", "online"))
    if isinstance(init, str):
        one_of("init", init, ("kl", "random", "nnsvd"))
    if given.get("fixed") and is_named(init):
        msg = f"init is {init!r} and some factors are fixed: expected their values in init"
        raise ValueError(msg)
    batch, path = given.get("batch"), given.get("checkpoint")
    if solver == "dual":
        _refuse_for_dual(spec, path)
    tol, max_iter = 1e-6, 300
    if solver == "online":
        _refuse_for_online(spec, given)
        tol, max_iter = ONLINE_TOL, 1
    callback, checkpoint = given.get("callback"), None
    check_function("callback", callback)
    if path is not None:
        checkpoint = _checkpoint(path, spec, init, blocks, given.get("rng"))
    return SolverOptions(
        init=init,
        solver=solver,
        tol=positive_number("tol", given.get("tol", tol)),
        max_iter=positive_integer("max_iter", given.get("max_iter", max_iter)),
        batch=None if batch is None else positive_integer("batch", batch),
        callback=callback,
        progress=given.get("progress", False) and spec.shards.sums.leads,
        checkpoint=checkpoint,
    )


def _refuse_for_dual(spec: Specification, checkpoint: object) -> None:
    """Refuse options that block coordinate descent does not support."""
    unsupported = None
    if spec.shards.shared and spec.constraints[0] not in (None, "rows"):
        unsupported = (
            f"comm with the constraint {spec.constraints[0]!r} of the first factor, whose rows "
            "several processes hold"
        )
    elif spec.shards.shared and 0 in spec.shards.counts:
        unsupported = "comm if a process has no samples"
    elif isinstance(spec.X, StoredData):
        unsupported = "data that are read in chunks"
    elif checkpoint is not None:
        unsupported = "a checkpoint"
    elif len(spec.losses) > 1:
        unsupported = "a sum of losses"
    elif not isinstance(spec.loss, ConjugateLoss):
        unsupported = f"{type(spec.loss).__name__}, whose conjugate is not known"
    elif isinstance(spec.loss, Wasserstein) and spec.loss.debias:
        unsupported = "Wasserstein with debias=True, whose conjugate has no closed form"
    if unsupported is not None:
        msg = f"solver is 'dual', which does not support {unsupported}: expected 'envelope'"
        raise ValueError(msg)


def _refuse_for_online(spec: Specification, given: FitOptions) -> None:
    """Refuse what passes over batches of samples do not support."""
    unsupported, loss = None, spec.loss
    constraints = spec.constraints
    if spec.shards.shared and given.get("checkpoint") is not None:
        unsupported = "a checkpoint of several processes, comm"
    elif spec.kind == "tucker":
        unsupported = "a Tucker model"
    elif not isinstance(loss, Wasserstein) or loss.debias:
        unsupported = "losses other than one Wasserstein loss that is not debiased"
    elif not is_sampled(loss, tuple(spec.X.shape)):
        unsupported = "transport of the first mode"
    elif spec.mask is not None:
        unsupported = "a mask"
    elif given.get("fixed"):
        unsupported = "fixed factors"
    elif given.get("n_init", 1) != 1:
        unsupported = f"n_init = {given.get('n_init')}"
    elif constraints[0] not in (None, "rows") or set(constraints[1:]) != {"columns"}:
        unsupported = f"constraints {constraints}, but None or 'rows' and then 'columns'"
    if unsupported is not None:
        msg = f"solver is 'online', which does not support {unsupported}: expected 'envelope'"
        raise ValueError(msg)


def _checkpoint(
    path: str | PathLike[str],
    spec: Specification,
    init: object,
    blocks: list[Array],
    rng: object,
) -> Checkpoint:
    """The checkpoint of this fit, identified by everything that its result depends on."""
    losses = [loss for loss in spec.losses if isinstance(loss, Wasserstein)]
    arrays = [numbers_of(cost) for loss in losses for cost in loss.costs]
    weights = [] if spec.sample_weight is None else [spec.sample_weight]
    shards, (first, *rest) = spec.shards, spec.shapes
    shapes = ((shards.total(first[0]), *first[1:]), *rest)  # of all processes
    arguments = (
        *(spec.kind, spec.model, shapes, spec.rho, spec.constraints, spec.free),
        *(
            tuple(map(loss_identity, spec.losses)),
            init if is_named(init) else "given",
            seed_identity(rng),
        ),
        *spec.details,
    )
    if shards.shared:
        own = _digest(spec, [*weights, *blocks[:1]])
        return SharedCheckpoint(path, [*arrays, *blocks[1:]], arguments, shards, own)
    return Checkpoint(path, chain(_contents(spec), arrays, weights, blocks), arguments)


def _digest(spec: Specification, others: Sequence[Array]) -> NDArray[np.float64]:
    """What identifies the samples of this process; ``others`` have a row for each of them."""
    total = np.zeros(4)
    for rows, part, seen in masked_chunks_of(spec.X, spec.mask):
        here = slice(0, part.shape[0]) if rows is None else rows
        arrays = [part, *(array[here, ...] for array in others)]
        if seen is not None:
            arrays.append(array_namespace(part).astype(seen, part.dtype))
        total += digest_of_samples(arrays, spec.shards.first + here.start)
    return total % WORD


def _contents(spec: Specification) -> Iterator[Array]:
    """The data and their mask, chunk by chunk."""
    for _, part, seen in masked_chunks_of(spec.X, spec.mask):
        yield part
        if seen is not None:
            yield array_namespace(part).astype(seen, part.dtype)
