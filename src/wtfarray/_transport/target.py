"""The target of the Sinkhorn iteration: the model Y for which the inner problem is solved."""

from __future__ import annotations

import math
from typing import NamedTuple

from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import spread
from wtfarray._arrays.typing import Array
from wtfarray._transport.problem import TransportProblem


class Target(NamedTuple):
    """The model Y for which the inner problem is solved."""

    Y: Array
    scaled_logs: Array
    """log Y times the damping, 0 where not live."""
    live: Array | None
    """Bins, (N, ...) bool, where Y is positive and that mass of X can reach; None: all bins."""

    def masked(self, problem: TransportProblem, g: Array) -> Array:
        """g, -inf where not live."""
        if self.live is None:
            return g
        xp = array_namespace(g)
        return xp.where(self.live, g, xp.where(spread(problem.mass > 0, g), -math.inf, 0.0 * g))


def needs_mask(problem: TransportProblem, Y: Array, *, positive: bool | None = None) -> bool:
    """
    Whether some bins are not live; where none is, masks would only take passes over memory.

    ``positive`` says whether all entries of Y are positive, if that is known.
    """
    if not problem.all_reachable:
        return True
    if positive is None:
        positive = float(array_namespace(Y).min(Y)) > 0
    return not positive


def target_of(problem: TransportProblem, Y: Array) -> Target:
    """The target, with a mask if one is needed."""
    return masked_target(problem, Y) if needs_mask(problem, Y) else plain_target(problem, Y)


def plain_target(problem: TransportProblem, Y: Array) -> Target:
    """The target of which all bins are live."""
    return Target(Y, array_namespace(Y).log(Y) * problem.damping, None)


def masked_target(problem: TransportProblem, Y: Array) -> Target:
    """The target with a mask of its live bins."""
    xp = array_namespace(Y)
    live = (Y > 0) & problem.reachable
    return Target(Y, xp.log(xp.where(live, Y, 1.0)) * problem.damping, live)
