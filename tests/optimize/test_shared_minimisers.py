"""One function minimised by several processes, each of which has some of the variables."""

import numpy as np
import pytest
from helpers import numpy_only

from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._optimize.accelerated import shared_gradient_descent
from wtfarray._optimize.lbfgs import shared_lbfgs
from wtfarray.distributed import run_threads

pytestmark = numpy_only
CURVATURE = np.linspace(1.0, 9.0, 12)


def values_of(minimise, sums, here, steps):
    """The values of the first steps, of a function that couples all variables by their sum."""
    curvature = CURVATURE[here]

    def fun(x):
        total, square = sums.numbers(float(x.sum()), float(curvature @ x**4))
        return 0.25 * square + 0.5 * (total - 3.0) ** 2, curvature * x**3 + (total - 3.0)

    found = minimise(fun, np.ones(curvature.size), sums, max_iter=steps)
    return [record.value for record in found.history]


@pytest.mark.parametrize("minimise", [shared_lbfgs, shared_gradient_descent])
@pytest.mark.parametrize("cuts", [(5,), (1, 9)])
def test_first_steps_are_those_of_one_process(minimise, cuts):
    one = values_of(minimise, ALONE, slice(None), 12)
    edges = (0, *cuts, 12)

    def run(comm):
        here = slice(*edges[comm.rank : comm.rank + 2])
        return values_of(minimise, Sums(comm), here, 12)

    team = run_threads(run, len(edges) - 1, timeout=20.0)
    np.testing.assert_allclose(team[0], one, rtol=1e-11)
    assert all(values == team[0] for values in team)
