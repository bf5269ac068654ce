"""
Which method serves which data: every choice and every threshold, in one place.

The functions take plain numbers, never arrays, and import nothing of the library: each layer may
ask them, and a test can call them. What belongs to a method itself, such as its tolerances, stays
with the method.
"""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NewtonRule:
    """Samples of at most ``max_bins`` bins, more than ``min_spacing`` eps apart."""

    max_bins: int
    min_spacing: float


@dataclass(frozen=True)
class Thresholds:
    """Where one method takes over from another; sizes are numbers of entries unless said."""

    newton: tuple[NewtonRule, ...] = (NewtonRule(64, 4.0),)
    """
    Newton's method for the inner problem, finite lam.

    Far apart, in units of eps, the plan is all but a vertex of its polytope, and Sinkhorn's
    iterations need thousands of steps from one vertex to the next. A Newton step costs the cube of
    the number of bins.
    """
    newton_balanced: tuple[NewtonRule, ...] = (NewtonRule(64, 1.0), NewtonRule(256, 8.0))
    """The same for lam = inf, where Sinkhorn's iterations converge more slowly."""
    newton_entries: int = 2**18
    """Plans are computed at most this many entries at a time: temporaries stay small."""

    straggler_samples: int = 32
    """Of at least this many samples, the slowest are solved apart from the others."""
    straggler_bins: int = 256
    """But only if they have at most this many bins: it takes memory."""

    sparse_share: float = 0.05
    """Data with a smaller share of positive entries are solved on their support."""
    sparse_sample_points: int = 32
    """Points of a sparse sample at most: each step solves a dense system of that size."""

    batch_entries: int = 2**20
    """Samples are solved in batches of at least this many entries: temporaries are smaller then."""
    batches: int = 4
    """But in no more than this many batches."""
    certificate_entries: int = 2**16
    """Samples are certified this many entries at a time: it takes some fifteen temporaries."""

    layout_rows: int = 256
    """Kernel matrices of at most this many rows are kept in both memory orders, for BLAS."""
    pair_entries: int = 2**16
    """Up to this many pairs of bins in all, logarithms are summed over all pairs at once."""

    prox_linear_entries: int = 2**16
    """Up to this size prox-linear steps follow L-BFGS; their dual has as many unknowns."""
    escape_entries: int = 2**10
    """Up to this size a fit that has converged is perturbed, to leave a saddle point."""
    history_entries: int = 20_000_000
    """Block duals of more unknowns are minimised without the history that L-BFGS keeps."""

    coarsest_mode: int = 16
    """No mode is made coarser than this many bins."""
    dense_share: float = 0.5
    """From this share of positive entries on, a fit starts from Kullback-Leibler steps."""
    blurred_cost: float = 0.1
    """Smoothing above this share of the mean cost blurs everything: no level starts there."""
    level_ratio: float = 3.0
    """Between two levels of smoothing."""
    exponent_error: float = 1e-11
    """Rounding of exp(-g/lam) in units of rho that may pass for the speed of exp over expm1."""


THRESHOLDS = Thresholds()

Start = Literal["kl", "random"]


def prefers_newton(bins: int, spacing: float, eps: float, *, balanced: bool) -> bool:
    """Whether samples have few bins that lie many eps apart; ``spacing`` is a cost."""
    rules = THRESHOLDS.newton_balanced if balanced else THRESHOLDS.newton
    fitting = [rule.min_spacing for rule in rules if bins <= rule.max_bins]
    return bool(fitting) and spacing > fitting[0] * eps


def newton_batch(bins: int) -> int:
    """The number of samples whose plans, (bins, bins) each, are computed at once."""
    return max(1, THRESHOLDS.newton_entries // bins**2)


def separates_stragglers(samples: int, bins: int) -> bool:
    """Whether the slowest samples are solved apart from the others."""
    return samples >= THRESHOLDS.straggler_samples and bins <= THRESHOLDS.straggler_bins


def solves_on_support(samples: int, positive_share: float) -> bool:
    """Whether the data are one sample with few positive entries."""
    return samples == 1 and positive_share < THRESHOLDS.sparse_share


def solves_on_sample_supports(
    samples: int, filled: int, points: int, most_points: int, entries: int
) -> bool:
    """
    Whether the data are many samples of few points each.

    ``points`` is the number of positive entries in all ``filled`` samples, ``most_points`` that of
    the fullest one. A filled sample takes as many arrays of its size as the fullest has points:
    these must be few in all.
    """
    sparse = points < THRESHOLDS.sparse_share * entries
    few = 0 < most_points <= THRESHOLDS.sparse_sample_points
    return samples > 1 and sparse and few and filled * most_points <= 4 * samples


def batch_size(samples: int, entries: int) -> int:
    """Samples that are solved at once, where the caller does not say."""
    batches = min(THRESHOLDS.batches, entries // THRESHOLDS.batch_entries)
    return math.ceil(samples / max(1, batches))


def certificate_batch(samples: int, entries: int) -> int:
    """Samples that are certified at once."""
    return max(1, THRESHOLDS.certificate_entries * samples // entries)


def keeps_both_layouts(rows: int) -> bool:
    """Whether a kernel matrix is small enough to be kept in both memory orders."""
    return rows <= THRESHOLDS.layout_rows


def sums_over_pairs(samples: int, bins: int) -> bool:
    """Whether log-sum-exps over all pairs of bins are faster than axis by axis."""
    return samples * bins * bins <= THRESHOLDS.pair_entries


def follows_with_prox_linear(entries: int) -> bool:
    """Whether data are small enough for prox-linear steps."""
    return entries <= THRESHOLDS.prox_linear_entries


def tries_to_escape(entries: int, free_blocks: int) -> bool:
    """Whether a fit may have a saddle point, and is small enough to look for a way out."""
    return free_blocks > 1 and entries <= THRESHOLDS.escape_entries


def keeps_history(entries: int) -> bool:
    """Whether a block dual is small enough for L-BFGS."""
    return entries <= THRESHOLDS.history_entries


def can_be_halved(bins: int) -> bool:
    """Whether pairs of neighbouring bins of a mode may be merged."""
    return bins % 2 == 0 and bins >= 2 * THRESHOLDS.coarsest_mode


def default_start(positive_share: float) -> Start:
    """How a fit starts: Kullback-Leibler steps make the atoms of sparse data spiky."""
    return "random" if positive_share < THRESHOLDS.dense_share else "kl"


def fit_levels(init: str | None, coarsest: float) -> tuple[float, ...]:
    """Multiples of eps that a fit goes through, from a named start or, None, given factors."""
    levels = (27.0, 9.0, 3.0, 1.0) if init == "random" else (3.0, 1.0)
    return tuple(level for level in levels if level <= max(1.0, coarsest))


def coarsest_level(mean_cost: float, eps: float) -> float:
    """The multiple of eps from which on the kernel blurs everything."""
    return THRESHOLDS.blurred_cost * mean_cost / eps


def smoothing_levels(mean_cost: float, eps: float) -> tuple[float, ...]:
    """Multiples of eps, a constant ratio apart, from the coarsest that makes sense to 1."""
    most = max(coarsest_level(mean_cost, eps), 1.0)
    ratio = THRESHOLDS.level_ratio
    count = math.floor(math.log(most) / math.log(ratio))
    return tuple(ratio**k for k in range(count, -1, -1))


def may_use_exp(lam: float, rho: float, rounding: float) -> bool:
    """Whether ``exp(-g/lam) - 1`` is exact enough in place of expm1, which takes longer."""
    return lam * rounding <= THRESHOLDS.exponent_error * rho
