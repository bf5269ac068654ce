"""Coupled factorisations of several processes."""

import numpy as np
import pytest
from helpers import numpy_only
from teams import TIMEOUT, relative_differences, traced

import wtfarray as wtf
from wtfarray._transport import anderson
from wtfarray.distributed import gather, run_threads

pytestmark = [
    numpy_only,
    pytest.mark.filterwarnings("ignore:coupled. (stopped|interrupted):UserWarning"),
]
LOSSES = [wtf.Wasserstein(wtf.grid_cost(12), eps=0.02, lam=10.0), wtf.KullbackLeibler()]


@pytest.fixture(autouse=True)
def accurate_secants(monkeypatch):
    """As in test_team.py: rounding of float32 secants grows from step to step."""
    monkeypatch.setattr(anderson, "STORED", "float64")


def data():
    """Two data sets of 20 samples, the second of unequal mass, and a mask of it."""
    rng = np.random.default_rng(0)
    A = rng.dirichlet(np.ones(2), 20)
    spectra = A @ rng.dirichlet(np.ones(12), 2)
    counts = (A @ rng.dirichlet(np.ones(7), 2)) * rng.uniform(1.0, 5.0, (20, 1))
    mask = np.ones((20, 7), dtype=bool)
    mask[[3, 18]] = False  # two samples that the second data set lacks
    mask[5, 2] = False
    return spectra, counts, mask


def coupled_on(comm, cuts, *, masked, weights=None, **options):
    """The fit of one rank, of which rank k has the k-th part of the samples."""

    def mine(array):
        return array if comm is None else np.split(array, cuts)[comm.rank]

    spectra, counts, mask = map(mine, data())
    if masked:
        options["mask"] = [None, mask]
    if weights is not None:
        options["sample_weight"] = mine(weights)
    options = {"rng": 0, "last": 10, **options}
    return traced(wtf.coupled, [spectra, counts], 2, LOSSES, comm=comm, **options)


@pytest.mark.parametrize(
    ("cuts", "options"),
    [
        ([9], {"masked": False}),
        ([0, 4], {"masked": True, "weights": np.linspace(0.5, 2.0, 20)}),
        ([3, 4], {"masked": True, "constraints": ("columns", None, None)}),
        ([5], {"masked": False, "n_init": 2, "last": 40, "max_iter": 8}),
        ([5], {"masked": True, "init": "nnsvd"}),
    ],
)
def test_first_steps_are_those_of_one_process(cuts, options):
    # The range finder rounds differently, and so does the start itself.
    tolerance = 1e-10 if options.get("init") == "nnsvd" else 1e-11
    one = coupled_on(None, cuts, **options)
    team = run_threads(
        lambda comm: coupled_on(comm, cuts, **options), len(cuts) + 1, timeout=TIMEOUT
    )
    assert relative_differences(one, team[0], 8).max() <= tolerance
    for trace in team:
        assert trace.steps == team[0].steps
        assert trace.fit.objective == team[0].fit.objective
        for mine, first in zip(trace.fit.fits, team[0].fit.fits, strict=True):
            assert np.array_equal(mine.factors[1], first.factors[1])
            assert mine.objective == first.objective
    rows = np.concatenate([trace.fit.coefficients for trace in team])
    np.testing.assert_allclose(rows, one.fit.coefficients, rtol=1e-6, atol=1e-9)


def test_gathered_fit_projects():
    def fit(comm):
        return gather(coupled_on(comm, [9], masked=False).fit, comm)

    whole, other = run_threads(fit, 2, timeout=TIMEOUT)
    assert other is None
    assert whole.coefficients.shape == (20, 2)
    assert [part.shape for part in whole.fits] == [(20, 12), (20, 7)]
    assert all(part.factors[0] is whole.coefficients for part in whole.fits)
    assert whole.project([data()[0][:3], None]).shape == (3, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rank: {"rho": 1e-2 * (1 + rank)}, "rho differs from that of rank 0"),
        (lambda rank: {"n_init": 1 + rank}, "n_init differs from that of rank 0"),
        (lambda rank: {"rho": -1.0} if rank is not None else {}, "rho"),
    ],
)
def test_bad_arguments_are_named_and_the_team_survives(change, message):
    def fit(comm):
        with pytest.raises((ValueError, RuntimeError), match=message):
            coupled_on(comm, [9], masked=False, **change(comm.rank))
        return coupled_on(comm, [9], masked=False, last=1)

    assert len(run_threads(fit, 2, timeout=20.0)) == 2
