"""
The inner problem of samples of few bins, by Newton's method.

Between few bins the plan is all but a vertex of its polytope, and Sinkhorn's iterations need many
thousands of steps from one vertex to the next. Here the Hessian of a sample is small enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

from array_api_compat import array_namespace
from array_api_compat import device as device_of

from wtfarray._arrays.samples import inner, largest, per_sample, slices_of
from wtfarray._arrays.typing import Array
from wtfarray._dispatch import newton_batch
from wtfarray._transport.iterate import Iterate, search_radius, translation
from wtfarray._transport.kernels import dense, logsumexp
from wtfarray._transport.potential import SATURATION, dual_product
from wtfarray._transport.problem import Marginal, TransportProblem


@dataclass(frozen=True)
class NewtonSettings:
    """How Newton's method is safeguarded."""

    trials: int = 12
    """Of the line search; the last one is a plain step, which always raises the value."""
    light_share: float = 1e-6
    """Bins of less than this share of the mass take plain steps, in logarithms."""
    far_step: float = 30.0
    """In units of eps: a longer step starts where the quadratic model says little."""
    continue_every: int = 20
    """Iterations until a sample that is still far off is led through larger eps again."""
    level_ratio: float = 3.0
    """Between two levels of smoothing of that continuation."""


SETTINGS = NewtonSettings()


@dataclass(frozen=True, eq=False)
class _Point:
    """A dual point of every sample and the Newton step from there; stacks (N, m), values (N,)."""

    g: Array
    logs: Array
    """``log K f``."""
    q: Array
    gradient: Array
    """``Y exp(-g/lam) - q``, the gradient of the value."""
    step: Array
    light: Array
    """Where too little is at stake for Newton's method, bool."""
    value: Array

    @cached_property
    def size(self) -> Array:
        """L1 norm of the gradient."""
        return per_sample(array_namespace(self.gradient).abs(self.gradient))

    @cached_property
    def length(self) -> Array:
        """Maximum norm of the step."""
        return largest(self.step)

    @cached_property
    def decrement(self) -> Array:
        """Twice what the step gains in the quadratic model."""
        return array_namespace(self.gradient).abs(inner(self.gradient, self.step))

    def where(self, some: Array, other: _Point) -> _Point:
        """The ``other`` point in some of the samples, (N,) bool."""
        xp = array_namespace(some)
        pairs = ((getattr(other, f.name), getattr(self, f.name)) for f in fields(self))
        return _Point(
            *(xp.where(some if new.ndim == 1 else some[:, None], new, old) for new, old in pairs)
        )


class Newton:
    """
    Maximise ``<u(g), Y> - Phi*(X, u(g))`` in every sample, for one Y after the other.

    The value is concave in g. With the rows ``pi_i`` of the plan divided by X its Hessian is minus
    ``sum_i X_i (diag(pi_i) - pi_i pi_i^T) / eps + diag(Y exp(-g/lam)) / lam``. A share of the
    gradient is added to the diagonal, so that steps stay finite where nothing connects two bins. A
    step is shortened until the value rises; one of Sinkhorn's always does. Where the solution is
    far off it is followed from large eps to small.
    """

    def __init__(self, problem: TransportProblem, g: Array, *, continues: bool = True) -> None:
        self.problem = problem
        self.g = g
        """Where the next solve starts."""
        self.continues = False
        """Nothing is remembered from one solve to the next but g."""
        self.evaluations = 0
        self._radius = max(search_radius(problem), problem.kernel.eps)  # of one bin the cost is 0
        self._continues = continues
        self._bins = math.prod(g.shape[1:])
        self._data = self._flat(problem.data)
        shape = tuple(problem.data.shape)
        self._reachable = self._flat(array_namespace(g).broadcast_to(problem.reachable, shape))
        self._slices = slices_of(g.shape[0], newton_batch(self._bins))
        self._exponents = dense(problem.kernel.costs) * (-1.0 / problem.kernel.eps)

    def _flat(self, stack: Array) -> Array:
        return array_namespace(stack).reshape(stack, (-1, self._bins))

    def iterates(
        self,
        Y: Array,
        tolerance: float = 0.0,  # noqa: ARG002
        max_iter: int | None = None,  # noqa: ARG002
    ) -> Iterator[Iterate]:
        """The iterates for this Y, without end, whatever is asked for."""
        xp = array_namespace(Y)
        shape = tuple(Y.shape)
        Y = self._flat(Y)
        live = (Y > 0) & self._reachable
        log_Y = xp.log(xp.where(live, Y, 1.0))
        point = self._point(self._flat(self.g), Y, live)
        n = 0
        while True:
            if self._continues and n % SETTINGS.continue_every == 0:
                point = self._continued(point, Y, live, shape)
            n += 1
            self.g = xp.reshape(point.g, shape)
            log_ratio = xp.where(live, log_Y - self._log_mass(point, shape), 0.0)
            yield self._iterate(point, log_ratio, shape)
            point = self._advanced(point, log_ratio, Y, live)

    def _log_mass(self, point: _Point, shape: tuple[int, ...]) -> Array:
        """``g/lam + log q``, however small q is: ``log Y`` at the solution."""
        xp = array_namespace(point.g)
        log_a = self._flat(self.problem.log_scaling(xp.reshape(point.logs, shape)))
        parts = [
            logsumexp(log_a[some, :, None] + self._exponents[None, :, :], 1, xp)
            for some in self._slices
        ]
        back = parts[0] if len(parts) == 1 else xp.concat(parts)
        return back + point.g * (1.0 / self.problem.damping)  # 1/eps + 1/lam

    def _iterate(self, point: _Point, log_ratio: Array, shape: tuple[int, ...]) -> Iterate:
        xp = array_namespace(point.g)
        # Where the quadratic model holds it tells the error; concavity bounds it everywhere.
        near = point.length <= self.problem.kernel.eps
        error = xp.where(near, point.decrement, point.size * self._radius)
        aside = xp.where(point.light, log_ratio * self.problem.damping, 0.0)
        error = error + xp.abs(inner(point.gradient, aside))
        q, log_Kf, log_ratio, gradient = (
            xp.reshape(array, shape) for array in (point.q, point.logs, log_ratio, point.gradient)
        )
        shift = 0.0 * point.value
        marginal = Marginal(q, None, None, log_Kf)
        return Iterate(self.g, marginal, shift, log_ratio, gradient, error, point.size)

    def _advanced(self, point: _Point, log_ratio: Array, Y: Array, live: Array) -> _Point:
        """One step of every sample."""
        xp = array_namespace(Y)
        eps = self.problem.kernel.eps
        tiny = float(xp.finfo(Y.dtype).eps)
        rounding = 500.0 * tiny * (xp.abs(point.value) + eps * self.problem.mass)
        t = xp.minimum(1.0, self._radius / xp.maximum(point.length, tiny * self._radius))
        near = point.length <= eps
        plain = log_ratio * self.problem.damping
        best, searching = point, point.value == point.value
        for trial in range(SETTINGS.trials):
            last = trial == SETTINGS.trials - 1
            # A plain step of any of the bins raises the value.
            step = plain if last else xp.where(point.light, plain, point.step * t[:, None])
            new = self._point(point.g + step, Y, live)
            gain = new.value - point.value
            rises = (gain > 0) & (gain >= 1e-2 * t * point.decrement)
            # At the end of the digits of the value the model tells, or the gradient.
            level = gain >= -rounding
            rises = rises | (level & (near | (new.size <= 0.9 * point.size)))
            taken = searching if last else searching & rises
            best = best.where(taken, new)
            searching = searching & ~taken
            if not bool(xp.any(searching)):
                break
            t = t * 0.25
        return best

    def _continued(self, point: _Point, Y: Array, live: Array, shape: tuple[int, ...]) -> _Point:
        """Where the solution is far off: what following it from a larger eps leads to."""
        xp = array_namespace(Y)
        far = point.length > SETTINGS.far_step * self.problem.kernel.eps
        if not bool(xp.any(far)):
            return point
        g, model = xp.reshape(point.g, shape), xp.reshape(Y, shape)
        change = 0.0 * g
        for coarse in self._levels:
            # On a vertex the solution is a linear function of eps.
            coarse.g = g + change
            allowed = 1e-2 * coarse.problem.kernel.eps * float(xp.sum(self.problem.mass))
            points = coarse.iterates(model)
            for _ in range(10):
                found = next(points)
                if float(xp.sum(found.decrement)) <= allowed:
                    break
            change = (found.g - g) * (1.0 / SETTINGS.level_ratio)
            g = found.g
        new = self._point(self._flat(g + change), Y, live)
        return point.where(far & (new.value > point.value), new)

    @cached_property
    def _levels(self) -> list[Newton]:
        """The same problem with larger eps, from the largest to the smallest."""
        problem = self.problem
        most = 0.05 * problem.kernel.potential_range() / problem.kernel.eps
        count = math.ceil(math.log(max(most, 1.0)) / math.log(SETTINGS.level_ratio))
        coarser = (
            problem.at_eps(problem.kernel.eps * SETTINGS.level_ratio**k)
            for k in range(count, 0, -1)
        )
        return [Newton(level, self.g, continues=False) for level in coarser]

    def _point(self, g: Array, Y: Array, live: Array) -> _Point:
        """Evaluate everything at g, moved by the best constant."""
        xp = array_namespace(g)
        self.evaluations += 1
        lam = self.problem.lam
        shrunk = xp.where(live, Y, 0.0)
        if not self.problem.conserves_mass:
            shift, shrunk = translation(self.problem, g, Y, live)
            g = xp.where(self._reachable, g + shift[:, None], SATURATION * lam)
        stacks = (g, shrunk, live, self._data)
        parts = [self._plan(*(stack[some, :] for stack in stacks)) for some in self._slices]
        log_Kf, q, gradient, step, light = (
            arrays[0] if len(parts) == 1 else xp.concat(list(arrays))
            for arrays in zip(*parts, strict=True)
        )
        conjugate = self.problem.value_of_logs(xp.reshape(log_Kf, tuple(self.problem.data.shape)))
        value = dual_product(g, Y, lam, self.problem.kernel.flow) - conjugate
        return _Point(g, log_Kf, q, gradient, step, light, value)

    def _plan(self, g: Array, shrunk: Array, live: Array, data: Array) -> tuple[Array, ...]:
        """``log K f``, the marginal q, the gradient, the Newton step, and the light bins."""
        xp = array_namespace(g)
        h = xp.where(live, g * (1.0 / self.problem.kernel.eps), -math.inf)
        logs = h[:, None, :] + self._exponents[None, :, :]
        top = xp.max(logs, axis=2, keepdims=True)
        top = xp.where(top > -math.inf, top, 0.0)
        plan = xp.exp(logs - top)
        total = xp.sum(plan, axis=2, keepdims=True)
        some = total > 0
        total = xp.where(some, total, 1.0)
        log_Kf = xp.where(some, xp.log(total) + top, -math.inf)[:, :, 0]
        plan = plan * (xp.sqrt(data)[:, :, None] / total)
        q = xp.matmul(plan.mT, xp.sqrt(data)[:, :, None])[:, :, 0]
        gradient = xp.where(live, shrunk - q, 0.0)
        light = xp.maximum(shrunk, q) <= SETTINGS.light_share * xp.sum(data, axis=1, keepdims=True)
        return log_Kf, q, gradient, self._step(plan, shrunk, gradient, live & ~light), light

    def _step(self, plan: Array, shrunk: Array, gradient: Array, heavy: Array) -> Array:
        """The Newton step of the heavy bins; ``plan`` has been divided by the root of X."""
        xp = array_namespace(plan)
        info = xp.finfo(plan.dtype)
        identity = xp.eye(self._bins, dtype=plan.dtype, device=device_of(plan))[None, :, :]
        # The diagonal as a sum of the others: a difference would lose weak links.
        links = xp.matmul(plan.mT, plan) * ((1.0 - identity) / self.problem.kernel.eps)
        diagonal = xp.sum(links, axis=2) + xp.abs(gradient) * (1.0 / self._radius)
        if not self.problem.conserves_mass:
            diagonal = diagonal + shrunk * (1.0 / self.problem.lam)
        usable = heavy & (diagonal > float(info.smallest_normal) / float(info.eps))
        root = xp.where(usable, xp.sqrt(xp.where(usable, diagonal, 1.0)), 0.0)
        scale = xp.where(usable, 1.0 / xp.where(usable, root, 1.0), 0.0)
        matrix = identity * (1.0 + 10.0 * float(info.eps))
        matrix = matrix - links * scale[:, :, None] * scale[:, None, :]
        if self.problem.conserves_mass:
            # Constants make no difference: let the step have no share in them.
            norm = xp.sqrt(xp.sum(root * root, axis=1, keepdims=True))
            constant = root / xp.where(norm > 0, norm, 1.0)
            matrix = matrix + constant[:, :, None] * constant[:, None, :]
        solution = xp.linalg.solve(matrix, (gradient * scale)[:, :, None])
        return solution[:, :, 0] * scale
