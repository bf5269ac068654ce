"""The base class of the estimators: validation, fit, transform and score."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from array_api_compat import device as device_of
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.namespace import array_namespace
from wtfarray._arrays.sparse import SparseSamples, is_sparse, to_dense
from wtfarray._arrays.sums import Sums, failing_together
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import (
    as_floating,
    common_namespace,
    follow,
    one_of,
    positive_integer,
    positive_number,
)
from wtfarray._fit.proximal import running_share
from wtfarray._fit.specification import Kind, Specification
from wtfarray._fit.team import Interrupts, team_of
from wtfarray._models.models import atoms_of
from wtfarray.sklearn._coefficients import coefficients_of, share_of_excess
from wtfarray.sklearn._costs import Cost, transport_loss
from wtfarray.sklearn._fitting import (
    fit_all,
    mean_problem,
    proximal_step,
    with_unit_components,
)
from wtfarray.sklearn._samples import (
    Samples,
    distinct_samples,
    observed_samples,
    shared_samples,
    to_unit_mass,
)
from wtfarray.sklearn._sparse import (
    dense_parts,
    distinct_sparse_samples,
    is_large,
    parts_of_samples,
)
from wtfarray.sklearn._team import check_same_parameters
from wtfarray.sklearn._validation import check_namespace, refuse_changed_parameters, validated

FREE_PARAMETERS = ("init", "n_init", "max_iter", "tol", "random_state", "verbose", "comm")
"""Parameters that may change between batches: they do not belong to the objective."""


class WassersteinDecomposition(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base class of the estimators; a subclass defines the model and the grid."""

    _kind: Kind
    _last: list[Array]
    """All blocks but the sample factor, after the last batch."""
    _mean: list[Array]
    """Their running mean."""

    def __init__(
        self,
        n_components: int | Sequence[int] = 2,
        *,
        cost: Cost = "sqeuclidean",
        eps: float = 5e-2,
        lam: float = 10.0,
        debias: bool = False,
        source_lam: float = math.inf,
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
        self.cost = cost
        self.eps = eps
        self.lam = lam
        self.debias = debias
        self.source_lam = source_lam
        self.rho_coefs = rho_coefs
        self.rho_atoms = rho_atoms
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose
        self.comm = comm

    def _grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The grid of samples of this shape."""
        return shape

    def _rank(self, shape: tuple[int, ...]) -> int | tuple[int, ...]:  # noqa: ARG002
        """The rank of the model for samples of this shape."""
        return positive_integer("n_components", self.n_components)

    def fit(self, X: Array, y: object = None, sample_weight: Array | None = None) -> Self:
        """
        Learn the components.

        Parameters
        ----------
        X : array (n_samples, ...)
            Non-negative samples, NaN where nothing was observed. Each is scaled to mass one; empty
            samples are ignored.
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
            self._fit_from_scratch(self._samples(X, "fit", sample_weight, reset=True))
            return self
        with interrupts.held(), failing_together(team):
            sums = Sums(team)
            samples = sums.agree(
                lambda: distinct_samples(validated(self, X, self._kind), sample_weight)
            )
            check_same_parameters(self, sums)
            self._fit_from_scratch(shared_samples(samples, sums), team, interrupts)
        return self

    def partial_fit(self, X: Array, y: object = None, sample_weight: Array | None = None) -> Self:
        """
        Update the components with a batch of samples.

        The first batch is fitted as by `fit`. In every other batch, a proximal term keeps the
        components close to the previous ones, with a weight that grows with the number of samples
        seen. ``components_`` is a running mean. Several passes over the data approach the result
        of `fit`.

        Parameters
        ----------
        X : array (n_samples, ...)
            A batch of samples, preferably drawn at random from the data.
        y : ignored
            Present for compatibility with scikit-learn.
        sample_weight : array (n_samples,), optional
            A weight of two is equivalent to repeating the sample.

        Returns
        -------
        self
        """
        del y
        if team_of(self.comm) is not None:
            msg = "comm was given, which partial_fit does not support: expected None, or fit"
            raise ValueError(msg)
        first = not hasattr(self, "components_")
        X = self._validated(X, "partial_fit", reset=first)
        samples = distinct_samples(X, sample_weight)
        if first:
            self._fit_from_scratch(samples)
            return self
        refuse_changed_parameters(self, self._first_parameters)
        spec = self._problem(samples)
        past = self.n_samples_seen_ / samples.total
        blocks, n_iter, message = proximal_step(
            spec,
            self._last,
            self.loss_.eps,
            past,
            max_iter=self.max_iter,
            tol=self.tol,
            progress=bool(self.verbose),
        )
        if message is not None:
            warnings.warn(f"{type(self).__name__}: {message}", ConvergenceWarning, stacklevel=2)
        blocks = with_unit_components(spec, blocks)
        self._set_fitted(samples, blocks, running_share(past))
        self.n_iter_ += n_iter
        self.n_samples_seen_ += samples.total
        return self

    def _fit_from_scratch(
        self,
        samples: Samples,
        team: Communicator | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        sums = Sums(team)
        self._first_parameters = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name not in FREE_PARAMETERS
        }
        self._sample_shape = tuple(samples.data.shape[1:])
        self._grid_shape = self._grid(self._sample_shape)
        self.loss_ = transport_loss(
            self.cost,
            self.eps,
            self.lam,
            self._grid_shape,
            samples,
            getattr(self, "feature_names_in_", None),
            debias=self.debias,
            source_lam=self.source_lam,
        )
        spec = self._problem(samples, team, interrupted)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        seed = int(sums.from_rank(np.asarray([float(seed)]), 0)[0])
        result = fit_all(
            spec,
            init=self.init,
            n_init=self.n_init,
            max_iter=self.max_iter,
            tol=self.tol,
            rng=np.random.default_rng(seed),
            progress=bool(self.verbose) and sums.leads,
        )
        if not result.converged and sums.leads:
            warnings.warn(
                f"{type(self).__name__}: {result.message}", ConvergenceWarning, stacklevel=3
            )
        self._set_fitted(samples, with_unit_components(spec, result.blocks), 1.0, team)
        self.n_iter_ = result.n_iter
        self.n_samples_seen_ = samples.total

    def _problem(
        self,
        samples: Samples,
        team: Communicator | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Specification:
        """The problem for these samples, with checked parameters."""
        positive_integer("n_init", self.n_init)
        positive_integer("max_iter", self.max_iter)
        positive_number("tol", self.tol)
        one_of("init", self.init, (None, "kl", "random", "nnsvd"))
        return mean_problem(
            self._kind,
            self._samples_on_grid(samples),
            self._rank(self._sample_shape),
            self.loss_,
            positive_number("rho_coefs", self.rho_coefs),
            positive_number("rho_atoms", self.rho_atoms),
            team,
            interrupted,
        )

    def _set_fitted(
        self,
        samples: Samples,
        blocks: list[Array],
        share: float,
        team: Communicator | None = None,
    ) -> None:
        """Set the fitted attributes; ``share`` is the weight of the blocks in the running mean."""
        xp = array_namespace(blocks[0])
        atoms, excess = self._components_of(blocks).mT, 0.0
        for chosen, part in parts_of_samples(samples):
            excess += self._excess(part, xp.matmul(blocks[0][chosen, :], atoms), samples)
        n, sums = samples.data.shape[0], Sums(team)
        if sums.shared:
            total, count = sums.numbers(excess * n, n)
            excess = total / count
        self.reconstruction_err_ = excess
        mean = self._last = blocks[1:]
        if share < 1:
            mean = [
                (1.0 - share) * xp.astype(old, new.dtype) + share * new
                for old, new in zip(self._mean, mean, strict=True)
            ]
        self._mean = mean
        components = self._components_of([blocks[0], *mean]).mT
        self.components_ = xp.reshape(components, (-1, *self._sample_shape))
        self._set_factors(mean)

    def _set_factors(self, blocks: list[Array]) -> None:
        """Set the attributes of factors and core, if the model has them."""

    def _components_of(self, blocks: list[Array]) -> Array:
        """The components, (bins of a sample, n_components), from all blocks but the first."""
        if self._kind == "tucker":
            return atoms_of(blocks[:-1], blocks[-1], None)
        return atoms_of(blocks, None, None)

    def transform(self, X: Array) -> Array:
        """
        The coefficients of samples, with fixed components: a convex problem.

        Parameters
        ----------
        X : array (n_samples, ...)
            Non-negative samples, NaN where nothing was observed.

        Returns
        -------
        array (n_samples, n_components)
            Each row sums to the mass of its sample; that of a sample with missing entries to the
            mass that the model gives the whole sample.
        """
        check_is_fitted(self, "components_")
        X = self._validated(X, "transform", reset=False, may_be_sparse=True)
        found: list[Array] = []
        messages: list[str] = []
        for part in dense_parts(X):
            samples, mask = observed_samples(as_floating("X", part, common_namespace(X=part)))
            samples, mass = to_unit_mass(samples)
            coefficients, unsolved = self._coefficients(samples, mask)
            found.append(coefficients * mass[:, None])
            messages = messages or unsolved
        self._warn_unsolved(messages)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def fit_transform(
        self, X: Array, y: object = None, sample_weight: Array | None = None
    ) -> Array:
        """
        `fit`, then `transform`.

        Parameters
        ----------
        X : array (n_samples, ...)
            Non-negative samples.
        y : ignored
            Present for compatibility with scikit-learn.
        sample_weight : array (n_samples,), optional
            A weight of two is equivalent to repeating the sample.

        Returns
        -------
        array (n_samples, n_components)
            Each row sums to the mass of its sample.
        """
        return self.fit(X, y, sample_weight=sample_weight).transform(X)

    def inverse_transform(self, X: Array) -> Array:
        """
        Reconstruct samples from their coefficients.

        Parameters
        ----------
        X : array (n_samples, n_components)
            Coefficients.

        Returns
        -------
        array (n_samples, ...)
            Sums of components, close to the original samples blurred by the kernel.
        """
        check_is_fitted(self, "components_")
        if not hasattr(X, "dtype") or not get_config()["array_api_dispatch"]:
            X = np.asarray(X)
        xp = common_namespace(X=X)
        X = as_floating("X", X, xp)
        if X.ndim != 2 or X.shape[1] != self._n_features_out:
            msg = f"X has shape {tuple(X.shape)}: expected (n, {self._n_features_out})"
            raise ValueError(msg)
        return xp.reshape(xp.matmul(X, self._rows_like(X)), (-1, *self._sample_shape))

    def score(self, X: Array, y: object = None, sample_weight: Array | None = None) -> float:
        """
        Minus the mean loss of samples after projection onto the components; at most 0.

        The loss of each sample, scaled to mass one, is taken relative to its minimum over all
        models, which is attained by the sample blurred by the kernel. Scores can be compared
        between ranks, values of ``rho`` and initialisations, but not between costs, values of
        ``eps`` or ``lam``, which change the loss.

        Parameters
        ----------
        X : array (n_samples, ...)
            Non-negative samples; empty samples are ignored.
        y : ignored
            Present for compatibility with scikit-learn.
        sample_weight : array (n_samples,), optional
            Weights of the mean.

        Returns
        -------
        float
            Higher is better.
        """
        del y
        check_is_fitted(self, "components_")
        samples = self._samples(X, "score", sample_weight, reset=False)
        messages: list[str] = []
        excess = 0.0
        for _, part in parts_of_samples(samples):
            coefficients, unsolved = self._coefficients(part.data, part.mask)
            messages = messages or unsolved
            excess += self._excess(part, self.inverse_transform(coefficients), samples)
        self._warn_unsolved(messages)
        return -excess

    def _warn_unsolved(self, messages: Sequence[str]) -> None:
        """Warn the caller of `transform` or `score`."""
        for message in messages:
            text = f"{type(self).__name__}: {message}"
            warnings.warn(text, ConvergenceWarning, stacklevel=4)

    def _rows_like(self, X: Array) -> Array:
        """The components, (n_components, bins of a sample), in the dtype of X."""
        components = follow(
            "components_", self.components_, array_namespace(X), X.dtype, device_of(X)
        )
        return array_namespace(X).reshape(components, (components.shape[0], -1))

    def _coefficients(self, X: Array, mask: Array | None) -> tuple[Array, list[str]]:
        """The coefficients of samples of mass one, and why a solve did not converge."""
        return coefficients_of(
            self._on_grid(X),
            None if mask is None else self._on_grid(mask),
            self._rows_like(X).mT,
            self.loss_,
            self.rho_coefs,
            progress=bool(self.verbose),
        )

    def _excess(self, samples: Samples, Y: Array, whole: Samples) -> float:
        """The share of some samples in the mean excess of the loss over the whole."""
        n = whole.data.shape[0]
        return share_of_excess(self._samples_on_grid(samples), self._on_grid(Y), self.loss_, n)

    def _samples_on_grid(self, samples: Samples) -> Samples:
        mask = None if samples.mask is None else self._on_grid(samples.mask)
        return replace(samples, data=self._on_grid(samples.data), mask=mask)

    def _on_grid(self, X: Array) -> Array:
        if isinstance(X, SparseSamples):
            return X.on_grid(self._grid_shape)
        return array_namespace(X).reshape(X, (-1, *self._grid_shape))

    def _samples(self, X: Array, method: str, sample_weight: object, *, reset: bool) -> Samples:
        """The distinct samples; those of a large sparse matrix stay sparse."""
        X = self._validated(X, method, reset=reset, may_be_sparse=True)
        if not is_sparse(X):
            return distinct_samples(X, sample_weight)
        if not is_large(X):
            dense = to_dense(X)
            dense = as_floating("X", dense, common_namespace(X=dense))
            return distinct_samples(dense, sample_weight)
        return distinct_sparse_samples(X, sample_weight)

    def _validated(
        self, X: Array, method: str, *, reset: bool, may_be_sparse: bool = False
    ) -> Array:
        """The checked samples; a fitted estimator, not ``reset``, compares them with its own."""
        if not reset:
            check_namespace(X, self.components_, f"{type(self).__name__}.{method}")
        shape = None if reset else self._sample_shape
        return validated(self, X, self._kind, shape, may_be_sparse=may_be_sparse)

    @property
    def _n_features_out(self) -> int:
        """The number of columns of the output of `transform`."""
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Tags:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.sparse = self._kind == "nmf"
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = self._kind != "nmf"
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.array_api_support = True
        return tags
