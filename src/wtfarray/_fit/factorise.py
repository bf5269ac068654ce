"""The three factorisations: CP, Tucker and NMF."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Unpack

import numpy as np

from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import known_options, positive_integer
from wtfarray._fit.driver import best_of
from wtfarray._fit.options import FitOptions, solver_options
from wtfarray._fit.result import Factorisation
from wtfarray._fit.specification import Kind, Weights, specify
from wtfarray._losses.protocol import Loss


def cp(
    X: Array,
    /,
    rank: int,
    loss: Loss,
    *,
    weights: Weights = None,
    **options: Unpack[FitOptions],
) -> Factorisation:
    """
    Non-negative CP decomposition: a sum of ``rank`` rank-one tensors.

    Parameters
    ----------
    X : array (n_0, ..., n_{d-1})
        Non-negative data, of any library that follows the Array API standard.
    rank : int
        Number of components.
    loss : Loss
        `Wasserstein`, `Frobenius`, `KullbackLeibler`, a `LossSum`, or one of your own.
    weights : {None, "learned", "fixed"}
        Weights of the components. None: ones if some factor carries the mass, learned on the
        simplex times the mass of X if every factor is normalised by columns. "fixed": equal shares
        of the mass.
    **options
        rho : float or sequence of float, default 1e-2
            Weight of the entropy of each factor, the core's or the weights' last.
        constraints : sequence of {None, "rows", "columns", "all"}
            What sums to one in each factor. By default the columns; in the first factor the rows if
            the first mode counts samples of mass one, nothing if it counts other samples.
        fixed : sequence of int
            Factors that keep the value that ``init`` gives them.
        init : {"kl", "random", "nnsvd"} or factors
            Where to start: random factors and a few multiplicative steps for the Kullback-Leibler
            divergence; random factors; non-negative SVD; given factors, alone or as
            ``(weights, factors)`` or ``(core, factors)``, such as a fit or TensorLy's CPTensor and
            TuckerTensor. Given factors are copied and normalised, their scales go into the weights,
            the core or a factor without constraint; entries below 1e-8 of the mean are raised to
            that, for an exact zero could never grow. By default "kl", or "random" where most of X
            is zero.
        n_init : int, default 1
            Number of starts; the best result is returned.
        rng : int or numpy.random.Generator
            Seed of the start.
        solver : {"envelope", "dual"}
            All blocks at once, or the paper's block coordinate descent in the dual.
        tol : float, default 1e-6
            Stop when the objective falls by less than this, relatively.
        max_iter : int, default 300
            Iterations (sweeps of "dual") at most. Those at coarser smoothings and on coarser grids,
            from which a fit starts, are not counted; steps through kinks may be as many again.
        sample_weight : array (n_0,)
            Weight of the loss of each sample along the first mode.
        batch : int
            Samples that are processed at once, to save memory.
        callback : callable
            Called with a `FitState` after every step; returning True ends the fit.
        progress : bool
            Show a progress bar with objective and gap (needs tqdm).
        checkpoint : path
            File to which the state is written now and then; a fit that finds it goes on from there.

    Returns
    -------
    Factorisation
        Unpacks as ``weights, factors``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.dirichlet(np.ones(36), 8).reshape(8, 6, 6)
    >>> loss = wtf.Wasserstein(wtf.grid_cost(6, 6), eps=0.05, lam=10.0)
    >>> fit = wtf.cp(X, 2, loss, rho=1e-2, rng=0)
    >>> weights, factors = fit
    >>> [factor.shape for factor in factors], fit.converged
    ([(8, 2), (6, 2), (6, 2)], True)
    """
    return _fit("cp", X, rank, loss, weights, options)


def tucker(
    X: Array, /, rank: Sequence[int], loss: Loss, **options: Unpack[FitOptions]
) -> Factorisation:
    """
    Non-negative Tucker decomposition: a core times one factor a mode.

    Parameters
    ----------
    X : array (n_0, ..., n_{d-1})
        Non-negative data.
    rank : sequence of int
        Size of the core, one number a mode.
    loss : Loss
        `Wasserstein`, `Frobenius`, `KullbackLeibler`, a `LossSum`, or one of your own.
    **options
        As for `cp`; ``constraints`` may have one more entry, None or "all", for the core.

    Returns
    -------
    Factorisation
        Unpacks as ``core, factors``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.dirichlet(np.ones(36), 8).reshape(8, 6, 6)
    >>> loss = wtf.Wasserstein(wtf.grid_cost(6, 6), eps=0.05, lam=10.0)
    >>> core, factors = wtf.tucker(X, (2, 3, 3), loss, rho=1e-2, rng=0)
    >>> core.shape
    (2, 3, 3)
    """
    return _fit("tucker", X, rank, loss, None, options)


def nmf(X: Array, /, rank: int, loss: Loss, **options: Unpack[FitOptions]) -> Factorisation:
    """
    Non-negative matrix factorisation, ``X ~ factors[0] @ factors[1].T``.

    With both factors normalised by columns the components have weights, as in `cp`.

    Parameters
    ----------
    X : array (samples, features) or (samples, n_1, ..., n_t)
        Non-negative data. With several feature modes the loss may use their grid, and the atoms
        are the flattened columns of ``factors[1]``.
    rank : int
        Number of atoms.
    loss : Loss
        `Wasserstein`, `Frobenius`, `KullbackLeibler`, a `LossSum`, or one of your own.
    **options
        As for `cp`.

    Returns
    -------
    Factorisation
        Unpacks as ``weights, factors``.

    Examples
    --------
    >>> import numpy as np
    >>> import wtfarray as wtf
    >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
    >>> loss = wtf.Wasserstein(wtf.grid_cost(12), eps=0.05, lam=10.0)
    >>> fit = wtf.nmf(X, 2, loss, rho=1e-2, rng=0)
    >>> fit.factors[0].shape, fit.factors[1].shape
    ((8, 2), (12, 2))
    """
    return _fit("nmf", X, rank, loss, None, options)


def _fit(
    kind: Kind,
    X: Array,
    rank: int | Sequence[int],
    loss: Loss,
    weights: Weights,
    given: FitOptions,
) -> Factorisation:
    known = list(FitOptions.__annotations__)
    known_options(kind, given, [*known, "weights"] if kind == "cp" else known)
    spec = specify(
        kind,
        X,
        rank,
        loss,
        rho=given.get("rho", 1e-2),
        constraints=given.get("constraints"),
        weights=weights,
        fixed=given.get("fixed", ()),
        sample_weight=given.get("sample_weight"),
    )
    options = solver_options(spec, given)
    starts = positive_integer("n_init", given.get("n_init", 1))
    if starts > 1 and options.checkpoint is not None:
        msg = f"checkpoint was given with n_init = {starts}: expected a single start"
        raise ValueError(msg)
    rng = np.random.default_rng(given.get("rng"))
    best = Factorisation.of(best_of(starts, spec, options, rng))
    if not best.converged:
        warnings.warn(f"{kind}: {best.message}", stacklevel=3)
    return best
