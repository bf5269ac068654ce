"""
Whether balanced transport along finite costs is possible at all: a question of maximum flow.

With infinite costs some mass may have too few bins to go to. Sinkhorn's potentials then diverge for
as long as one iterates; a maximum flow answers the question directly, and names the bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Bottleneck:
    """Source bins with more mass than the bins that they can reach (Hall's condition)."""

    sources: NDArray[np.intp]
    supply: float
    """The mass of the sources."""
    demand: float
    """The mass of all targets that they reach."""


def bottleneck(
    supply: NDArray[np.float64],
    demand: NDArray[np.float64],
    allowed: NDArray[np.bool_],
    tolerance: float,
) -> Bottleneck | None:
    """
    Sources that cannot send their mass to the targets; None if all mass can be transported.

    Parameters
    ----------
    supply, demand : array (m,), (n,)
        Mass of the sources and of the targets, equal in sum.
    allowed : array (m, n) of bool
        Between which bins transport is allowed.
    tolerance : float
        Mass that may be left over.

    Notes
    -----
    Augmenting paths of fewest edges (Edmonds and Karp 1972), after a greedy start.

    Examples
    --------
    >>> import numpy as np
    >>> allowed = np.array([[True, False], [True, False]])
    >>> found = bottleneck(np.array([0.5, 0.5]), np.array([0.4, 0.6]), allowed, 1e-9)
    >>> found.sources, found.supply, found.demand
    (array([0, 1]), 1.0, 0.4)
    """
    flow = np.zeros(allowed.shape)
    left, room = supply.astype(np.float64), demand.astype(np.float64)
    for i in np.flatnonzero(left > 0):
        for j in np.flatnonzero(allowed[i] & (room > 0)):
            sent = min(left[i], room[j])
            flow[i, j] += sent
            left[i] -= sent
            room[j] -= sent
            if left[i] <= 0:
                break
    least = tolerance / max(allowed.size, 1)
    while left.sum() > tolerance:
        reached = _augment(flow, left, room, allowed, least)
        if reached is not None:
            targets = allowed[reached].any(axis=0)
            total, most = float(supply[reached].sum()), float(demand[targets].sum())
            return Bottleneck(reached, total, most) if total - most > tolerance else None
    return None


def _augment(
    flow: NDArray[np.float64],
    left: NDArray[np.float64],
    room: NDArray[np.float64],
    allowed: NDArray[np.bool_],
    least: float,
) -> NDArray[np.intp] | None:
    """Send mass along one path; if there is none, the sources that were reached by the search."""
    sources, targets = left > least, np.zeros(room.size, dtype=bool)
    to_target = np.full(room.size, -1)  # the source from which a target was reached
    to_source = np.full(left.size, -1)  # the target whose flow a source could take back
    new = np.flatnonzero(sources)
    while new.size:
        found = allowed[new] & ~targets
        (fresh,) = np.nonzero(found.any(axis=0))
        if not fresh.size:
            break
        to_target[fresh] = new[found[:, fresh].argmax(axis=0)]
        targets[fresh] = True
        open_targets = fresh[room[fresh] > least]
        if open_targets.size:
            _send(flow, left, room, int(open_targets[0]), to_target, to_source)
            return None
        taken = (flow[:, fresh] > least) & ~sources[:, None]
        (new,) = np.nonzero(taken.any(axis=1))
        if not new.size:
            break
        to_source[new] = fresh[taken[new].argmax(axis=1)]
        sources[new] = True
    return np.flatnonzero(sources)


def _send(
    flow: NDArray[np.float64],
    left: NDArray[np.float64],
    room: NDArray[np.float64],
    target: int,
    to_target: NDArray[np.intp],
    to_source: NDArray[np.intp],
) -> None:
    """Move as much as fits along the path that ends in a target."""
    edges, j = [], target
    while j >= 0:
        i = int(to_target[j])
        edges.append((i, j))
        j = int(to_source[i])
    first = edges[-1][0]
    back = [(i, int(to_source[i])) for i, _ in edges[:-1]]
    amount = min(left[first], room[target], *(flow[i, j] for i, j in back))
    for i, j in edges:
        flow[i, j] += amount
    for i, j in back:
        flow[i, j] -= amount
    left[first] -= amount
    room[target] -= amount
