"""
A short part of the campaign, with fixed seeds, and tests of its oracle.

`nox -s campaign` runs the whole of it; docs/reliability.md says what it found.
"""

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent.parent))

from campaign import losses, oracle
from campaign.__main__ import main, parse, summary
from campaign.backends import backend as library_named
from campaign.intervals import check_interval
from campaign.problems import TransportLoss
from campaign.trial import Trial, run
from campaign.workers import KINDS, sequence, work, work_together

PROBLEMS = {
    ("wasserstein", "float64"): 24,
    ("conjugate", None): 40,
    ("cp_dual", None): 16,
    ("tucker_dual", None): 16,
}
"""How many problems on NumPy; array-api-strict and torch have a quarter, JAX an eighth."""
FITS = {"cp": 8, "tucker": 8, "nmf": 8, "projection": 6, "faults": 16}
"""How many of those that take a second each."""


def one_cost(n, scale=1.0):
    points = np.linspace(0, 1, n)
    return scale * np.subtract.outer(points, points) ** 2


@pytest.mark.parametrize(("kind", "dtype"), PROBLEMS)
def test_short_campaign(kind, dtype, backend):
    share = {"numpy": 1, "strict": 4, "torch": 4, "jax": 8}.get(backend.name)
    if share is None:
        pytest.skip("the campaign runs on the first device of each library")
    if backend.name == "jax" and kind != "conjugate":
        pytest.skip("compilation would take most of a minute: run `nox -s campaign`")
    count = PROBLEMS[kind, dtype] // share
    assert_none_fails(kind, count, backend.name, dtype)


@pytest.mark.parametrize("kind", FITS)
def test_short_campaign_of_fits(kind, on_numpy):
    assert_none_fails(kind, FITS[kind], "numpy")


def assert_none_fails(kind, count, backend, dtype=None):
    """The first problems of a kind pass, or say why not."""
    library = library_named(backend)
    outcomes = [run(kind, seed, library, KINDS[kind], dtype) for seed in range(count)]
    failures = [(o.seed, *failure) for o in outcomes for failure in o.failures]
    assert not failures, summary(outcomes)
    assert any(o.status == "passed" for o in outcomes)


@pytest.mark.parametrize("lam", [1e-3, 1.0, 1e4])
def test_oracle_of_nothing_moved(lam, on_numpy):
    """With infinite costs off the diagonal the loss is ``lam KL(x|y) + eps E(x)``."""
    rng = np.random.default_rng(0)
    x, y = rng.gamma(1.0, size=(2, 7))
    cost = np.where(np.eye(7, dtype=bool), 0.0, np.inf)
    found = oracle.one_sample(x, y, cost, 0.1, lam)
    expected = lam * float(oracle.kullback_leibler(x, y)) + 0.1 * oracle.entropy(x)
    assert found.decided
    assert found.lower == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("eps", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("lam", [1e-2, 10.0, math.inf])
def test_oracle_decides_by_a_narrow_interval(eps, lam, on_numpy):
    rng = np.random.default_rng(1)
    x, y = rng.dirichlet(np.ones(9), 2)
    found = oracle.one_sample(x, y, one_cost(9), eps, lam)
    assert found.decided
    assert found.lower <= found.upper + 1e-15 * found.scale
    if math.isinf(lam):
        bounds = oracle.balanced_bounds(x, y, one_cost(9), eps)
        assert bounds.lower - 1e-9 <= found.lower <= bounds.upper + 1e-9


def test_oracle_agrees_with_pot(on_numpy):
    ot = pytest.importorskip("ot")
    x, y = np.random.default_rng(2).dirichlet(np.ones(8), 2)
    plan = ot.sinkhorn(x, y, one_cost(8), 0.1, method="sinkhorn_log", stopThr=1e-14)
    expected = np.sum(plan * one_cost(8)) + 0.1 * oracle.entropy(plan)
    assert oracle.one_sample(x, y, one_cost(8), 0.1, math.inf).lower == pytest.approx(
        expected, rel=1e-10
    )


def test_gradient_of_the_oracle_is_that_of_differences(on_numpy):
    rng = np.random.default_rng(3)
    x, y = rng.gamma(1.0, size=(2, 6))
    _, gradient = oracle.value_and_gradient(x, y, one_cost(6), 0.05, 2.0)
    for k in range(6):
        move = 1e-6 * np.eye(6)[k]
        ends = [oracle.one_sample(x, y + s * move, one_cost(6), 0.05, 2.0) for s in (1, -1)]
        slope = (ends[0].lower - ends[1].lower) / 2e-6
        assert float(gradient[k]) == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_oracle_of_the_models(on_numpy):
    rng = np.random.default_rng(4)
    core, factors = rng.uniform(size=(2, 3, 2)), [rng.uniform(size=(4, r)) for r in (2, 3, 2)]
    expected = np.einsum("abc,ia,jb,kc->ijk", core, *factors)
    np.testing.assert_allclose(oracle.model(factors, core, None).astype(float), expected)
    factors, weights = [rng.uniform(size=(n, 2)) for n in (3, 4, 5)], rng.uniform(size=2)
    expected = np.einsum("r,ir,jr,kr->ijk", weights, *factors)
    np.testing.assert_allclose(oracle.model(factors, None, weights).astype(float), expected)


@pytest.mark.parametrize(
    ("x", "y", "solved"),
    [
        ([1.0, 0.0], [0.0, 1.0], False),
        ([0.0, 1.0], [0.5, 0.5], True),
        ([0.5, 0.5], [0.5, 0.5], True),
    ],
)
def test_oracle_knows_what_can_be_reached(x, y, solved, on_numpy):
    cost = np.array([[0.0, np.inf], [1.0, 0.0]])
    assert oracle.feasible(np.array(x), np.array(y), cost) is solved


@pytest.mark.parametrize(
    ("value", "gap", "label"),
    [
        (1.1, 0.0, "value above the truth (converged) float64"),
        (0.8, 0.1, "value and gap below the truth (converged) float64"),
        (math.nan, 0.1, "not finite float64"),
        (1.0, -0.1, "negative gap float64"),
    ],
)
def test_wrong_values_are_found(value, gap, label, on_numpy):
    trial = Trial("wasserstein", 0, library_named("numpy"))
    truth = oracle.Interval(1.0, 1.0, 1.0)
    check_interval(trial, "test", value, gap, truth, converged=True)
    assert label in [found for found, _ in trial.outcome.failures]
    assert trial.outcome.status == "failed"


def test_undecided_problems_do_not_pass(on_numpy):
    trial = Trial("wasserstein", 0, library_named("numpy"))
    check_interval(trial, "test", 1.0, 0.1, oracle.Interval(0.9, 1.1, 1.0), converged=True)
    assert trial.outcome.status == "undecided"


def test_wrong_gradients_are_found(on_numpy):
    rng = np.random.default_rng(5)
    loss = TransportLoss((one_cost(5),), 0.1, 1.0, None, ((1,),))
    X, Y = rng.dirichlet(np.ones(5), (2, 3))
    truth = oracle.transport(X, Y, loss.costs, loss.groups, loss.eps, loss.lam)
    cost = loss.costs[0]
    u = np.array(
        [
            oracle.value_and_gradient(x, y, cost, loss.eps, loss.lam)[1]
            for x, y in zip(X, Y, strict=True)
        ],
        float,
    )
    for slope, failed in ((u, False), (2 * u, True), (-u, True)):
        trial = Trial("wasserstein", 0, library_named("numpy"))
        for seed in range(12):
            losses._check_gradient(
                trial, np.random.default_rng(seed), X, Y, loss, truth.lower, slope
            )
        assert trial.outcome.failed is failed


def test_a_failure_is_reported_with_its_command(on_numpy, monkeypatch, capsys):
    def check(trial):
        trial.fail("test", "this is wrong")

    monkeypatch.setitem(KINDS, "conjugate", check)
    assert main(["--kind", "conjugate", "--problems", "2"]) == 1
    printed = capsys.readouterr().out
    assert "this is wrong" in printed
    assert "--kind conjugate --repeat 1" in printed


def test_nothing_wrong_is_exit_code_0(on_numpy, capsys):
    assert main(["--kind", "conjugate", "--problems", "3", "--seed", "4"]) == 0
    assert "problems" in capsys.readouterr().out


@pytest.mark.usefixtures("on_numpy")
def test_interrupt_ends_with_the_summary(monkeypatch, capsys):
    def interrupted(given):
        yield from itertools.islice(work(given), 3)
        raise KeyboardInterrupt

    monkeypatch.setattr("campaign.__main__.work", interrupted)
    assert main(["--kind", "conjugate", "--seed", "4"]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("problems")]
    assert line.split() == ["problems", "3", "3"]


def test_workers_share_the_problems_of_a_seed(on_numpy):
    options = ["--kind", "conjugate", "--seed", "5", "--problems", "5"]
    alone = [o.seed for o in work(parse(options))]
    together = parse([*options, "--workers", "2"])
    shares = [[o.seed for o in work(together, worker)] for worker in range(2)]
    assert shares == [alone[::2], alone[1::2]]
    assert sorted(o.seed for o in work_together(together)) == alone


def test_every_kind_has_its_turn(on_numpy):
    turns = [kind for kind, _ in zip(sequence(list(KINDS), 0), range(60), strict=False)]
    assert {kind for kind, _ in turns} == set(KINDS)
    assert len({seed for _, seed in turns}) == len(turns)
