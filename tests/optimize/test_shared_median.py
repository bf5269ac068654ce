"""The median of numbers on several processes."""

import numpy as np
import pytest

from wtfarray._arrays.sums import ALONE, Sums
from wtfarray._optimize.curvature import median_of_shared
from wtfarray.distributed import run_threads

pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.mark.parametrize("n", [1, 2, 9, 300])
@pytest.mark.parametrize("kind", ["any", "equal", "few"])
def test_is_that_of_all_numbers(n, kind):
    rng = np.random.default_rng(n)
    numbers = {
        "any": rng.lognormal(0.0, 6.0, n),
        "equal": np.full(n, 0.7),
        "few": rng.choice([1e-300, 2.0, 3.0], n),
    }[kind]
    expected = np.sort(numbers)[n // 2]
    mine, others = numbers[: n // 3], numbers[n // 3 :]
    assert median_of_shared(mine, others, n, ALONE) == expected
    parts = np.array_split(mine, 3)
    found = run_threads(
        lambda comm: median_of_shared(parts[comm.rank], others, n, Sums(comm)), 3, timeout=20.0
    )
    assert found == [expected] * 3
