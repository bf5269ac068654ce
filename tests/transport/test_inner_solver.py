"""The solver that is chosen for a problem, and solving to a duality gap."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from array_api_compat import is_array_api_strict_namespace
from exact_transport import exact_values, samples_with_zeros
from fitting import spare_jax
from helpers import numpy_only, set_thresholds, to_numpy
from infinite_costs import band

import wtfarray as wtf
from wtfarray import _dispatch
from wtfarray._arrays.host import is_on_host
from wtfarray._transport import inner_solver as module
from wtfarray._transport.inner_solver import (
    CHECK_EVERY,
    gap_factor,
    has_compiler,
    has_distant_bins,
    inner_solver,
    is_fused,
    solve_to_gap,
)
from wtfarray._transport.newton import Newton
from wtfarray._transport.problem import TransportProblem
from wtfarray._transport.sinkhorn import Sinkhorn

COST = wtf.grid_cost(6)[0]
SPACING = float(COST[0, 1])  # of neighbouring bins
LAMS = [1.0, math.inf]


@pytest.fixture(autouse=True)
def not_on_jax(xp):
    spare_jax(xp)


def solver_for(array, lam, eps):
    X, Y = samples_with_zeros(lam)
    problem = wtf.Wasserstein(COST, eps, lam).bind(array(X))
    return inner_solver(problem, array(np.zeros(X.shape))), array(Y), X, Y


class TestInnerSolver:
    @pytest.mark.parametrize(
        ("lam", "eps", "kind"),
        [
            (1.0, SPACING / 4.1, Newton),
            (1.0, SPACING / 3.9, Sinkhorn),
            (math.inf, SPACING / 1.1, Newton),
            (math.inf, SPACING / 0.9, Sinkhorn),
        ],
    )
    def test_spacing_of_the_bins_decides(self, array, lam, eps, kind):
        solver, *_ = solver_for(array, lam, eps)
        assert isinstance(solver, kind)
        assert has_distant_bins(solver.problem) == (kind is Newton)

    @pytest.mark.parametrize("lam", LAMS)
    def test_thresholds_decide(self, array, lam, monkeypatch):
        rules = (_dispatch.NewtonRule(6, 0.0),)
        everything = replace(_dispatch.THRESHOLDS, newton=rules, newton_balanced=rules)
        assert isinstance(solver_for(array, lam, 1.0)[0], Sinkhorn)
        monkeypatch.setattr(_dispatch, "THRESHOLDS", everything)
        assert isinstance(solver_for(array, lam, 1.0)[0], Newton)

    def test_solver_starts_from_the_potential_and_knows_the_weights(self, array):
        X, _ = samples_with_zeros(1.0)
        g, weights = array(np.ones(X.shape)), array([1.0, 2.0, 3.0])
        solver = inner_solver(wtf.Wasserstein(COST, 1.0, 1.0).bind(array(X)), g, weights)
        assert solver.g is g
        assert solver.sample_weights is weights


def cost_with_outlier(bins, distance):
    """Costs between points of a unit square, at most 1, and one bin at this cost from all."""
    points = np.random.default_rng(0).random((bins, 2))
    cost = 0.5 * np.sum((points[:, None] - points) ** 2, axis=-1)
    cost[0, 1:] = cost[1:, 0] = distance
    return cost


class TestFused:
    """Which problems are served in machine code, where there is a compiler."""

    @pytest.fixture(autouse=True)
    def every_size(self, monkeypatch):
        set_thresholds(monkeypatch, fused_entries=0)
        monkeypatch.setattr(module, "has_compiler", lambda: True)

    def served(self, array, X, costs, lam=1.0, **options):
        return is_fused(wtf.Wasserstein(costs, 1.0, lam, **options).bind(array(X)))

    def test_libraries_in_the_memory_of_the_processor(self, array, xp):
        X = np.ones((2, 6))
        assert self.served(array, X, COST) == is_on_host(array(X))
        assert is_on_host(array(X)) == (not is_array_api_strict_namespace(xp))

    @numpy_only
    @pytest.mark.parametrize("lam", LAMS)
    def test_zeros_and_several_axes(self, array, lam):
        X = np.zeros((2, 6, 3))
        X[:, 1, 2] = 1.0
        assert self.served(array, X, wtf.grid_cost(6, 3), lam)

    @numpy_only
    def test_what_is_left_to_the_other_solver(self, array, monkeypatch):
        X = np.ones((2, 6))
        assert not self.served(array, X, band(2, n=6))
        assert not self.served(array, X, wtf.grid_cost(6, reach=2))
        assert not self.served(array, X, COST, source_lam=1.0)
        assert not self.served(array, np.vstack([X, np.zeros((1, 6))]), COST)
        problem = wtf.Wasserstein(COST, 1.0, 1.0).bind(array(X))
        mask = np.ones((2, 6), dtype=bool)
        mask[0, 0] = False
        of = TransportProblem.of
        assert is_fused(of(problem.data, problem.kernel, 1.0, problem.order))
        assert not is_fused(of(problem.data, problem.kernel, 1.0, problem.order, mask))
        assert not self.served(array, X, 100.0 * COST)  # Newton's method begins
        monkeypatch.setattr(module, "has_compiler", lambda: False)
        assert not self.served(array, X, COST)

    @numpy_only
    def test_distant_bins_are_tried_where_newton_follows(self, array):
        """But not if balanced: the iterations then converge more slowly."""
        X = array(np.ones((2, 6)))
        for lam, expected in ((1.0, True), (math.inf, False)):
            problem = wtf.Wasserstein(100.0 * COST, 1.0, lam).bind(X)
            assert not is_fused(problem)
            assert is_fused(problem, newton_follows=True) is expected

    @numpy_only
    def test_size_is_that_of_a_batch(self, array, monkeypatch):
        set_thresholds(monkeypatch, fused_entries=24)
        problem = wtf.Wasserstein(COST, 1.0, 1.0).bind(array(np.ones((8, 6))))
        assert is_fused(problem)
        assert is_fused(problem, 4)
        assert is_fused(problem, 99)
        assert not is_fused(problem, 3)

    @numpy_only
    def test_samples_of_several_processes_are_not(self, array):
        problem = wtf.Wasserstein(COST, 1.0, 1.0).bind(array(np.ones((2, 6))))
        shared = SimpleNamespace(sums=SimpleNamespace(shared=True), samples=4)
        assert isinstance(inner_solver(problem, 0.0 * problem.data, None, shared), Sinkhorn)


def numba_of(version, disabled=0):
    return SimpleNamespace(config=SimpleNamespace(DISABLE_JIT=disabled), __version__=version)


@numpy_only
class TestCompiler:
    @pytest.fixture(autouse=True)
    def asked_anew(self):
        has_compiler.cache_clear()
        yield
        has_compiler.cache_clear()

    def test_numba_is_not_installed(self, monkeypatch):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
        assert not has_compiler()

    @pytest.mark.parametrize(
        "error",
        [ImportError("Numba needs NumPy 2.3"), OSError("memory"), AttributeError("coverage.types")],
    )
    @pytest.mark.parametrize("broken", ["numba", "wtfarray._transport.fused.solver"])
    def test_numba_does_not_work(self, monkeypatch, error, broken):
        def refuse(name):
            if name == broken:
                raise error
            return numba_of("0.62.1")

        monkeypatch.setattr(module, "find_spec", lambda name: name)
        monkeypatch.setattr(module, "import_module", refuse)
        assert not has_compiler()

    @pytest.mark.parametrize(
        ("version", "disabled", "expected"),
        [
            ("0.62.0", 0, True),
            ("0.62.0rc1", 0, True),
            ("1.0", 0, True),
            ("0.61.2", 0, False),
            ("0.62.0", 1, False),
        ],
    )
    def test_version_of_numba_and_its_setting(self, monkeypatch, version, disabled, expected):
        monkeypatch.setattr(module, "find_spec", lambda name: name)
        monkeypatch.setattr(module, "import_module", lambda _: numba_of(version, disabled))
        assert has_compiler() == expected


class TestOutliers:
    @pytest.mark.parametrize(
        ("bins", "distance", "kind"),
        [(70, 12.0, Sinkhorn), (70, 17.0, Newton), (64, 12.0, Newton)],
    )
    def test_one_distant_bin_of_many_is_left_to_sinkhorn(self, array, bins, distance, kind):
        X = array(np.ones((2, bins)))
        problem = wtf.Wasserstein(cost_with_outlier(bins, distance), eps=1.0).bind(X)
        assert isinstance(inner_solver(problem, 0.0 * X), kind)

    def test_grid_is_not(self, array):
        """Two bins 9 eps apart, times a fine axis: the median is that of the coarse axis."""
        X = array(np.ones((2, 2, 35)))
        costs = wtf.grid_cost(2, 35, scale=None, spacing=(3.0, 0.01))
        problem = wtf.Wasserstein(costs, eps=1.0).bind(X)
        assert isinstance(inner_solver(problem, 0.0 * X), Newton)

    @pytest.mark.parametrize("surplus", [0.3, 0.01])
    def test_much_mass_in_the_outlier_converges(self, array, surplus):
        """The excess leaves the outlier at a cost of 14 eps."""
        rng = np.random.default_rng(1)
        X, Y = (
            np.hstack([np.full((4, 1), mass), (1.0 - mass) * rng.dirichlet(np.full(69, 0.3), 4)])
            for mass in (0.5, 0.5 - surplus)
        )
        loss = wtf.Wasserstein(cost_with_outlier(70, 14.0), eps=1.0)
        result = wtf.wasserstein(array(X), array(Y), loss)
        assert result.converged
        exact = exact_values(X, Y, loss.costs[0], 1.0, math.inf)
        assert float(result.value) == pytest.approx(float(np.sum(exact)), rel=1e-6)


class TestSolveToGap:
    @pytest.mark.parametrize("eps", [0.01, 0.2], ids=["Newton", "Sinkhorn"])
    @pytest.mark.parametrize("lam", LAMS)
    def test_reaches_the_gap(self, array, xp, lam, eps):
        solver, Y, X, host = solver_for(array, lam, eps)
        assert isinstance(solver, Newton if eps == 0.01 else Sinkhorn)
        g, n = solve_to_gap(solver, Y, lambda _: 1e-9, 2000)
        values, gaps, _ = solver.problem.bounds(g, Y)
        assert 1 < n < 2000
        assert float(xp.sum(gaps)) <= 1e-9
        if eps == 0.2:
            exact = exact_values(X, host, COST, eps, lam)
            np.testing.assert_allclose(to_numpy(values), exact, rtol=0, atol=1e-9)

    def test_tolerance_is_asked_for_at_the_value(self, array, xp):
        solver, Y, *_ = solver_for(array, 1.0, 0.2)
        asked = []
        g, _ = solve_to_gap(solver, Y, lambda value: asked.append(value) or 1e-3, 2000)
        values, *_ = solver.problem.bounds(g, Y)
        assert asked[-1] == pytest.approx(float(xp.sum(values)), rel=1e-12)

    @pytest.mark.parametrize("lam", LAMS)
    def test_gives_up_after_max_iter(self, array, xp, lam):
        solver, Y, *_ = solver_for(array, lam, 0.2)
        g, n = solve_to_gap(solver, Y, lambda _: 1e-12, 3)
        assert n == 3
        assert float(xp.sum(solver.problem.bounds(g, Y)[1])) > 1e-12

    def test_gap_is_computed_every_so_often_even_if_the_estimate_is_large(self, array):
        """An impossible tolerance is asked about now and then, not at every iterate."""
        solver, Y, *_ = solver_for(array, 1.0, 0.2)
        asked = []
        _, n = solve_to_gap(solver, Y, lambda value: asked.append(value) or -1.0, 2 * CHECK_EVERY)
        assert n == 2 * CHECK_EVERY
        assert 2 <= len(asked) < n


def test_gap_factor_is_lam_or_balanced_eps(array):
    X = array(np.ones((3, 6)))
    assert gap_factor(wtf.Wasserstein(COST, 0.1, 5.0).bind(X)) == 5.0
    assert gap_factor(wtf.Wasserstein(COST, 0.1).bind(X)) == 0.1
