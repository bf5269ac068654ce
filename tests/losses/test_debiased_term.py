"""The term of the debiased loss: it agrees with the loss, and fits with it work everywhere."""

import math

import numpy as np
import pytest
from helpers import numpy_only, to_numpy, without_escape

import wtfarray as wtf
from wtfarray._losses.debiased_term import DebiasedTerm
from wtfarray._losses.selection import terms_of
from wtfarray._losses.sparse_samples import SparseSamplesTerm
from wtfarray._losses.sparse_tensor import SparseTensorTerm
from wtfarray._losses.transport_term import TransportTerm

pytestmark = without_escape


def histograms(n=8, bins=16, seed=0):
    """Mixtures of two bumps that shift from sample to sample."""
    rng = np.random.default_rng(seed)
    x = np.arange(bins)
    X = np.zeros((n, bins))
    share = np.linspace(0.0, 1.0, n)[:, None]
    for part, centre in ((share, 4.0), (1.0 - share, 11.0)):
        bump = np.exp(-0.5 * ((x - centre - rng.normal(0, 0.7, (n, 1))) / 1.2) ** 2)
        X += part * bump / bump.sum(axis=1, keepdims=True)
    return X / X.sum(axis=1, keepdims=True)


def model_near(X, seed=1):
    rng = np.random.default_rng(seed)
    Y = X + 0.1 * X.mean() * rng.uniform(size=X.shape)
    return Y * X.sum() / Y.sum()


def sparse_tensor(shape=(8, 8, 8), seed=0):
    X = np.zeros(shape)
    X.flat[np.random.default_rng(seed).choice(X.size, 12, replace=False)] = 1.0 / 12.0
    return X


def sparse_samples(n=20, bins=48, seed=0):
    rng = np.random.default_rng(seed)
    X = np.zeros((n, bins))
    X[:10, rng.choice(bins, 2)] = 0.5
    return X


def term_of(array, X, loss, weight=None):
    (term,) = terms_of([loss], array(X), None if weight is None else array(weight), None)
    assert isinstance(term, DebiasedTerm)
    return term


PROBLEMS = {
    "dense": (TransportTerm, histograms(), (1,)),
    "tensor": (SparseTensorTerm, sparse_tensor(), (0, 1, 2)),
    "samples": (SparseSamplesTerm, sparse_samples(), (1,)),
}


@numpy_only
@pytest.mark.parametrize("name", list(PROBLEMS))
@pytest.mark.parametrize("lam", [1.0, 20.0, math.inf])
def test_every_plain_term_agrees_with_the_loss(name, lam):
    kind, X, modes = PROBLEMS[name]
    if name == "samples" and math.isinf(lam):
        pytest.skip("sparse samples are solved as dense ones if balanced")
    loss = wtf.Wasserstein(
        wtf.grid_cost(*(X.shape[k] for k in modes)), 0.1, lam, modes=modes, debias=True
    )
    Y = model_near(X)
    if math.isinf(lam) and name == "dense":
        Y *= X.sum(axis=1, keepdims=True) / Y.sum(axis=1, keepdims=True)
    term = term_of(np.asarray, X, loss)
    assert isinstance(term._plain, kind)
    exact = wtf.wasserstein(X, Y, loss, tol=1e-9)
    found = term.evaluate(Y, 1e-8, 500)
    assert found.converged
    assert found.value + found.error == pytest.approx(float(exact.value), abs=1e-7)
    np.testing.assert_allclose(
        centred(found.gradient, Y, lam, modes),
        centred(exact.gradient, Y, lam, modes),
        atol=2e-3,
    )
    certified = term.certify(Y, 1e-7, 500)
    assert certified.converged
    assert certified.value <= float(exact.value) + exact.gap + 1e-12
    assert certified.value + certified.gap >= float(exact.value) - 1e-12


def centred(gradient, Y, lam, modes):
    """Without the constants that are free if balanced."""
    if not math.isinf(lam):
        return gradient
    mean = np.sum(gradient * Y, axis=modes, keepdims=True) / np.sum(Y, axis=modes, keepdims=True)
    return gradient - mean


@numpy_only
def test_weights_multiply_the_samples():
    X = histograms()
    Y = model_near(X)
    loss = wtf.Wasserstein(wtf.grid_cost(16), 0.1, 10.0, debias=True)
    weight = np.asarray([0.0, 2.0, 1.0, 1.0, 0.5, 1.0, 1.0, 3.0])
    term = term_of(np.asarray, X, loss, weight)
    each = [wtf.wasserstein(x[None], y[None], loss, tol=1e-9) for x, y in zip(X, Y, strict=True)]
    expected = sum(w * float(one.value) for w, one in zip(weight, each, strict=True))
    found = term.evaluate(Y, 1e-9, 500)
    assert found.value + found.error == pytest.approx(expected, abs=1e-7)
    gradient = np.concatenate([w * one.gradient for w, one in zip(weight, each, strict=True)])
    np.testing.assert_allclose(found.gradient, gradient, atol=1e-3)
    certified = term.certify(Y, 1e-8, 500)
    assert certified.value - 1e-8 <= expected <= certified.value + certified.gap + 1e-8


@numpy_only
def test_a_restored_state_gives_the_same_value():
    X = histograms()
    loss = wtf.Wasserstein(wtf.grid_cost(16), 0.05, 10.0, debias=True)
    term = term_of(np.asarray, X, loss)
    Y, other = model_near(X), model_near(X, 2)
    term.evaluate(Y, 1e-9, 200)
    state = term.state
    before = term.evaluate(Y, 1e-9, 200)
    term.evaluate(other, 1e-9, 200)
    term.state = state
    after = term.evaluate(Y, 1e-9, 200)
    assert after.value == pytest.approx(before.value, abs=1e-8)


@numpy_only
@pytest.mark.parametrize("eps", [0.02, 0.05])
@pytest.mark.parametrize("lam", [1.0, 20.0])
def test_symmetric_problem_costs_at_most_half_as_much_again(eps, lam, monkeypatch):
    made = []
    begin = DebiasedTerm.__init__

    def remember(self, *arguments):
        begin(self, *arguments)
        made.append(self)

    monkeypatch.setattr(DebiasedTerm, "__init__", remember)
    loss = wtf.Wasserstein(wtf.grid_cost(16), eps, lam, debias=True)
    assert wtf.nmf(histograms(), 2, loss, rho=1e-3, rng=0).converged
    (term,) = made
    assert 0 < term.symmetric_applications <= 0.5 * 2 * term.evaluations


def width(atom):
    x = np.arange(atom.size)
    mean = np.sum(atom * x)
    return math.sqrt(np.sum(atom * (x - mean) ** 2))


@numpy_only
@pytest.mark.parametrize("lam", [10.0, math.inf])
def test_atoms_have_no_blur(lam):
    widths = []
    for debias in (False, True):
        loss = wtf.Wasserstein(wtf.grid_cost(16), 0.1, lam, debias=debias)
        fit = wtf.nmf(histograms(), 2, loss, rho=1e-4, rng=0)
        assert fit.converged, fit.message
        widths.append(max(width(fit.factors[1][:, k]) for k in range(2)))
    assert widths[1] < 0.7 * widths[0]


def test_fit_works_on_every_library(array):
    X = histograms(3, 6)
    loss = wtf.Wasserstein(wtf.grid_cost(6), 0.1, 10.0, debias=True)
    fit = wtf.nmf(array(X), 1, loss, rho=1e-2, rng=0, tol=1e-3)
    assert fit.converged, fit.message
    expected = wtf.nmf(X, 1, loss, rho=1e-2, rng=0)
    np.testing.assert_allclose(to_numpy(fit.factors[1]), expected.factors[1], atol=0.02)


@numpy_only
class TestFits:
    def test_objective_is_certified(self):
        X = histograms()
        loss = wtf.Wasserstein(wtf.grid_cost(16), 0.05, 10.0, debias=True)
        fit = wtf.nmf(X, 2, loss, rho=1e-3, rng=0)
        value = float(wtf.wasserstein(X, fit.to_tensor(), loss, tol=1e-9).value)
        entropy = sum(1e-3 * float(wtf.entropy(factor)[0]) for factor in fit.factors)
        assert fit.objective <= value + entropy + 1e-7
        assert fit.objective + fit.gap >= value + entropy - 1e-7
        np.testing.assert_allclose(fit.project(X), fit.factors[0], atol=0.02)

    def test_saved_fit_keeps_the_loss(self, tmp_path):
        loss = wtf.Wasserstein(wtf.grid_cost(16), 0.1, 10.0, debias=True)
        fit = wtf.nmf(histograms(), 2, loss, rng=0, tol=1e-3)
        fit.save(tmp_path / "fit.npz")
        assert wtf.load(tmp_path / "fit.npz").loss.debias

    def test_checkpoint_continues_to_the_same_fit(self, tmp_path):
        X = histograms()
        loss = wtf.Wasserstein(wtf.grid_cost(16), 0.05, 10.0, debias=True)
        path = tmp_path / "state.npz"
        options = {"rho": 1e-3, "rng": 0}
        whole = wtf.nmf(X, 2, loss, checkpoint=path, **options)
        with pytest.warns(UserWarning, match="callback"):
            wtf.nmf(X, 2, loss, checkpoint=path, callback=lambda s: s.n_iter >= 20, **options)
        rest = wtf.nmf(X, 2, loss, checkpoint=path, **options)
        assert rest.objective == pytest.approx(whole.objective, rel=1e-6)

    def test_rank_scan_and_sums(self):
        X = histograms()
        loss = wtf.Wasserstein(wtf.grid_cost(16), 0.1, 10.0, debias=True)
        scan = wtf.rank_scan(X, [1, 2], loss, model="nmf", rho=1e-3, rng=0, tol=1e-3)
        assert scan.records[0].held_out > scan.records[1].held_out >= 0
        both = wtf.LossSum(loss, wtf.Frobenius())
        assert wtf.nmf(X, 2, both, rng=0, tol=1e-3).converged

    def test_images_start_on_a_coarser_grid(self):
        rng = np.random.default_rng(0)
        x = np.linspace(-1, 1, 32)
        X = np.stack(
            [
                np.outer(np.exp(-(((x - a) / 0.2) ** 2)), np.exp(-(((x - b) / 0.3) ** 2)))
                for a, b in rng.normal(0, 0.2, (4, 2))
            ]
        )
        X /= X.sum(axis=(1, 2), keepdims=True)
        loss = wtf.Wasserstein(wtf.grid_cost(32, 32), 0.05, 10.0, debias=True)
        fit = wtf.cp(X, 1, loss, rho=1e-3, rng=0, tol=1e-3)
        assert fit.converged, fit.message


@numpy_only
@pytest.mark.parametrize("source_lam", [2.0, math.inf])
def test_mass_where_the_model_nearly_vanishes(source_lam):
    """Mass of X in the tail of an atom, at 1e-250 of it, has to arrive there."""
    at = np.arange(60)
    atoms = np.exp(-0.5 * ((at - np.asarray([[10.0], [14.0]])) / 1.2) ** 2)
    X = atoms.sum(axis=0) + 0.1 * (at == 50)
    cost = wtf.grid_cost(60, scale=None, reach=6.0)
    loss = wtf.Wasserstein(cost, 4.0, 16.0, debias=True, source_lam=source_lam)
    found = wtf.unmix(X, atoms, loss)
    assert found.converged
    np.testing.assert_allclose(found.shares, [0.5, 0.5], atol=0.03)
