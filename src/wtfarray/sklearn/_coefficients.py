"""Coefficients of samples for given components, and the loss of the model that they give."""

from __future__ import annotations

import numpy as np
from array_api_compat import device as device_of

from wtfarray._arrays.host import to_host
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.samples import per_sample, spread
from wtfarray._arrays.typing import Array
from wtfarray._fit.projection import project_samples
from wtfarray._losses.least import least_value
from wtfarray._losses.value import wasserstein
from wtfarray._losses.wasserstein import Wasserstein
from wtfarray.sklearn._samples import Samples, rows

PROJECTION_TOL = 1e-9
"""Tolerance of `transform`, a convex problem."""
PROJECTION_ITERATIONS = 1000
"""Largest number of iterations of `transform`."""


def coefficients_of(
    X: Array,
    mask: Array | None,
    atoms: Array,
    loss: Wasserstein,
    rho: float,
    *,
    progress: bool,
) -> tuple[Array, list[str]]:
    """
    The coefficients of samples of mass one, zero for empty ones; why a solve did not converge.

    Those of complete samples sum to one. The mass of a sample with missing entries is not
    known, and its coefficients are free.

    Parameters
    ----------
    X, mask : array (n, ...)
        The samples, on the grid of the loss, and where they were observed.
    atoms : array (bins, r)
        The components.
    loss, rho
        Of the fit.
    progress : bool
        Show a progress bar.
    """
    xp = array_namespace(X)
    filled = to_host(per_sample(X)) > 0
    complete = np.ones_like(filled)
    if mask is not None:
        seen = xp.all(mask, axis=tuple(range(1, mask.ndim)))
        complete = to_host(xp.astype(seen, X.dtype)) > 0
    found = [xp.zeros((1, atoms.shape[1]), dtype=X.dtype, device=device_of(X))]
    # Row 0 is shared by all empty samples.
    where, n = np.zeros(X.shape[0], dtype=np.int64), 1
    messages: list[str] = []
    for whole in (True, False):
        group = np.flatnonzero(filled & (complete == whole))
        if not group.size:
            continue
        projected = project_samples(
            rows(X, group),
            atoms,
            loss,
            constraint="rows" if whole else None,
            rho=rho,
            tol=PROJECTION_TOL,
            max_iter=PROJECTION_ITERATIONS,
            mask=None if whole else rows(mask, group),
            progress=progress,
        )
        if not projected.converged:
            messages.append(projected.message)
        found.append(projected.coefficients)
        where[group] = np.arange(n, n + group.size)
        n += group.size
    return rows(xp.concat(found), where), messages


def share_of_excess(samples: Samples, Y: Array, loss: Wasserstein, n: int) -> float:
    """
    The share of some samples in the mean of ``OT(x, y) - min_y OT(x, y)`` over all ``n``.

    Samples and model, on the grid of the loss, have mass one.
    """
    X, Y = samples.data / n, Y / n
    if samples.weights is not None:
        # The excess is homogeneous: weights can be applied to the masses.
        X, Y = (Z * spread(samples.weights, Z) for Z in (X, Y))
    excess = float(wasserstein(X, Y, loss, mask=samples.mask).value)
    return max(excess - least_value(loss, X, samples.mask), 0.0)
