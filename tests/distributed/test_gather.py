"""The fit of a team as a whole."""

import numpy as np
from helpers import to_numpy
from teams import GRID_LOSS, images, quietly, traced

import wtfarray as wtf
from wtfarray.distributed import _gather, gather, run_threads


@quietly
def test_rows_of_all_ranks_in_their_order(array, monkeypatch):
    monkeypatch.setattr(_gather, "CHUNK", 4 * 36)  # several messages

    def fit(comm):
        mine = array(np.split(images(10), [5])[comm.rank])
        axes = ("image", None, "column")
        found = traced(wtf.cp, mine, 2, GRID_LOSS, rng=0, last=3, comm=comm, axes=axes).fit
        return found, gather(found, comm)

    (first, whole), (second, nothing) = run_threads(fit, 2, timeout=60.0)
    assert nothing is None
    for name in ("dual", "factors"):
        parts = [getattr(f, name) for f in (first, second, whole)]
        rows = [to_numpy(part[0] if name == "factors" else part) for part in parts]
        assert np.array_equal(np.concatenate(rows[:2]), rows[2])
    assert whole.shape == (10, 6, 6)
    assert tuple(whole.to_tensor().shape) == (10, 6, 6)
    assert [axis.name for axis in whole.axes] == ["image", None, "column"]
    assert whole.objective == first.objective
