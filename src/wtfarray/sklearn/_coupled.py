"""An estimator for several data sets whose features stand side by side in one matrix."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.sparse import SparseSamples, divided_rows, is_sparse, to_csr, to_dense
from wtfarray._arrays.sums import Sums, failing_together
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import positive_integer, positive_number
from wtfarray._fit.coupled import CoupledOptions, fit_coupled
from wtfarray._fit.team import Interrupts, team_of
from wtfarray._losses.least import least_value
from wtfarray._losses.value import wasserstein
from wtfarray._models.entropy import Constraint
from wtfarray._transport.feature_costs import METRICS
from wtfarray.sklearn._costs import Cost, transport_loss
from wtfarray.sklearn._samples import (
    Samples,
    groups_of_equal,
    observed_samples,
    refuse_negative,
    sample_weights,
    shared_samples,
    with_weights,
)
from wtfarray.sklearn._sparse import dense_parts, is_large, refuse_missing
from wtfarray.sklearn._team import check_same_parameters

Real = NDArray[Any]


class CoupledWassersteinNMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """
    Matrix factorisation of several data sets with the same samples and shared coefficients.

    The columns of X are the features of all data sets, one data set after the other. Each sample is
    scaled to mass one in each of them. NaN stands for entries that were not observed; a data set
    that lacks a sample has NaN, or 0, in all its columns. The objective is a mean over samples and
    components as that of `WassersteinNMF`, with the weighted sum of the losses of the data sets.

    Parameters
    ----------
    n_components : int, default 2
        Number of components.
    blocks : sequence of int, optional
        The number of features of each data set; by default there is one.
    costs : sequence, optional
        The cost of each data set, as ``cost`` of `WassersteinNMF`; by default "sqeuclidean".
    weights : sequence of float, optional
        The weight of the loss of each data set; by default one.
    eps, lam, rho_coefs, rho_atoms, init, n_init, max_iter, tol, random_state, verbose
        As for `WassersteinNMF`, the same in every data set.
    comm : Communicator, optional
        A team of processes, of `wtfarray.distributed`, whose samples are fitted together by `fit`;
        each passes its own, at least one. Costs that are computed from the samples, such as
        "cosine", are not supported.

    Attributes
    ----------
    components_ : array (n_components, n_features)
        The components, each of mass one in every data set.
    fit_ : wtfarray.CoupledFactorisation
        The fit to the distinct samples, with objective, duality gap and history.
    losses_ : list of wtfarray.Wasserstein
        The losses, with costs scaled to mean one.
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : array of str
        Names of the features, if X has any.

    Examples
    --------
    >>> import numpy as np
    >>> from wtfarray.sklearn import CoupledWassersteinNMF
    >>> rng = np.random.default_rng(0)
    >>> X = np.hstack([rng.dirichlet(np.ones(6), 9), rng.dirichlet(np.ones(4), 9)])
    >>> model = CoupledWassersteinNMF(2, blocks=(6, 4), random_state=0).fit(X)
    >>> model.components_.shape, model.transform(X).shape
    ((2, 10), (9, 2))
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        blocks: Sequence[int] | None = None,
        costs: Sequence[Cost] | None = None,
        weights: Sequence[float] | None = None,
        eps: float = 5e-2,
        lam: float = 10.0,
        rho_coefs: float = 1e-2,
        rho_atoms: float = 1e-3,
        init: str | None = None,
        n_init: int = 1,
        max_iter: int = 300,
        tol: float = 1e-5,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
        comm: Communicator | None = None,
    ) -> None:
        self.n_components = n_components
        self.blocks = blocks
        self.costs = costs
        self.weights = weights
        self.eps = eps
        self.lam = lam
        self.rho_coefs = rho_coefs
        self.rho_atoms = rho_atoms
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose
        self.comm = comm

    def fit(self, X: Real, y: object = None, sample_weight: Array | None = None) -> Self:
        """
        Learn the components.

        Parameters
        ----------
        X : array or sparse matrix (n_samples, n_features)
            Non-negative samples, NaN where nothing was observed. Samples of which nothing was
            observed are ignored. A large sparse matrix is never made dense as a whole.
        y : ignored
            Present for compatibility with scikit-learn.
        sample_weight : array (n_samples,), optional
            A weight of two is equivalent to repeating the sample.

        Returns
        -------
        self
        """
        del y
        team, interrupts = team_of(self.comm), Interrupts()
        if team is None:
            self._fit_prepared(self._prepared(X, sample_weight))
            return self
        with interrupts.held(), failing_together(team):
            sums = Sums(team)
            check_same_parameters(self, sums)
            prepared = sums.agree(lambda: self._prepared(X, sample_weight))
            self._fit_prepared(_shared(prepared, sums), team, interrupts)
        return self

    def _prepared(self, X: Real, sample_weight: Array | None) -> _Prepared:
        """The distinct samples of positive weight, and the losses."""
        X = self._validated(X, reset=True)
        weights = sample_weights(sample_weight, X.shape[0])
        weights = np.where(_masses(X) > 0, weights, 0.0)
        if not weights.any():
            msg = "X has no sample of positive mass and weight: expected at least one"
            raise ValueError(msg)
        data, masks, free, scaled = self._distinct(X, weights)
        costs = ["sqeuclidean"] * len(data) if self.costs is None else list(self.costs)
        if len(costs) != len(data):
            msg = f"costs has {len(costs)} entries: expected {len(data)}, one per data set"
            raise ValueError(msg)
        if self.comm is not None and any(isinstance(c, str) and c in METRICS for c in costs):
            msg = (
                f"comm was given and costs is {costs}, some computed from the samples of this "
                "process alone: expected cost matrices"
            )
            raise ValueError(msg)
        ends = np.cumsum([part.shape[1] for part in data])
        names = getattr(self, "feature_names_in_", None)
        self.losses_ = [
            transport_loss(
                cost,
                self.eps,
                self.lam,
                (part.shape[1],),
                _samples(part, mask, scaled),
                None if names is None else names[end - part.shape[1] : end],
            )
            for cost, part, mask, end in zip(costs, data, masks, ends, strict=True)
        ]
        n = data[0].shape[0]
        return _Prepared(data, masks, scaled, bool(free.any()), n, float(weights.sum()))

    def _fit_prepared(
        self,
        samples: _Prepared,
        team: Communicator | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Fit the samples of this process with those of the others, and set the attributes."""
        sums, number = Sums(team), len(samples.data)
        rank = positive_integer("n_components", self.n_components)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        atoms = positive_number("rho_atoms", self.rho_atoms) * samples.n / rank
        columns: Constraint = "columns"
        first: Constraint = None if samples.free else "rows"
        rho = positive_number("rho_coefs", self.rho_coefs)
        options: CoupledOptions = {
            "rho": (rho, *[atoms] * number),
            "constraints": (first, *[columns] * number),
            "init": self.init,
            "n_init": self.n_init,
            "rng": int(sums.from_rank(np.asarray([float(seed)]), 0)[0]),
            "tol": self.tol,
            "max_iter": self.max_iter,
            "progress": bool(self.verbose) and sums.leads,
            "sample_weight": samples.weights,
        }
        found = fit_coupled(
            samples.data,
            rank,
            self.losses_,
            self.weights,
            samples.masks,
            options,
            team,
            interrupted,
            weights_entropy=True,
        )
        fits = [replace(fit, rho=(rho, fit.rho[1])) for fit in found.fits]
        self.fit_ = replace(found, fits=fits)
        if not self.fit_.converged and sums.leads:
            message = f"{type(self).__name__}: {self.fit_.message}"
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
        self.components_ = np.concatenate([fit.factors[1].T for fit in self.fit_.fits], axis=1)
        self.n_iter_ = self.fit_.n_iter

    def transform(self, X: Real) -> Real:
        """
        The coefficients of samples, with fixed components: a convex problem.

        Parameters
        ----------
        X : array (n_samples, n_features)
            Non-negative samples, NaN where nothing was observed.

        Returns
        -------
        array (n_samples, n_components)
            The rows of complete samples sum to one. Samples of which nothing was observed have
            zeros.
        """
        check_is_fitted(self, "components_")
        parts = dense_parts(self._validated(X, reset=False))
        return np.concatenate([self._coefficients(*self._split(part)) for part in parts])

    def inverse_transform(self, X: Real) -> Real:
        """
        Reconstruct samples from their coefficients.

        Parameters
        ----------
        X : array (n_samples, n_components)
            Coefficients.

        Returns
        -------
        array (n_samples, n_features)
            Sums of components.
        """
        check_is_fitted(self, "components_")
        X = np.asarray(X)
        if X.ndim != 2 or X.shape[1] != self._n_features_out:
            msg = f"X has shape {tuple(X.shape)}: expected (n, {self._n_features_out})"
            raise ValueError(msg)
        found: Real = X @ self.components_
        return found

    def score(self, X: Real, y: object = None, sample_weight: Array | None = None) -> float:
        """
        Minus the weighted mean loss of samples after projection onto the components; at most 0.

        Parameters
        ----------
        X : array (n_samples, n_features)
            Non-negative samples, NaN where nothing was observed.
        y : ignored
            Present for compatibility with scikit-learn.
        sample_weight : array (n_samples,), optional
            Weights of the mean.

        Returns
        -------
        float
            Higher is better; see `WassersteinNMF.score`.
        """
        del y
        check_is_fitted(self, "components_")
        X = self._validated(X, reset=False)
        weights = None if sample_weight is None else sample_weights(sample_weight, X.shape[0])
        total, first = 0.0, 0
        for part in dense_parts(X):
            rows = slice(first, first + part.shape[0])
            total += self._excess(part, None if weights is None else weights[rows])
            first = rows.stop
        return -max(float(total / (X.shape[0] if weights is None else weights.sum())), 0.0)

    def _excess(self, X: Real, weights: NDArray[np.float64] | None) -> float:
        """The weighted sum of the losses of samples, above their minima."""
        data, masks, free = self._split(X)
        model = self.inverse_transform(self._coefficients(data, masks, free))
        total, start = 0.0, 0
        parts = zip(data, masks, self.losses_, self.fit_.weights, strict=True)
        for part, mask, loss, weight in parts:
            filled = part.sum(axis=1) > 0
            if weights is not None:
                filled &= weights > 0
            seen = None if mask is None else mask[filled]
            Z, Y = part[filled], model[filled, start : start + part.shape[1]]
            start += part.shape[1]
            if not filled.any():
                continue
            if weights is not None:  # the excess is homogeneous: they multiply the masses
                Z, Y = (array * weights[filled, None].astype(Z.dtype) for array in (Z, Y))
            value = float(wasserstein(Z, Y, loss, mask=seen).value)
            total += weight * (value - least_value(loss, Z, seen))
        return total

    def _coefficients(
        self, data: list[Real], masks: list[Real | None], free: NDArray[np.bool_]
    ) -> Real:
        """Of samples whose mass is not known they are free, and zero if nothing was observed."""
        found = np.zeros((data[0].shape[0], self._n_features_out), dtype=data[0].dtype)
        filled = np.any([part.sum(axis=1) > 0 for part in data], axis=0)
        for constraint in ("rows", None):
            rows = np.flatnonzero(filled & (free == (constraint is None)))
            if not rows.size:
                continue
            fits = [
                replace(fit, constraints=(constraint, fit.constraints[1])) for fit in self.fit_.fits
            ]
            used = [bool(part[rows].any()) for part in data]
            # Data sets that lack all of these samples are not asked.
            arrays = [part[rows] if use else None for part, use in zip(data, used, strict=True)]
            seen = [None if mask is None else mask[rows] for mask in masks]
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                found[rows] = replace(self.fit_, fits=fits).project(
                    arrays, mask=seen, progress=bool(self.verbose)
                )
            for warning in caught:
                message = f"{type(self).__name__}: {warning.message}"
                warnings.warn(message, ConvergenceWarning, stacklevel=3)
        return found

    def _distinct(
        self, X: Real, weights: NDArray[np.float64]
    ) -> tuple[list[Real], list[Real | None], NDArray[np.bool_], Real | None]:
        """The distinct samples of positive weight as `_split` returns them, with their weights."""
        if is_sparse(X):
            kept = np.flatnonzero(weights)
            rest = weights[kept] / weights[kept].mean()
            even = bool(np.all(rest == rest[0]))
            return *self._split(X[kept]), None if even else rest.astype(X.dtype)
        data, masks, free = self._split(X)
        marked = [
            part if mask is None else np.where(mask, part, -1.0).astype(part.dtype)
            for part, mask in zip(data, masks, strict=True)
        ]
        order, new = groups_of_equal(np.hstack(marked), weights)
        first, scaled, _ = with_weights(new, weights[order], X.dtype)
        rows = order[first]
        few = [None if mask is None else mask[rows] for mask in masks]
        few = [None if mask is None or mask.all() else mask for mask in few]
        return [part[rows] for part in data], few, free[rows], scaled

    def _split(self, X: Real) -> tuple[list[Real], list[Real | None], NDArray[np.bool_]]:
        """The data sets, of mass one, their masks, and which samples lack some entries of one."""
        sizes = [X.shape[1]] if self.blocks is None else list(self.blocks)
        sizes = [positive_integer(f"blocks[{k}]", size) for k, size in enumerate(sizes)]
        if sum(sizes) != X.shape[1]:
            msg = f"blocks is {self.blocks}: expected numbers whose sum is {X.shape[1]}, that of X"
            raise ValueError(msg)
        data, masks, free = [], [], np.zeros(X.shape[0], dtype=bool)
        ends = np.cumsum(sizes)
        for part in (X[:, end - size : end] for end, size in zip(ends, sizes, strict=True)):
            if is_sparse(part):
                mass = _masses(part)
                data.append(divided_rows(part, np.where(mass > 0, mass, 1.0)))
                masks.append(None if (mass > 0).all() else (mass > 0)[:, None])
                continue
            values, mask = observed_samples(part)
            mass = values.sum(axis=1, keepdims=True)
            mask = np.ones(part.shape, dtype=bool) if mask is None else mask
            mask = mask & (mass > 0)  # an empty sample is one that the data set lacks
            free |= mask.any(axis=1) & ~mask.all(axis=1)
            data.append(values / np.where(mass > 0, mass, 1.0))
            masks.append(None if mask.all() else mask)
        return data, masks, free

    def _validated(self, X: Real, *, reset: bool) -> Real:
        kinds = (np.float64, np.float32)
        found: Real = validate_data(
            self,
            X,
            reset=reset,
            dtype=kinds,
            ensure_all_finite="allow-nan",
            accept_sparse="csr",
        )
        refuse_negative(found, type(self).__name__)
        if is_sparse(found):
            found = to_csr(found) if is_large(found) else to_dense(found)
            refuse_missing("X", found)
        return found

    @property
    def _n_features_out(self) -> int:
        """The number of columns of the output of `transform`."""
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Tags:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@dataclass(frozen=True, eq=False)
class _Prepared:
    """The distinct samples to fit."""

    data: list[Real]
    masks: list[Real | None]
    weights: Real | None
    """Weights of mean one, over all processes; None for ones."""
    free: bool
    """Whether some sample lacks entries, so that its mass is not known."""
    n: int
    """Their number, in all processes."""
    total: float
    """The sum of the weights as they were given."""


def _shared(samples: _Prepared, sums: Sums) -> _Prepared:
    """The samples of one process of several: weights of mean one over all, masks on all or none."""
    first = Samples(samples.data[0], samples.weights, samples.total)
    (n,) = sums.numbers(samples.n)
    masks = [
        np.ones(part.shape, dtype=bool) if sums.any(mask is not None) and mask is None else mask
        for part, mask in zip(samples.data, samples.masks, strict=True)
    ]
    weights = shared_samples(first, sums).weights
    return replace(samples, masks=masks, weights=weights, free=sums.any(samples.free), n=round(n))


def _masses(X: Real) -> NDArray[np.float64]:
    """The mass of what was observed of each sample, (n,)."""
    if is_sparse(X):
        return np.asarray(X @ np.ones(X.shape[1]), dtype=np.float64)
    return np.asarray(np.nansum(X, axis=1), dtype=np.float64)


def _samples(part: Real, mask: Real | None, weights: NDArray[np.float64] | None) -> Samples:
    """The samples of a data set from which its cost may be computed."""
    if not is_sparse(part):
        scaled = None if weights is None else weights.astype(part.dtype)
        return Samples(part, scaled, part.shape[0], mask)
    filled = np.flatnonzero(_masses(part))
    few = None if weights is None else weights[filled]
    return Samples(SparseSamples(part[filled]), few, filled.size)
