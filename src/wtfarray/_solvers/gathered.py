"""
Prox-linear steps of several processes: rank 0 takes them, with the samples of all.

They follow on small data only, whose samples fit many times into the memory of one process, and the
dual of a step has no parts that could be solved separately. Rank 0 gathers the data, and tells the
others of every step, so that all of them report it and end together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.shards import WHOLE, Shards
from wtfarray._arrays.sums import asarray_like
from wtfarray._arrays.typing import Array
from wtfarray._losses.term import Term
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._optimize.objective import Point
from wtfarray._solvers.objective import Evaluation, JointObjective
from wtfarray._solvers.prox_linear import alternate
from wtfarray._solvers.stop_reason import StopReason
from wtfarray._transport.problem import TransportProblem

REASONS = list(StopReason)


def alternate_on_first(
    objective: JointObjective,
    term: TransportTerm,
    x: Array,
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Evaluation], bool],
) -> tuple[Array, StopReason]:
    """As `alternate`, for a problem whose samples several processes share."""
    sums = objective.sums
    whole, whole_term, start = _whole(objective, term, x)

    def tell(step: float, value: float, gap: float, point: Array) -> tuple[list[float], Array]:
        """What rank 0 has: 1 for a step or -1 minus the reason to stop, value, gap; the point."""
        numbers = np.asarray([step, value, gap])
        packed = sums.from_rank(np.concatenate([numbers, to_host(point)]), 0)
        return packed[:3].tolist(), _here(objective, packed[3:], x)

    def follow(numbers: list[float], here: Array) -> bool:
        point = Point(here, 0.0 * here, numbers[1], 0.0, 0.0, 0.0)
        return report(Evaluation(point, 0.0, numbers[2], converged=True))

    def lead(current: Evaluation) -> bool:
        return follow(*tell(1.0, current.point.value, current.gap, current.point.x))

    if sums.leads:
        found, reason = alternate(whole, whole_term, start, tol=tol, max_iter=max_iter, report=lead)
        numbers, here = tell(-1.0 - REASONS.index(reason), 0.0, 0.0, found)
    else:
        numbers, here = tell(0.0, 0.0, 0.0, start)
        while numbers[0] > 0:
            follow(numbers, here)
            numbers, here = tell(0.0, 0.0, 0.0, start)
    potential = sums.from_rank(to_host(whole_term.state), 0)
    first, count = _place(objective.problem.shards, term)
    term.start_from(asarray_like(potential[first : first + count], term.state))
    return here, REASONS[int(-1.0 - numbers[0])]


def _whole(
    objective: JointObjective, term: TransportTerm, x: Array
) -> tuple[JointObjective, TransportTerm, Array]:
    """The objective of the samples of all processes, which all of them gather; its start."""
    problem, bound = objective.problem, term.problem
    shards, sums = problem.shards, objective.sums
    place = _place(shards, term)
    total = shards.total(0) * (math.prod(problem.shape[1:]) // math.prod(bound.data.shape[1:]))

    def gathered(rows: Array, first: int, count: int, of: int) -> Array:
        host = np.zeros((of, *rows.shape[1:]))
        host[first : first + count] = to_host(rows)
        return asarray_like(sums.host(host), bound.data)

    def of_samples(stack: Array) -> Array:
        return gathered(stack, *place, total)

    def of_rows(rows: Array) -> Array:
        return gathered(rows, shards.first, shards.counts[shards.rank], shards.total(0))

    xp, missing, mask = array_namespace(bound.data), None, None
    if sums.any(bound.missing is not None):
        hidden = bound.data < 0 if bound.missing is None else bound.missing
        missing = of_samples(xp.astype(hidden, bound.data.dtype)) > 0
    if problem.mask is not None:
        mask = of_rows(xp.astype(problem.mask, bound.data.dtype)) > 0
    weights = None if term.weights is None else of_samples(term.weights)
    data = TransportProblem.of(
        of_samples(bound.data), bound.kernel, bound.lam, bound.order, missing, bound.source_lam
    )
    shape = (shards.total(0), *problem.shape[1:])
    whole_term = TransportTerm(data, shape, weights)
    whole_term.start_from(of_samples(term.state))
    blocks = objective.blocks(x)
    blocks[0] = of_rows(blocks[0])
    terms: list[Term] = [whole_term]
    whole = replace(problem, terms=terms, shape=shape, shards=WHOLE, mask=mask)
    found = JointObjective(whole, blocks)
    return found, whole_term, found.pack(blocks)


def _place(shards: Shards, term: TransportTerm) -> tuple[int, int]:
    """The number of samples before those of this process, and that of its own."""
    count = term.problem.data.shape[0]
    rows = shards.counts[shards.rank]
    per_row = count // rows if rows else 0
    return shards.first * per_row, count


def _here(objective: JointObjective, vector: NDArray[np.float64], x: Array) -> Array:
    """The part of a vector of all samples that belongs to this process."""
    shards = objective.problem.shards
    others = x.shape[0] - objective.shared
    columns = (vector.size - others) // shards.total(0)
    first = shards.first * columns
    mine = vector[first : first + objective.shared]
    return asarray_like(np.concatenate([mine, vector[vector.size - others :]]), x)
