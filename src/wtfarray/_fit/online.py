"""
The solver "online": the atoms are updated after each of many small batches of samples.

A joint fit of a few samples gives the first atoms. Then, batch by batch in a random order, the
objective of the batch is minimised over its coefficients and the atoms, with a proximal term that
stands for the samples seen before (`proximal_problem`). The atoms that are returned are a running
mean. At the end, the coefficients of all samples are found for these atoms, and the objective is
certified. Only the coefficients, the atoms and one batch are held in memory. If several processes
share the samples, the order is one of all samples, and each process has its own of every batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import device as device_of
from numpy.typing import NDArray

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import slices_of, take_samples
from wtfarray._arrays.sums import asarray_like
from wtfarray._arrays.typing import Array
from wtfarray._fit.checkpoint import Checkpoint
from wtfarray._fit.driver import FitSolution, certify, check_mass
from wtfarray._fit.journal import Journal
from wtfarray._fit.online_batches import Batch, join, read_batch, read_batches, shuffled
from wtfarray._fit.options import SolverOptions
from wtfarray._fit.progress_bar import ProgressBar
from wtfarray._fit.proximal import PROXIMAL_WEIGHT, proximal_problem, running_share
from wtfarray._fit.specification import Specification
from wtfarray._fit.starts import feasible, kl_steps, start_on_grid
from wtfarray._losses.selection import Binding
from wtfarray._losses.streamed import Potentials
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray._solvers.envelope import Progress, minimise
from wtfarray._solvers.objective import JointObjective
from wtfarray._solvers.problem import FactorisationProblem
from wtfarray._solvers.stop_reason import StopReason
from wtfarray._solvers.streamed import StreamedProblem, at_rows
from wtfarray._transport.processors import one_fit


@dataclass(frozen=True)
class OnlineSettings:
    """
    Constants of the online solver.

    In trials with 1000 images of thick lines, 28 x 28, at rank 10, more steps a batch helped more
    than more passes with fewer steps: one pass of 20 steps ended lower than two of 6 or of 10.
    """

    first: int = 256
    """Samples of the joint fit that gives the first atoms."""
    first_tol: float = 1e-3
    """Tolerance of that fit."""
    first_starts: int = 3
    """
    Initialisations of that fit, of which the best is kept.

    The passes do not leave the local minimum in which it ends. On 1000 images of thick lines they
    end 1.4e-2 lower with seed 0, for 12 % more CPU time.
    """
    batch: int = 128
    """Default number of samples in a batch."""
    steps: int = 20
    """Largest number of L-BFGS steps for a batch."""
    tol: float = 1e-4
    """Tolerance of a batch."""
    last_batch: int = 256
    """Samples whose last coefficients are found at once."""
    last_steps: int = 8
    """Largest number of L-BFGS steps for the last coefficients, with the atoms fixed."""
    last_tol: float = 1e-5
    """Their tolerance."""
    checkpoint_every: int = 10
    """Number of batches between two checkpoints."""


SETTINGS = OnlineSettings()


@dataclass(frozen=True, eq=False)
class OnlineState:
    """The state after a number of batches, from which the solver can be resumed."""

    seed: int
    done: int
    """Batches so far, in all passes."""
    seen: float
    """Mass of the samples seen so far."""
    steps: int
    """L-BFGS steps so far."""
    evaluations: float
    """Evaluations of the inner problems, summed over the samples."""
    values: tuple[float, ...]
    """The objective of each batch after its steps, divided by its number of samples."""
    coefficients: NDArray[np.float64]
    """(n, r)."""
    atoms: list[Array]
    """All blocks but the first, after the last batch."""
    mean: list[Array]
    """Their running mean."""


JointFit = Callable[[int, Specification, SolverOptions, np.random.Generator], FitSolution]
"""The best of a number of initialisations, each fitted by the joint solver."""


def solve_online(
    spec: Specification, options: SolverOptions, rng: np.random.Generator, joint_fit: JointFit
) -> FitSolution:
    """Fit by passes over shuffled batches, after a joint fit of a few samples."""
    with one_fit(), ProgressBar(spec.label, visible=options.progress) as bar:
        journal = Journal(options.callback, bar, spec.shards, spec.in_units_of_data)
        state = _stored(options.checkpoint, spec)
        if state is None:
            state = _first_state(spec, options, int(rng.integers(2**52)), joint_fit)
        reason = StopReason.PASSES
        try:
            for after in _passes(spec, options, state):
                state = after
                if _report(spec, journal, state):
                    reason = StopReason.CALLBACK
                if options.checkpoint is not None and (
                    state.done % SETTINGS.checkpoint_every == 0 or reason.by_caller
                ):
                    _store(options.checkpoint, state)
                if reason.by_caller:
                    break
        except KeyboardInterrupt:
            reason = StopReason.INTERRUPTED
        problem = spec.problem(options.batch)
        blocks, value = _last_coefficients(spec, problem, state)
        check_mass(spec, problem, blocks, rng)
        batches = len(state.values)
        reached = float(np.mean(state.values[batches // 2 :])) if batches else -math.inf
        count = spec.shards.total(spec.shapes[0][0])
        excess = value / count - reached
        if not reason.by_caller and excess <= options.tol * problem.magnitude(value) / count:
            reason = StopReason.BATCHES
        return certify(spec, problem, blocks, reason, options, journal)


def _first_state(
    spec: Specification, options: SolverOptions, seed: int, joint_fit: JointFit
) -> OnlineState:
    """The atoms of a joint fit of a few samples, or those that were given."""
    empty = np.zeros(spec.shapes[0])
    if not options.has_named_start:
        blocks = start_on_grid(spec, options.init, np.random.default_rng(seed)).blocks
        return OnlineState(
            seed, 0, 0.0, 0, 0.0, (), to_host(blocks[0]), list(blocks[1:]), list(blocks[1:])
        )
    order = shuffled(spec, seed, 0)
    batch = Batch.of(spec, join(order, 0, SETTINGS.first)[0])
    part = _part(spec, read_batch(spec, batch), batch)
    first = SolverOptions(init=options.init, tol=SETTINGS.first_tol, max_iter=300)
    found = joint_fit(SETTINGS.first_starts, part, first, np.random.default_rng(seed))
    mass = _mass(part)
    evaluations = float(found.history[-1].evaluations * part.X.shape[0])
    atoms = list(found.blocks[1:])
    return OnlineState(seed, 0, mass, found.n_iter, evaluations, (), empty, atoms, atoms)


def _passes(
    spec: Specification, options: SolverOptions, state: OnlineState
) -> Iterator[OnlineState]:
    """The state after each of the batches to come."""
    size, number = options.batch or SETTINGS.batch, 0
    for sweep in range(options.max_iter):
        order = shuffled(spec, state.seed, sweep)
        if sweep == 0 and options.has_named_start:
            _, used = join(order, 0, SETTINGS.first)
            order = order[used:] + order[:used]  # those of the first fit come last
        batches, start = [], 0
        while start < len(order):
            rows, start = join(order, start, size)
            batches.append(Batch.of(spec, rows))
        skipped = max(0, state.done - number)
        number += len(batches)
        for batch, X in read_batches(spec, batches[skipped:]):
            state = _after_batch(spec, state, batch, X, known=sweep > 0)
            yield state


def _after_batch(
    spec: Specification, state: OnlineState, batch: Batch, X: Array, *, known: bool
) -> OnlineState:
    """Minimise the objective of one batch; ``known`` says whether it has coefficients already."""
    xp, indices = array_namespace(X), batch.indices
    part = _part(spec, X, batch)
    constraint = spec.constraints[0]
    previous = [
        feasible(block, kind) for block, kind in zip(state.atoms, spec.constraints[1:], strict=True)
    ]
    if known:
        first = asarray_like(state.coefficients[indices], X)
        start = [feasible(first, constraint), *previous]
    else:
        first = xp.ones(part.shapes[0], dtype=X.dtype, device=device_of(X))
        start = [feasible(first, constraint), *previous]
        start = kl_steps(part.model, X, start, part.constraints, (0,))
    assert isinstance(spec.loss, Wasserstein)
    problem = proximal_problem(part, previous, PROXIMAL_WEIGHT * spec.loss.eps * state.seen)
    objective = JointObjective(problem, start)
    found = _minimised(objective, start, SETTINGS.tol, SETTINGS.steps)
    blocks, others = found.blocks, range(1, len(found.blocks))
    plain = replace(problem, rho=part.block_rho, references=None)
    value = found.value + sum(
        plain.block_entropy(blocks, k) - problem.block_entropy(blocks, k) for k in others
    )
    coefficients = state.coefficients
    coefficients[indices] = to_host(blocks[0])  # in place: there may be very many samples
    mass = _mass(part)
    share = running_share(state.seen / mass) if mass > 0 else 0.0
    atoms = list(blocks[1:])
    mean = [(1.0 - share) * old + share * new for old, new in zip(state.mean, atoms, strict=True)]
    return OnlineState(
        state.seed,
        state.done + 1,
        state.seen + mass,
        state.steps + found.n_iter,
        state.evaluations + problem.evaluations * len(indices),
        (*state.values, value / batch.samples),
        coefficients,
        atoms,
        mean,
    )


@dataclass(frozen=True, eq=False)
class _Minimised:
    """The result of the steps for some samples."""

    blocks: list[Array]
    value: float
    n_iter: int


def _minimised(
    objective: JointObjective, start: Sequence[Array], tol: float, max_iter: int
) -> _Minimised:
    """A few L-BFGS steps."""
    values: list[float] = []

    def report(progress: Progress, _: object) -> bool:
        values.append(progress.current.point.value)
        return False

    x = objective.pack(start)
    found = minimise(objective, x, (1.0,), tol=tol, max_iter=max_iter, report=report)
    if not values:  # no step was taken
        values.append(objective.evaluate(found.x, 1e-2 * objective.problem.scale).point.value)
    objective.raise_interrupt()
    return _Minimised(objective.blocks(found.x), values[-1] + objective.offset, found.n_iter)


def _last_coefficients(
    spec: Specification, problem: FactorisationProblem, state: OnlineState
) -> tuple[list[Array], float]:
    """The coefficients of all samples for the mean of the atoms, and the objective."""
    like = spec.like
    xp = array_namespace(like)
    atoms = [feasible(b, kind) for b, kind in zip(state.mean, spec.constraints[1:], strict=True)]
    first = asarray_like(state.coefficients, like)
    blocks = [feasible(first, spec.constraints[0]), *atoms]
    sums = spec.shards.sums
    entropies = sum(problem.block_entropy(blocks, k) for k in range(1, len(blocks)))
    value = entropies if sums.leads else 0.0
    files: Potentials = ()
    parts = _parts(spec)
    if isinstance(problem, StreamedProblem):
        files, parts = problem.losses.begin(), problem.parts()
    found, potentials = [], []
    for rows, part in parts:
        start = at_rows(blocks, rows)
        objective = JointObjective(replace(part, free=(0,)), start)
        last = _minimised(objective, start, SETTINGS.last_tol, SETTINGS.last_steps)
        found.append(last.blocks[0])
        value += last.value - objective.fixed_entropy
        if isinstance(problem, StreamedProblem):
            problem.losses.store(files, rows, part.terms)
        else:
            potentials.append(part.terms[0].potential)
    if isinstance(problem, StreamedProblem):
        problem.losses.state = files
    else:
        problem.terms[0].start_from(xp.concat([problem.terms[0].potential[:0, ...], *potentials]))
    (value,) = sums.numbers(value)
    return [xp.concat([blocks[0][:0, :], *found]), *atoms], value


def _parts(spec: Specification) -> Iterator[tuple[slice, FactorisationProblem]]:
    """The problems of consecutive samples of an array in memory."""
    binding = Binding(spec.losses)
    for rows in slices_of(spec.X.shape[0], SETTINGS.last_batch):
        X = spec.X[rows, ...]
        weights = None if spec.sample_weight is None else spec.sample_weight[rows]
        yield (
            rows,
            FactorisationProblem(
                spec.model,
                binding.terms(X, weights),
                spec.block_rho,
                spec.constraints,
                (0,),
                tuple(X.shape),
                units=spec.units,
            ),
        )


def _mass(part: Specification) -> float:
    """The mass of a batch, on all processes."""
    total = float(array_namespace(part.X).sum(part.X))
    return part.shards.sums.numbers(total)[0]


def _part(spec: Specification, X: Array, batch: Batch) -> Specification:
    """The problem of some samples; the entropy of the atoms is divided among all samples."""
    share = batch.samples / spec.shards.total(spec.X.shape[0])
    weights = None
    if spec.sample_weight is not None:
        weights = take_samples(spec.sample_weight, batch.indices)
    return replace(
        spec,
        X=X,
        shapes=((X.shape[0], *spec.shapes[0][1:]), *spec.shapes[1:]),
        rho=(spec.rho[0], *(rho * share for rho in spec.rho[1:])),
        sample_weight=weights,
        summary=None,
        shards=replace(spec.shards, counts=batch.counts),
    )


def _report(spec: Specification, journal: Journal, state: OnlineState) -> bool:
    """Report a batch: its objective, scaled to all samples, is comparable with no other."""
    here = spec.X.shape[0]
    samples = spec.shards.total(here)

    def blocks() -> list[Array]:
        return [asarray_like(state.coefficients, spec.like), *state.mean]

    evaluations = math.ceil(state.evaluations / max(1, here))
    return journal.step(state.values[-1] * samples, math.inf, math.inf, evaluations, blocks)


def _store(checkpoint: Checkpoint, state: OnlineState) -> None:
    """Write the state to the checkpoint."""
    numbers = {
        "seed": state.seed,
        "done": state.done,
        "seen": state.seen,
        "steps": state.steps,
        "evaluations": state.evaluations,
    }
    arrays = {"values": np.asarray(state.values), "coefficients": state.coefficients}
    for k, (atoms, mean) in enumerate(zip(state.atoms, state.mean, strict=True)):
        arrays |= {f"atoms_{k}": to_host(atoms), f"mean_{k}": to_host(mean)}
    checkpoint.write_arrays(numbers, arrays)


def _stored(checkpoint: Checkpoint | None, spec: Specification) -> OnlineState | None:
    """The state in the checkpoint, None if there is none."""
    if checkpoint is None:
        return None
    shapes: dict[str, tuple[int | None, ...]] = {"values": (None,), "coefficients": spec.shapes[0]}
    for k, shape in enumerate(spec.shapes[1:]):
        shapes |= {f"atoms_{k}": shape, f"mean_{k}": shape}
    found = checkpoint.read_arrays(("seed", "done", "seen", "steps", "evaluations"), shapes)
    if found is None:
        return None
    numbers, arrays = found

    def blocks(name: str) -> list[Array]:
        count = len(spec.shapes) - 1
        return [asarray_like(arrays[f"{name}_{k}"], spec.like) for k in range(count)]

    return OnlineState(
        int(numbers["seed"]),
        int(numbers["done"]),
        float(numbers["seen"]),
        int(numbers["steps"]),
        float(numbers["evaluations"]),
        tuple(arrays["values"].tolist()),
        arrays["coefficients"],
        blocks("atoms"),
        blocks("mean"),
    )
