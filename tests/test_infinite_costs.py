"""Infinite costs: bins that no mass can reach, islands, and ways forbidden between neighbours."""

import math
import warnings

import numpy as np
import pytest
from array_api_compat import is_jax_namespace
from fitting import spare_jax
from helpers import assert_close, numpy_only, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import bmat, csr_array
from scipy.sparse.csgraph import connected_components

import wtfarray as wtf
from wtfarray._losses.selection import terms_of
from wtfarray._losses.sparse_tensor import SourceTerm
from wtfarray._losses.transport_term import TransportTerm
from wtfarray._transport.components import islands_of

N = 6
LAMS = [0.5, 10.0]


def band(width, n=N):
    """A cost on a line that forbids ways longer than ``width``."""
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    return np.where(distance <= width, (distance / n) ** 2, math.inf)


def apart(*costs):
    """Islands: nothing goes from one cost's bins to another's."""
    n = sum(len(cost) for cost in costs)
    whole, start = np.full((n, n), math.inf), 0
    for cost in costs:
        whole[start : start + len(cost), start : start + len(cost)] = cost
        start += len(cost)
    return whole


def samples(seed=0):
    """In the first sample every bin is in reach of `band(1)`, in the second two are, then four."""
    rng = np.random.default_rng(seed)
    X, Y = rng.gamma(1.0, size=(2, 3, N)) + 0.05
    X[1, 1:] = X[2, :1] = X[2, 3:] = 0.0
    Y[2, 5] = 0.0
    return X, Y


CLOSED = np.asarray([[False] * 6, [False] * 2 + [True] * 4, [False] * 4 + [True] * 2])


def reachable(width=1, shape=(3, N), seed=0):
    """Samples X and Y of which one can be made the other along the band, positive everywhere."""
    rng = np.random.default_rng(seed)
    open_ = np.isfinite(band(width, shape[1]))
    plans = np.where(open_, rng.gamma(0.5, size=(shape[0], shape[1], shape[1])) + 1e-3, 0.0)
    return plans.sum(axis=2), plans.sum(axis=1)


def plain_sinkhorn(x, y, C, eps, lam, iterations=20_000):
    """The loss by Sinkhorn's iterations in the log domain, primal: eps H(G|K) + lam KL(q|y)."""
    rows, columns = x > 0, (y > 0) & np.isfinite(C[x > 0]).any(axis=0)
    K, x, target = -C[np.ix_(rows, columns)] / eps, x[rows], y[columns]
    h = np.zeros(target.size)
    damp = 1.0 if math.isinf(lam) else lam / (lam + eps)
    for _ in range(iterations):
        log_a = np.log(x) - np.logaddexp.reduce(K + h, axis=1)
        h = damp * (np.log(target) - np.logaddexp.reduce(K + log_a[:, None], axis=0))
    log_a = np.log(x) - np.logaddexp.reduce(K + h, axis=1)
    q = np.exp(h + np.logaddexp.reduce(K + log_a[:, None], axis=0))
    value = eps * float(x @ log_a + q @ h - q.sum())
    if math.isinf(lam):
        return value
    left = y.sum() - target.sum()  # what nothing can reach: KL(0|y) = y
    return value + lam * float(np.sum(q * np.log(q / target) - q + target) + left)


def loss(C, lam=math.inf, eps=0.1, **options):
    return wtf.Wasserstein(C, eps, lam, **options)


class TestOutOfReach:
    @pytest.mark.parametrize("lam", LAMS)
    def test_is_plain_sinkhorn(self, array, lam):
        X, Y = samples()
        found = wtf.wasserstein(array(X), array(Y), loss(band(1), lam), tol=1e-13)
        expected = [plain_sinkhorn(x, y, band(1), 0.1, lam) for x, y in zip(X, Y, strict=True)]
        assert found.converged
        assert float(found.value) == pytest.approx(sum(expected), rel=1e-12)

    @pytest.mark.parametrize("lam", LAMS)
    @pytest.mark.parametrize("eps", [1e-3, 0.1])
    def test_adds_lam_times_its_mass(self, array, lam, eps):
        """The loss without the bins, and what is in them; the gradient there is lam."""
        X, Y = samples()
        found = wtf.wasserstein(array(X), array(Y), loss(band(1), lam, eps), tol=1e-13)
        total, gradient = 0.0, np.full(Y.shape, lam)
        for i in range(3):
            keep = ~CLOSED[i]
            part = loss(band(1)[np.ix_(keep, keep)], lam, eps)
            one = wtf.wasserstein(X[i, keep], Y[i, keep], part, tol=1e-13)
            total += float(one.value) + lam * Y[i, CLOSED[i]].sum()
            gradient[i, keep] = one.gradient
        assert float(found.value) == pytest.approx(total, rel=1e-12)
        assert_close(found.gradient, array(gradient), rtol=1e-5, atol=1e-6)
        assert np.all(to_numpy(found.gradient)[CLOSED] == lam)

    @pytest.mark.parametrize("lam", LAMS)
    def test_is_the_limit_of_huge_costs(self, xp, array, lam):
        spare_jax(xp)
        X, Y = samples()
        huge = np.where(np.isfinite(band(1)), band(1), 1e6)
        found = wtf.wasserstein(array(X), array(Y), loss(band(1), lam), tol=1e-13)
        close = wtf.wasserstein(array(X), array(Y), loss(huge, lam), tol=1e-13)
        assert float(found.value) == pytest.approx(float(close.value), rel=1e-12)
        live = np.where(Y > 0, 1.0, 0.0)
        got, expected = (np.where(Y > 0, to_numpy(r.gradient), 0.0) for r in (found, close))
        assert_close(array(got * live), array(expected), rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("lam", LAMS)
    @pytest.mark.parametrize("iterations", [1, 3, 10])
    def test_gap_encloses_the_loss(self, array, lam, iterations):
        X, Y = samples()
        expected = sum(plain_sinkhorn(x, y, band(1), 0.1, lam) for x, y in zip(X, Y, strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = wtf.wasserstein(
                array(X), array(Y), loss(band(1), lam), tol=1e-15, max_iter=iterations
            )
        assert float(found.value) <= expected + 1e-12
        assert expected <= float(found.value) + found.gap + 1e-12

    def test_float32(self, xp, array):
        spare_jax(xp)
        X, Y = samples()
        found = wtf.wasserstein(array(X, "float32"), array(Y, "float32"), loss(band(1), 2.0))
        expected = float(wtf.wasserstein(X, Y, loss(band(1), 2.0)).value)
        assert found.converged
        assert float(found.value) == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("lam", LAMS)
    def test_separable_is_dense(self, array, xp, lam):
        spare_jax(xp)
        rng = np.random.default_rng(0)
        X, Y = rng.gamma(1.0, size=(2, 2, 3, 4))
        X[0, :2] = X[0, :, :2] = 0.0
        C1, C2 = band(1, 3), band(1, 4)
        whole = (C1[:, None, :, None] + C2[None, :, None, :]).reshape(12, 12)
        found = wtf.wasserstein(array(X), array(Y), loss((C1, C2), lam), tol=1e-13)
        flat = wtf.wasserstein(X.reshape(2, 12), Y.reshape(2, 12), loss(whole, lam), tol=1e-13)
        assert float(found.value) == pytest.approx(float(flat.value), rel=1e-12)
        assert np.any(flat.gradient == lam)
        assert_close(found.gradient, array(flat.gradient.reshape(2, 3, 4)), rtol=1e-6, atol=1e-6)

    def test_costs_need_not_be_symmetric(self, array):
        """Nothing can arrive in a bin from which everything can leave."""
        C = np.where(np.eye(N) > 0, 0.0, 1.0)
        C[:, 2] = math.inf
        X, Y = (A + 0.1 for A in samples())
        rest = np.arange(N) != 2
        found = wtf.wasserstein(array(X), array(Y), loss(C, 1.0), tol=1e-13)
        expected = sum(plain_sinkhorn(x, y, C, 0.1, 1.0) for x, y in zip(X, Y, strict=True))
        assert float(found.value) == pytest.approx(expected, rel=1e-12)
        assert np.all(to_numpy(found.gradient)[:, 2] == 1.0)
        assert np.all(to_numpy(found.gradient)[:, rest] < 1.0)

    def test_warm_start(self, array):
        X, Y = (array(A) for A in samples())
        first = wtf.wasserstein(X, Y, loss(band(1), 1.0), tol=1e-12)
        again = wtf.wasserstein(X, Y, loss(band(1), 1.0), tol=1e-12, dual=first.dual)
        assert again.n_iter < 3
        assert float(again.value) == pytest.approx(float(first.value), rel=1e-12)

    def test_stranded_mass_is_refused(self, array):
        X, Y = samples()
        Y[1, :2] = 0.0
        with pytest.raises(
            ValueError, match=r"X is .* at index \(1, 0\): expected a way of finite"
        ):
            wtf.wasserstein(array(X), array(Y), loss(band(1), 1.0))

    def test_finite_costs_are_not_searched(self, array):
        problem = loss(np.ones((N, N)), 1.0).bind(array(samples()[0]))
        assert problem.closed is None
        assert tuple(problem.reached.shape) == (3, 1)


class TestConjugate:
    @pytest.mark.parametrize("safe", [False, True])
    def test_does_not_hear_bins_out_of_reach(self, array, safe):
        problem = loss(band(1), 1.0).bind(array(samples()[0]))
        conjugate = problem.safe_conjugate if safe else problem.conjugate
        g = np.random.default_rng(0).normal(size=(3, N))
        values, q = conjugate(array(g))
        others, same = conjugate(array(np.where(CLOSED, 1e4, g)))
        assert_close(others, values, rtol=1e-15)
        assert_close(same, q, rtol=1e-15)
        assert np.all(to_numpy(q)[CLOSED] == 0.0)


class TestBlockDual:
    @pytest.mark.parametrize("block", [0, 1])
    def test_value_gradient_and_certificate(self, array, block):
        rng = np.random.default_rng(0)
        X = samples()[0]
        factors = [array(rng.uniform(0.5, 1.0, (n, 2))) for n in (3, N)]
        dual = wtf.cp_dual(array(X), factors, block, loss(band(1), 2.0), rho=0.1)
        g, way = rng.normal(size=(2, 3, N))
        value, gradient = dual.value_and_gradient(array(g))
        ahead, behind = (
            float(dual.value_and_gradient(array(g + t * way))[0]) for t in (1e-5, -1e-5)
        )
        slope = float(np.sum(to_numpy(gradient) * way))
        assert slope == pytest.approx((ahead - behind) / 2e-5, rel=1e-7)
        certificate = dual.certificate(array(g))
        assert certificate.lower == pytest.approx(-float(value), rel=1e-12)
        model = dual.model(certificate.factor)
        exact = float(wtf.wasserstein(array(X), model, loss(band(1), 2.0), tol=1e-12).value)
        exact += 0.1 * float(wtf.entropy(certificate.factor)[0])
        assert certificate.lower <= exact <= certificate.upper

    def test_is_solved(self, array, xp):
        spare_jax(xp)
        rng = np.random.default_rng(0)
        X, cost = samples()[0], band(1)
        factors = [array(rng.uniform(0.5, 1.0, (n, 2))) for n in (3, N)]
        found = []
        for C in (cost, np.where(np.isfinite(cost), cost, 1e3)):
            dual = wtf.cp_dual(array(X), factors, 0, loss(C, 2.0), rho=0.1)
            result = wtf.lbfgs(
                dual.value_and_gradient, dual.start(), safe_fun=dual.safe_value_and_gradient
            )
            found.append(dual.certificate(result.x))
            assert found[-1].gap < 1e-8
        assert found[0].lower == pytest.approx(found[1].lower, rel=1e-9)


class TestTerms:
    @pytest.mark.parametrize("lam", LAMS)
    def test_from_the_side_of_the_data(self, array, xp, lam):
        spare_jax(xp)
        rng = np.random.default_rng(0)
        X, Y = np.zeros((1, 9, 8)), rng.uniform(0.1, 1.0, (1, 9, 8))
        X[0, 2, 3], X[0, 4, 4], X[0, 3, 1] = 0.3, 1.0, 0.2
        Y[0, 3, 2] = 0.0
        whole = loss((band(2, 9), band(3, 8)), lam)
        expected = wtf.wasserstein(X, Y, whole, tol=1e-12)
        assert np.sum(expected.gradient == lam) > 10
        for kind in (SourceTerm, TransportTerm):
            term = kind(whole.bind(array(X)), X.shape)
            term.set_level(3.0)
            term.evaluate(array(Y), 1e-6, 100)
            term.set_level(1.0)
            for found in (term.evaluate(array(Y), 1e-9, 500), term.certify(array(Y), 1e-9, 500)):
                assert found.converged
                assert found.value == pytest.approx(float(expected.value), rel=1e-8)
                gradient = np.where(Y > 0, to_numpy(found.gradient), 0.0)
                np.testing.assert_allclose(
                    gradient, np.where(Y > 0, expected.gradient, 0.0), atol=1e-4
                )

    @numpy_only
    def test_sparse_samples_go_the_common_way(self):
        X = np.eye(4, 64)
        (term,) = terms_of([loss(band(3, 64), 1.0)], X, None, None)
        assert isinstance(term, TransportTerm)


def fit_of(model, X, C, lam, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rank = (2, 2) if model == "tucker" else 2
        return getattr(wtf, model)(X, rank, loss(C, lam), rho=0.05, rng=0, **options)


def objective(fit, X):
    blocks = [*fit.factors, *([fit.core] if fit.core is not None else [])]
    parts = [r * float(wtf.entropy(b)[0]) for r, b in zip(fit.rho, blocks, strict=True)]
    return float(wtf.wasserstein(X, fit.to_tensor(), fit.loss, tol=1e-10).value) + sum(parts)


class TestFits:
    @pytest.mark.parametrize("model", ["nmf", "cp", "tucker"])
    def test_objective_is_that_of_the_factors(self, array, xp, model):
        if is_jax_namespace(xp) and model != "nmf":
            spare_jax(xp)
        X = samples()[0]
        fit = fit_of(model, array(X), band(1), 1.0)
        assert fit.converged
        assert fit.objective == pytest.approx(objective(fit, array(X)), rel=1e-7)

    @numpy_only
    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    @pytest.mark.parametrize("model", ["nmf", "cp", "tucker"])
    def test_is_the_limit_of_huge_costs(self, model, solver):
        X = samples()[0]
        fit = fit_of(model, X, band(1), 1.0, solver=solver)
        huge = np.where(np.isfinite(band(1)), band(1), 1e3)
        close = fit_of(model, X, huge, 1.0, solver=solver, init=fit)
        assert fit.converged
        assert fit.objective == pytest.approx(objective(fit, X), rel=1e-6)
        assert close.objective == pytest.approx(fit.objective, rel=1e-3)

    @numpy_only
    @pytest.mark.parametrize("lam", [1.0, 5.0])
    def test_no_potential_runs_away(self, lam):
        """Where most mass is astray accelerated steps lead nowhere."""
        X = np.random.default_rng(1).gamma(1.0, size=(8, 12))
        X[1, 5:9] = X[3, 2] = X[4, 1:] = 0.0
        for seed in range(3):
            fit = wtf.nmf(X, 2, loss(6.0 * band(1, 12), lam, 0.05), rng=seed)
            assert fit.converged

    @numpy_only
    def test_in_batches_with_weights(self):
        X = np.vstack([samples(seed)[0] for seed in range(3)])
        whole = fit_of("nmf", X, band(1), 1.0)
        parts = fit_of("nmf", X, band(1), 1.0, batch=2)
        assert parts.objective == pytest.approx(whole.objective, rel=1e-4)
        weights = np.arange(9) % 3 + 1.0
        fit = fit_of("nmf", X, band(1), 1.0, sample_weight=weights)
        each = [
            float(wtf.wasserstein(x, y, loss(band(1), 1.0), tol=1e-10).value)
            for x, y in zip(X, fit.to_tensor(), strict=True)
        ]
        entropies = sum(0.05 * float(wtf.entropy(factor)[0]) for factor in fit.factors)
        assert fit.objective == pytest.approx(weights @ each + entropies, rel=1e-7)

    @numpy_only
    def test_project(self):
        X = samples()[0]
        fit = fit_of("nmf", X, band(1), 1.0)
        fresh = samples(seed=5)[0]
        found = fit.project(fresh)

        def value(A):
            Y = A @ fit.factors[1].T
            transported = wtf.wasserstein(fresh, Y, loss(band(1), 1.0), tol=1e-12).value
            return float(transported) + 0.05 * float(wtf.entropy(A)[0])

        assert all(value(found) < value(found * scale) for scale in (0.97, 1.03))

    @numpy_only
    def test_regular_but_for_forbidden_ways(self):
        """Costs of a grid with a band are not made coarser."""
        X = np.random.default_rng(0).gamma(1.0, size=(3, 32, 32))
        C = band(8, 32)
        fit = wtf.cp(X, 2, loss((C, C), 1.0, 0.2), rng=0, max_iter=5, tol=1.0)
        assert math.isfinite(fit.objective)


class TestIslands:
    """Balanced."""

    @pytest.mark.parametrize("eps", [0.01, 0.1])
    def test_are_apart(self, array, eps):
        rng = np.random.default_rng(0)
        costs = [np.abs(np.subtract.outer(np.arange(n), np.arange(n))) / n for n in (2, 4)]
        X, Y = rng.gamma(1.0, size=(2, 3, N)) + 0.1
        parts = (slice(0, 2), slice(2, 6))
        for s in parts:
            Y[:, s] *= X[:, s].sum(axis=1, keepdims=True) / Y[:, s].sum(axis=1, keepdims=True)
        together = wtf.wasserstein(array(X), array(Y), loss(apart(*costs), eps=eps), tol=1e-11)
        alone = [
            wtf.wasserstein(X[:, s], Y[:, s], loss(C, eps=eps), tol=1e-11)
            for s, C in zip(parts, costs, strict=True)
        ]
        assert together.converged
        assert float(together.value) == pytest.approx(sum(float(a.value) for a in alone), rel=1e-9)

    def test_of_a_separable_cost(self, array, xp):
        spare_jax(xp)
        rng = np.random.default_rng(0)
        step = np.asarray([[0.0, 1.0], [1.0, 0.0]])
        C1, C2 = apart(step, step[:1, :1]), apart(step, step)
        X, Y = rng.gamma(1.0, size=(2, 2, 3, 4)) + 0.1
        total = 0.0
        for rows, C in ((slice(0, 2), step), (slice(2, 3), step[:1, :1])):
            for columns in (slice(0, 2), slice(2, 4)):
                x, y = X[:, rows, columns], Y[:, rows, columns]
                y *= x.sum(axis=(1, 2), keepdims=True) / y.sum(axis=(1, 2), keepdims=True)
                total += float(wtf.wasserstein(x, y, loss((C, step)), tol=1e-11).value)
        found = wtf.wasserstein(array(X), array(Y), loss((C1, C2)), tol=1e-11)
        assert found.converged
        assert float(found.value) == pytest.approx(total, rel=1e-9)
        Y[1, 2, 2:] *= 1.1
        Y[1, :2, :2] *= X[1].sum() / Y[1].sum()
        with pytest.raises(ValueError, match=r"in sample 1"):
            wtf.wasserstein(array(X), array(Y), loss((C1, C2)))

    def test_of_different_mass_are_refused(self, array):
        C = apart(band(2, 2), band(4, 4))
        X, Y = np.ones((3, N)), np.ones((3, N))
        Y[2] = [1.5, 1.0, 1.0, 1.0, 1.0, 0.5]
        expected = (
            r"Y weighs 2\.5 in sample 2 on the island of bin \(0,\), where X weighs 2\.0, and no "
            r"way of finite cost leads to another: expected the same mass, or a loss with finite"
        )
        with pytest.raises(ValueError, match=expected):
            wtf.wasserstein(array(X), array(Y), loss(C))

    def test_rounding_is_forgiven(self, array):
        C = apart(band(2, 2), band(4, 4))
        X, Y = np.ones((3, N)), np.ones((3, N))
        Y[:, 0] += 1e-8
        exact = wtf.wasserstein(array(X), array(X), loss(C), tol=1e-11)
        found = wtf.wasserstein(array(X), array(Y), loss(C), tol=1e-11)
        assert float(found.value) == pytest.approx(float(exact.value), rel=1e-7)

    def test_without_mass(self, array):
        C = apart(band(2, 2), band(4, 4))
        X, Y = np.ones((3, N)), np.ones((3, N))
        X[1, 2:] = Y[1, 2:] = 0.0
        Y[1, :2] = [0.5, 1.5]
        found = wtf.wasserstein(array(X), array(Y), loss(C))
        assert found.converged
        assert np.all(to_numpy(found.gradient)[1, 2:] == math.inf)
        Y[1] = [1.0, 0.9, 0.0, 0.1, 0.0, 0.0]
        with pytest.raises(ValueError, match=r"Y is 0\.1 at index \(1, 3\): expected 0 where no"):
            wtf.wasserstein(array(X), array(Y), loss(C))

    @numpy_only
    @given(n=st.integers(1, 12), share=st.floats(0.0, 0.5), seed=st.integers(0, 1000))
    def test_are_connected_components(self, n, share, seed):
        rng = np.random.default_rng(seed)
        open_ = rng.uniform(size=(n, n)) < share
        open_[np.arange(n), rng.integers(0, n, n)] = True
        count, expected = connected_components(bmat([[None, csr_array(open_)], [open_.T, None]]))
        islands = islands_of([np.where(open_, 1.0, math.inf)])
        if islands is None:
            assert count == 1
            return
        labels = np.asarray([*islands.sources[0], *islands.targets[0]])
        lonely = np.append(np.zeros(n, dtype=bool), ~open_.any(axis=0))
        for i in np.flatnonzero(~lonely):
            np.testing.assert_array_equal(labels == labels[i], expected == expected[i])
        assert np.all(labels[lonely] == labels.max())


class TestForbiddenWays:
    """Balanced, and not every way within an island is open."""

    @pytest.mark.parametrize("eps", [0.01, 0.1, 1.0])
    def test_is_plain_sinkhorn(self, array, eps):
        X, Y = reachable()
        found = wtf.wasserstein(array(X), array(Y), loss(band(1), eps=eps), tol=1e-10)
        expected = [plain_sinkhorn(x, y, band(1), eps, math.inf) for x, y in zip(X, Y, strict=True)]
        assert found.converged
        assert float(found.value) == pytest.approx(sum(expected), rel=1e-9)

    @pytest.mark.parametrize("iterations", [3, 6, 10, 20])
    def test_gap_encloses_the_loss(self, array, iterations):
        X, Y = reachable(seed=iterations)
        expected = sum(
            plain_sinkhorn(x, y, band(1), 0.1, math.inf) for x, y in zip(X, Y, strict=True)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = wtf.wasserstein(
                array(X), array(Y), loss(band(1)), tol=1e-15, max_iter=iterations
            )
        assert float(found.value) <= expected + 1e-12
        assert expected <= float(found.value) + found.gap + 1e-12

    @numpy_only
    def test_small_eps_is_the_linear_programme(self):
        X, Y = reachable(2, (1, 8))
        C, n = band(2, 8), 8
        open_ = np.isfinite(C).ravel()
        marginals = np.vstack([np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))])
        exact = linprog(C.ravel()[open_], A_eq=marginals[:, open_], b_eq=np.append(X[0], Y[0])).fun
        for eps in (1e-3, 1e-4):
            found = wtf.wasserstein(X, Y, loss(C, eps=eps), max_iter=20_000)
            m = X.sum()
            assert found.converged
            # E of a plan lies between those of a uniform one and of one in a single place.
            assert eps * m * (math.log(m / open_.sum()) - 1.0) <= float(found.value) - exact
            assert float(found.value) - exact <= eps * m * (math.log(m) - 1.0) + found.gap

    @numpy_only
    @pytest.mark.parametrize("width", [1, 5])
    def test_long_ways_take_few_iterations(self, width):
        """Potentials vary by many steps' cost: accelerated steps may be as long."""
        X, Y = reachable(width, (2, 64))
        found = wtf.wasserstein(X, Y, loss(band(width, 64)))
        assert found.converged
        assert found.n_iter < 300

    def test_float32(self, xp, array):
        spare_jax(xp)
        X, Y = reachable()
        found = wtf.wasserstein(array(X, "float32"), array(Y, "float32"), loss(band(1)))
        assert found.converged
        expected = float(wtf.wasserstein(X, Y, loss(band(1)), tol=1e-10).value)
        assert expected - 2e-4 * abs(expected) <= float(found.value)
        assert float(found.value) == pytest.approx(expected, rel=2e-4)

    def test_a_plan_on_the_boundary(self, array):
        """Only one plan is feasible, and it leaves an open way empty: potentials diverge."""
        C = np.where(np.tri(N) > 0, 1.0, math.inf)
        X = np.ones((3, N))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = wtf.wasserstein(array(X), array(X), loss(C), max_iter=200)
        exact = 3 * N * (1.0 - 0.1)
        assert float(found.value) <= exact
        assert exact <= float(found.value) + found.gap
        assert found.gap < 0.05 * exact

    @pytest.mark.parametrize("eps", [1e-3, 0.1, 1.0])
    def test_two_bins_one_way(self, array, eps):
        """Nothing may go up, so nothing goes down: that is at the edge of what is feasible."""
        C, X = np.asarray([[0.0, 1.0], [math.inf, 0.0]]), np.full((1, 2), 0.5)
        found = wtf.wasserstein(array(X), array(X), loss(C, eps=eps))
        assert found.converged
        exact = eps * (math.log(0.5) - 1.0)
        assert float(found.value) == pytest.approx(exact, abs=2e-6 * eps)

    @pytest.mark.parametrize("eps", [1e-4, 2e-3])
    def test_large_exponents(self, array, eps):
        """Nothing has to move, but the scaling of the plan is exp(C/eps): its rounding counts."""
        C = np.asarray([[0.5, math.inf], [math.inf, 0.3]])
        X = np.asarray([[0.999, 0.001], [0.3, 0.7]])
        found = wtf.wasserstein(array(X), array(X), loss(C, eps=eps))
        assert found.converged

    @pytest.mark.parametrize("excess", [1e-10, 1e-6])
    def test_slightly_impossible(self, array, excess):
        """Bin 0 is filled by bin 0 alone, which has less: growing exponents do not hide that."""
        C = np.asarray([[1.0, 2.0], [math.inf, 1.0]])
        X, Y = np.full((1, 2), 0.5), np.asarray([[0.5 + excess, 0.5 - excess]])
        with pytest.warns(UserWarning, match="perhaps Y cannot be reached"):
            found = wtf.wasserstein(array(X), array(Y), loss(C, eps=1e-3), max_iter=100)
        assert found.gap == math.inf

    def test_impossible_is_refused(self, array):
        X, Y = np.full((3, N), 0.1), np.full((3, N), 0.1)
        X[1, 0] = Y[1, 5] = 1.0
        expected = r"Y cannot be reached from X by ways of finite cost in sample 1, where the loss"
        with pytest.raises(ValueError, match=expected):
            wtf.wasserstein(array(X), array(Y), loss(band(1)), max_iter=100)

    def test_unfinished_says_that_ways_are_forbidden(self, array):
        X, Y = reachable()
        with pytest.warns(UserWarning, match=r"some ways are forbidden .* a finite lam allows"):
            found = wtf.wasserstein(array(X), array(Y), loss(band(1)), max_iter=2)
        assert not found.converged


@numpy_only
class TestBalancedFits:
    def test_on_islands_are_refused(self):
        X = np.ones((3, N)) / N
        C = apart(band(2, 2), band(4, 4))
        expected = "loss is balanced .* part the bins into islands"
        with pytest.raises(ValueError, match=expected):
            wtf.nmf(X, 2, loss(C), rng=0)
        with pytest.raises(ValueError, match=expected):
            wtf.cp_dual(X, [np.ones((3, 2)), np.ones((N, 2))], 0, loss(C), rho=0.1)

    def test_with_bins_out_of_reach_are_refused(self):
        X = np.eye(3, N)
        expected = r"X.* is 0\.0 at index \(0, 2\).*: expected mass from where .* or a finite lam"
        with pytest.raises(ValueError, match=expected):
            wtf.nmf(X, 2, loss(band(1)), rng=0)

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_with_forbidden_ways(self, solver):
        places = np.arange(12.0)
        centres = np.asarray([[2.5, 8.0], [3.0, 8.5], [3.5, 9.0]])
        bumps = np.exp(-((places - centres[:, :, None]) ** 2) / 8.0).sum(axis=1) + 0.01
        X = bumps / bumps.sum(axis=1, keepdims=True)
        fit = wtf.nmf(X, 2, loss(band(3, 12)), rho=0.05, rng=0, solver=solver)
        assert fit.converged
        assert fit.objective == pytest.approx(objective(fit, X), rel=1e-5)

    @pytest.mark.parametrize("solver", ["envelope", "dual"])
    def test_impossible_ones_say_so(self, solver):
        X = np.full((3, N), 0.01)
        X[0, 0] = X[1, 2] = X[2, 5] = 0.95
        with pytest.warns(UserWarning, match="where costs are infinite, a finite lam"):
            fit = wtf.nmf(X, 1, loss(band(1)), rng=0, solver=solver, max_iter=20)
        assert not fit.converged
        assert all(np.isfinite(factor).all() for factor in fit.factors)
