"""
Newton's method for the inner problem of samples with few bins.

If the bins are many eps apart, the plan is close to a vertex of the transport polytope, and
Sinkhorn iterations need many thousands of steps from one vertex to the next. With few bins the
Hessian of a sample is small enough to be formed and factorised.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from array_api_compat import device as device_of

from wtfarray._arrays.compilation import compiled
from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import weighted
from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import newton_batch
from wtfarray._transport.iterate import Iterate, Until, search_radius
from wtfarray._transport.kernels import dense
from wtfarray._transport.newton_point import (
    NewtonConstants,
    NewtonPoint,
    log_ratio_at,
    newton_point,
)
from wtfarray._transport.newton_search import (
    Progress,
    line_search,
    noise_of,
    progressed,
    replaced,
    trial_point,
)
from wtfarray._transport.problem import Marginal, TransportProblem


@dataclass(frozen=True)
class NewtonSettings:
    """Parameters of the globalisation of Newton's method."""

    trials: int = 12
    """Of the line search; the last trial is a Sinkhorn step, which always raises the value."""
    far_step: float = 30.0
    """In units of eps; for longer steps the quadratic model is poor, and eps is increased."""
    continue_every: int = 20
    """Iterations between two continuations in eps of samples far from their solution."""
    patience: int = 300
    """Iterations without a smaller gap after which the method has failed, for want of digits."""
    level_ratio: float = 3.0
    """Ratio of eps between two levels of the continuation."""
    longest_pause: int = 8
    """Continuation is tried in at least one of this many solves, even if it never helps."""
    idle_trials: int = 3
    """Of the line search, if no sample made progress in the last step."""


SETTINGS = NewtonSettings()


class Newton:
    """
    Maximise ``<u(g), Y> - Phi*(X, u(g))`` in every sample, for a sequence of models Y.

    The value is concave in g. With the rows ``pi_i`` of the plan divided by X, its Hessian is minus
    ``sum_i X_i (diag(pi_i) - pi_i pi_i^T) / eps + diag(Y exp(-g/lam)) / lam``. A multiple of the
    absolute gradient is added to the diagonal, so that steps stay finite if the plan does not
    connect two bins. A line search shortens the step until the value increases, and falls back to a
    Sinkhorn step, which always increases it. Samples far from their solution are solved by
    continuation from large to small eps. Samples that make no progress beyond rounding stay where
    they are; when all do, the last iterate is repeated without further work.
    """

    def __init__(
        self,
        problem: TransportProblem,
        g: Array,
        weights: Array | None = None,
        *,
        continues: bool = True,
        sums: Sums = ALONE,
    ) -> None:
        self.problem = problem
        self.sums = sums
        self.g = g
        """The start of the next solve."""
        self.continues = False
        """Only g is kept from one solve to the next."""
        self.evaluations = 0
        self.patience: float = SETTINGS.patience
        # At least eps: the radius of a single bin would be 0.
        self._radius = max(search_radius(problem), problem.kernel.eps)
        self._continues = continues
        self.sample_weights = weights
        self._bins = math.prod(g.shape[1:])
        # Measured: 0.3 ms, and 0.15 ms for 1000 entries of plans; a Sinkhorn iteration takes 0.1.
        self.work_per_evaluation = 3.0 + 1.5e-3 * g.shape[0] * self._bins**2
        xp = array_namespace(g)
        shape = tuple(problem.data.shape)
        self._batch = newton_batch(self._bins)
        data = self._flat(problem.data)
        identity = xp.eye(self._bins, dtype=g.dtype, device=device_of(g))[None, :, :]
        self._constants = NewtonConstants(
            data,
            xp.sqrt(data),
            self._flat(xp.broadcast_to(problem.reachable, shape)),
            dense(problem.kernel.costs) * (-1.0 / problem.kernel.eps),
            identity,
            (1.0 - identity) * (1.0 / problem.kernel.eps),
            self._radius,
        )
        self._settled: tuple[Array, Array] | None = None
        """The last g and Y at which no sample made progress any more."""
        self._pause = self._failures = 0
        """Solves to come without continuation at their start, and how many failed in a row."""

    def _flat(self, stack: Array) -> Array:
        return array_namespace(stack).reshape(stack, (-1, self._bins))

    def iterates(
        self,
        Y: Array,
        tolerance: float = 0.0,  # noqa: ARG002
        max_iter: int | None = None,  # noqa: ARG002
        *,
        positive: bool | None = None,  # noqa: ARG002
        until: Until | None = None,  # noqa: ARG002
    ) -> Iterator[Iterate]:
        """An infinite sequence of iterates for this Y; the other arguments are not used."""
        xp = array_namespace(Y)
        shape = tuple(Y.shape)
        settled = self._is_settled_at(Y)
        Y = self._flat(Y)
        live = (Y > 0) & self._constants.reachable
        log_Y = xp.log(xp.where(live, Y, 1.0))
        start = self.g
        point = self._point(self._flat(start), Y, live)
        due = untried = self._continues and not settled and self._may_continue()
        progress = Progress.begin(point)
        for n in itertools.count(1):
            if due:
                point, progress, helped = self._continued(point, progress, Y, live, shape)
                untried = untried and helped
            if not settled:
                start = xp.reshape(point.g, shape)
            self.g = start
            log_ratio = log_ratio_at(
                point, log_Y, live, self.problem, self._constants, batch=self._batch
            )
            iterate = self._iterate(point, log_ratio, shape)
            if settled:
                break
            yield iterate
            point, progress, settled = self._advanced(point, progress, log_ratio, Y, live)
            settled = self.sums.all(settled)
            # Samples that settle far from their solution get one more chance.
            due = untried and (settled or n % SETTINGS.continue_every == 0)
            untried, settled = untried and not settled, settled and not due
        self._settled = (self.g, Y)
        while True:
            yield iterate

    def _is_settled_at(self, Y: Array) -> bool:
        """Whether the last solve ended here, for want of digits."""
        xp = array_namespace(Y)
        known = self._settled is not None and self._settled[0] is self.g
        return self.sums.all(
            known and self._settled is not None and bool(xp.all(self._settled[1] == self._flat(Y)))
        )

    def _may_continue(self) -> bool:
        """Whether to try a continuation at the start of a solve: less often if it did not help."""
        self._pause = max(0, self._pause - 1)
        return self._pause == 0

    def _iterate(self, point: NewtonPoint, log_ratio: Array, shape: tuple[int, ...]) -> Iterate:
        xp = array_namespace(point.g)
        error, residual, shift, sums = _estimates(
            log_ratio, point, self.problem, self._radius, self.sample_weights
        )
        q, log_Kf, residual, gradient = (
            xp.reshape(array, shape) for array in (point.q, point.logs, residual, point.gradient)
        )
        total, distance = to_host(sums).tolist()
        return Iterate(
            self.g,
            Marginal(q, None, None, log_Kf),
            shift,
            residual,
            self.problem.damping,
            gradient,
            error,
            point.size,
            None,
            total,
            distance,
        )

    def _advanced(
        self, point: NewtonPoint, progress: Progress, log_ratio: Array, Y: Array, live: Array
    ) -> tuple[NewtonPoint, Progress, bool]:
        """
        The point after one step of every sample that is not settled, with a line search.

        Also returns whether all samples here are settled.
        """
        xp = array_namespace(Y)
        search = line_search(log_ratio, point, self.problem, self._radius)
        best, searching = point, ~progress.settled
        last = SETTINGS.trials - 1
        trial = 0
        while True:
            self.evaluations += 1
            new, taken, counts = trial_point(
                Y,
                live,
                point,
                search,
                searching,
                self.problem,
                self._constants,
                batch=self._batch,
                last=trial == last,
            )
            waiting, left = to_host(counts).tolist()
            if trial == 0 and waiting == 0:
                best = new
                break
            best = replaced(taken, best, new)
            searching = searching & ~taken
            if left == 0:
                break
            search, trial = search._replace(t=search.t * 0.25), trial + 1
            if trial == SETTINGS.idle_trials and not bool(xp.any(searching & (progress.idle < 1))):
                trial = last
        progress, unsettled = progressed(log_ratio, progress, best, point, search.noise)
        return best, progress, not float(unsettled) > 0

    def _continued(
        self, point: NewtonPoint, progress: Progress, Y: Array, live: Array, shape: tuple[int, ...]
    ) -> tuple[NewtonPoint, Progress, bool]:
        """Continuation from a larger eps in the far samples; also returns whether it helped."""
        xp = array_namespace(Y)
        far = point.length > SETTINGS.far_step * self.problem.kernel.eps
        if not self.sums.any(bool(xp.any(far))):
            return point, progress, True
        g, model = xp.reshape(point.g, shape), xp.reshape(Y, shape)
        change = 0.0 * g
        (mass,) = self.sums.numbers(float(xp.sum(self.problem.mass)))
        for coarse in self._levels:
            # At a vertex the solution is linear in eps: extrapolate.
            coarse.g = g + change
            allowed = 1e-2 * coarse.problem.kernel.eps * mass
            before = coarse.evaluations
            points = coarse.iterates(model)
            for _ in range(10):
                found = next(points)
                (error,) = self.sums.numbers(float(xp.sum(found.decrement)))
                if error <= allowed:
                    break
            self.evaluations += coarse.evaluations - before
            change = (found.g - g) * (1.0 / SETTINGS.level_ratio)
            g = found.g
        new = self._point(self._flat(g + change), Y, live)
        better = far & (new.value - point.value > noise_of(point, self.problem))
        progress = progress.renewed(xp.where(better, new.value, point.value), better)
        helped = self.sums.any(bool(xp.any(better)))
        self._failures = 0 if helped else self._failures + 1
        self._pause = min(2**self._failures, SETTINGS.longest_pause)
        return point.where(better, new), progress, helped

    @cached_property
    def _levels(self) -> list[Newton]:
        """Solvers of the same problem with larger eps, from the largest to the smallest."""
        problem = self.problem
        most = 0.05 * problem.kernel.potential_range() / problem.kernel.eps
        count = math.ceil(math.log(max(most, 1.0)) / math.log(SETTINGS.level_ratio))
        coarser = (
            problem.at_eps(problem.kernel.eps * SETTINGS.level_ratio**k)
            for k in range(count, 0, -1)
        )
        return [Newton(level, self.g, continues=False, sums=self.sums) for level in coarser]

    def _point(self, g: Array, Y: Array, live: Array) -> NewtonPoint:
        """Evaluate value, gradient and Newton step at g plus the optimal constant."""
        self.evaluations += 1
        return newton_point(g, Y, live, self.problem, self._constants, batch=self._batch)


@compiled()
def _estimates(
    log_ratio: Array,
    point: NewtonPoint,
    problem: TransportProblem,
    radius: float,
    weights: Array | None,
) -> tuple[Array, Array, Array, Array]:
    """Estimated errors, (N,), the residual, shifts of 0, (N,), and total error and distance."""
    xp = array_namespace(log_ratio)
    # Near the solution the quadratic model estimates the error; elsewhere concavity bounds it.
    near = point.length <= problem.kernel.eps
    error = xp.where(near, point.decrement, point.size * radius)
    residual = log_ratio * problem.damping
    light_step = xp.where(point.light, residual, 0.0)
    error = error + xp.abs(xp.sum(point.gradient * light_step, axis=1))
    sums = xp.stack([xp.sum(weighted(error, weights)), xp.sum(point.size)])
    return error, residual, 0.0 * point.value, sums
