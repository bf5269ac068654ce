"""One start of a fit, from the first blocks to the certified result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from wtfarray._arrays.samples import per_sample
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import or_float64
from wtfarray._fit.checkpoint import EVERY
from wtfarray._fit.coarse_to_fine import coarser, refine, refine_dual, refine_pairs
from wtfarray._fit.given_factors import given_blocks
from wtfarray._fit.journal import Journal
from wtfarray._fit.options import Plan
from wtfarray._fit.progress_bar import Bar
from wtfarray._fit.result import Factorisation
from wtfarray._fit.specification import Setup
from wtfarray._fit.starts import feasible, kl_steps, random_blocks, scale_to_mass, svd_factor
from wtfarray._losses.protocol import stack
from wtfarray._losses.selection import terms_of
from wtfarray._losses.sparse_tensor import SourceTerm
from wtfarray._losses.term import TermValue
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._models.models import CPModel
from wtfarray._optimize.curvature import CurvaturePairs
from wtfarray._solvers.block_descent import Sweep, descend
from wtfarray._solvers.envelope import KAPPA, Progress, evaluate_first, minimise, smallest_drop
from wtfarray._solvers.objective import Evaluation, JointObjective, Problem
from wtfarray._solvers.prox_linear import small_term, through_kinks
from wtfarray._transport.newton import has_few_bins

CERTIFIED = 1e-3
"""A fit has converged only if its gap is below this share of the objective."""
ROUGH = 1e-3
"""Where the loss has kinks, the tolerance of the steps that do not know of them."""
HELD = ("stuck", "unsolved")
"""Why plain steps stopped, if perhaps a kink held them."""
FINEST = 1e-8
"""The smallest tolerance of steps through kinks: what is at a kink is hardly known better."""
ROUNDS = 5
"""Of steps through kinks and plain ones in turn."""
ENDED = ("reported", "interrupted")
"""Why a solve stopped, if its caller wanted so."""
SETTLED = ("tolerance", "stuck", "stationary")
"""Why a solve stopped, if there was nothing more to gain."""
FINAL_ITERATIONS = 500
"""Of the inner problem, for the certificate."""
REASONS = {
    "stuck": "no further decrease could be found",
    "stationary": "to first order no step can gain anything",
    "reported": "stopped by the callback",
    "interrupted": "interrupted: the best so far is returned",
}
"""Why a fit ended, for a person."""


def solve(setup: Setup, plan: Plan, rng: np.random.Generator) -> Factorisation:
    """Fit from one start."""
    with Bar(setup.kind, visible=plan.progress) as bar:
        journal = Journal(plan.callback, bar)
        problem = _problem(setup, plan)
        start = _start(setup, plan, rng, journal, problem)
        blocks, reason = start.blocks, start.ended
        _check_mass(setup, problem, blocks, rng)
        if reason is None and plan.solver == "envelope":
            blocks, reason = _envelope(plan, problem, start, journal)
        elif reason is None:
            blocks, reason = _descent(setup, plan, problem, blocks, journal)
        return _finish(setup, plan, problem, blocks, reason, journal)


def best_of(starts: int, setup: Setup, plan: Plan, rng: np.random.Generator) -> Factorisation:
    """The best of several starts; the caller may end them all."""
    results: list[Factorisation] = []
    ended = None
    for _ in range(starts):
        try:
            results.append(solve(setup, plan, rng))
        except KeyboardInterrupt:  # before this start had anything to show
            if not results:
                raise
            ended = REASONS["interrupted"]
            break
        if results[-1].stopped:
            ended = results[-1].message
            break
    best = min(results, key=lambda result: result.objective)
    if ended is not None:  # however good an earlier start was, not all that was asked for is done
        best = replace(best, converged=False, stopped=True, message=ended)
    return best


@dataclass(frozen=True, eq=False)
class _Start:
    """Where a fit begins."""

    blocks: list[Array]
    levels: tuple[float, ...]
    """Of smoothing, to go through from there."""
    ended: str | None = None
    """Why the fit is over already, if it is."""
    curvature: dict[str, NDArray[np.float64]] | None = None
    """What a coarser grid has taught."""


def _problem(setup: Setup, plan: Plan) -> Problem:
    terms = terms_of(setup.losses, setup.X, setup.sample_weight, plan.batch)
    return Problem(
        setup.model, terms, setup.rho, setup.constraints, setup.free, tuple(setup.X.shape)
    )


def _start(
    setup: Setup, plan: Plan, rng: np.random.Generator, journal: Journal, problem: Problem
) -> _Start:
    """The first blocks; on a fine grid those that a coarser one leads to."""
    named = plan.init is None or isinstance(plan.init, str)
    coarse = coarser(setup) if named and plan.solver == "envelope" else None
    if coarse is None:
        return _start_here(setup, plan, rng)
    if plan.checkpoint is not None and plan.checkpoint.path.exists():
        # It holds more than the coarse grid could tell.
        return _Start(_start_here(setup, plan, rng).blocks, (1.0,))
    below = _problem(coarse, plan)
    start = _start(coarse, plan, rng, journal, below)
    if start.ended is not None:
        return _Start(refine(setup, start.blocks), (1.0,), start.ended)
    objective = JointObjective(below, start.blocks)
    x = objective.pack(start.blocks)
    latest = [x]
    curvature = None

    def report(progress: Progress, pairs: CurvaturePairs) -> bool:
        nonlocal curvature
        current, curvature = progress.current, pairs
        latest[0] = current.point.x
        return journal.step(
            current.point.value,
            current.gap,
            math.inf,
            sum(term.evaluations for term in below.terms),
            lambda: refine(setup, objective.blocks(current.point.x)),
        )

    try:
        x, reason = minimise(
            objective,
            x,
            start.levels,
            tol=1e-4,
            max_iter=100,
            report=report,
            curvature=start.curvature,
        )
    except KeyboardInterrupt:
        x, reason = latest[0], "interrupted"
    for term, old in zip(problem.terms, below.terms, strict=True):
        term.warm(refine_dual(old.free, tuple(term.free.shape)))
    ended = reason if reason in ENDED else None
    known = None if curvature is None else refine_pairs(setup, coarse, curvature.export())
    return _Start(refine(setup, objective.blocks(x)), (1.0,), ended, known)


def _start_here(setup: Setup, plan: Plan, rng: np.random.Generator) -> _Start:
    """The first blocks on the grid itself."""
    X, init = setup.X, plan.init
    xp = array_namespace(X)
    sparse = float(xp.mean(xp.astype(X > 0, X.dtype))) < 0.5
    if init is None:
        init = "random" if sparse else "kl"
    levels: tuple[float, ...] = (3.0, 1.0)
    if isinstance(init, str):
        blocks = random_blocks(setup.shapes, rng, X)
        if init == "nnsvd":
            matrix = xp.reshape(X, tuple(shape[0] for shape in setup.shapes[: setup.modes]))
            for k in range(setup.modes):
                blocks[k] = svd_factor(matrix, k, setup.shapes[k][1], rng)
        blocks = [feasible(b, c) for b, c in zip(blocks, setup.constraints, strict=True)]
        carriers = [k for k in setup.free if setup.constraints[k] is None]
        blocks = scale_to_mass(setup.model, X, blocks, carriers)
        if init == "kl":
            blocks = kl_steps(setup.model, X, blocks, setup.constraints, setup.free)
        if init == "random":
            levels = (27.0, 9.0, 3.0, 1.0)
    else:
        given = given_blocks(setup, init)
        blocks = [
            feasible(b, c) if k in setup.free else b
            for k, (b, c) in enumerate(zip(given, setup.constraints, strict=True))
        ]
    return _Start(blocks, _affordable(setup, levels))


def _affordable(setup: Setup, levels: tuple[float, ...]) -> tuple[float, ...]:
    """Leave out levels at which everything is blurred: above a tenth of the mean cost."""
    most = 1.0
    for loss in setup.losses:
        if isinstance(loss, Wasserstein):
            most = max(most, 0.1 * loss.typical_cost() / loss.eps)
    return tuple(level for level in levels if level <= most)


def _check_mass(
    setup: Setup, problem: Problem, blocks: list[Array], rng: np.random.Generator
) -> None:
    """Refuse constraints under which a balanced loss is infinite."""
    balanced = [
        term
        for term in problem.terms
        if isinstance(term, (TransportTerm, SourceTerm)) and term.problem.conserves_mass
    ]
    if not balanced:
        return
    xp = array_namespace(setup.X)
    tolerance = 1e-6 if setup.X.dtype == xp.float64 else 1e-3
    others = random_blocks(setup.shapes, rng.spawn(1)[0], setup.X)
    for k in setup.free:
        others[k] = feasible(others[k], setup.constraints[k])
    others = [others[k] if k in setup.free else block for k, block in enumerate(blocks)]
    for term in balanced:
        mass = term.problem.mass
        for some in (blocks, others):
            found = per_sample(stack(term.problem, problem.tensor(some)))
            off = xp.abs(found - mass)
            if bool(xp.any(off > tolerance * xp.max(mass))):
                i = int(xp.argmax(off))
                msg = (
                    f"constraints is {setup.constraints} and the loss is balanced (lam = inf), but "
                    f"sample {i} of X weighs {float(mass[i])} and a model under these constraints "
                    f"{float(found[i])}: expected constraints that conserve mass (normalise the "
                    f"samples, rows of their factor, columns of the others), or a finite lam"
                )
                raise ValueError(msg)


def _envelope(
    plan: Plan,
    problem: Problem,
    start: _Start,
    journal: Journal,
) -> tuple[list[Array], str]:
    """All blocks at once."""
    objective = JointObjective(problem, start.blocks)
    x = objective.pack(start.blocks)
    latest = [x]
    resume = None
    if plan.checkpoint is not None:
        stored = plan.checkpoint.read(x, array_namespace(x))
        if stored is not None:
            resume = (stored.progress, stored.pairs)
            for term in problem.terms:
                term.set_level(start.levels[stored.progress.level])  # of which the duals are
            objective.restore(stored.duals)
            journal.go_on(stored.history, stored.n_iter, stored.seconds)
            latest[0] = x = stored.progress.current.point.x

    def report_step(current: Evaluation, level: float = 1.0) -> bool:
        latest[0] = current.point.x
        return journal.step(
            current.point.value,
            current.gap,
            level,
            sum(term.evaluations for term in problem.terms),
            lambda: objective.blocks(current.point.x),
        )

    def report(progress: Progress, pairs: CurvaturePairs) -> bool:
        stop = report_step(progress.current, start.levels[progress.level])
        if plan.checkpoint is not None and (journal.n_iter % EVERY == 0 or stop):
            # A fit that goes on from here has no secants: for the same end, nor has this one.
            for term in problem.terms:
                term.forget()
            plan.checkpoint.write(
                progress, pairs, objective.duals(), journal.records, journal.n_iter, journal.seconds
            )
        return stop

    small = small_term(problem)
    has_kinks = small is not None and has_few_bins(small.problem)
    try:
        x, reason = minimise(
            objective,
            x,
            start.levels,
            tol=max(plan.tol, ROUGH) if has_kinks else plan.tol,
            max_iter=plan.max_iter,
            report=report,
            resume=resume,
            curvature=start.curvature,
        )
        if small is not None and (reason in HELD or (has_kinks and reason == "tolerance")):
            x, last = _alternate(objective, small, x, plan, report_step)
            reason = reason if last == "unsolved" else last
    except KeyboardInterrupt:
        x, reason = latest[0], "interrupted"
    return objective.blocks(x), reason


def _alternate(
    objective: JointObjective,
    term: TransportTerm,
    x: Array,
    plan: Plan,
    report: Callable[[Evaluation], bool],
) -> tuple[Array, str]:
    """Steps through kinks, and plain ones where these get stuck, until neither gain anything."""
    xp = array_namespace(x)
    tol = max(plan.tol, FINEST, 10.0 * float(xp.finfo(x.dtype).eps))
    left = plan.max_iter
    reason = "iterations"

    def count(current: Evaluation) -> bool:
        nonlocal left
        left -= 1
        return report(current)

    for _ in range(ROUNDS):
        best, reason = through_kinks(objective, term, x, tol=tol, max_iter=left, report=count)
        x = best.point.x
        if reason != "stuck":
            break
        duals = objective.duals()
        x, reason = minimise(
            objective,
            x,
            (1.0,),
            tol=tol,
            max_iter=left,
            report=lambda progress, _: count(progress.current),
        )
        least = smallest_drop(objective, best, tol)
        after = evaluate_first(objective, x, KAPPA * least)
        if not after.converged or best.point.value - after.point.value <= least:
            objective.restore(duals)
            return best.point.x, reason if reason in ENDED else "stuck"
        if reason in (*ENDED, "iterations"):
            break
    return x, reason


def _descent(
    setup: Setup,
    plan: Plan,
    problem: Problem,
    blocks: list[Array],
    journal: Journal,
) -> tuple[list[Array], str]:
    """One block after the other."""
    bound = setup.losses[0].bind(setup.X)
    term = problem.terms[0]
    value = _certify(problem, blocks, 1e-2)
    objective = value.value + value.gap
    latest = [blocks]

    def report(sweep: Sweep) -> bool:
        latest[0] = blocks = list(sweep.blocks)
        return journal.step(
            sweep.objective, sweep.gap, 1.0, sweep.evaluations, lambda: list(blocks)
        )

    weights = getattr(term, "weights", None)
    try:
        blocks, g, reason = descend(
            problem,
            bound,
            weights,
            blocks,
            term.free,
            objective,
            tol=plan.tol,
            max_iter=plan.max_iter,
            report=report,
        )
        term.warm(g)
    except KeyboardInterrupt:
        blocks, reason = latest[0], "interrupted"
    return blocks, reason


def _certify(
    problem: Problem, blocks: list[Array], share: float, iterations: int = FINAL_ITERATIONS
) -> TermValue:
    """The objective of some blocks, its gap at most ``share`` of it if that can be had."""
    model = problem.tensor(blocks)
    entropy = sum(problem.block_entropy(blocks, k) for k in range(len(blocks)))
    scale = sum(term.scale for term in problem.terms)
    few = min(200, iterations)
    rough = [term.evaluate(model, 0.1 * term.scale, few) for term in problem.terms]
    total = sum(value.value + value.error for value in rough) + entropy
    allowed = share * max(abs(total), scale) / len(problem.terms)
    exact = [term.certify(model, allowed, iterations) for term in problem.terms]
    gap = sum(value.gap for value in exact)
    value = sum(value.value for value in exact) + entropy
    return TermValue(value, gap, gap, exact[0].gradient, gap <= share * max(abs(value), scale))


def _finish(
    setup: Setup,
    plan: Plan,
    problem: Problem,
    blocks: list[Array],
    reason: str,
    journal: Journal,
) -> Factorisation:
    """Certify the objective and put the result together."""
    for term in problem.terms:
        term.set_level(1.0)
    try:
        value = _certify(problem, blocks, 0.5 * CERTIFIED)
    except KeyboardInterrupt:
        reason = "interrupted"
        value = _certify(problem, blocks, math.inf, 1)
    evaluations = sum(term.evaluations for term in problem.terms)
    if journal.records:
        evaluations = max(evaluations, journal.records[-1].evaluations)
    scale = max(abs(value.value), sum(term.scale for term in problem.terms))
    off = journal.certified(value, evaluations, 1e-12 * scale)
    if off > CERTIFIED * scale and reason in SETTLED:
        reason = "unsolved"  # the steps were judged by wrong values
    certified = value.gap <= CERTIFIED * scale
    converged = reason in SETTLED and certified
    if converged and plan.checkpoint is not None:
        plan.checkpoint.remove()
    modes = setup.modes
    model = setup.model
    return Factorisation(
        kind=setup.kind,
        factors=blocks[:modes],
        core=None if isinstance(model, CPModel) else blocks[modes],
        weights=model.weights(blocks) if isinstance(model, CPModel) else None,
        objective=value.value,
        gap=value.gap,
        converged=converged,
        message=_message(reason, plan, setup.X, value.gap / scale, certified=certified),
        n_iter=journal.n_iter,
        history=journal.records,
        dual=value.gradient,
        loss=plan.loss,
        rho=setup.rho,
        constraints=setup.constraints,
        shape=tuple(setup.X.shape),
        stopped=reason in ENDED,
    )


def _message(reason: str, plan: Plan, X: Array, gap: float, *, certified: bool) -> str:
    joint = plan.solver == "envelope"
    steps = "three steps" if joint else "a sweep"
    what = "an inner problem" if joint else "a block"
    instead = "'dual'" if joint else "'envelope', a larger rho"
    why = {
        "tolerance": f"the objective fell by less than tol = {plan.tol:g} in {steps}",
        "iterations": f"stopped after max_iter = {plan.max_iter}: increase it or loosen `tol`",
        "unsolved": f"{what} could not be solved: choose solver={instead} or a larger eps",
        **REASONS,
    }[reason]
    text = f"{why}; relative duality gap {gap:.1e}"
    if not certified:
        text += f", above {CERTIFIED:g}: choose a larger eps{or_float64(X)}"
        if gap == math.inf:
            text += " or, where costs are infinite, a finite lam"
    return text
