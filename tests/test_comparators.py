"""Frobenius, Kullback-Leibler and SWIFT against TensorLy, scikit-learn and a known truth."""

import warnings

import numpy as np
import pytest
import tensorly as tl
from helpers import to_numpy
from sklearn.decomposition import NMF
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import non_negative_parafac, non_negative_parafac_hals

import wtfarray as wtf

pytestmark = pytest.mark.usefixtures("on_numpy")
CLOSE = 1e-4
"""Losses that agree to this share are the same: neither solver has reached a minimum exactly."""
FREE = {"rho": 1e-10, "tol": 1e-9, "max_iter": 5000}
"""No entropy to speak of, and run to the end as the others are."""


def noisy(shape, rank, seed):
    """A non-negative tensor of low rank under multiplicative noise, and a start of its mass."""
    rng = np.random.default_rng(seed)
    X = wtf.cp_to_tensor([rng.gamma(0.5, 1.0, (n, rank)) for n in shape])
    X = X * rng.gamma(10.0, 0.1, shape)
    start = [rng.uniform(0.05, 1.0, (n, rank)) for n in shape]
    start[0] *= X.sum() / wtf.cp_to_tensor(start).sum()
    return X, start


def fitted(kind, X, start, loss, array):
    """Our model tensor from the given start."""
    init = [array(a) for a in start]
    constraints = (None,) * X.ndim
    fit = getattr(wtf, kind)(
        array(X), init[0].shape[1], loss, init=init, constraints=constraints, **FREE
    )
    return to_numpy(fit.to_tensor())


def square(X, Y):
    return 0.5 * np.sum((X - Y) ** 2)


def divergence(X, Y):
    return np.sum(X * np.log(np.where(X > 0, X, 1.0) / Y) - X + Y)


def parafac(method, X, start, **options):
    """TensorLy's model tensor from the given start."""
    weights = np.ones(start[0].shape[1])
    init = CPTensor((weights, [a.copy() for a in start]))
    tl.set_backend("numpy")
    return tl.cp_to_tensor(method(X, start[0].shape[1], init=init, **options))


def sklearn_nmf(X, start, **options):
    """scikit-learn's model matrix from the given start."""
    model = NMF(start[0].shape[1], init="custom", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns when it stops at max_iter
        W = model.fit_transform(X, W=start[0].copy(), H=start[1].T.copy())
    return W @ model.components_


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (non_negative_parafac, {"n_iter_max": 1000, "tol": 1e-9}),
        (non_negative_parafac_hals, {"n_iter_max": 1000, "tol": 1e-10}),
    ],
    ids=["multiplicative", "hals"],
)
def test_frobenius_cp_is_as_good_as_tensorly(array, method, options):
    X, start = noisy((12, 10, 8), 3, 3)
    ours = square(X, fitted("cp", X, start, wtf.Frobenius(), array))
    assert ours <= (1 + CLOSE) * square(X, parafac(method, X, start, **options))


@pytest.mark.parametrize("solver", ["cd", "mu"])
def test_frobenius_nmf_is_as_good_as_scikit_learn(array, solver):
    X, start = noisy((30, 20), 4, 0)
    ours = square(X, fitted("nmf", X, start, wtf.Frobenius(), array))
    theirs = square(X, sklearn_nmf(X, start, solver=solver, tol=1e-10, max_iter=5000))
    assert ours <= (1 + CLOSE) * theirs


def test_kl_nmf_is_as_good_as_scikit_learn(array):
    X, start = noisy((30, 20), 4, 0)
    ours = divergence(X, fitted("nmf", X, start, wtf.KullbackLeibler(), array))
    options = {"solver": "mu", "beta_loss": "kullback-leibler", "tol": 1e-12, "max_iter": 10_000}
    theirs = divergence(X, sklearn_nmf(X, start, **options))
    assert ours <= (1 + CLOSE) * theirs


def test_kl_cp_is_as_good_as_multiplicative_steps(array):
    X, start = noisy((12, 10, 8), 3, 1)
    ours = divergence(X, fitted("cp", X, start, wtf.KullbackLeibler(), array))
    factors = start
    for _ in range(3000):  # Lee and Seung's steps, which no library offers for CP
        for k in range(3):
            rest = [factors[j] for j in range(3) if j != k]
            khatri_rao = (rest[0][:, None, :] * rest[1][None, :, :]).reshape(-1, 3)
            ratio = wtf.unfold(X / wtf.cp_to_tensor(factors), k)
            step = factors[k] * (ratio @ khatri_rao) / khatri_rao.sum(0)
            factors = [*factors[:k], step, *factors[k + 1 :]]
    assert ours <= (1 + CLOSE) * divergence(X, wtf.cp_to_tensor(factors))


class TestDefaults:
    """Against the other libraries as most call them, from many starts."""

    @pytest.mark.parametrize("shape", [(30, 20), (12, 10, 8)], ids=["nmf", "cp"])
    def test_mean_loss_is_no_higher_than_theirs(self, array, shape):
        ours, theirs = [], []
        for seed in range(4):
            X, start = noisy(shape, 3, seed)
            kind = "cp" if len(shape) > 2 else "nmf"
            ours.append(square(X, fitted(kind, X, start, wtf.Frobenius(), array)))
            if kind == "cp":
                theirs.append(square(X, parafac(non_negative_parafac, X, start)))
            else:
                theirs.append(square(X, sklearn_nmf(X, start)))
        assert np.mean(ours) <= np.mean(theirs)


class TestSwift:
    """The sum over the modes of transport along their fibres (Afshar et al. 2020)."""

    def test_swift_recovers_the_atoms(self, array):
        assert self.least_cosines(array, 300, 0)[0] > 0.95

    def test_swift_is_closer_than_frobenius_in_the_mean(self, array):
        # Not in every draw: the mean over some decides.
        found = np.asarray([self.least_cosines(array, 100, seed) for seed in range(3)])
        assert found[:, 0].mean() > found[:, 1].mean()

    @staticmethod
    def least_cosines(array, points, seed):
        """Of SWIFT and of Frobenius-CP, from about so many points of a mixture of two products."""
        x = np.linspace(-1, 1, 10)[:, None]
        atoms = [np.exp(-(((x - np.asarray(c)) / 0.4) ** 2)) for c in ((-0.5, 0.5), (0.4, -0.4))]
        truth = [a / a.sum(0) for a in (*atoms, atoms[0][::-1])]
        mean = points * wtf.cp_to_tensor(truth) / 2
        X = array(np.random.default_rng(seed).poisson(mean) / points)
        costs = wtf.grid_cost(10, 10, 10)
        fibres = (wtf.Wasserstein(c, eps=0.05, lam=5.0, modes=(k,)) for k, c in enumerate(costs))
        options = {"constraints": ("columns",) * 3, "rng": 0}
        swift = wtf.cp(X, 2, wtf.LossSum(*fibres), rho=1e-3, tol=1e-4, **options)
        square = wtf.cp(X, 2, wtf.Frobenius(), rho=1e-10, **options)
        return [least_cosine(fit.factors, truth) for fit in (swift, square)]


def least_cosine(factors, truth):
    """Of the atoms and the true ones, in the better order of two components."""
    unit = [a / np.linalg.norm(a, axis=0) for a in map(to_numpy, factors)]
    true = [a / np.linalg.norm(a, axis=0) for a in truth]
    orders = ([0, 1], [1, 0])
    return max(
        min(np.sum(a[:, o] * t, axis=0).min() for a, t in zip(unit, true, strict=True))
        for o in orders
    )
