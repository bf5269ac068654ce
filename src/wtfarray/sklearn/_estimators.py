"""The estimators: matrix, CP and Tucker models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wtfarray._arrays.communicator import Communicator
from wtfarray._arrays.typing import Array
from wtfarray._arrays.validation import positive_integer
from wtfarray._fit.specification import Kind
from wtfarray.sklearn._base import WassersteinDecomposition
from wtfarray.sklearn._costs import Cost, grid_of


class WassersteinNMF(WassersteinDecomposition):
    """
    Matrix factorisation of samples x features with a smoothed Wasserstein loss.

    ``X ~ W @ components_``: every sample is a sum of components of mass one, and the coefficients
    of a sample sum to its mass. The objective is a mean over the samples, scaled to mass one, and
    over the components::

        mean_i [ OT(x_i, components_^T a_i) + rho_coefs E(a_i) ] + rho_atoms mean_j E(components_j)

    with the transport loss OT of `wtfarray.Wasserstein` and ``E(a) = <a, log a - 1>``, up to
    constants. The meaning of the parameters therefore does not depend on the number of samples,
    features or components, nor on the scale of X. They are in units of the mean cost.

    Parameters
    ----------
    n_components : int, default 2
        Number of components.
    cost : str, array (n_features, n_features) or list of arrays
        Cost of transporting mass between two features. "sqeuclidean" or "cityblock": the squared or
        the city-block distance on the grid of the features. "cosine", "correlation" or "euclidean":
        the distance of the features in the samples, scaled to mass one, of `fit` or of the first
        batch; see `wtfarray.feature_cost`. A matrix: the costs between all features. A list: one
        matrix per axis of the grid; the cost is their sum. The cost is divided by its mean.
    grid_shape : tuple of int, optional
        The grid of the features, in C order; by default a line, or the grid given by a list of
        costs.
    eps : float, default 0.05
        Smoothing of the loss, positive; typically from 1e-3 (fine detail, slow) to 0.5 (coarse,
        fast). On a line of n features, values below about ``6 / n**2`` do not blur the model.
    lam : float, default 10
        Creating or destroying mass costs about ``lam`` per unit. Positive, typically from 1
        (distant mass is not transported) to 100; ``inf`` is balanced transport.
    debias : bool, default False
        Whether to remove the blur of the smoothing, so that components are as sharp as the data;
        see `wtfarray.Wasserstein`.
    source_lam : float, default inf
        Mass of a sample may stay behind at a price of about ``source_lam`` per unit, for noise,
        background and outliers. Positive; ``inf`` transports all of it. Needs a finite ``lam``.
    rho_coefs : float, default 1e-2
        Weight of the entropy of the coefficients of a sample, positive; typically from 1e-4 (few
        components per sample) to 0.1 (even coefficients).
    rho_atoms : float, default 1e-3
        Weight of the mean entropy of the components, positive; typically from 1e-5 (sharp) to 0.1
        (smooth).
    init : {None, "kl", "random", "nnsvd"}
        Initialisation; see `wtfarray.cp`.
    n_init : int, default 1
        Number of initialisations; those that fall behind are stopped, and the best is kept.
    max_iter : int, default 300
        Largest number of iterations.
    tol : float, default 1e-5
        Tolerance on the relative decrease of the objective, at which the fit stops.
    random_state : int, numpy.random.RandomState or None
        Seed of the initialisation.
    verbose : bool, default False
        Show a progress bar in `fit`, `partial_fit`, `transform` and `score` (needs tqdm).
    comm : Communicator, optional
        A team of processes, of `wtfarray.distributed`, whose samples are fitted together by `fit`;
        each passes its own, at least one. `partial_fit` does not support it.

    Attributes
    ----------
    components_ : array (n_components, n_features)
        The components, each of mass one.
    loss_ : wtfarray.Wasserstein
        The fitted loss, with the cost scaled to mean one.
    reconstruction_err_ : float
        Mean loss of the samples, or of the last batch, at the end of the fit; see `score`.
    n_iter_ : int
        Number of iterations so far.
    n_samples_seen_ : float
        Total weight of the samples fitted so far.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : array of str
        Names of the features, if X has any.

    Examples
    --------
    >>> import numpy as np
    >>> from wtfarray.sklearn import WassersteinNMF
    >>> X = np.random.default_rng(0).dirichlet(np.ones(12), 8)
    >>> model = WassersteinNMF(2, eps=0.05, random_state=0).fit(X)
    >>> model.components_.shape, model.transform(X).shape
    ((2, 12), (8, 2))
    """

    _kind: Kind = "nmf"

    def __init__(
        self,
        n_components: int = 2,
        *,
        cost: Cost = "sqeuclidean",
        grid_shape: int | Sequence[int] | None = None,
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
        super().__init__(
            n_components,
            cost=cost,
            eps=eps,
            lam=lam,
            debias=debias,
            source_lam=source_lam,
            rho_coefs=rho_coefs,
            rho_atoms=rho_atoms,
            init=init,
            n_init=n_init,
            max_iter=max_iter,
            tol=tol,
            random_state=random_state,
            verbose=verbose,
            comm=comm,
        )
        self.grid_shape = grid_shape

    def _grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return grid_of(shape[0], self.cost, self.grid_shape)


class WassersteinCP(WassersteinDecomposition):
    """
    CP decomposition of a stack of tensors with a smoothed Wasserstein loss.

    Like `WassersteinNMF`, but samples are tensors, X is (n_samples, n_1, ..., n_t), and every
    component is an outer product of one vector per mode. Its entropy is the sum of the entropies of
    the vectors.

    Parameters
    ----------
    n_components : int, default 2
        Number of components.
    cost : str, array (n, n) or list of arrays (n_k, n_k)
        A name: as for `WassersteinNMF`. A list: one matrix
        per mode; the cost is their sum. A matrix: the costs between all bins of a sample, in C
        order. The cost is divided by its mean.
    eps, lam, debias, source_lam, rho_coefs, rho_atoms, init, n_init, max_iter, tol, random_state
        As for `WassersteinNMF`.
    verbose, comm
        As for `WassersteinNMF`.

    Attributes
    ----------
    components_ : array (n_components, n_1, ..., n_t)
        The components, each of mass one.
    factors_ : list of arrays (n_k, n_components)
        The vectors of the components; each column sums to one.
    loss_, reconstruction_err_, n_iter_, n_samples_seen_, n_features_in_, feature_names_in_
        As for `WassersteinNMF`; ``n_features_in_`` is n_1.

    Examples
    --------
    >>> import numpy as np
    >>> from wtfarray.sklearn import WassersteinCP
    >>> X = np.random.default_rng(0).dirichlet(np.ones(36), 8).reshape(8, 6, 6)
    >>> model = WassersteinCP(2, eps=0.05, random_state=0).fit(X)
    >>> model.components_.shape, [factor.shape for factor in model.factors_]
    ((2, 6, 6), [(6, 2), (6, 2)])
    """

    _kind: Kind = "cp"

    def _set_factors(self, blocks: list[Array]) -> None:
        self.factors_ = blocks


class WassersteinTucker(WassersteinDecomposition):
    """
    Tucker decomposition of a stack of tensors with a smoothed Wasserstein loss.

    Like `WassersteinCP`, but a component is a slice of the core multiplied by one factor per mode,
    and its mass is only approximately one. ``rho_atoms`` is the weight of the mean entropy of the
    columns of every factor, and of the slices of the core.

    Parameters
    ----------
    n_components : int or tuple of int, default 2
        Size of the core: the number of components, then the number of columns of the factor of each
        mode. A single number is used for all of them, limited to the size of the mode.
    cost
        As for `WassersteinCP`.
    eps, lam, debias, source_lam, rho_coefs, rho_atoms, init, n_init, max_iter, tol, random_state
        As for `WassersteinNMF`, but ``lam`` must be finite.
    verbose, comm
        As for `WassersteinNMF`.

    Attributes
    ----------
    components_ : array (n_components, n_1, ..., n_t)
        The components: the core multiplied by the factors.
    core_ : array
        The core, of the size given by ``n_components``.
    factors_ : list of arrays (n_k, r_k)
        The factors; each column sums to one.
    loss_, reconstruction_err_, n_iter_, n_samples_seen_, n_features_in_, feature_names_in_
        As for `WassersteinNMF`; ``n_features_in_`` is n_1.

    Examples
    --------
    >>> import numpy as np
    >>> from wtfarray.sklearn import WassersteinTucker
    >>> X = np.random.default_rng(0).dirichlet(np.ones(36), 8).reshape(8, 6, 6)
    >>> model = WassersteinTucker((2, 3, 3), eps=0.05, random_state=0).fit(X)
    >>> model.components_.shape, model.core_.shape
    ((2, 6, 6), (2, 3, 3))
    """

    _kind: Kind = "tucker"

    def _rank(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if math.isinf(self.loss_.lam):
            msg = (
                "lam is inf: expected a finite number, because the mass of a component is not fixed"
            )
            raise ValueError(msg)
        if isinstance(self.n_components, Sequence):
            if len(self.n_components) != len(shape) + 1:
                msg = (
                    f"n_components is {self.n_components!r}: expected a number, or "
                    f"{len(shape) + 1} of them, one per mode of X"
                )
                raise ValueError(msg)
            return tuple(
                positive_integer(f"n_components[{k}]", r) for k, r in enumerate(self.n_components)
            )
        rank = positive_integer("n_components", self.n_components)
        return (rank, *(min(rank, n) for n in shape))

    def _set_factors(self, blocks: list[Array]) -> None:
        *self.factors_, self.core_ = blocks
