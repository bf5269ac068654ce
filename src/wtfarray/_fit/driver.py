"""Run one fit, from the initial blocks to the certified solution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import overload

import numpy as np

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import per_sample, spread, stack
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import or_float64
from wtfarray._dispatch import tries_to_escape
from wtfarray._fit.checkpoint import EVERY
from wtfarray._fit.coarse_to_fine import first_start
from wtfarray._fit.journal import Journal, Record
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.progress_bar import ProgressBar
from wtfarray._fit.specification import Specification, is_sampled
from wtfarray._fit.starts import Start, feasible, random_blocks
from wtfarray._losses.debiased_term import DebiasedTerm
from wtfarray._losses.kullback_leibler import KullbackLeibler
from wtfarray._losses.protocol import ConjugateLoss
from wtfarray._losses.selection import bound_loss
from wtfarray._losses.sparse_tensor import SparseTensorTerm
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._losses.wasserstein import NOT_A_BOUND, Wasserstein
from wtfarray._models.coupled import CoupledModel
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._solvers import escape
from wtfarray._solvers.block_descent import Sweep
from wtfarray._solvers.blockwise import solve_blockwise
from wtfarray._solvers.envelope import Progress, evaluate_until_solved
from wtfarray._solvers.joint import Resumable, solve_jointly
from wtfarray._solvers.objective import Evaluation, JointObjective
from wtfarray._solvers.problem import CERTIFICATE_ITERATIONS, FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason
from wtfarray._solvers.streamed import StreamedProblem, at_rows, parts_of
from wtfarray._transport.feasibility import refuse_other_mass, stranded
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.processors import one_fit

CERTIFIED_GAP = 1e-3
"""A fit has converged only if its gap is at most this fraction of the objective."""
BRIEF_ITERATIONS = 30
"""Iterations for the certificate of a fit that was interrupted or has used up its work."""
USUAL_MASS = (0.1, 10.0)
"""
Samples with a mass outside this range are probably not normalised.

Relative to their mean if a block carries the mass of the data, whose unit then does not matter.
"""


@dataclass(frozen=True, eq=False)
class FitSolution:
    """The solution of a fit."""

    spec: Specification
    blocks: list[Array]
    """The factors, then the core or the learned weights, in the units in which they are fitted."""
    objective: float
    gap: float
    dual: Array
    """The dual variable u of the first loss, in the shape of X."""
    values: Array | None
    """Lower bounds of the loss of each sample, (N,), where they are known."""
    reason: StopReason
    converged: bool
    message: str
    n_iter: int
    history: list[Record]
    work: float
    """Of the inner problems, as `Term.work`."""


def solve(
    spec: Specification,
    options: SolverOptions,
    rng: np.random.Generator,
    *,
    spent: float = 0.0,
) -> FitSolution:
    """
    Fit from one initialisation.

    Of the work that a small fit may take, ``spent`` was taken before, elsewhere.
    """
    with one_fit(), ProgressBar(spec.label, visible=options.progress) as bar:
        journal = Journal(options.callback, bar, spec.shards, spec.in_units_of_data)
        problem = spec.problem(options.batch)
        start = first_start(spec, problem, options, rng, journal)
        check_mass(spec, problem, start.blocks, rng)
        if start.ended is not None:
            blocks, reason = start.blocks, start.ended
        elif options.solver == "envelope":
            blocks, reason = solve_jointly_from(problem, start, options, journal, spent=spent)
        else:
            blocks, reason = _solve_blockwise(spec, problem, start, options, journal, spent)
        return certify(spec, problem, blocks, reason, options, journal)


def check_mass(
    spec: Specification,
    problem: FactorisationProblem,
    blocks: list[Array],
    rng: np.random.Generator,
) -> None:
    """Refuse fixed factors or constraints under which the loss is infinite whatever is fitted."""
    fixed = len(spec.free) < len(blocks)
    balanced = any(isinstance(loss, Wasserstein) and math.isinf(loss.lam) for loss in spec.losses)
    if not (fixed or balanced):
        return
    others, shards = list(blocks), spec.shards
    drawn = random_blocks(spec.shapes, rng.spawn(1)[0], spec.like, shards)
    for k in spec.free:
        others[k] = feasible(drawn[k], spec.constraints[k], shards.block_sums(k))

    def check() -> None:
        for rows, part in parts_of(problem):
            first = 0 if rows is None else rows.start
            _check_mass_of(spec, part, at_rows(blocks, rows), at_rows(others, rows), first)
        diverges = any(isinstance(loss, KullbackLeibler) for loss in spec.losses)
        several = isinstance(problem, StreamedProblem) or isinstance(spec.model, CoupledModel)
        if fixed and diverges and not several:
            _refuse_empty_entries(spec, problem.tensor(others))

    shards.sums.agree(check)


def _check_mass_of(
    spec: Specification,
    problem: FactorisationProblem,
    blocks: list[Array],
    others: list[Array],
    first: int,
) -> None:
    """Check the terms of some samples, from the one with index ``first`` on."""
    transport = [
        term
        for term in problem.terms
        if isinstance(term, TransportTerm | SparseTensorTerm | DebiasedTerm)
    ]
    if len(spec.free) < len(blocks):
        for term in transport:
            _refuse_infinite_samples(term.problem, problem.tensor(others), first)
    for term in transport:
        if not term.problem.conserves_mass or not term.problem.data.shape[0]:
            continue
        for some in (blocks, others):  # the mass must not depend on the choice of feasible blocks
            found = per_sample(stack(term.problem, problem.tensor(some)))
            refuse_other_mass(term.problem.mass, found, f"constraints is {spec.constraints}", first)


def _refuse_infinite_samples(problem: TransportProblem, model: Array, first: int) -> None:
    """
    Refuse a model, positive where the fixed factors allow it, with samples of infinite loss.

    They are empty, or some of their mass cannot go where the model is positive.

    ``first`` is the index of its first sample.
    """
    xp = array_namespace(model)
    found = per_sample(stack(problem, model))
    empty = (problem.mass > 0) & ~(found > 0)
    if bool(xp.any(empty)):
        i = int(xp.argmax(xp.astype(empty, xp.int64)))
        msg = (
            f"init has fixed factors with zeros, which make sample {first + i} of every model "
            f"empty, where X has mass {float(problem.mass[i])}: expected fixed factors that give "
            "it mass"
        )
        raise ValueError(msg)
    if problem.kernel.all_finite or problem.relaxes_data:
        return
    bad = stranded(problem, stack(problem, model))
    lost = per_sample(xp.where(bad, problem.data, 0.0))
    if bool(xp.any(lost > 0)):
        i = int(xp.argmax(lost))
        msg = (
            f"init has fixed factors with zeros, and mass {float(lost[i])} of sample {first + i} "
            "of X can reach no bin of any model at a finite cost: expected fixed factors that are "
            "positive where it can arrive, or finite costs"
        )
        raise ValueError(msg)


def _refuse_empty_entries(spec: Specification, model: Array) -> None:
    """Refuse a model, positive where the fixed factors allow it, that is 0 where X is positive."""
    xp = array_namespace(model)
    empty = (spec.X > 0) & ~(model > 0)
    if spec.sample_weight is not None:
        empty = empty & (spread(spec.sample_weight, model) > 0)
    if bool(xp.any(empty)):
        place = int(xp.argmax(xp.astype(xp.reshape(empty, (-1,)), xp.int64)))
        index = tuple(int(i) for i in np.unravel_index(place, tuple(model.shape)))
        msg = (
            f"init has fixed factors with zeros, which make entry {index} of every model 0, where "
            f"X is {float(spec.X[index])} and the Kullback-Leibler divergence infinite: expected "
            "fixed factors that are positive there"
        )
        raise ValueError(msg)


@dataclass(frozen=True, eq=False)
class Paused:
    """A fit that was paused; the states of its inner problems have to be restored with it."""

    progress: Progress
    pairs: CurvaturePairs


@overload
def solve_jointly_from(
    problem: FactorisationProblem,
    start: Start,
    options: SolverOptions,
    journal: Journal,
    *,
    spent: float = 0.0,
) -> tuple[list[Array], StopReason]: ...


@overload
def solve_jointly_from(
    problem: FactorisationProblem,
    start: Start,
    options: SolverOptions,
    journal: Journal,
    *,
    paused: Paused | None,
    pause: Callable[[Progress], bool] | None,
    spent: float = 0.0,
) -> tuple[list[Array], StopReason] | Paused: ...


def solve_jointly_from(
    problem: FactorisationProblem,
    start: Start,
    options: SolverOptions,
    journal: Journal,
    *,
    paused: Paused | None = None,
    pause: Callable[[Progress], bool] | None = None,
    spent: float = 0.0,
) -> tuple[list[Array], StopReason] | Paused:
    """
    Minimise over all blocks at once; continue from the checkpoint if it exists.

    ``pause(progress)`` is called after every L-BFGS step and pauses the fit by returning True;
    ``paused`` continues a fit that was paused. ``spent`` is work that was taken before.
    """
    objective = JointObjective(problem, start.blocks, spent=spent)
    x, resume, checkpoint = objective.pack(start.blocks), None, options.checkpoint
    stored = None
    if paused is not None:
        x, resume = paused.progress.current.point.x, (paused.progress, paused.pairs)
    if checkpoint is not None:
        stored = checkpoint.read(objective, x, len(start.levels))
    if stored is not None:
        x, resume = stored.progress.current.point.x, (stored.progress, stored.pairs)
        problem.set_level(start.levels[stored.progress.level])  # before its states are restored
        objective.restore(stored.states)
        if isinstance(problem, StreamedProblem) or not stored.has_states:
            # The potentials are not in the checkpoint: find them again.
            error = stored.progress.current.error
            evaluate_until_solved(objective, x, max(error, 1e-3 * problem.scale))
        journal.resume(stored.history, stored.n_iter, stored.seconds)
    journal.latest = partial(objective.blocks, x)
    held: list[Paused] = []

    def report(current: Evaluation, level: float, resumable: Resumable | None) -> bool:
        point = current.point
        blocks = partial(objective.blocks, point.x)
        value = point.value + level * problem.offset
        stop = journal.step(
            value, current.gap, level, problem.evaluations, blocks, objective.news()
        )
        if checkpoint and resumable and (journal.n_iter % EVERY == 0 or stop):
            # A resumed fit has no secant pairs. Drop them here too, for the same result.
            problem.drop_history()
            states, records = objective.states(), journal.records
            checkpoint.write(*resumable, states, records, journal.n_iter, journal.seconds)
        if pause is not None and resumable and not stop and pause(resumable[0]):
            held.append(Paused(*resumable))
        return stop or bool(held)

    try:
        x, reason = solve_jointly(
            objective,
            x,
            start.levels,
            tol=options.tol,
            max_iter=options.max_iter,
            report=report,
            resume=resume,
            curvature=start.curvature,
        )
        objective.raise_interrupt()
    except KeyboardInterrupt:
        return journal.latest(), StopReason.INTERRUPTED
    return held[0] if held else (objective.blocks(x), reason)


def _solve_blockwise(
    spec: Specification,
    problem: FactorisationProblem,
    start: Start,
    options: SolverOptions,
    journal: Journal,
    spent: float,
) -> tuple[list[Array], StopReason]:
    """Minimise over one block after the other; ``spent`` is work that was taken before."""
    assert isinstance(spec.loss, ConjugateLoss)
    journal.latest = lambda: list(start.blocks)

    def report(sweep: Sweep) -> bool:
        blocks = list(sweep.blocks)
        return journal.step(
            sweep.objective, sweep.gap, 1.0, sweep.evaluations, lambda: list(blocks)
        )

    try:
        found = solve_blockwise(
            problem,
            bound_loss(spec.loss, spec.X, spec.mask),
            start.blocks,
            tol=options.tol,
            max_iter=options.max_iter,
            report=report,
            spent=spent,
        )
    except KeyboardInterrupt:
        return journal.latest(), StopReason.INTERRUPTED
    return found.blocks, found.reason


def certify(
    spec: Specification,
    problem: FactorisationProblem,
    blocks: list[Array],
    reason: StopReason,
    options: SolverOptions,
    journal: Journal,
) -> FitSolution:
    """Certify the objective and assemble the solution."""
    problem.set_level(1.0)
    try:
        journal.of_all(problem.evaluations)
        # Who has interrupted a fit waits; one that has used up its work did not converge.
        brief = reason in (StopReason.INTERRUPTED, StopReason.WORK)
        most = BRIEF_ITERATIONS if brief else CERTIFICATE_ITERATIONS
        value = problem.certify(blocks, 0.5 * CERTIFIED_GAP, most)
    except KeyboardInterrupt:
        reason = StopReason.INTERRUPTED
        value = problem.certify(blocks, math.inf, 1)
    scale = problem.magnitude(value.value)
    below = journal.certify(value, journal.of_all(problem.evaluations), 1e-12 * scale)
    if below > max(CERTIFIED_GAP, options.tol) * scale and reason.is_optimal:
        # The steps were accepted on values less accurate than the decreases that count.
        reason = StopReason.UNSOLVED
    if reason.is_optimal and _rounding(spec, problem) > _visible_decrease(problem) * scale:
        reason = StopReason.ROUNDING
    certified = value.gap <= CERTIFIED_GAP * scale
    converged = reason.is_optimal and certified
    if converged and options.checkpoint is not None:
        options.checkpoint.remove()
    has_dual = not any(isinstance(loss, Wasserstein) and loss.debias for loss in spec.losses)
    message = reason.message(options.solver, options.tol, options.max_iter, has_dual=has_dual)
    if reason is StopReason.UNSOLVED:
        message += or_float64(spec.like)
    message += f"; relative duality gap {value.gap / scale:.1e}"
    if not certified:
        message += f", above {CERTIFIED_GAP:g}: choose a larger eps{or_float64(spec.like)}"
        if value.gap == math.inf:
            message += " or, if some costs are infinite, a finite lam"
    if any(isinstance(loss, Wasserstein) and not loss.gap_is_bound for loss in spec.losses):
        message += f"; {NOT_A_BOUND}"
    if not converged and not reason.by_caller:
        message += _advice_on_mass(spec)
    return FitSolution(
        spec=spec,
        blocks=blocks,
        objective=value.value,
        gap=value.gap,
        dual=value.gradient,
        values=value.values,
        reason=reason,
        converged=converged,
        message=message,
        n_iter=journal.n_iter,
        history=journal.records,
        work=problem.work,
    )


def _rounding(spec: Specification, problem: FactorisationProblem) -> float:
    """
    The size of the errors of a gradient times the model, a rounding of lam times the mass.

    The masses of X and of the model differ by little, which lam multiplies.
    """
    finite = [
        loss.lam / loss.eps
        for loss in spec.losses
        if isinstance(loss, Wasserstein) and not math.isinf(loss.lam)
    ]
    info = array_namespace(spec.like).finfo(spec.like.dtype)
    return max(finite, default=0.0) * problem.scale * float(info.eps)


def _visible_decrease(problem: FactorisationProblem) -> float:
    """The relative decrease that rounding must not hide: what restarts look for, if there are."""
    restarts = tries_to_escape(problem.entries, len(problem.free))
    return escape.SETTINGS.worthwhile if restarts else CERTIFIED_GAP


def _advice_on_mass(spec: Specification) -> str:
    """Advice for samples that are probably not normalised, such as counts or 8-bit images."""
    if isinstance(spec.model, CoupledModel):
        return ""
    transports = any(isinstance(loss, Wasserstein) for loss in spec.losses)
    if not transports or not is_sampled(spec.loss, tuple(spec.X.shape)):
        return ""
    mass = to_host(per_sample(spec.X)) if spec.summary is None else spec.summary.mass
    mass = mass[mass > 0]
    sums = spec.shards.sums
    heaviest = sums.largest(mass.max(initial=0.0))
    lightest = 1.0 / sums.largest((1.0 / mass).max(initial=0.0))
    if not sums.shared:
        lightest = mass.min()
    low, high = USUAL_MASS
    unit = 1.0 if spec.carrier is None else spec.unit
    if low * unit <= lightest and heaviest <= high * unit:
        return ""
    return (
        f"; samples of X have masses from {lightest:.3g} to {heaviest:.3g}: consider dividing "
        "each sample by its sum"
    )
