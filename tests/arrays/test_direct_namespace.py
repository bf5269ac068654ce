"""A namespace in which functions are replaced: the others, and the namespace itself, stay."""

import array_api_compat.numpy as usual
import numpy as np
from helpers import numpy_only

from wtfarray._arrays.direct_namespace import direct_namespace

pytestmark = numpy_only


def twice(x):
    return 2 * x


def test_functions_are_replaced_in_the_copy_only():
    before, solve = usual.exp, usual.linalg.solve
    found = direct_namespace(usual, {"exp": twice}, {"solve": twice})
    assert found.exp(3) == found.linalg.solve(3) == 6
    assert usual.exp is before
    assert usual.linalg.solve is solve


def test_everything_else_is_that_of_the_namespace():
    found = direct_namespace(usual, {"exp": twice}, {})
    assert found.__name__ == usual.__name__
    assert found.log is usual.log
    assert found.linalg.vecdot is usual.linalg.vecdot
    assert found.float64 is np.float64
