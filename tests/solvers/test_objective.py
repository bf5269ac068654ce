"""The joint objective: values and gradients in the variables of the spheres."""

import math
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from array_api_compat import is_torch_namespace
from fitting import spare_jax
from helpers import assert_close, numpy_only, to_numpy
from joint_problems import (
    KINDS,
    LOSSES,
    TRANSPORT,
    definition,
    matrix_problem,
    samples,
    tensor_problem,
)

import wtfarray as wtf
from wtfarray._losses.term import TermValue
from wtfarray._solvers.envelope import new_pairs
from wtfarray._solvers.objective import JointObjective


class TestJointObjective:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", LOSSES)
    def test_gradient_on_the_sphere_agrees_with_central_differences(self, xp, array, name, kind):
        if name != "Frobenius":
            spare_jax(xp)
        problem, blocks, _ = tensor_problem(array, LOSSES[name], kind)
        objective = JointObjective(problem, blocks, max_inner=2000)
        x = to_numpy(objective.pack(blocks))
        rng, h = np.random.default_rng(3), 1e-5
        x *= rng.uniform(0.5, 2.0, x.shape)  # p need not have norm one
        for direction in rng.normal(size=(2, *x.shape)):
            found = objective.evaluate(array(x), 1e-13, array(direction))
            ends = [objective.evaluate(array(x + t * direction), 1e-13) for t in (h, -h)]
            expected = (ends[0].point.value - ends[1].point.value) / (2.0 * h)
            gradient = to_numpy(found.point.gradient)
            assert float(gradient @ direction) == pytest.approx(expected, rel=1e-5, abs=1e-8)
            assert found.point.slope == pytest.approx(float(gradient @ direction), rel=1e-12)
            assert found.point.norm == pytest.approx(np.abs(gradient).max(), rel=1e-12)
            assert found.point.square == pytest.approx(float(gradient @ gradient), rel=1e-12)

    @numpy_only
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", LOSSES)
    def test_value_is_that_of_the_definition(self, name, kind):
        problem, blocks, X = tensor_problem(np.asarray, LOSSES[name], kind)
        problem = replace(problem, free=problem.free[1:])  # the first entropy counts all the same
        objective = JointObjective(problem, blocks, max_inner=2000)
        found = objective.evaluate(objective.pack(blocks), 1e-12)
        assert found.converged
        expected = definition(problem, blocks, X, LOSSES[name])
        assert found.point.value == pytest.approx(expected, rel=1e-8)

    @pytest.mark.parametrize("kind", KINDS)
    def test_blocks_undo_pack(self, array, kind):
        problem, blocks, _ = tensor_problem(array, wtf.Frobenius(), kind)
        problem = replace(problem, free=(0, *problem.free[2:]))
        objective = JointObjective(problem, blocks)
        x = objective.pack(blocks)
        assert x.shape == (sum(math.prod(blocks[k].shape) for k in problem.free),)
        found = objective.blocks(x)
        assert found[1] is blocks[1]
        for a, b in zip(found, blocks, strict=True):
            assert_close(a, b, rtol=1e-14)
        again = objective.blocks(x * 3.0)  # but for the core, only the direction of p counts
        assert_close(again[0], blocks[0], rtol=1e-14)

    @numpy_only
    def test_states_are_those_of_the_terms_and_can_be_restored(self):
        problem, blocks, _ = tensor_problem(np.asarray, LOSSES["sum"], "cp")
        objective = JointObjective(problem, blocks)
        before = objective.states()
        objective.evaluate(objective.pack(blocks), 1e-6)
        assert not any(a is b for a, b in zip(objective.states(), before, strict=True))
        objective.restore(before)
        assert all(t.state is b for t, b in zip(problem.terms, before, strict=True))


class TestOrdinaryModels:
    """Where reading waits for the device, a model is assumed to be as ordinary as the last."""

    LOSSES = (TRANSPORT, wtf.Frobenius())

    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("bad", ["zeros", "empty", "overflow", "far"])
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_other_models_are_found_and_evaluated_with_care(self, xp, array, loss, bad, dtype):
        spare_jax(xp)
        cast = partial(array, dtype=dtype)
        found, expected = (self.evaluated(cast, loss, bad, first=first) for first in (True, False))
        assert found.converged == expected.converged
        assert found.point.finite == expected.point.finite
        rel = 1e-6 if dtype == "float64" else 1e-4
        assert found.point.value == pytest.approx(expected.point.value, rel=rel)
        if expected.point.finite:
            gradients = (to_numpy(f.point.gradient) for f in (found, expected))
            np.testing.assert_allclose(*gradients, rtol=0, atol=1e3 * rel)

    def evaluated(self, array, loss, bad, *, first):
        """The objective at a point, after that at an ordinary one if ``first``."""
        problem, blocks = matrix_problem(array, loss, rho=1e-3)
        problem = replace(problem, constraints=(None, None))
        objective = JointObjective(problem, blocks, max_inner=60)
        x = objective.pack(blocks)
        if first:
            assert objective.evaluate(x, 1e-4).converged
        other = to_numpy(x).copy()
        if bad == "zeros":
            other[6:8] = 0.0  # of all samples, the first bin
        elif bad == "empty":
            other[:2] = 0.0  # the first sample
        else:
            other *= {"overflow": 1e12, "far": 10.0}[bad]
        return objective.evaluate(array(other), 1e-6)

    def test_numbers_of_an_evaluation_are_read_at_once(self, xp, array):
        if not is_torch_namespace(xp):
            pytest.skip("synchronisations are counted on torch")
        from _torch_counts import TorchCounts

        for dtype in ("float64", "float32"):
            cast = partial(array, dtype=dtype)
            problem, blocks = matrix_problem(cast, TRANSPORT, samples((3, 4)))
            objective = JointObjective(problem, blocks)
            x = objective.pack(blocks)
            pairs = new_pairs(objective.evaluate(x, 1e-6).point)
            base = objective.evaluate(x, 1e-6)
            new = x * cast(np.random.default_rng(0).uniform(0.99, 1.01, x.shape))
            measure = partial(pairs.measure_ahead, base.point, new)
            before = problem.evaluations
            with TorchCounts() as counts:
                found = objective.evaluate(new, 1e-4, base.point.gradient, measure)
                pairs.update(base.point, found.point, found.measured)
            assert found.converged
            iterations = problem.evaluations - before
            assert iterations >= 2
            # The first iteration decides nothing; one transfer for all else.
            assert counts.synchronisations == iterations - 1 + 1


class TestRaised:
    """One entry of the coefficients is next to 0, and the atom would help its sample."""

    def point(self, array, share):
        X = np.asarray([[0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7], [0.25, 0.25, 0.25, 0.25]])
        atoms = np.asarray([[0.8, 0.1, 0.05, 0.05], [0.05, 0.05, 0.1, 0.8]]).T
        rows = np.asarray([[share, 1.0 - share], [0.1, 0.9], [0.5, 0.5]])
        problem, _ = matrix_problem(array, wtf.Frobenius(), X)
        blocks = [array(rows), array(atoms)]
        objective = JointObjective(problem, blocks)
        return objective, objective.evaluate(objective.pack(blocks), 1e-9).point

    def test_entry_next_to_zero_is_raised_and_that_pays(self, array):
        objective, point = self.point(array, 1e-9)
        raised, gain = objective.raised(point)
        assert gain > 0
        change = to_numpy(raised) != to_numpy(point.x)
        assert np.flatnonzero(change).tolist() == [0]
        new = float(objective.blocks(raised)[0][0, 0])
        assert 1e-9 < new <= 1e-2 * 0.5
        drop = point.value - objective.evaluate(raised, 1e-9).point.value
        assert 0.5 * gain < drop < 2.0 * gain

    def test_entries_away_from_zero_stay(self, array):
        objective, point = self.point(array, 0.01)
        raised, gain = objective.raised(point)
        assert gain == 0.0
        assert (to_numpy(raised) == to_numpy(point.x)).all()

    def test_zero_stays_zero(self, array):
        """On the sphere there is no way from an exact zero."""
        objective, point = self.point(array, 0.0)
        raised, gain = objective.raised(point)
        assert math.isfinite(gain)
        assert np.isfinite(to_numpy(raised)).all()
        assert float(raised[0]) == 0.0


class SteepTerm:
    """A term whose gradient has a square that overflows in float32."""

    scale = 1.0
    work = 0.0

    def evaluate(self, model, tolerance, max_iter, *, ordinary=False):  # noqa: ARG002
        gradient = np.where(np.arange(model.size).reshape(model.shape) % 2, 1e38, -1e38)
        gradient = gradient.astype(model.dtype)
        return TermValue(1.0, 0.0, 0.0, gradient, converged=True)


@numpy_only
def test_gradient_that_overflows_makes_a_point_that_is_not_finite_without_a_warning():
    problem, blocks = matrix_problem(lambda a: np.asarray(a, "float32"))
    steep = JointObjective(replace(problem, terms=[SteepTerm()]), blocks)
    x = steep.pack(blocks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = steep.evaluate(x, 1e-6, x)
    assert not found.point.finite
