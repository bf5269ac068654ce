"""
Choice of methods: every decision that depends on the size or kind of the data, with its threshold.

The functions take plain numbers, never arrays, and import nothing from the library, so that every
layer may call them. Parameters of a method itself, such as its tolerances, are defined with the
method.
"""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NewtonRule:
    """Samples of at most ``max_bins`` bins that are more than ``min_spacing * eps`` apart."""

    max_bins: int
    min_spacing: float


@dataclass(frozen=True)
class Thresholds:
    """Thresholds between methods; sizes are numbers of entries unless stated otherwise."""

    newton: tuple[NewtonRule, ...] = (NewtonRule(16, 4.0), NewtonRule(64, 16.0))
    """
    Problems with finite lam for which the inner problem is solved by Newton's method.

    In machine code Sinkhorn iterations are tried first: see `newton_fallback`.

    If the bins are many eps apart, the plan is close to a vertex of the transport polytope, and
    Sinkhorn iterations need thousands of steps from one vertex to the next. The cost of a Newton
    step is cubic in the number of bins: for 64 bins 5 eps apart, accelerated Sinkhorn iterations
    take a tenth of its time or less; for 3 to 5 bins 4 to 16 eps apart they take two to nine times
    as long, and fits do not always converge.
    """
    newton_fallback: NewtonRule = NewtonRule(64, 4.0)
    """With finite lam, Newton's method continues where Sinkhorn iterations did not converge."""
    newton_balanced: tuple[NewtonRule, ...] = (NewtonRule(64, 1.0), NewtonRule(256, 8.0))
    """The same for lam = inf, where Sinkhorn's iterations converge more slowly."""
    outlier_bins: int = 64
    """
    Balanced samples of more bins are left to Sinkhorn iterations if only outliers are distant.

    The median of the spacings is then small although the largest is not, as with costs between
    features. A Newton step costs the same wherever the bins lie: for cosine costs between 100 or
    200 features the method takes 15 to 35 times as long, between 40 features 2 to 4 times.
    """
    outlier_spacing: float = 16.0
    """
    But not if the spacing of an outlier is larger than this many eps.

    An iteration changes the potential of an outlier by a fraction of eps. If it holds half of the
    mass, up to 165 iterations are needed 14 eps away, up to 1600 at 16 or 18 eps. At 22 eps, 2000
    do not always suffice, and at 300 eps hardly ever.
    """
    outlier_range: float = 32.0
    """Nor if some cost is larger than this many eps: outliers in a row are a coarse grid."""
    newton_entries: int = 2**15
    """Newton's method computes at most this many entries of plans at a time: they stay in cache."""

    straggler_samples: int = 8
    """With at least this many samples, the slowest ones are iterated separately."""
    straggler_least: int = 2**11
    """And with at least this many entries: an iteration of fewer takes no less time."""
    straggler_bins: int = 256
    """But only if a sample has at most this many bins, because it takes memory."""
    straggler_entries: int = 2**16
    """Or if all samples together have at most this many entries."""

    sparse_share: float = 0.05
    """With a smaller share of positive entries, the inner problem is solved on the support of X."""
    support_share: float = 0.7
    """Products follow the tree of the support if they take at most this share of the work,"""
    support_rows: float = 1.0
    """and the rows of the kernels that they store at most this many arrays of the size of X."""
    sparse_sample_points: int = 32
    """Largest support of a sparse sample: each step solves a dense system of that size."""

    fused_entries: int = 2**13
    """From this size of X on, samples are iterated in machine code, if there is a compiler."""
    fused_rows: int = 128
    """But only with kernel matrices of at most this many rows: BLAS reads a larger one once."""
    fused_batch_entries: int = 2**16
    """In batches that are larger than this: fewer take less time, and more take less memory."""

    cached_entries: int = 2**15
    """NumPy solves batches of this many entries, which stay in the processor's cache."""
    batch_entries: int = 2**20
    """In other libraries an operation has a larger overhead: at least this many entries."""
    batches: int = 4
    """And at most this many batches."""
    chunk_entries: int = 2**22
    """Data that do not fit into memory are read this many entries at a time: 32 MB in float64."""
    chunk_batches: int = 32
    """A chunk is solved in at least this many batches, each of which takes some 32 arrays."""
    certificate_entries: int = 2**16
    """Gaps are computed for this many entries at a time: this takes some fifteen temporaries."""
    queued_certificate_entries: int = 2**18
    """The same in other libraries than NumPy: every batch waits for the device several times."""

    flow_entries: int = 2**17
    """Up to this many pairs of bins in all samples, infeasible transport is found by max-flow."""

    layout_rows: int = 256
    """Kernel matrices of at most this many rows are stored in both memory orders, for BLAS."""
    band_rows: int = 64
    """Blocks of a banded kernel have at least this many bins: BLAS is slow on smaller matrices."""
    pair_entries: int = 2**16
    """Up to this many pairs of bins in all samples, log-sum-exps run over all pairs at once."""

    prox_linear_entries: int = 2**16
    """Up to this size of X prox-linear steps follow L-BFGS; their dual has as many unknowns."""
    linear_map_columns: int = 256
    """Up to this many entries of all blocks, the model linearised in them is formed as a matrix:"""
    linear_map_entries: int = 2**17
    """one product of at most this size takes less time than many small ones."""
    escape_entries: int = 2**10
    """Up to this size of X a fit that has converged is perturbed, to leave a saddle point."""
    refine_tol: float = 1e-5
    """Up to this tolerance a fit that has converged is continued if its model is close to X:"""
    refine_entries: int = 2**16
    """by as many steps again, and up to this size of X, where steps take little time,"""
    refine_steps: int = 100
    """by this number of steps if it is larger."""
    small_entries: int = 2**10
    """Up to this size of X the work of a fit is limited: it takes some 3 seconds at most,"""
    small_work: int = 50_000
    """in units of 60 us. An iteration of Sinkhorn on so few entries takes 100 us or more."""
    history_entries: int = 20_000_000
    """Block duals with more unknowns are minimised without the history of L-BFGS."""

    coarsest_mode: int = 14
    """Modes are coarsened to no fewer bins than this."""
    grid_spacing: float = 2.0
    """
    Largest cost between neighbouring bins of a coarser grid, in units of the smoothed eps.

    At 2, fits of images end at the same objectives with half of the evaluations on their own grid;
    with bins 12 eps apart, the fit on the data undoes much of what it starts from, and takes many
    times as long.
    """
    dense_share: float = 0.5
    """With at least this share of positive entries, a fit starts with Kullback-Leibler steps."""
    least_sweeps: int = 20
    """A fit begins with at least this many Kullback-Leibler sweeps,"""
    most_sweeps: int = 300
    """and at most so many: most data need fewer, but some have a saddle point there as well."""
    sweep_budget: float = 120.0
    """They may take the time of this many evaluations of the transport problem."""
    sweep_entries: int = 2**24
    """Larger data may have to be read from files, once for every block of a sweep."""
    blurred_cost: float = 0.1
    """A larger eps, as a share of the mean cost, blurs all structure: no level exceeds it."""
    level_ratio: float = 3.0
    """Ratio of eps between two levels of smoothing."""
    exponent_error: float = 1e-11
    """Rounding error in units of rho up to which exp replaces expm1, which is slower."""


THRESHOLDS = Thresholds()

Start = Literal["kl", "random"]


def prefers_newton(bins: int, spacing: float, eps: float, *, balanced: bool) -> bool:
    """Whether samples have few bins, many eps apart; ``spacing`` is a cost between neighbours."""
    rules = THRESHOLDS.newton_balanced if balanced else THRESHOLDS.newton
    fitting = [rule.min_spacing for rule in rules if bins <= rule.max_bins]
    return bool(fitting) and spacing > fitting[0] * eps


def leaves_outliers_to_sinkhorn(
    bins: int, spacing: float, typical_spacing: float, cost_range: float, eps: float
) -> bool:
    """
    Whether `prefers_newton` is true of balanced samples only because of outliers not too far away.

    ``typical_spacing`` is the median over bins, ``spacing`` the largest; ``cost_range`` is the
    largest of all costs.
    """
    near = spacing <= THRESHOLDS.outlier_spacing * eps
    near = near and cost_range <= THRESHOLDS.outlier_range * eps
    few = not prefers_newton(bins, typical_spacing, eps, balanced=True)
    return bins > THRESHOLDS.outlier_bins and near and few


def falls_back_to_newton(bins: int, spacing: float, eps: float, *, balanced: bool) -> bool:
    """Whether Newton's method continues a solve in which Sinkhorn iterations did not converge."""
    if balanced:  # Newton's method serves these samples, unless they have outliers only
        many = bins > THRESHOLDS.outlier_bins
        return many and prefers_newton(bins, spacing, eps, balanced=True)
    rule = THRESHOLDS.newton_fallback
    return bins <= rule.max_bins and spacing > rule.min_spacing * eps


def newton_batch(bins: int) -> int:
    """Number of samples whose plans, (bins, bins) each, are computed at once."""
    return max(1, THRESHOLDS.newton_entries // bins**2)


def iterates_in_machine_code(entries: int, rows: int) -> bool:
    """Whether samples are iterated one by one, with kernel matrices of at most ``rows`` rows."""
    return entries >= THRESHOLDS.fused_entries and rows <= THRESHOLDS.fused_rows


def separates_stragglers(samples: int, bins: int) -> bool:
    """Whether the slowest samples are iterated separately."""
    entries = samples * bins
    small = bins <= THRESHOLDS.straggler_bins or entries <= THRESHOLDS.straggler_entries
    many = samples >= THRESHOLDS.straggler_samples and entries >= THRESHOLDS.straggler_least
    return many and small


def straggler_batch(count: int, bins: int, *, compiles: bool) -> int:
    """
    Number of samples to which stragglers are filled up, by repetition: the next power of two.

    ``compiles`` is True for JAX, which takes seconds to compile the iterations for each number. It
    takes powers of four, and as many samples as an iteration takes no less time than of fewer.
    """
    if not compiles:
        return 1 << (count - 1).bit_length()
    batch, least = 1, math.ceil(THRESHOLDS.straggler_least / bins)
    while batch < max(count, least):
        batch *= 4
    return batch


def solves_on_support(samples: int, positive_share: float) -> bool:
    """Whether the data are one sample with few positive entries."""
    return samples == 1 and positive_share < THRESHOLDS.sparse_share


def follows_support(work: int, rows: int, whole_work: int, entries: int) -> bool:
    """
    Whether kernel products between all bins and a support leave out what is zero.

    ``work`` is the number of multiplications then, ``whole_work`` that of the whole product;
    ``rows`` is the number of entries of kernel matrices that are stored, ``entries`` that of X.
    """
    fast = work <= THRESHOLDS.support_share * whole_work
    return fast and rows <= THRESHOLDS.support_rows * entries


def solves_on_sample_supports(
    samples: int, filled: int, points: int, most_points: int, entries: int
) -> bool:
    """
    Whether the data are many samples with few positive entries each.

    ``filled`` is the number of samples that are not empty, ``points`` the number of positive
    entries in all of them, ``most_points`` the largest number in one. Each filled sample takes
    ``most_points`` arrays of its size, which limits their number.
    """
    sparse = points < THRESHOLDS.sparse_share * entries
    few = 0 < most_points <= THRESHOLDS.sparse_sample_points
    return samples > 1 and sparse and few and filled * most_points <= 4 * samples


def batch_size(samples: int, entries: int, kernel_entries: int, *, in_cache: bool) -> int:
    """
    Default number of samples that are solved at once.

    ``kernel_entries`` is the size of the largest kernel matrix, which every batch reads once more;
    ``in_cache`` is True for NumPy.
    """
    if in_cache:
        cached = math.ceil(entries / max(THRESHOLDS.cached_entries, kernel_entries))
        # A power of two: processes with equal numbers of samples then rarely share a batch.
        batches = 1 << (cached - 1).bit_length()
    else:
        batches = min(THRESHOLDS.batches, entries // THRESHOLDS.batch_entries)
    return math.ceil(samples / max(1, batches))


def fused_batch_size(samples: int, entries: int) -> int:
    """As `batch_size`, for machine code: few batches, among which errors cannot be shared."""
    batches = min(THRESHOLDS.batches, entries // THRESHOLDS.fused_batch_entries)
    return math.ceil(samples / max(1, batches))


def chunk_size(samples: int, entries: int) -> int:
    """Default number of samples that are read at once from data of so many entries."""
    return max(1, THRESHOLDS.chunk_entries * samples // entries)


def projected_at_once(chunk: int) -> int:
    """Number of samples of a chunk that are projected at once, which takes some 32 arrays each."""
    return math.ceil(chunk / THRESHOLDS.chunk_batches)


def batch_of_chunk(samples: int, entries: int, kernel_entries: int, *, in_cache: bool) -> int:
    """Default number of samples of a chunk that are solved at once; see `batch_size`."""
    size = math.ceil(samples / THRESHOLDS.chunk_batches)
    if in_cache:
        cached = max(THRESHOLDS.cached_entries, kernel_entries)
        size = min(size, math.ceil(cached * samples / entries))
    return size


def certificate_batch(samples: int, entries: int, *, queued: bool = False) -> int:
    """Number of samples whose gaps are computed at once; ``queued`` is False for NumPy."""
    most = THRESHOLDS.queued_certificate_entries if queued else THRESHOLDS.certificate_entries
    return max(1, most * samples // entries)


def checks_flow(samples: int, bins: int) -> bool:
    """Whether balanced transport with infinite costs is small enough for a maximum flow."""
    return samples * bins * bins <= THRESHOLDS.flow_entries


def keeps_both_layouts(rows: int) -> bool:
    """Whether a kernel matrix is small enough to be stored in both memory orders."""
    return rows <= THRESHOLDS.layout_rows


def band_blocks(bins: int, reach: int) -> int:
    """Number of blocks of an axis with a limited reach, each at least as long as the reach."""
    return max(1, bins // max(reach, THRESHOLDS.band_rows))


def sums_over_pairs(samples: int, bins: int) -> bool:
    """Whether a log-sum-exp over all pairs of bins is faster than one axis at a time."""
    return samples * bins * bins <= THRESHOLDS.pair_entries


def follows_with_prox_linear(entries: int) -> bool:
    """Whether the data are small enough for prox-linear steps after L-BFGS."""
    return entries <= THRESHOLDS.prox_linear_entries


def forms_linear_maps(entries: int, columns: int) -> bool:
    """Whether the model as a linear map of all blocks, (entries, columns), is formed."""
    small = entries * columns <= THRESHOLDS.linear_map_entries
    return small and columns <= THRESHOLDS.linear_map_columns


def tries_to_escape(entries: int, free_blocks: int) -> bool:
    """Whether a fit may have a saddle point, and is small enough to look for a way out."""
    small = entries <= THRESHOLDS.escape_entries
    return small and free_blocks > 1


def refinement_steps(entries: int, free_blocks: int, n_iter: int, tol: float) -> int:
    """Number of steps by which a fit that has converged to ``tol`` may be continued."""
    if tol > THRESHOLDS.refine_tol or free_blocks == 1:
        return 0
    least = THRESHOLDS.refine_steps if entries <= THRESHOLDS.refine_entries else 0
    return max(n_iter, least)


def most_work(entries: int) -> float:
    """Largest work of the inner problems in a fit to so many entries."""
    return THRESHOLDS.small_work if entries <= THRESHOLDS.small_entries else math.inf


def keeps_history(entries: int) -> bool:
    """Whether a block dual is small enough for L-BFGS."""
    return entries <= THRESHOLDS.history_entries


def can_be_halved(bins: int) -> bool:
    """Whether pairs of neighbouring bins of a mode may be merged."""
    return bins % 2 == 0 and bins >= 2 * THRESHOLDS.coarsest_mode


def is_fine_enough(spacing: float, eps: float) -> bool:
    """Whether a grid with this cost between neighbouring bins serves for a smoothed eps."""
    return spacing <= THRESHOLDS.grid_spacing * eps


def default_start(positive_share: float) -> Start:
    """Default start of a fit: with sparse data, Kullback-Leibler steps make the atoms spiky."""
    return "random" if positive_share < THRESHOLDS.dense_share else "kl"


def kl_sweeps(columns: int, blocks: int, bins: int, entries: int) -> int:
    """
    Largest number of multiplicative sweeps over the free ``blocks`` before a fit.

    ``columns`` is the largest rank; ``bins`` is the number of bins along all transported axes, 0
    without transport; ``entries`` is the size of X.
    """
    if not bins or entries > THRESHOLDS.sweep_entries:
        return THRESHOLDS.least_sweeps
    # Multiplications for each entry of X, with passes over the data in the same unit.
    evaluations = blocks * (columns + 10) / (bins + 100)
    affordable = int(THRESHOLDS.sweep_budget / evaluations)
    return max(THRESHOLDS.least_sweeps, min(THRESHOLDS.most_sweeps, affordable))


def fit_levels(init: str | None, coarsest: float) -> tuple[float, ...]:
    """Levels of smoothing of a fit, as multiples of eps; ``init`` is None for given factors."""
    levels = (27.0, 9.0, 3.0, 1.0) if init == "random" else (3.0, 1.0)
    return tuple(level for level in levels if level <= max(1.0, coarsest))


def coarsest_level(mean_cost: float, eps: float) -> float:
    """The multiple of eps above which the kernel blurs all structure."""
    return THRESHOLDS.blurred_cost * mean_cost / eps


def smoothing_levels(mean_cost: float, eps: float) -> tuple[float, ...]:
    """Multiples of eps in a geometric sequence, from at most `coarsest_level` down to 1."""
    most = max(coarsest_level(mean_cost, eps), 1.0)
    ratio = THRESHOLDS.level_ratio
    count = math.floor(math.log(most) / math.log(ratio))
    return tuple(ratio**k for k in range(count, -1, -1))


def may_use_exp(lam: float, rho: float, rounding: float) -> bool:
    """Whether ``exp(-g/lam) - 1`` is accurate enough to replace expm1, which is slower."""
    return lam * rounding <= THRESHOLDS.exponent_error * rho
