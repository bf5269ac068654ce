"""Which rows of the files of several processes belong to whom."""

import numpy as np
import pytest
from helpers import numpy_only

from wtfarray._fit.resplit import WORD, digest_of_samples, rounded

pytestmark = numpy_only


def test_digest_does_not_depend_on_the_shards():
    rng = np.random.default_rng(0)
    X, weights = rng.uniform(size=(7, 3, 2)), rng.uniform(size=7)
    whole = digest_of_samples([X, weights], 0)
    parts = [digest_of_samples([X[a:b], weights[a:b]], a) for a, b in ((0, 2), (2, 2), (2, 7))]
    np.testing.assert_array_equal(sum(parts) % WORD, whole)
    assert (digest_of_samples([X[::-1], weights], 0) != whole).any()
    X[3, 1, 1] += 1e-16
    assert (digest_of_samples([X, weights], 0) != whole).any()


@pytest.mark.parametrize("value", [1.2345678912345e-07, 3.0, 123456.7891234567])
def test_rounded_arguments(value):
    near = np.nextafter(value, 2 * value)
    assert rounded(("cp", 3, value)) == rounded(("cp", 3, float(near)))
    assert rounded(("cp", 3, value)) != rounded(("cp", 3, value * (1 + 1e-6)))
    assert rounded(("cp", 3, value)) != rounded(("cp", 4, value))
