"""The base class of the estimators: validation, fit, transform and score."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj, is_numpy_array
from array_api_compat import device as device_of
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.host import to_host
from wtfarray._arrays.samples import per_sample, spread
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
from wtfarray._fit.projection import project_samples
from wtfarray._fit.proximal import running_share
from wtfarray._fit.specification import Kind, Specification
from wtfarray._fit.team import Interrupts, team_of
from wtfarray._losses.least import least_value
from wtfarray._losses.value import wasserstein
from wtfarray._models.models import atoms_of
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
    refuse_negative,
    rows,
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

PROJECTION_TOL = 1e-9
"""Tolerance of `transform`, a convex problem."""
PROJECTION_ITERATIONS = 1000
"""Largest number of iterations of `transform`."""
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
                lambda: distinct_samples(self._validated(X, "fit", reset=True), sample_weight)
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
        samples = distinct_samples(self._validated(X, "partial_fit", reset=first), sample_weight)
        if first:
            self._fit_from_scratch(samples)
            return self
        self._refuse_changed_parameters()
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

    def _refuse_changed_parameters(self) -> None:
        """Refuse parameters of the objective other than those of the first batch."""
        for name, before in self._first_parameters.items():
            now = getattr(self, name)
            if now is before or _same(now, before):
                continue
            msg = (
                f"{name} is {now!r}, but the first batch was fitted with {before!r}: expected no "
                f"change; call fit to begin anew"
            )
            raise ValueError(msg)

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
            replace(
                samples,
                data=self._on_grid(samples.data),
                mask=None if samples.mask is None else self._on_grid(samples.mask),
            ),
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

    def _coefficients(self, X: Array, mask: Array | None) -> tuple[Array, list[str]]:
        """
        The coefficients of samples of mass one, zero for empty ones; why a solve did not converge.

        Those of complete samples sum to one. The mass of a sample with missing entries is not
        known, and its coefficients are free.
        """
        xp = array_namespace(X)
        filled = to_host(per_sample(X)) > 0
        complete = np.ones_like(filled)
        if mask is not None:
            seen = xp.all(mask, axis=tuple(range(1, mask.ndim)))
            complete = to_host(xp.astype(seen, X.dtype)) > 0
        found = [xp.zeros((1, self._n_features_out), dtype=X.dtype, device=device_of(X))]
        # Row 0 is shared by all empty samples.
        where, n = np.zeros(X.shape[0], dtype=np.int64), 1
        messages: list[str] = []
        for whole in (True, False):
            group = np.flatnonzero(filled & (complete == whole))
            if not group.size:
                continue
            projected = project_samples(
                self._on_grid(rows(X, group)),
                self._rows_like(X).mT,
                self.loss_,
                constraint="rows" if whole else None,
                rho=self.rho_coefs,
                tol=PROJECTION_TOL,
                max_iter=PROJECTION_ITERATIONS,
                mask=None if whole else self._on_grid(rows(mask, group)),
                progress=bool(self.verbose),
            )
            if not projected.converged:
                messages.append(projected.message)
            found.append(projected.coefficients)
            where[group] = np.arange(n, n + group.size)
            n += group.size
        return rows(xp.concat(found), where), messages

    def _rows_like(self, X: Array) -> Array:
        """The components, (n_components, bins of a sample), in the dtype of X."""
        components = follow(
            "components_", self.components_, array_namespace(X), X.dtype, device_of(X)
        )
        return array_namespace(X).reshape(components, (components.shape[0], -1))

    def _excess(self, samples: Samples, Y: Array, whole: Samples) -> float:
        """
        The share of some samples in the mean of ``OT(x, y) - min_y OT(x, y)`` over the whole.

        All samples have mass one.
        """
        n = whole.data.shape[0]
        X, Y = (self._on_grid(Z) / n for Z in (samples.data, Y))
        if samples.weights is not None:
            # The excess is homogeneous: weights can be applied to the masses.
            X, Y = (Z * spread(samples.weights, Z) for Z in (X, Y))
        mask = None if samples.mask is None else self._on_grid(samples.mask)
        excess = float(wasserstein(X, Y, self.loss_, mask=mask).value)
        return max(excess - least_value(self.loss_, X, mask), 0.0)

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
        """
        The samples as a floating-point array, of their own library if dispatch is enabled.

        If ``may_be_sparse``, a sparse matrix stays one.
        """
        if not reset:
            self._check_namespace(X, method)
        X = validate_data(
            self,
            X,
            reset=reset,
            dtype="numeric",
            allow_nd=self._kind != "nmf",
            ensure_all_finite="allow-nan",
            accept_sparse="csr" if self._kind == "nmf" else False,
        )
        refuse_negative(X, type(self).__name__)
        if is_sparse(X) and not may_be_sparse:
            X = to_dense(X)
        if not reset and tuple(X.shape[1:]) != self._sample_shape:
            expected = ", ".join(map(str, self._sample_shape))
            msg = f"X has shape {tuple(X.shape)}: expected (n, {expected})"
            raise ValueError(msg)
        return X if is_sparse(X) else as_floating("X", X, common_namespace(X=X))

    def _check_namespace(self, X: Array, method: str) -> None:
        """If dispatch is enabled, refuse arrays with another library or device than the fit."""
        if not get_config()["array_api_dispatch"]:
            return
        X = X if hasattr(X, "__array_namespace__") or hasattr(X, "device") else np.empty(0)
        fitted = self.components_
        same = array_namespace(X) is array_namespace(fitted)
        if not same or (not is_numpy_array(X) and device_of(X) != device_of(fitted)):
            msg = (
                f"X is an array of {array_namespace(X).__name__} on device {device_of(X)} and "
                f"components_ one of {array_namespace(fitted).__name__} on {device_of(fitted)}: "
                f"inputs passed to {type(self).__name__}.{method}() must use the same namespace "
                f"and device as those of fit()"
            )
            raise ValueError(msg)

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


def _same(a: Any, b: Any) -> bool:
    """Whether two values of a parameter are equal, also if they are arrays or hold some."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if is_array_api_obj(a) and is_array_api_obj(b):
        x: Array = a
        y: Array = b
        xp = array_namespace(x)
        return xp is array_namespace(y) and x.shape == y.shape and bool(xp.all(x == y))
    return type(a) is type(b) and bool(a == b)
