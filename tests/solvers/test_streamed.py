"""The objective of data that are read in chunks: that of the same data in memory."""

import numpy as np
import pytest
from fitting import RANKS, SHAPE, data, fibres, start, transport
from helpers import to_numpy
from stored_data import Sliceable

from wtfarray._fit.given_factors import given_blocks
from wtfarray._fit.specification import specify
from wtfarray._solvers.objective import JointObjective
from wtfarray._solvers.streamed import StreamedProblem, at_rows, parts_of

OPTIONS = {
    "rho": 0.05,
    "constraints": None,
    "weights": None,
    "fixed": (),
}


def specified(model, X, loss=None, **options):
    chosen = {**OPTIONS, "sample_weight": None, **options}
    return specify(model, X, RANKS[model], transport() if loss is None else loss, **chosen)


@pytest.mark.parametrize("model", ["cp", "tucker", "nmf"])
def test_value_and_gradient_are_those_of_the_whole(array, model):
    X = array(data())
    whole, stored = specified(model, X), specified(model, Sliceable(X), chunk=4)
    problems = [whole.problem(3), stored.problem(3)]
    assert isinstance(problems[1], StreamedProblem)
    assert problems[1].scale == pytest.approx(problems[0].scale, rel=1e-12)
    blocks = given_blocks(whole, start(model))
    found = []
    for problem in problems:
        objective = JointObjective(problem, blocks, max_inner=200)
        found.append(objective.evaluate(objective.pack(blocks), 1e-10))
    assert found[1].converged
    assert found[1].point.value == pytest.approx(found[0].point.value, rel=1e-8)
    expected = to_numpy(found[0].point.gradient)
    np.testing.assert_allclose(
        to_numpy(found[1].point.gradient), expected, atol=1e-4 * np.abs(expected).max()
    )


@pytest.mark.usefixtures("on_numpy")
class TestStreamedProblem:
    def test_sum_of_losses_with_weights(self):
        X, weights = data(), np.linspace(0.5, 2.0, SHAPE[0])
        whole = specified("cp", X, fibres(), sample_weight=weights)
        stored = specified("cp", X, fibres(), sample_weight=weights, chunk=4)
        blocks = given_blocks(whole, start("cp"))
        values = [spec.problem(3).certify(blocks, 1e-6) for spec in (whole, stored)]
        assert values[1].value == pytest.approx(values[0].value, rel=1e-6)
        np.testing.assert_allclose(np.asarray(values[1].gradient), values[0].gradient, atol=1e-2)

    def test_certificate_encloses_the_value(self):
        stored = specified("cp", data(), chunk=4)
        problem = stored.problem(2)
        blocks = given_blocks(stored, start("cp"))
        rough, fine = problem.certify(blocks, 1e-3), problem.certify(blocks, 1e-8)
        assert rough.converged
        assert fine.converged
        assert fine.gap < rough.gap
        assert rough.value <= fine.value + fine.gap
        assert rough.value + rough.gap >= fine.value

    def test_rejected_steps_restore_the_potentials(self):
        stored = specified("cp", data(), chunk=4)
        problem = stored.problem(2)
        blocks = given_blocks(stored, start("cp"))
        problem.evaluate(blocks, 1e-8, 100)
        states = problem.states()
        kept = states[0][0][:]
        problem.evaluate(given_blocks(stored, start("cp", seed=2)), 1e-8, 100)
        problem.restore(states)
        np.testing.assert_array_equal(problem.states()[0][0][:], kept)

    def test_step_that_overflows_is_outside(self):
        stored = specified("cp", data(), chunk=4)
        problem = stored.problem(2)
        blocks = [1e200 * block for block in given_blocks(stored, start("cp"))]
        before = problem.states()
        assert problem.evaluate(blocks, 1e-8, 100) is None
        assert problem.states()[0] is before[0]

    def test_parts_cover_the_samples(self):
        problem = specified("cp", data(), chunk=4).problem(3)
        assert [(rows.start, rows.stop) for rows, _ in parts_of(problem)] == [
            (0, 3),
            (3, 4),
            (4, 6),
        ]
        whole = specified("cp", data()).problem(3)
        assert [(rows, part) for rows, part in parts_of(whole)] == [(None, whole)]


def test_rows_are_those_of_the_first_block(array):
    blocks = [array(np.arange(6.0).reshape(3, 2)), array(np.ones((4, 2)))]
    part = at_rows(blocks, slice(1, 3))
    np.testing.assert_array_equal(to_numpy(part[0]), [[2.0, 3.0], [4.0, 5.0]])
    assert part[1] is blocks[1]
    assert at_rows(blocks, None)[0] is blocks[0]
