"""Block duals of CP, Tucker and matrix models: gradients, certificates, laws, known answers."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from array_api_compat import is_torch_namespace
from fitting import spare_jax
from helpers import assert_close, numpy_only, set_thresholds, to_numpy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from infinite_costs import N, band, loss_with, partly_reachable
from sklearn.decomposition import non_negative_factorization

import wtfarray as wtf
from wtfarray._arrays.sums import Sums
from wtfarray.distributed import run_threads

EPS, LAM, RHO = 0.2, 2.0, 0.3


CONSTRAINTS = (None, "rows", "columns", "all")


LAYOUTS = [  # a shape and the modes that are transported
    ((3, 4), (1,)),
    ((3, 4), (0,)),
    ((3, 4), (1, 0)),
    ((3, 2, 4), (1, 2)),
    ((3, 2, 4), (2, 0)),
    ((3, 2, 4), ((0, 2),)),
    ((2, 3, 2, 2), (3, 1)),
    ((2, 3, 2, 2), ((2, 0), 1)),
]


def flat(modes):
    return [k for group in modes for k in (group if isinstance(group, tuple) else (group,))]


def costs_for(shape, modes, scale=1.0):
    sizes = [math.prod(shape[k] for k in flat((group,))) for group in modes]
    points = [np.random.default_rng(n).normal(size=(n, 2)) for n in sizes]
    return [scale * wtf.point_cost(p) for p in points]


def transport(shape, modes, lam=LAM, eps=EPS, scale=1.0):
    costs = costs_for(shape, modes, scale)
    return wtf.Wasserstein(costs, eps * scale, lam * scale, modes=modes)


def normalise(a, constraint):
    axis = {"rows": 1, "columns": 0, "all": None}
    return a if constraint is None else a / a.sum(axis=axis[constraint], keepdims=True)


def entropy(a):
    return float(np.sum(np.where(a > 0, a * (np.log(np.where(a > 0, a, 1.0)) - 1.0), 0.0)))


@dataclass(frozen=True)
class Case:
    """One block of one model; `data` and the parts are NumPy arrays, the core of CP a vector."""

    model: str
    shape: tuple
    block: object
    constraint: str | None
    loss: object
    rho: float = RHO
    number: int = 0

    def parts(self):
        rng = np.random.default_rng(0)
        ranks = (2,) * 4 if self.model == "cp" else (2, 3, 2, 2)
        X = normalise(rng.gamma(1.0, size=self.shape), "all")
        shapes = zip(self.shape, ranks, strict=False)
        factors = [normalise(rng.gamma(1.0, size=shape), "columns") for shape in shapes]
        core = rng.gamma(1.0, size=ranks[: len(self.shape)] if self.model == "tucker" else (2,))
        return X, factors, normalise(core, "all")

    def dual(self, array, dtype="float64"):
        X, factors, core = self.parts()
        X, core, factors = array(X, dtype), array(core, dtype), [array(f, dtype) for f in factors]
        keywords = {"rho": self.rho, "constraint": self.constraint}
        if self.model == "tucker":
            return wtf.tucker_dual(X, core, factors, self.block, self.loss, **keywords)
        return wtf.cp_dual(X, factors, self.block, self.loss, weights=core, **keywords)

    def random_block(self, rng):
        _, factors, core = self.parts()
        shape = core.shape if isinstance(self.block, str) else factors[self.block].shape
        return normalise(rng.gamma(1.0, size=shape), self.constraint)

    def objective(self, array, block):
        """The primal objective of a block, from the public functions for its parts."""
        X, factors, core = self.parts()
        if isinstance(self.block, str):
            core = block
        else:
            factors[self.block] = block
        factors = [array(f) for f in factors]
        if self.model == "tucker":
            Y = wtf.tucker_to_tensor(array(core), factors)
        else:
            Y = wtf.cp_to_tensor(factors, array(core))
        Y = to_numpy(Y)
        if isinstance(self.loss, wtf.Wasserstein):
            phi = float(wtf.wasserstein(array(X), array(Y), self.loss, tol=1e-8).value)
        elif isinstance(self.loss, wtf.Frobenius):
            phi = 0.5 * float(np.sum((X - Y) ** 2))
        else:
            phi = float(np.sum(X * np.log(X / Y) - X + Y))
        return phi + self.rho * entropy(block)


def cases(layouts, others=True):
    """Every model, block, constraint and loss."""
    found = []
    for shape, modes in layouts:
        losses = {f"W{modes}": transport(shape, modes)}
        if others:
            losses |= {"F": wtf.Frobenius(), "KL": wtf.KullbackLeibler()}
        for model, last in (("cp", "weights"), ("tucker", "core")):
            for block in (*range(len(shape)), last):
                for constraint in (None, "all") if block == last else CONSTRAINTS:
                    for name, loss in losses.items():
                        label = f"{model}{len(shape)}-{block}-{constraint}-{name}"
                        case = Case(model, shape, block, constraint, loss, number=len(found))
                        found.append(pytest.param(case, id=label.replace(" ", "")))
    return found


EVERY = cases(LAYOUTS[3:4]) + cases(LAYOUTS[:1]) + cases(LAYOUTS[6:7])


EVERY += cases([LAYOUTS[k] for k in (1, 2, 4, 5, 7)], others=False)


SOME = cases(LAYOUTS[3:4])


@pytest.fixture
def case(request, backend):
    """One case of many; array-api-strict takes a fifth of them, and JAX those of one shape."""
    if backend.name.startswith(("strict", "jax")) and request.param.number % 5:
        pytest.skip("one in five on a slow backend")
    if backend.name == "jax" and request.param.shape != LAYOUTS[3][0]:
        pytest.skip("JAX would compile for too long: one shape is tested with it")
    return request.param


def each(cases):
    return pytest.mark.parametrize("case", cases, indirect=True)


# Which blocks of a matrix of unit samples can a balanced loss be asked for?
BALANCED = [(0, None), (0, "rows"), (1, "columns")]


def balanced_dual(array, block, constraint, seed=0, lam=math.inf, dtype="float64"):
    """A matrix model whose samples, rows of A0 and columns of A1 weigh one."""
    rng = np.random.default_rng(seed)
    X = normalise(rng.gamma(1.0, size=(3, 5)), "rows")
    factors = [
        normalise(rng.gamma(1.0, size=(3, 2)), "rows"),
        normalise(rng.gamma(1.0, size=(5, 2)), "columns"),
    ]
    loss = transport((3, 5), (1,), lam)
    factors = [array(f, dtype) for f in factors]
    return wtf.cp_dual(array(X, dtype), factors, block, loss, rho=RHO, constraint=constraint)


def random_like(array, dual, rng, scale=1.0, dtype="float64"):
    return array(scale * rng.normal(size=tuple(dual.start().shape)), dtype)


def minimise(dual, gap=0.0, gtol=1e-7):
    """Minimise a dual to a small gradient, or to a gap."""
    result = wtf.lbfgs(
        dual.value_and_gradient,
        dual.start(),
        safe_fun=dual.safe_value_and_gradient,
        stop=(lambda state: dual.certificate(state.x).gap <= gap) if gap else None,
        gtol=gtol,
        max_iter=2000,
    )
    assert result.converged, result.message
    return result


def differences(dual, array, g, step, h=1e-5):
    """Directional derivative of the dual by central differences."""
    ends = [float(dual.value_and_gradient(array(g + t * step))[0]) for t in (h, -h)]
    return (ends[0] - ends[1]) / (2.0 * h)


class TestGradient:
    @each(EVERY)
    def test_gradient_agrees_with_central_differences(self, array, case):
        rng = np.random.default_rng(1)
        dual = case.dual(array)
        g, step = (0.5 * rng.normal(size=tuple(dual.start().shape)) for _ in range(2))
        value, gradient = dual.value_and_gradient(array(g))
        assert value.shape == ()
        expected = differences(dual, array, g, step)
        scale = 1.0 + float(np.sum(np.abs(to_numpy(gradient) * step)))
        assert np.sum(to_numpy(gradient) * step) == pytest.approx(expected, abs=1e-8 * scale)

    @pytest.mark.parametrize(("block", "constraint"), BALANCED)
    def test_balanced_gradient_agrees_with_central_differences(self, array, block, constraint):
        rng = np.random.default_rng(1)
        dual = balanced_dual(array, block, constraint)
        g, step = (0.5 * rng.normal(size=(3, 5)) for _ in range(2))
        gradient = to_numpy(dual.value_and_gradient(array(g))[1])
        expected = differences(dual, array, g, step)
        assert np.sum(gradient * step) == pytest.approx(expected, rel=1e-7)

    @each(EVERY[::2])
    def test_gradient_agrees_with_torch_autograd(self, xp, array, case):
        if not is_torch_namespace(xp):
            pytest.skip("autograd is torch's")
        check_autograd(array, case.dual(array))

    @pytest.mark.parametrize(("block", "constraint"), BALANCED)
    def test_balanced_gradient_agrees_with_torch_autograd(self, xp, array, block, constraint):
        if not is_torch_namespace(xp):
            pytest.skip("autograd is torch's")
        check_autograd(array, balanced_dual(array, block, constraint))


def check_autograd(array, dual):
    import torch

    g = random_like(array, dual, np.random.default_rng(2), 0.5).requires_grad_()
    value, gradient = dual.value_and_gradient(g)
    (expected,) = torch.autograd.grad(value, g)
    assert_close(gradient.detach(), expected, rtol=1e-10, atol=1e-12)


class TestCertificate:
    @staticmethod
    @settings(max_examples=40)
    @given(
        case=st.sampled_from([one.values[0] for one in SOME[::7]]),
        seed=st.integers(0, 10**6),
        scale=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    )
    def test_gap_is_never_negative(array, case, seed, scale):
        dual = case.dual(array)
        g = random_like(array, dual, np.random.default_rng(seed), scale)
        found = dual.certificate(g)
        assert found.gap >= 0
        assert found.lower <= found.upper
        if found.lower > -math.inf:
            assert found.upper == pytest.approx(found.lower + found.gap, rel=1e-12)
        else:  # outside the domain, where only large potentials lie
            assert scale == 10.0
            assert found.gap == math.inf
        value = float(dual.safe_value_and_gradient(g)[0])
        assert found.lower == pytest.approx(-value, rel=1e-12, abs=1e-12)

    @staticmethod
    @pytest.mark.parametrize(("block", "constraint"), BALANCED)
    @settings(max_examples=15)
    @given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.0, 0.1, 1.0, 10.0]))
    def test_balanced_gap_is_finite_and_never_negative(array, block, constraint, seed, scale):
        dual = balanced_dual(array, block, constraint)
        found = dual.certificate(random_like(array, dual, np.random.default_rng(seed), scale))
        assert math.isfinite(found.gap)
        assert found.gap >= 0
        assert found.lower <= found.upper

    @each(SOME[::2])
    def test_upper_bound_is_above_the_objective(self, array, case):
        dual = case.dual(array)
        found = dual.certificate(random_like(array, dual, np.random.default_rng(3), 0.3))
        value = case.objective(array, to_numpy(found.factor))
        assert value <= found.upper + 1e-9 * abs(found.upper)

    def test_bounds_are_accurate_for_a_large_lam(self, array, monkeypatch):
        """While a dual is minimised, rounding errors of u of the size of lam are allowed."""
        X, rng = np.full((1, 4), 0.25), np.random.default_rng(0)
        factors, loss = (
            [np.ones((1, 1)), rng.dirichlet(np.ones(4), 1).T],
            transport((1, 4), (1,), 5e3),
        )
        dual = wtf.cp_dual(array(X), [array(A) for A in factors], 1, loss, rho=RHO)
        g = array(rng.normal(size=(1, 4)))
        found = dual.certificate(g)
        set_thresholds(monkeypatch, exponent_error=0.0)
        assert dual.certificate(g).lower == found.lower
        assert -float(dual.safe_value_and_gradient(g)[0]) == found.lower

    @each(SOME[::4] + cases(LAYOUTS[5:6], others=False)[::4])
    def test_gap_closes_at_the_minimum(self, array, case):
        dual = case.dual(array)
        found = dual.certificate(minimise(dual, gtol=1e-6).x)
        assert found.gap <= 1e-6 * abs(found.upper)
        factor = to_numpy(found.factor)
        assert np.all(factor >= 0)
        assert factor.shape == case.random_block(np.random.default_rng()).shape
        np.testing.assert_allclose(factor, normalise(factor, case.constraint), rtol=1e-12)
        assert case.objective(array, factor) == pytest.approx(found.upper, rel=2e-6)
        other = case.random_block(np.random.default_rng(4))
        assert found.lower < case.objective(array, other)

    @pytest.mark.parametrize(("block", "constraint"), BALANCED)
    def test_balanced_gap_closes_at_the_minimum(self, array, block, constraint):
        dual = balanced_dual(array, block, constraint)
        found = dual.certificate(minimise(dual).x)
        assert 0 <= found.gap <= 1e-5 * abs(found.upper)
        factor = to_numpy(found.factor)
        np.testing.assert_allclose(factor, normalise(factor, constraint), rtol=1e-12)
        model = to_numpy(dual.block.forward(found.factor))
        np.testing.assert_allclose(model.sum(axis=1), np.ones(3), rtol=1e-12)

    @pytest.mark.parametrize(("block", "constraint"), BALANCED)
    @pytest.mark.parametrize("scale", [0.3, 10.0])
    def test_balanced_upper_bound_is_above_the_objective(self, array, block, constraint, scale):
        dual = balanced_dual(array, block, constraint)
        found = dual.certificate(random_like(array, dual, np.random.default_rng(5), scale))
        loss = transport((3, 5), (1,), math.inf)
        model = dual.block.forward(found.factor)
        phi = float(wtf.wasserstein(dual.bound.data, model, loss, tol=1e-9).value)
        assert phi + RHO * entropy(to_numpy(found.factor)) <= found.upper


class TestLaws:
    @staticmethod
    @settings(max_examples=40)
    @given(
        case=st.sampled_from([one.values[0] for one in SOME[::7]]),
        seed=st.integers(0, 10**6),
        weight=st.floats(0.01, 0.99),
    )
    def test_dual_is_convex_in_g(array, case, seed, weight):
        rng = np.random.default_rng(seed)
        dual = case.dual(array)
        g, h = (2.0 * rng.normal(size=tuple(dual.start().shape)) for _ in range(2))
        values = [
            float(dual.safe_value_and_gradient(array(t))[0])
            for t in (g, h, weight * g + (1.0 - weight) * h)
        ]
        mean = weight * values[0] + (1.0 - weight) * values[1]
        assert values[2] <= mean + 1e-12 * max(map(abs, values))

    @pytest.mark.parametrize("scale", [1e-3, 20.0])
    @each(cases(LAYOUTS[3:4], others=False))
    def test_dual_scales_with_cost_eps_lam_and_rho(self, array, case, scale):
        """C, eps, lam, rho and g times s: the value times s, the same gradient and factor."""
        loss = transport(case.shape, (1, 2), scale=scale)
        scaled = Case(case.model, case.shape, case.block, case.constraint, loss, RHO * scale)
        a, b = case.dual(array), scaled.dual(array)
        g = np.random.default_rng(6).normal(size=tuple(a.start().shape))
        value, gradient = a.value_and_gradient(array(g))
        other, same = b.value_and_gradient(array(scale * g))
        assert float(other) == pytest.approx(scale * float(value), rel=1e-12)
        assert_close(same, gradient, rtol=1e-9, atol=1e-11)
        assert_close(b.factor(array(scale * g)), a.factor(array(g)), rtol=1e-10)
        found, bounds = b.certificate(array(scale * g)), a.certificate(array(g))
        assert found.gap == pytest.approx(scale * bounds.gap, rel=1e-9)

    @pytest.mark.parametrize(("block", "constraint"), BALANCED)
    def test_large_lam_tends_to_balanced(self, array, block, constraint):
        g = 0.5 * np.random.default_rng(7).normal(size=(3, 5))
        balanced, *others = (
            balanced_dual(array, block, constraint, lam=lam) for lam in (math.inf, 1e3, 1e5)
        )
        value, gradient = (to_numpy(a) for a in balanced.value_and_gradient(array(g)))
        for dual, lam in zip(others, (1e3, 1e5), strict=True):
            near, near_gradient = (to_numpy(a) for a in dual.value_and_gradient(array(g)))
            assert 0 < abs(near - value) < 5.0 / lam
            np.testing.assert_allclose(near_gradient, gradient, atol=5.0 / lam)

    @pytest.mark.parametrize("loss", ["W", "F", "KL"])
    @pytest.mark.parametrize("constraint", CONSTRAINTS)
    def test_permuted_samples_permute_rows(self, array, constraint, loss):
        rng = np.random.default_rng(8)
        order = rng.permutation(4)
        X, factors = rng.gamma(1.0, size=(4, 5)), [rng.gamma(1.0, size=(n, 2)) for n in (4, 5)]
        named = {"W": transport((4, 5), (1,)), "F": wtf.Frobenius(), "KL": wtf.KullbackLeibler()}

        g = 0.3 * rng.normal(size=(4, 5))

        def parts(X, rows, block, g):
            given_factors = [array(rows), array(factors[1])]
            dual = wtf.cp_dual(
                array(X), given_factors, block, named[loss], rho=RHO, constraint=constraint
            )
            value, gradient = dual.value_and_gradient(array(g))
            return float(value), to_numpy(gradient), to_numpy(dual.factor(array(g)))

        for block in (0, 1):
            value, gradient, factor = parts(X, factors[0], block, g)
            mixed = parts(X[order], factors[0][order], block, g[order])
            assert mixed[0] == pytest.approx(value, rel=1e-12)
            largest = np.max(np.abs(gradient))
            np.testing.assert_allclose(mixed[1], gradient[order], atol=1e-12 * largest)
            expected = factor[order] if block == 0 else factor
            np.testing.assert_allclose(mixed[2], expected, rtol=1e-12)

    def test_dual_is_the_sum_over_samples(self, array):
        case = Case("cp", (3, 2, 4), 0, "rows", transport((3, 2, 4), (1, 2)))
        X, factors, weights = case.parts()
        g = np.random.default_rng(9).normal(size=X.shape)
        value, total = float(case.dual(array).value_and_gradient(array(g))[0]), 0.0
        for i in range(3):
            rows = slice(i, i + 1)
            parts = [array(f) for f in (factors[0][rows], *factors[1:])]
            dual = wtf.cp_dual(
                array(X[rows]),
                parts,
                0,
                case.loss,
                rho=RHO,
                constraint="rows",
                weights=array(weights),
            )
            total += float(dual.value_and_gradient(array(g[rows]))[0])
        assert value == pytest.approx(total, rel=1e-12)

    def test_tucker_dual_with_a_diagonal_core_is_the_cp_dual(self, array):
        rng = np.random.default_rng(10)
        shape, loss = (3, 2, 4), transport((3, 2, 4), (2, 0))
        X, factors = rng.gamma(1.0, size=shape), [rng.gamma(1.0, size=(n, 2)) for n in shape]
        core = np.zeros((2, 2, 2))
        core[[0, 1], [0, 1], [0, 1]] = weights = rng.gamma(1.0, size=2)
        parts = [array(f) for f in factors]
        for block in range(3):
            cp = wtf.cp_dual(array(X), parts, block, loss, rho=RHO, weights=array(weights))
            tucker = wtf.tucker_dual(array(X), array(core), parts, block, loss, rho=RHO)
            g = random_like(array, cp, rng, 0.3)
            for a, b in zip(cp.value_and_gradient(g), tucker.value_and_gradient(g), strict=True):
                assert_close(a, b, rtol=1e-11)


class TestSafety:
    @staticmethod
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize(("block", "constraint"), [(0, "rows"), (1, "columns"), (0, None)])
    @given(seed=st.integers(0, 10**6), size=st.floats(-3.0, 4.0))
    @example(seed=0, size=-1.0)
    @example(seed=0, size=4.0)
    def test_fast_value_is_accurate_or_nan(array, dtype, block, constraint, seed, size):
        """Where the fast value is a number it is the safe one; the safe one is never NaN."""
        rng = np.random.default_rng(seed)
        X, factors = rng.gamma(1.0, size=(2, 5)), [rng.gamma(1.0, size=(n, 2)) for n in (2, 5)]
        loss = wtf.Wasserstein(wtf.grid_cost(5), 1e-2, 5.0)
        parts = [array(f, dtype) for f in factors]
        dual = wtf.cp_dual(array(X, dtype), parts, block, loss, rho=1.0, constraint=constraint)
        g = array(10.0**size * rng.normal(size=(2, 5)), dtype)
        value, gradient = dual.value_and_gradient(g)
        safe_value, safe_gradient = dual.safe_value_and_gradient(g)
        assert not math.isnan(float(safe_value))
        assert size > -1.0 or math.isfinite(float(value))
        if math.isnan(float(value)) or math.isinf(float(safe_value)):
            return
        rtol = 1e-10 if dtype == "float64" else 1e-3
        assert float(value) == pytest.approx(float(safe_value), rel=rtol)
        largest = float(np.max(np.abs(to_numpy(safe_gradient))))
        assert_close(gradient, safe_gradient, rtol=rtol, atol=rtol * largest)

    def test_fast_value_is_nan_where_a_sample_underflows(self, array):
        loss = wtf.Wasserstein(wtf.grid_cost(5), 1e-3, 5.0)
        dual = wtf.cp_dual(
            array(np.ones((2, 5))), [array(np.ones((n, 2))) for n in (2, 5)], 0, loss, rho=1.0
        )
        g = array([[0.0] * 5, [0.0, 0.0, 0.0, 0.0, 9.0]])
        assert math.isnan(float(dual.value_and_gradient(g)[0]))
        assert math.isfinite(float(dual.safe_value_and_gradient(g)[0]))

    @pytest.mark.parametrize(
        "loss", [wtf.Wasserstein(wtf.grid_cost(5), 0.1, 1.0), wtf.KullbackLeibler()]
    )
    @pytest.mark.parametrize("constraint", [None, "columns"])
    def test_bounds_are_infinite_outside_the_domain(self, array, loss, constraint):
        X, parts = array(np.ones((2, 5))), [array(np.ones((n, 2))) for n in (2, 5)]
        dual = wtf.cp_dual(X, parts, 1, loss, rho=1.0, constraint=constraint)
        g = np.zeros((2, 5))
        g[0, 0] = -300.0
        found = dual.certificate(array(g))
        assert (found.lower, found.upper, found.gap) == (-math.inf, math.inf, math.inf)

    @pytest.mark.parametrize("unit", [1.0, 1e-3, 1e-6, 1e-9])
    def test_gap_closes_in_any_unit_of_the_cost(self, array, unit):
        rng = np.random.default_rng(3)
        X, atoms = rng.dirichlet(np.ones(6), 4), rng.dirichlet(np.ones(6), 2).T
        loss = wtf.Wasserstein([wtf.grid_cost(6)[0] * unit], eps=0.05 * unit, lam=100.0 * unit)
        parts = [array(np.ones((4, 2))), array(atoms)]
        dual = wtf.cp_dual(array(X), parts, 0, loss, rho=1e-2 * unit, constraint="rows")
        assert dual.certificate(minimise(dual).x).gap <= 1e-9 * unit

    def test_empty_samples_have_a_known_block(self, array):
        X = np.zeros((3, 5))
        X[0, 2], X[2] = 1.0, [0.1, 0.0, 0.4, 0.0, 0.5]
        atoms = np.random.default_rng(11).gamma(1.0, size=(5, 2))
        loss = transport((3, 5), (1,))
        dual = wtf.cp_dual(array(X), [array(np.ones((3, 2))), array(atoms)], 0, loss, rho=RHO)
        found = dual.certificate(minimise(dual).x)
        assert 0 <= found.gap <= 1e-9 * abs(found.upper)
        # An empty sample has the loss lam <a, atoms^T 1>: a = exp(-lam atoms^T 1 / rho).
        expected = np.exp(-LAM * atoms.sum(axis=0) / RHO)
        np.testing.assert_allclose(to_numpy(found.factor)[1], expected, atol=1e-8)

    @each(SOME)
    def test_float32_is_close_to_float64(self, array, case):
        g = 0.5 * np.random.default_rng(12).normal(size=tuple(case.dual(array).start().shape))
        value, gradient = (to_numpy(a) for a in case.dual(array).value_and_gradient(array(g)))
        dual = case.dual(array, "float32")
        single, single_gradient = dual.value_and_gradient(array(g, "float32"))
        assert single.dtype == single_gradient.dtype == dual.start().dtype
        np.testing.assert_allclose(to_numpy(single), value, rtol=1e-5, atol=1e-5)
        largest = np.max(np.abs(gradient))
        np.testing.assert_allclose(to_numpy(single_gradient), gradient, atol=1e-4 * largest)


class TestBalanced:
    def ask(self, array, block, constraint, *, mass=1.0, weights=None, modes=(1,)):
        X = np.full((3, 4), mass / 4.0)
        factors = [np.full((3, 2), 0.5), np.full((4, 2), 0.25)]
        loss = transport((3, 4), modes, math.inf)
        return wtf.cp_dual(
            array(X),
            [array(f) for f in factors],
            block,
            loss,
            rho=RHO,
            constraint=constraint,
            weights=None if weights is None else array(weights),
        )

    @pytest.mark.parametrize(("block", "constraint"), BALANCED)
    def test_constraints_that_conserve_mass_are_accepted(self, array, block, constraint):
        dual = self.ask(array, block, constraint)
        assert dual.bound.conserves_mass
        assert math.isfinite(dual.certificate(dual.start()).upper)

    @pytest.mark.parametrize(
        ("block", "constraint"), [(0, "columns"), (0, "all"), (1, "rows"), (1, "all")]
    )
    def test_constraints_that_do_not_conserve_mass_are_refused(self, array, block, constraint):
        expected = rf"constraint is '{constraint}' and the loss is balanced.*has mass.*finite lam"
        with pytest.raises(ValueError, match=expected):
            self.ask(array, block, constraint)

    @pytest.mark.parametrize("block", [1, "weights"])
    def test_unconstrained_shared_blocks_are_refused(self, array, block):
        with pytest.raises(
            ValueError, match=r"constraint is None.*the mass of each sample.*finite lam"
        ):
            self.ask(array, block, None)

    def test_samples_of_another_mass_are_refused(self, array):
        with pytest.raises(
            ValueError, match=r"sample \d of X has mass 2\.0 and a model under.*: expected"
        ):
            self.ask(array, 0, "rows", mass=2.0)

    def test_unconstrained_coefficients_take_any_mass(self, array):
        found = (dual := self.ask(array, 0, None, mass=2.0)).certificate(dual.start())
        np.testing.assert_allclose(to_numpy(found.factor).sum(axis=1), 2.0, rtol=1e-12)

    @pytest.mark.parametrize(
        ("dtype", "far"),
        [("float32", 96.0), ("float32", 200.0), ("float64", 740.0), ("float64", 2000.0)],
    )
    def test_coefficients_that_underflow_have_an_infinite_gap(self, array, dtype, far):
        """They are 0 or subnormal in the first sample, and cannot be scaled to its mass."""
        X, atoms = (array(np.full(shape, 1.0 / 3.0), dtype) for shape in ((2, 3), (3, 2)))
        loss = wtf.Wasserstein(wtf.grid_cost(3), 0.1)
        dual = wtf.cp_dual(X, [array(np.ones((2, 2)), dtype), atoms], 0, loss, rho=1.0)
        found = dual.certificate(array([[far] * 3, [0.0] * 3], dtype))
        assert found.gap == found.upper == math.inf
        assert math.isfinite(found.lower)
        np.testing.assert_allclose(to_numpy(found.factor), [[0.0, 0.0], [0.5, 0.5]], rtol=1e-5)

    def test_weights_carry_the_mass_when_all_modes_are_transported(self, array):
        """With every mode transported and normalised factors the weights carry all the mass."""
        factors = [array(np.full((3, 2), 1.0 / 3.0)), array(np.full((4, 2), 0.25))]
        loss = transport((3, 4), (0, 1), math.inf)
        X = array(np.full((3, 4), 1.0 / 12.0))
        dual = wtf.cp_dual(X, factors, "weights", loss, rho=RHO, constraint="all")
        assert math.isfinite(dual.certificate(dual.start()).gap)
        free = wtf.cp_dual(X, factors, "weights", loss, rho=RHO)
        found = free.certificate(free.start())
        assert float(np.sum(to_numpy(found.factor))) == pytest.approx(1.0, rel=1e-12)


class TestKnownAnswers:
    @pytest.mark.parametrize("name", ["identity kernel", "KullbackLeibler"])
    def test_diagonal_cost_gives_the_coefficients_of_kl_nmf(self, array, name):
        """Without transport and with little entropy these are scikit-learn's KL coefficients."""
        rng = np.random.default_rng(13)
        X, atoms = rng.gamma(2.0, size=(4, 6)), rng.gamma(1.0, size=(6, 2))
        expected, _, _ = non_negative_factorization(
            X,
            H=atoms.T.copy(),
            n_components=2,
            update_H=False,
            solver="mu",
            beta_loss="kullback-leibler",
            tol=1e-12,
            max_iter=5000,
        )
        nowhere = np.where(np.eye(6) > 0, 0.0, math.inf)
        loss = wtf.KullbackLeibler()
        if name == "identity kernel":
            loss = wtf.Wasserstein(nowhere, 0.1, 1.0)
        parts = [array(np.ones((4, 2))), array(atoms)]
        errors = []
        for rho in (1e-1, 1e-2):
            dual = wtf.cp_dual(array(X), parts, 0, loss, rho=rho)
            factor = to_numpy(dual.factor(minimise(dual, gtol=1e-6).x))
            errors.append(np.max(np.abs(factor - expected)))
        assert errors[0] > 5.0 * errors[1]
        assert errors[1] < 0.02

    @pytest.mark.parametrize(("shift", "atol"), [(0.0, 0.01), (0.05, 0.04)])
    def test_coefficients_of_shifted_gaussians_are_recovered(self, xp, array, shift, atol):
        """Mixtures of three bumps, possibly shifted a little, have known coefficients."""
        spare_jax(xp)
        x = np.linspace(0.0, 1.0, 25)

        def bumps(offset):
            shape = np.exp(-0.5 * ((x[:, None] - [0.2, 0.5, 0.8] - offset) / 0.04) ** 2)
            return shape / shape.sum(axis=0)

        coefficients = np.asarray([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.05, 0.9, 0.05]])
        X, atoms = coefficients @ bumps(shift).T, bumps(0.0)
        loss = wtf.Wasserstein(wtf.grid_cost(25), 0.02, 10.0)
        parts = [array(np.ones((3, 3))), array(atoms)]
        dual = wtf.cp_dual(array(X), parts, 0, loss, rho=5e-3, constraint="rows")
        found = to_numpy(dual.factor(minimise(dual, gap=1e-3).x))
        np.testing.assert_allclose(found, coefficients, atol=atol)


class TestInfiniteCosts:
    @pytest.mark.parametrize("block", [0, 1])
    def test_gradient_and_certificate_hold_with_unreachable_bins(self, array, block):
        rng = np.random.default_rng(0)
        X = partly_reachable()[0]
        factors = [array(rng.uniform(0.5, 1.0, (n, 2))) for n in (3, N)]
        dual = wtf.cp_dual(array(X), factors, block, loss_with(band(1), 2.0), rho=0.1)
        g, direction = rng.normal(size=(2, 3, N))
        value, gradient = dual.value_and_gradient(array(g))
        ahead, behind = (
            float(dual.value_and_gradient(array(g + t * direction))[0]) for t in (1e-5, -1e-5)
        )
        found = float(np.sum(to_numpy(gradient) * direction))
        assert found == pytest.approx((ahead - behind) / 2e-5, rel=1e-7)
        certificate = dual.certificate(array(g))
        assert certificate.lower == pytest.approx(-float(value), rel=1e-12)
        model = dual.model(certificate.factor)
        exact = float(wtf.wasserstein(array(X), model, loss_with(band(1), 2.0), tol=1e-12).value)
        exact += 0.1 * float(wtf.entropy(certificate.factor)[0])
        assert certificate.lower <= exact <= certificate.upper

    def test_upper_bound_of_an_infeasible_factor_is_infinite(self, array):
        """Hardly any of the second bin of X fits into the bins that it can reach."""
        X = np.asarray([[9.9697858e-01], [2.9697772e-03], [4.5208562e-05], [6.4431238e-06]])
        inf = math.inf
        cost = [
            [0.0, 0.4, 1.6, 3.6],
            [inf, 0.0, inf, 1.6],
            [inf, 0.4, 0.0, inf],
            [3.6, inf, 0.4, 0],
        ]
        loss = wtf.Wasserstein([np.asarray(cost), np.ones((1, 1))], eps=1e-4, modes=(0, 1))
        factors = [array(np.ones((4, 1)), "float32"), array(np.ones((1, 1)), "float32")]
        dual = wtf.cp_dual(array(X, "float32"), factors, 0, loss, rho=9.5e-3)
        safe = dual.safe_value_and_gradient
        g = wtf.lbfgs(dual.value_and_gradient, dual.start(), max_iter=3, safe_fun=safe).x
        found = dual.certificate(g)
        assert to_numpy(found.factor)[1::2].sum() < 1e-3
        assert found.upper == found.gap == inf

    def test_gap_closes_as_for_large_finite_costs(self, array, xp):
        spare_jax(xp)
        rng = np.random.default_rng(0)
        X, cost = partly_reachable()[0], band(1)
        factors = [array(rng.uniform(0.5, 1.0, (n, 2))) for n in (3, N)]
        found = []
        for C in (cost, np.where(np.isfinite(cost), cost, 1e3)):
            dual = wtf.cp_dual(array(X), factors, 0, loss_with(C, 2.0), rho=0.1)
            result = wtf.lbfgs(
                dual.value_and_gradient, dual.start(), safe_fun=dual.safe_value_and_gradient
            )
            found.append(dual.certificate(result.x))
            assert found[-1].gap < 1e-8
        assert found[0].lower == pytest.approx(found[1].lower, rel=1e-9)


@numpy_only
@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("loss", [wtf.Wasserstein(wtf.grid_cost(6), 0.1, 2.0), wtf.Frobenius()])
def test_samples_of_several_processes(block, loss):
    """Value, gradient and certificate are those of all samples; the second rank has one."""
    rng = np.random.default_rng(0)
    X, g = rng.dirichlet(np.ones(6), 5), rng.normal(0.0, 0.2, (5, 6))
    factors = [rng.dirichlet(np.ones(3), 5), rng.dirichlet(np.ones(6), 3).T]
    constraint = "rows" if block == 0 else "columns"

    def dual_of(rows, **shared):
        mine = [factors[0][rows], factors[1]]
        whole = wtf.cp_dual(X[rows], mine, block, loss, rho=0.1, constraint=constraint)
        return replace(whole, **shared)

    one = dual_of(slice(None))
    expected, gradient = one.value_and_gradient(g)
    certificate = one.certificate(g)

    def run(comm):
        rows = (slice(0, 4), slice(4, 5))[comm.rank]
        dual = dual_of(rows, sums=Sums(comm), is_common=block != 0)
        return *dual.value_and_gradient(g[rows]), dual.certificate(g[rows])

    team = run_threads(run, 2, timeout=20.0)
    np.testing.assert_allclose(np.concatenate([part[1] for part in team]), gradient, rtol=1e-11)
    for value, _, found in team:
        assert float(value) == pytest.approx(float(expected), rel=1e-12)
        assert found.lower == pytest.approx(certificate.lower, rel=1e-12)
        assert found.gap == pytest.approx(certificate.gap, rel=1e-9)
    rows = [found.factor for _, _, found in team]
    factor = np.concatenate(rows) if block == 0 else rows[1]
    np.testing.assert_allclose(factor, certificate.factor, rtol=1e-11)


@numpy_only
def test_certificate_of_one_heavy_bin_far_from_the_others_in_float32():
    """Exponents of 2000 at this bin would hide the mass that the others lack."""
    X = np.asarray([2e-5, 1e-8, 1.0, 1.3e-5])
    upper = np.asarray([[0, 4.2, 1.4, 0.04], [0, 0, 0.7, 3.5], [0, 0, 0, 1.0], [0, 0, 0, 0]])
    loss = wtf.Wasserstein(upper + upper.T, eps=1e-4)
    gaps = []
    for dtype in ("float32", "float64"):
        data, factor = (X / X.sum()).astype(dtype), np.ones((4, 2), dtype)
        dual = wtf.cp_dual(data, [factor], 0, loss, rho=3e-3, constraint="all")
        g = np.asarray([[-0.023, 0.0255, -0.1787, -0.0247]], dtype)
        gaps.append(dual.certificate(g).gap)
    assert gaps[0] == pytest.approx(gaps[1], rel=1e-2)
