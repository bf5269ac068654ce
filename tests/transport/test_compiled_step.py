"""The compiled step against the same step on the host, and the kernel against that of NumPy."""

import math

import numpy as np
import pytest
from exact_transport import samples_with_zeros
from helpers import to_numpy

import wtfarray as wtf
from wtfarray._transport import sinkhorn
from wtfarray._transport.anderson import new_secants
from wtfarray._transport.control_flow import HostControlFlow
from wtfarray._transport.inner_solver import inner_solver
from wtfarray._transport.iterate import Until, search_radius
from wtfarray._transport.kernels import GibbsKernel
from wtfarray._transport.target import target_of

jax = pytest.importorskip("jax", reason="JAX is not installed; the jax session has it")

import jax.numpy as jnp  # noqa: E402

from wtfarray._transport.compiled_step import (  # noqa: E402
    CompiledControlFlow,
    CompiledKernel,
    advance,
    traceable,
)

COST, EPS = wtf.grid_cost(6)[0], 0.2
ONE = Until()


@pytest.fixture(autouse=True)
def only_on_jax(backend):
    if backend.name != "jax":
        pytest.skip("compiled steps are JAX's: tested in the jax session")


def problem_of(lam, eps=EPS):
    X, Y = map(jnp.asarray, samples_with_zeros(lam))
    return wtf.Wasserstein(COST, eps, lam).bind(X), Y


def stepped(problem, Y, step, steps, *, safe, weights=None, until=ONE):
    """State, secants, iterate and totals after some calls."""
    target = target_of(problem, Y)
    state = sinkhorn.first_state(problem, 0.0 * Y)
    secants = new_secants(3, Y, problem.damping)
    for _ in range(steps):
        found = step(problem, target, state, secants, weights, search_radius(problem), safe, until)
        state, secants = found[:2]
    return found


class TestAdvance:
    @pytest.mark.parametrize("lam", [1.0, math.inf])
    @pytest.mark.parametrize("safe", [False, True])
    def test_is_the_step_of_the_host(self, lam, safe):
        problem, Y = problem_of(lam)
        weights = jnp.asarray([1.0, 2.0, 0.5])
        for steps, atol in ((1, 1e-13), (4, 1e-5)):  # secants are in single precision
            found, expected = (
                stepped(problem, Y, step, steps, safe=safe, weights=weights)
                for step in (advance, sinkhorn.advance)
            )
            for mine, theirs in zip(found[0], expected[0], strict=True):
                np.testing.assert_allclose(to_numpy(mine), to_numpy(theirs), rtol=0, atol=atol)
            for name in ("g", "residual", "gradient", "decrement", "size", "worse"):
                mine, theirs = (to_numpy(getattr(f[2], name)) for f in (found, expected))
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol, err_msg=name)
            np.testing.assert_allclose(found[3][:3], expected[3][:3], atol=atol)
            assert found[3].iterations == expected[3].iterations == 1
            assert int(found[1].slot) == int(expected[1].slot) == steps % 3
            assert found[2].unit == pytest.approx(problem.damping)

    def test_lost_digits_are_reported(self):
        problem, Y = problem_of(1.0, eps=1e-4)
        found, expected = (
            stepped(problem, Y, step, 1, safe=False) for step in (advance, sinkhorn.advance)
        )
        assert found[3].lost == expected[3].lost > 0.0
        np.testing.assert_array_equal(
            to_numpy(found[2].marginal.lost), to_numpy(expected[2].marginal.lost)
        )

    def test_several_iterations_are_those_one_by_one(self):
        """As many as allowed, or until the totals are met."""
        problem, Y = problem_of(1.0)
        several = stepped(problem, Y, advance, 1, safe=True, until=Until(0.0, most=5))
        singly = stepped(problem, Y, advance, 5, safe=True)
        assert several[3] == singly[3]._replace(iterations=5)
        for mine, theirs in zip(several[0], singly[0], strict=True):
            np.testing.assert_array_equal(to_numpy(mine), to_numpy(theirs))
        np.testing.assert_array_equal(to_numpy(several[2].g), to_numpy(singly[2].g))
        error = singly[3].error
        met = stepped(problem, Y, advance, 1, safe=True, until=Until(error, most=60))
        assert met[3].error <= error
        assert 1 < met[3].iterations <= 5
        later = Until(error, least=met[3].iterations + 2, most=60)
        assert stepped(problem, Y, advance, 1, safe=True, until=later)[3].iterations >= later.least

    def test_lost_digits_end_a_run(self):
        problem, Y = problem_of(1.0, eps=1e-4)
        found = stepped(problem, Y, advance, 1, safe=False, until=Until(0.0, most=9))
        assert found[3].iterations == 1
        assert found[3].lost > 0

    def test_is_compiled_once_for_all_models(self, monkeypatch):
        """Neither another model nor another eps or lam of the same shapes is traced again."""
        problem, Y = problem_of(1.0)
        stepped(problem, Y, advance, 2, safe=True)
        traced, step = [], sinkhorn.sinkhorn_step

        def traced_step(*arguments, **options):
            traced.append(arguments)
            return step(*arguments, **options)

        monkeypatch.setattr(sinkhorn, "sinkhorn_step", traced_step)
        stepped(problem, 1.5 * Y, advance, 2, safe=True)
        stepped(problem_of(1.0, eps=0.3)[0], Y, advance, 2, safe=True)
        stepped(problem_of(0.77)[0], Y, advance, 2, safe=True)
        assert not traced
        stepped(problem_of(math.inf)[0], Y, advance, 1, safe=True)  # balanced transport is
        assert traced

    def test_solvers_of_jax_arrays_use_it(self):
        problem, Y = problem_of(1.0)
        solver = inner_solver(problem, 0.0 * Y)
        assert solver._advance is advance
        assert solver.split(np.asarray([0, 2]))._advance is advance


class TestTraceable:
    def test_is_the_same_problem(self):
        problem, Y = problem_of(1.0)
        other = traceable(problem)
        g = jnp.asarray(np.random.default_rng(0).normal(size=Y.shape))
        for method in ("conjugate", "safe_conjugate"):
            mine, theirs = (getattr(p, method)(g) for p in (other, problem))
            for a, b in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=1e-13)
        assert other.kernel.potential_range() == problem.kernel.potential_range()


class TestControlFlow:
    def test_loops_and_branches_end_as_on_the_host(self):
        ends = []
        for flow in (CompiledControlFlow(), HostControlFlow()):
            last = flow.while_loop(lambda s: s < 20.0, lambda s: s * 3.0, jnp.asarray(1.0))
            large = flow.decide(last > 20.0)
            ends.append(
                float(flow.cond(large, lambda last=last: last + 1.0, lambda last=last: last))
            )
        assert ends == [28.0, 28.0]

    def test_known_condition_traces_one_branch(self):
        def refuse():
            raise AssertionError

        assert CompiledControlFlow().cond(True, lambda: 1, refuse) == 1
        assert CompiledControlFlow().cond(False, refuse, lambda: 2) == 2


@pytest.mark.parametrize("eps", [1.0, 1e-4])
def test_compiled_kernel_agrees_with_numpy_despite_underflow(eps):
    """At 1e-4 the plain products are 0 almost everywhere."""
    costs = tuple(wtf.grid_cost(3, 4))
    kernel = GibbsKernel.of(costs, eps)
    axes = GibbsKernel.of(tuple(map(jnp.asarray, costs)), eps).axes
    compiled = CompiledKernel(axes, eps, True)
    logs = np.random.default_rng(0).normal(scale=1e3, size=(2, 3, 4))
    logs[0, 1, :] = -math.inf
    logs[1, :, :] = -math.inf
    for name in ("log_apply", "log_apply_adjoint"):
        found = jax.jit(getattr(compiled, name))(jnp.asarray(logs))
        np.testing.assert_allclose(to_numpy(found), getattr(kernel, name)(logs), rtol=1e-13)
